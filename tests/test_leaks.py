"""What the service says of itself: no secret, no story, and no line that somebody else wrote."""

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from app.settings import Settings
from app.shortcut.signature import sign
from app.simulator.records import PEOPLE
from app.web import create_app
from tests import shapes
from tests.locks import until
from tests.service import receiver
from tests.stack import stack

FORGED = "\r\n2026-01-01T00:00:00Z [critical ] forged"
HOSTILE = ("\x1b[2J\x1b]0;pwn\x07", "\u2028forged", "\x9b31m", "\x00", FORGED)
TITLE = "Marmalade export"


@pytest.mark.parametrize("log_format", ["json", "console"])
async def test_the_log_has_no_secret_no_story_and_no_forged_line(
    database, conn, tmp_path, log_format
):
    """A story drafted, and everything hostile that a stranger can send: one line for each event."""
    async with stack(database, tmp_path) as it:
        it.settings |= {"DRAFTGATE_LOG_FORMAT": log_format, "DRAFTGATE_POLL_SECONDS": "0.2"}
        it.settings["DRAFTGATE_TRUSTED_PROXIES"] = "127.0.0.1"
        it.drafter = ("sh", "-c", f"echo '{TITLE}'; printf '\\033[2J' >&2; exit 1")
        fd = it.trial.service.fileno()
        await it.start("serve", "--fd", str(fd), fd=fd)
        person = PEOPLE[0]
        text = TITLE + "".join(HOSTILE[:3])
        story = it.simulation.workspace.create_story(person, {"name": text, "description": text})
        it.simulation.workspace.update_stories(person, [story.id], {}, labels_add=["patch"])
        failed = "select exists (select from patch_sessions where last_error is not null)"
        await until(lambda: conn.fetchval(failed))
        async with httpx.AsyncClient(base_url=it.trial.service_url, timeout=60) as client:
            await _everything_hostile(client, it.trial.secret)
    log = it.log()

    secret, body = it.trial.secret, shapes.labelled(1)
    for leak in (secret, it.trial.token, database.dsn, TITLE, sign(secret.encode(), body)):
        assert leak not in log
    assert [c for c in log if not c.isprintable() and c != "\n"] == []
    assert "delivery.rejected" in log
    lines = log.splitlines()
    if log_format == "json":
        assert all(json.loads(line)["event"] for line in lines)
    else:
        assert [line for line in lines if not re.match(r"20\d\d-\S+Z \[\w+ *\] ", line)] == []
    assert not any("critical" in line for line in lines)


async def _everything_hostile(client: httpx.AsyncClient, secret: str) -> None:
    for hostile in HOSTILE:
        value = hostile.encode("utf-8")
        # What HTTP itself lets through.
        header = b"x%sx" % re.sub(rb"[\r\n\0]", b" ", value)
        headers = {name: header for name in (b"User-Agent", b"X-Forwarded-For", b"X-Request-Id")}
        await client.post(f"/webhooks/shortcut/{quote(hostile)}", content=b"{}", headers=headers)
        await client.get(f"/{quote(hostile)}?{quote(hostile)}", headers=headers)
        await client.post("/webhooks/shortcut", content=shapes.labelled(1), headers=headers)
        title = shapes.labelled(9, name=TITLE + hostile)
        for body in (title, b'{"' + value + b'":' + TITLE.encode()):
            headers[b"Payload-Signature"] = sign(secret.encode(), body).encode()
            await client.post("/webhooks/shortcut", content=body, headers=headers)


async def test_a_refusal_repeats_nothing(database):
    """A problem says what is wrong, and neither what was sent nor what was expected."""
    marker = "marmalade"
    body = b'{"x": ' + marker.encode()
    async with receiver(database) as service:
        answers = [
            await service.post(body),
            await service.client.post("/webhooks/shortcut", content=body),
            await service.client.post(f"/webhooks/shortcut/{marker}", content=body),
            await service.client.get(f"/{marker}?{marker}"),
            await service.client.request("BREW", f"/livez?{marker}"),
        ]

    expected = sign(b"a secret of tests only", body)
    for answer in answers:
        assert 400 <= answer.status_code < 500
        assert answer.json()["code"]
        assert marker not in answer.text
        assert expected not in answer.text


async def test_an_error_of_ours_shows_nothing_of_itself():
    """Whatever is wrong in here, the answer is a plain problem: no text of the error, no place."""

    class Broken:
        def acquire(self, **_):
            raise RuntimeError("postgresql://draftgate:hidden-word@db/draftgate")

    app = create_app(Settings(_env_file=None), pool=Broken(), recorder=None, draining=lambda: False)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.get("/readyz")

    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert not [word for word in ("hidden", "RuntimeError", "File") if word in answer.text]


async def test_the_description_has_the_webhook_and_no_page(database):
    """/openapi.json tells of deliveries, with an example; no page loads what others serve."""
    async with receiver(database) as service:
        described = (await service.client.get("/openapi.json")).json()
        pages = [await service.client.get(path) for path in ("/docs", "/redoc")]

    operation = described["paths"]["/webhooks/shortcut"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["example"]["version"] == "v1"
    assert {"200", "202", "400", "401", "413", "503"} <= operation["responses"].keys()
    assert [page.status_code for page in pages] == [404, 404]


SAYS = """
import logging, sys
import structlog
from app import logs

logs.configure(log_format=sys.argv[1], level="info")
log = structlog.get_logger()
hostile, secret = sys.argv[2:]
log.info("told", value=hostile, several=[hostile])
logging.getLogger("other").warning("said %s", hostile)
try:
    raise ValueError(hostile)
except ValueError:
    log.exception("broken")
"""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_value_makes_a_line_or_steers_a_terminal(log_format):
    """Whatever is logged, by us or a library; an exception tells nothing of what its frame held."""
    hostile = "".join(HOSTILE).replace("\0", "")
    ran = subprocess.run(
        [sys.executable, "-c", SAYS, log_format, hostile, "marmalade"],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    log = ran.stderr.decode()

    assert [c for c in log if not c.isprintable() and c != "\n"] == []
    lines = log.splitlines()
    assert [line for line in lines if line.startswith("2026-01-01")] == []
    assert sum("forged" in line for line in lines) >= 3
    assert "marmalade" not in log
