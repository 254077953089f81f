"""What people look at, with much of everything: each page of the console, and lists of the API."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import httpx

from benchmarks import servers
from benchmarks.bench import Bench
from benchmarks.database import sql

TOKEN = "a token of the benchmark"
ROUNDS = 5
#: Longer than the overview is shared for.
PAUSE_SECONDS = 0.5
LIMIT_MS = 200

#: A statement for each table; $1 is how many sessions, with ten events each. The first one has as
#: much as a page can show.
FILL = (
    """
    insert into patch_sessions
        (workspace, sc_id, title, status, decided_at, heard_at, last_error, revision, updated_at)
    select 'shortcut', n, 'Export number ' || n || (array[' invoices', ' reports'])[1 + n % 2],
           case when n % 50 = 0 then 'failed' when n % 50 = 1 then 'clarified'
                when n % 3 = 0 then 'closed' else 'drafted' end,
           now(), now(), 'the drafter exited with 1', 1, now() - n * interval '1 second'
      from generate_series(1, $1::bigint) as n
    """,
    """
    insert into events (source, dedupe_key, event_id, kind, body, status, reason, received_at,
                        headers, next_attempt_at)
    select 'shortcut', gen_random_uuid(), n::text, 'v1', convert_to(repeat('{"id": 1} ', 80),
           'UTF8'), case when n % 5000 = 0 then 'failed' when n % 200 = 1 then 'pending'
                         when n % 10 = 0 then 'applied' else 'ignored' end,
           'the label is not the one', now() - ($1 * 10 - n) * interval '1 second',
           '{"user-agent": "x"}', now()
      from generate_series(1, $1::bigint * 10) as n
    """,
    """
    insert into facts (event_id, position, dedupe_key, workspace, sc_id, occurred_at, kind)
    select id, 0, dedupe_key, 'shortcut', case when id % 500 = 0 then 1 else 1 + id % $1 end,
           received_at, 'touched' from events where $1::bigint > 0
    """,
    """
    insert into timeline (session_id, move, status, generation, actor, reason)
    select case when n % 1000 = 0 then 1 else 1 + n % $1::bigint end,
           (array['open', 'clear', 'claim', 'release', 'claim', 'complete'])[1 + n / $1],
           'drafting',
           n / $1, 'worker', 'so it is'
      from generate_series(0, $1::bigint * 6 - 1) as n
    """,
    """
    insert into drafts (session_id, revision, generation, summary, patch)
    select id, 1, 1, 'A summary',
           E'diff --git a/a b/a\\n--- a/a\\n+++ b/a\\n@@ -0,0 +1,9999 @@\\n'
           || repeat(E'+a line of a patch\\n', case id when 1 then 5000 else 50 end)
      from patch_sessions where $1::bigint > 0
    """,
    """
    insert into conversation (session_id, comment_id, author, text, said_at, as_of)
    select case when n % 200 = 0 then 1 else 1 + n % $1::bigint end, n, 'Ada',
           repeat('words ', 30), now(), now()
      from generate_series(1, $1::bigint * 2) as n
    """,
    """
    insert into outbox (session_id, key, kind, text, status, last_error, sent_at)
    select 1 + n % $1::bigint, n::text, 'draft', 'A text',
           case when n % 500 = 0 then 'failed' when n % 100 = 1 then 'pending' else 'sent' end,
           'refused', case when n % 500 = 0 or n % 100 = 1 then null else now() end
      from generate_series(1, $1::bigint * 2) as n
    """,
    "vacuum analyze",
)


def run(bench: Bench) -> None:
    """How long each page takes, and the one that takes longest."""
    count = bench.scale.shown_sessions
    with bench.database("pages") as dsn:
        for statement in FILL:
            sql(dsn, statement, *([count] if "$1" in statement else []))
        console = servers.draftgate(dsn, bench.home, "console", DRAFTGATE_API_TOKEN=TOKEN)
        with console as server, _client(server.port) as client:
            paths = _paths(client, count)
            found: dict[str, list[float]] = {name: [] for name in paths}
            for _ in range(ROUNDS):
                for name, path in paths.items():
                    found[name].append(_ms(client, path))
                time.sleep(PAUSE_SECONDS)
    for name, values in found.items():
        bench.figures.add(f"page/{name}", "ms", values)
    slowest = max(statistics.median(values) for values in found.values())
    bench.figures.stay("slowest_page", slowest, most=LIMIT_MS, unit="ms")


def _paths(client: httpx.Client, count: int) -> dict[str, str]:
    """What is looked at; a list also from its middle on."""
    middle = client.get(f"/api/v1/sessions?story={count // 2}").json()["items"][0]
    at = int(_seconds(middle["updated_at"]) * 1_000_000)
    later = f"after={at}-{middle['id']}"
    events, rare = count * 10, f"number+{count // 2}"
    pages = {
        "overview": "",
        "sessions": "sessions",
        "sessions, from the middle": f"sessions?{later}",
        "sessions, failed, from the middle": f"sessions?status=failed&{later}",
        "sessions, a number": f"sessions?story={count // 2}",
        "sessions, a rare word": f"sessions?story={rare}",
        "sessions, a word of half": "sessions?story=invoices",
        "sessions, a word of all, from the middle": f"sessions?story=export&{later}",
        "sessions, two words never together": "sessions?story=invoices+reports",
        "session": f"sessions/{count // 2}",
        "session, as long as can be": "sessions/1?view=split",
        "draft": f"sessions/{count // 2}/drafts/1",
        "events": "events",
        "events, from the middle": f"events?after={events // 2}",
        "events, ignored, from the middle": f"events?status=ignored&after={events // 2}",
        "events, failed": "events?status=failed",
        "events of a story": f"events?story={count // 2}",
        "event": f"events/{events // 2}",
        "outbox": "outbox",
        "outbox, failed, from the middle": f"outbox?status=failed&after={count}",
        "comment": f"outbox/{count}",
        "why, drafted": f"why?story={count // 2 + 2}",
        "why, of the longest": "why?story=1",
        "why, never heard of": f"why?story={count * 7}",
        "settings": "settings",
    }
    shown = {name: f"/console/{path}" for name, path in pages.items()}
    return shown | {"figures of a week (API)": "/api/v1/stats?window=week"}


@contextmanager
def _client(port: int) -> Iterator[httpx.Client]:
    """One who has signed in."""
    address = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        client.post("/console/login", data={"token": TOKEN, "name": "bench"})
        yield client


def _ms(client: httpx.Client, path: str) -> float:
    start = time.perf_counter()
    answer = client.get(path)
    seconds = time.perf_counter() - start
    if answer.status_code != 200:
        raise RuntimeError(f"{path} is {answer.status_code}")
    return seconds * 1000


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
