"""What the documents say is what the code does."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from app.cli.main import app
from app.machine import as_mermaid
from app.main import LAST_SECONDS
from app.settings import PREFIX, Settings, strangers

ROOT = Path(__file__).parent.parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OURS = {name: it for name, it in COMPOSE["services"].items() if it["image"] == "draftgate"}
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))


def shown(default: object) -> str:
    """A default as the table shows it."""
    if default in (None, (), "", {}):
        return ""
    if isinstance(default, tuple):
        default = ",".join(default)
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def settings_table() -> str:
    """The README's table of settings, made from the code."""
    rows = [
        f"| `{PREFIX}{name.upper()}` | {shown(field.default)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(["| variable | default | meaning |", "| --- | --- | --- |", *rows])


def test_the_readme_lists_every_setting():
    """Each variable with its default and its meaning, as the code has them."""
    assert settings_table() in README


def test_the_drawing_is_made_from_the_table():
    """docs/design.md shows the state machine as it is."""
    assert as_mermaid() in (ROOT / "docs" / "design.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    """Every relative link in a document leads to a file that is there."""
    links = re.findall(r"\]\((?!https?://|#|shortcutapp:)([^)#\s]+)", document.read_text())

    missing = [link for link in links if not (document.parent / link).exists()]

    assert missing == []


def test_the_commands_of_the_readme_exist():
    """What the README tells people to type is there: make targets and subcommands."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`make ([a-z]+)", README))
    commands = set(re.findall(r"`draftgate ([a-z]+)", README))
    known = subprocess.run(
        [ROOT / ".venv/bin/draftgate", "--help"], capture_output=True, text=True, check=True
    ).stdout

    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    assert [command for command in commands if f" {command} " not in known] == []


@pytest.mark.parametrize("service", OURS)
def test_compose_says_what_the_code_knows(service):
    """Every variable of a service is a setting, and its command is one that is taken."""
    program, command, *arguments = OURS[service]["command"]

    get_command(app).commands[command].make_context(command, arguments)

    assert program == "draftgate"
    assert strangers(OURS[service]["environment"]) == {}


@pytest.mark.parametrize("service", OURS)
def test_compose_trusts_no_proxy_where_others_can_be_taken_for_one(service):
    """Whoever comes by a published port has an address of the network that the proxy is in."""
    trusted = bool(OURS[service]["environment"]["DRAFTGATE_TRUSTED_PROXIES"])

    assert not (trusted and "ports" in OURS[service])


def test_compose_waits_for_the_whole_shutdown():
    """A container is killed only after the grace and what comes after it."""
    grace_seconds = Settings.model_fields["shutdown_grace_seconds"].default + LAST_SECONDS

    assert int(COMPOSE["x-service"]["stop_grace_period"].removesuffix("s")) > grace_seconds
