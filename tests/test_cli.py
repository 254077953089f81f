"""The command line as people and scripts use it: real processes, their output and exit codes."""

import asyncio
import base64
import json
import os
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer

from app.cli.main import app
from app.db import gate, look
from app.db.spool import Spooled, SpoolFile
from app.door.spool import FILE
from app.machine import Status
from app.migrate import LATEST
from app.operate import Action
from app.processes import argv
from app.simulator.records import PEOPLE, WORKSPACE_ID
from tests import shapes
from tests.ladder import DRAFT, comment
from tests.office import TOKEN, simulated
from tests.service import SECRET

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def draftgate(database, tmp_path):
    """Runs `draftgate` with these words, in a directory of its own, on the test's database."""
    settings = {
        "DRAFTGATE_DATABASE_URL": database.dsn,
        "DRAFTGATE_LISTEN_DATABASE_URL": database.listen_dsn,
        "DRAFTGATE_DATABASE_STATEMENT_CACHE": str(database.statement_cache_size),
        "COLUMNS": "200",
        "TERM": "dumb",
    }

    async def run(*words, said="", **variables):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DRAFTGATE_")}
        process = await asyncio.create_subprocess_exec(
            *argv(words),
            env={"PYTHONPATH": str(ROOT), **clean, **settings, **variables},
            cwd=tmp_path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(said.encode())
        assert b"Traceback" not in err, err.decode()
        return Done(process.returncode, out.decode(), err.decode())

    return run


async def test_lists_are_tables_or_json(draftgate, ladder):
    """People get a table and how to go on, scripts a document with the same cursor."""
    await ladder.deliver(*(shapes.labelled(story, name="[red]A[/]") for story in (1, 2, 3)))

    table = await draftgate("sessions", "list", "--limit", "2")
    first = (await draftgate("sessions", "list", "--limit", "2", "--json")).json
    rest = (await draftgate("sessions", "list", "--after", first["next"], "--json")).json

    assert "[red]A[/]" in table.out
    assert f"--after {first['next']}" in table.out
    assert [row["sc_id"] for row in first["items"] + rest["items"]] == [3, 2, 1]
    assert rest["next"] is None
    events = (await draftgate("events", "list", "--story", "sc-2", "--json")).json
    assert [row["sc_ids"] for row in events["items"]] == [[2]]
    named = (await draftgate("sessions", "list", "--words", "a", "--limit", "2", "--json")).json
    assert [row["sc_id"] for row in named["items"]] == [3, 2]


async def test_an_action_says_what_it_does_and_asks(draftgate, ladder):
    """A no changes nothing; a yes or --yes does it; the timeline has who did it."""
    await ladder.in_status(Status.FAILED)

    no = await draftgate("sessions", "retry", "1", said="n\n")
    assert "It will be drafted again" in no.out
    assert (no.code, no.err) == (1, "draftgate: called off; nothing was changed\n")
    dry = (await draftgate("sessions", "retry", "1", "--dry-run", "--json")).json
    assert (dry["done"], "It will be drafted again" in dry["plan"]) == (False, True)
    assert (await ladder.session())["status"] == "failed"

    yes = await draftgate("sessions", "retry", "sc-1", said="y\n")
    assert (yes.code, yes.out.strip().endswith("Done.")) == (0, True)
    told = await look.timeline(ladder.conn, (await ladder.session())["id"])
    assert told[-1]["actor"].startswith("operator ")

    again = await draftgate("sessions", "retry", "1", "--yes")
    assert (again.code, again.out) == (1, "")
    assert again.err == "draftgate: sc-1 is clarified. This is for what is failed.\n"
    closed = await draftgate("sessions", "close", "1", "--json", said="y\n")
    assert (closed.json["done"], "Go on?" in closed.err) == (True, True)
    assert (await draftgate("sessions", "reopen", "1", "--yes")).code == 0
    assert (await ladder.session())["status"] == "clarified"


def test_every_answer_can_be_read_by_scripts():
    """What ends with an answer has `--json`; what asks has `--yes`, and `--dry-run` instead."""
    commands = dict(_commands(typer.main.get_command(app)))
    options = {name: {o for p in c.params for o in p.opts} for name, c in commands.items()}

    without = {name for name, known in options.items() if "--json" not in known}
    assert without == {"dev", "serve", "worker", "simulate"}
    acts = {name for name, known in options.items() if "--dry-run" in known}
    asks = {name for name, known in options.items() if "--yes" in known}
    assert acts - asks == {"migrate", "webhook register"}
    assert asks <= acts
    assert {f"sessions {action}" for action in Action} <= asks


def _commands(command, name=""):
    for word, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


async def test_a_session_is_shown(draftgate, ladder):
    """With its timeline, comments and drafts, for people and for scripts."""
    claim = await ladder.claimed()
    await ladder.deliver(shapes.commented(1, minute=5, text="In euros\x1b[31m", comment=9))
    await gate.complete(ladder.conn, claim, DRAFT, comment=comment(claim))

    shown = await draftgate("sessions", "show", "https://app.shortcut.com/acme/story/1/a")
    found = (await draftgate("sessions", "show", "1", "--json")).json

    assert "complete" in shown.out
    assert DRAFT.patch in shown.out
    assert "\x1b[31m" not in shown.out
    assert [claim["ended_by"] for claim in found["claims"]] == ["complete"]
    assert len(found["events"]) == 2


async def test_an_event_is_shown_and_replayed(draftgate, ladder):
    """A replay says what the event was, and what it is about."""
    await ladder.deliver(shapes.labelled(7, label="other"))

    shown = await draftgate("events", "show", "1")
    replayed = await draftgate("events", "replay", "1", "--yes")
    found = (await draftgate("events", "show", "1", "--json")).json

    assert '"changed_at"' in shown.out
    assert "was ignored: the label is not 'patch'. It is about sc-7." in replayed.out
    assert (found["status"], len(found["replays"])) == ("pending", 1)
    assert (await draftgate("events", "replay", "2", "--yes")).code == 1


async def test_what_is_in_quarantine_is_shown_to_the_byte(draftgate, ladder):
    """With its reason; the bytes exactly, in JSON; a replay says why it would change nothing."""
    body = b'\xff\x1b[31m{"half'
    await ladder.record(body)

    listed = await draftgate("events", "list", "--status", "quarantined")
    shown = await draftgate("events", "show", "1")
    found = (await draftgate("events", "show", "1", "--json")).json
    replayed = await draftgate("events", "replay", "1", "--yes")

    assert "not UTF-8" in listed.out
    assert "\x1b" not in shown.out
    assert base64.b64decode(found["body_base64"]) == body
    assert (replayed.code, "not UTF-8" in replayed.out + replayed.err) == (1, True)


async def test_why_is_answered(draftgate, ladder):
    """For a number or a link, and by a story that has no session too."""
    await ladder.deliver(shapes.labelled(7, label="other"))

    said = await draftgate("why", "https://app.shortcut.com/acme/story/7")
    found = (await draftgate("why", "7", "--json")).json
    pointed = await draftgate("sessions", "show", "7")

    assert "the label is not 'patch'" in said.out
    assert [event["status"] for event in found["events"]] == ["ignored"]
    assert (pointed.code, "draftgate why 7" in pointed.err) == (1, True)


async def test_why_names_a_comment_that_was_given_up(draftgate, ladder):
    """With what it was, why, and the command that sends it."""
    await ladder.in_status(Status.DRAFTED)
    await ladder.conn.execute("update outbox set status = 'failed', last_error = '422 of theirs'")

    said = " ".join((await draftgate("why", "1")).out.split())

    assert "draftgate outbox retry 1" in said
    assert "422 of theirs" in said


WRONG = (
    "sessions show -1",
    "sessions show 99999999999999999999",
    "why \uff11",
    "events show 99999999999999999999",
    "events list --after x",
    "purge --older-than 1",
    "sessions list --status gone",
    "webhook register nobody",
)


async def test_a_wrong_argument_is_exit_code_2(draftgate):
    """It is told in a few lines, and nothing is asked of the database."""
    nowhere = {"DRAFTGATE_DATABASE_URL": "postgresql://a@127.0.0.1:1/a"}
    done = await asyncio.gather(*(draftgate(*words.split(" "), **nowhere) for words in WRONG))

    assert [(words, it.code, it.out) for words, it in zip(WRONG, done, strict=True)] == [
        (words, 2, "") for words in WRONG
    ]
    assert all(it.err for it in done)


async def test_what_is_old_and_at_rest_is_purged(draftgate, ladder, conn):
    """Closed sessions go, and events that no session needs; all else stays, what is pending too."""
    await ladder.in_status(Status.CLOSED, 1)
    await ladder.in_status(Status.FAILED, 2)
    await conn.execute("update outbox set status = 'sent', sent_at = now()")
    await ladder.deliver(shapes.labelled(3, label="other"))
    await ladder.record(shapes.labelled(4, label="other"))
    await conn.execute("update events set received_at = received_at - interval '91 days'")
    await conn.execute("update patch_sessions set updated_at = updated_at - interval '91 days'")
    await ladder.deliver(shapes.labelled(5, label="other"))
    await conn.execute("update events set status = 'pending' where id = 5")

    refused = await draftgate("purge", said="n\n")
    assert await conn.fetchval("select count(*) from events") == 6
    purged = await draftgate("purge", "--yes", "--json")

    assert "will be deleted" in refused.out
    assert purged.json == {"sessions": 1, "events": 3}
    left = await conn.fetch("select id from events order by id")
    assert [row["id"] for row in left] == [3, 5, 6]
    assert await conn.fetchval("select array_agg(sc_id) from patch_sessions") == [2]
    assert await conn.fetchval("select array_agg(distinct session_id) from timeline") == [2]


async def test_what_is_owed_is_not_purged(draftgate, ladder, conn):
    """A closed session stays until its comments are sent."""
    claim = await ladder.claimed()
    await gate.complete(conn, claim, DRAFT, comment=comment(claim))
    await ladder.deliver(shapes.archived(1, minute=9))
    await conn.execute("update patch_sessions set updated_at = updated_at - interval '91 days'")

    assert (await draftgate("purge", "--yes", "--json")).json["sessions"] == 0

    await conn.execute("update outbox set status = 'sent', sent_at = now()")
    assert (await draftgate("purge", "--yes", "--json")).json["sessions"] == 1


GOOD = {
    "DRAFTGATE_SHORTCUT_SECRETS": SECRET,
    "DRAFTGATE_DRAFTER_COMMAND": f"{sys.executable} draft.py",
}


def graded(done):
    """The grade of each check."""
    return {found["check"]: found["grade"] for found in done.json["findings"]}


async def test_the_settings_in_force_are_shown(draftgate):
    """For people and for scripts: value, origin and default; of a secret only that it is set."""
    given = {
        **GOOD,
        "DRAFTGATE_DRAFTER_COMMAND": f"draft --key {SECRET}",
        "DRAFTGATE_API_TOKEN": "",
    }

    table = await draftgate("settings", **given)
    done = await draftgate("settings", "--json", **given)

    found = {setting["variable"]: setting for setting in done.json}
    assert found["DRAFTGATE_SHORTCUT_SECRETS"]["value"] == "1 set, not shown"
    assert found["DRAFTGATE_DRAFTER_COMMAND"]["value"] == "draft …"
    assert found["DRAFTGATE_DRAFTER_COMMAND"]["origin"] == "the environment"
    assert found["DRAFTGATE_API_TOKEN"]["value"] is None
    assert found["DRAFTGATE_LEASE_SECONDS"]["origin"] == "default"
    assert "DRAFTGATE_LEASE_SECONDS" in table.out
    assert SECRET not in table.out + done.out


async def test_the_doctor_finds_nothing_at_fault(draftgate, tmp_path):
    """With what is needed all is well: exit 0; where each setting came from is told, no value."""
    (tmp_path / ".env").write_text("DRAFTGATE_TRIGGER_LABEL=draft\n")

    done = await draftgate("doctor", "--json", **GOOD)

    assert done.code == 0, done.out
    assert "fault" not in graded(done).values()
    assert graded(done)["schema"] == "ok"
    assert done.json["settings"]["DRAFTGATE_TRIGGER_LABEL"] == "the file .env"
    assert done.json["settings"]["DRAFTGATE_SHORTCUT_SECRETS"] == "the environment"
    assert SECRET not in done.out
    assert SECRET not in (await draftgate("doctor", **GOOD)).out


async def test_the_doctor_has_a_mend_for_every_fault(draftgate, tmp_path):
    """Each thing that is wrong is found, graded, and comes with what to do: exit 1."""
    (tmp_path / "a-file").touch()
    wrong = {
        "DRAFTGATE_DATABASE_URL": "postgresql://a:hidden-word@127.0.0.1:1/a",
        "DRAFTGATE_DRAFTER_COMMAND": "no-such-program --now",
        "DRAFTGATE_REPOSITORY": str(tmp_path / "nowhere"),
        "DRAFTGATE_SHORTCUT_API_TOKEN": "not-to-be-shown",
        "DRAFTGATE_SHORTCUT_API_URL": "http://127.0.0.1:1/api/v3",
        "DRAFTGATE_SPOOL_DIR": str(tmp_path / "a-file" / "spool"),
        "DRAFTGATE_TRIGGER_LABEL": "",
        "DRAFTGATE_TRIGGER_ASSIGNED": "false",
        "DRAFTGATE_TRIGGER_MENTIONED": "false",
        "DRAFTGATE_TRIGER_OWNER": "ada",
    }

    done = await draftgate("doctor", "--json", **wrong)

    assert done.code == 1
    faults = {check for check, grade in graded(done).items() if grade == "fault"}
    assert faults == {
        *("webhook secret", "triggers", "drafter", "spool", "database", "repository", "Shortcut")
    }
    findings = done.json["findings"]
    assert all(found["mend"] for found in findings if found["grade"] != "ok")
    assert findings[0]["mend"] == "Write DRAFTGATE_TRIGGER_OWNER."
    assert not [word for word in ("hidden-word", "not-to-be-shown") if word in done.out]


async def test_the_doctor_looks_into_the_spool(draftgate, tmp_path):
    """What waits in it, or that it can't be used, is told; looking makes no file."""
    spool = tmp_path / "spool"
    found = {**GOOD, "DRAFTGATE_SPOOL_DIR": str(spool), "DRAFTGATE_SPOOL_LIMIT_BYTES": "1048576"}
    await draftgate("doctor", **found)
    assert not spool.exists()

    waiting = Spooled(source="shortcut", body=b"{}", headers="{}", received_at=datetime.now(UTC))
    with closing(SpoolFile(spool / FILE, limit_bytes=1 << 20)) as file:
        file.append([waiting])
    holding = await draftgate("doctor", **found)
    (spool / FILE).write_bytes(b"this is no database" * 1000)
    broken = await draftgate("doctor", **found)

    assert (holding.code, "1 deliveries wait, since " in holding.out) == (0, True)
    assert (broken.code, "Its file can't be used" in broken.out) == (1, True)


async def test_the_doctor_tells_of_what_was_given_up(draftgate, conn):
    """A comment that no try could post is a warning, with its error and what helps."""
    await conn.execute(
        "insert into patch_sessions (workspace, sc_id, status, decided_at, heard_at)"
        " values ('w', 1, 'drafted', now(), now())"
    )
    await conn.execute(
        "insert into outbox (session_id, key, kind, text, status, last_error)"
        " values (1, 'k', 'draft', 'Some text', 'failed', 'Shortcut answered 422')"
    )

    done = await draftgate("doctor", "--json", **GOOD)

    assert graded(done)["outbox"] == "warning"
    assert "Shortcut answered 422" in done.out


async def test_the_doctor_knows_an_old_schema(draftgate, conn):
    """A schema of another version is a fault, with the command that mends it."""
    await conn.execute("update alembic_version set version_num = '0000'")

    done = await draftgate("doctor", **GOOD)

    assert (done.code, "draftgate migrate" in done.out) == (1, True)


async def test_a_newer_version_s_schema_is_left_alone(draftgate, conn):
    """It is exit 3, and to migrate is not what helps."""
    await conn.execute("update alembic_version set version_num = '9999'")

    for words in ("sessions list", "migrate", "migrate --dry-run", "serve --migrate --port 0"):
        done = await draftgate(*words.split())
        assert (done.code, done.out) == (3, ""), words
    assert "run the version that made it" in (await draftgate("migrate", "--dry-run")).err
    assert await conn.fetchval("select version_num from alembic_version") == "9999"


async def test_the_doctor_says_which_setting_is_wrong(draftgate):
    """A setting that can't be read is exit 2, as always, and what else is odd is told."""
    done = await draftgate("doctor", DRAFTGATE_LEASE_SECONDS="no", DRAFTGATE_LEAS_SECONDS="9")

    assert done.code == 2
    assert "DRAFTGATE_LEASE_SECONDS" in done.out
    assert "DRAFTGATE_LEAS_SECONDS is no setting" in done.out


async def test_a_misspelt_variable_is_told_at_the_start(draftgate):
    """A process that starts says which of its variables do nothing."""
    done = await draftgate("migrate", "--dry-run", DRAFTGATE_TRIGER_LABEL="x")

    assert (done.code, f"would be brought to {LATEST}" in done.out) == (0, True)
    assert "DRAFTGATE_TRIGER_LABEL" in done.out + done.err


async def test_a_shell_can_complete_commands():
    """Completion is there for the usual shells, of commands as well as of options."""
    process = await asyncio.create_subprocess_exec(
        ROOT / ".venv/bin/draftgate",
        env={
            **os.environ,
            "_DRAFTGATE_COMPLETE": "complete_bash",
            "COMP_WORDS": "draftgate sess",
            "COMP_CWORD": "1",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()

    assert out.split() == [b"sessions"]


async def test_what_was_never_delivered_is_found_by_command(draftgate, conn):
    """Since a time that one says, and from then on since the last time."""
    async with simulated() as (simulation, url):
        story = simulation.workspace.create_story(PEOPLE[0], {"name": "Export"})
        simulation.workspace.update_stories(PEOPLE[0], [story.id], {}, labels_add=["patch"])
        api = {
            **GOOD,
            "DRAFTGATE_SHORTCUT_API_URL": url,
            "DRAFTGATE_SHORTCUT_API_TOKEN": TOKEN,
        }

        never = await draftgate("reconcile", **api)
        found = await draftgate("reconcile", "--since", "2020-01-01", "--json", **api)
        again = await draftgate("reconcile", "--json", **api)

    assert (never.code, "say --since when" in never.err) == (1, True)
    assert found.json == [{"workspace": WORKSPACE_ID, "stories": 1, "events": 2, "more": False}]
    assert again.json == [{"workspace": WORKSPACE_ID, "stories": 1, "events": 0, "more": False}]
    assert await conn.fetchval("select count(*) from events where status = 'pending'") == 2


async def test_without_a_token_nothing_can_be_found(draftgate):
    """It says what is missing."""
    done = await draftgate("reconcile", "--since", "2020-01-01", **GOOD)

    assert (done.code, "no workspace has an API token" in done.err) == (1, True)


async def test_a_muted_story_is_let_go_on_by_command(draftgate, ladder):
    """It says what it will do; a story that is not muted is refused."""
    await ladder.clarified()
    refused = await draftgate("sessions", "unmute", "1", "--yes")
    await ladder.conn.execute("update patch_sessions set muted_at = now()")

    done = await draftgate("sessions", "unmute", "1", "--yes")

    assert (refused.code, "is not muted" in refused.err) == (1, True)
    assert (done.code, "What is owed to it will be sent" in done.out) == (0, True)
    assert (await ladder.session())["muted_at"] is None
