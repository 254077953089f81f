"""The console's pages over a workspace in which every text is hostile."""

from datetime import timedelta

from app.db import events, gate
from app.db.connect import Connection
from app.model import Draft
from app.shortcut.envelope import read
from tests import shapes
from tests.ladder import Ladder, comment

TOKEN = "a token of tests only, \u00fc"
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><svg onload=alert(1)>"
    "</pre></textarea>{{7*7}}\x1b[31m\u202egnp.exe\u2028[x](javascript:alert(1)) " + "w" * 300
)
PATCH = """diff --git a/a.txt b/a.txt
index 1..2 100644
--- a/a.txt
+++ b/a.txt
@@ -1,3 +1,3 @@ <b>heading</b>
 same
-old <script>alert(1)</script>
+new <img src=x onerror=alert(1)>
 same
diff --git a/<svg onload=alert(1)> b/<svg onload=alert(1)>
new file mode 100644
--- /dev/null
+++ b/<svg onload=alert(1)>
@@ -0,0 +1 @@
+--- not a header
\\ No newline at end of file
"""


async def hostile_pages(ladder: Ladder, conn: Connection) -> list[str]:
    """Makes the workspace; all pages that show something of it, below `/console/`."""
    drafted, failed = await _sessions(ladder, conn)
    headers = [(name, HOSTILE.encode()) for name in (b"user-agent", b"x-request-id")]
    broken = b'{"id": "\xff\x00</pre><script>alert(1)</script>'
    await events.record(conn, [read("shortcut", broken, headers)])
    await ladder.apply()
    await conn.execute(
        "update outbox set status = 'failed', text = $1, last_error = $1 where id = 1", HOSTILE
    )
    await conn.execute(
        "insert into installations (workspace, slug, access, status, scope, error)"
        " values ('w', $1, '', 'revoked', $1, $1)",
        HOSTILE,
    )
    await conn.execute(
        "insert into hooks (source, integration_id, url, status, error)"
        " values ('shortcut', 1, $1, 'gone', $1)",
        HOSTILE,
    )
    await conn.execute("update patch_sessions set muted_at = now() where sc_id = 1")
    await events.replay(conn, 1, nonce="n", actor=HOSTILE)
    numbers = await conn.fetch("select id from events order by id")
    session = f"sessions/{drafted}"
    return [
        *("", "login?next=<script>", "sessions", "sessions?story=<script>", "events"),
        *(session, f"{session}?view=split", f"{session}/late/1", f"sessions/{failed}"),
        *(f"{session}/drafts/1", f"{session}/drafts/1?view=split", f"{session}/late/1?view=split"),
        *("events/1", f"events/{numbers[-1]['id']}"),
        *("outbox", "outbox/1", "outbox?status=failed", "sessions?status=failed", "settings"),
        *("installations", "installations/disconnect?workspace=w"),
        *("why", "why?story=1", "why?story=2", "why?story=3"),
        *(f"sessions/{failed}/retry", f"{session}/adopt?generation=1", f"{session}/close"),
        *("events/1/replay", f"events/{numbers[-1]['id']}/replay", "outbox/1/retry"),
    ]


async def _sessions(ladder: Ladder, conn: Connection) -> tuple[int, int]:
    """One that was drafted, after a late result, and one that failed; their numbers."""
    late = await ladder.claimed(1, worker=HOSTILE)
    await gate.release(conn, late, error=HOSTILE, delay=timedelta(0), failed=True)
    made = Draft(summary=HOSTILE, patch=PATCH)
    await gate.keep_late_result(conn, late, made)
    await ladder.deliver(
        shapes.renamed(1, minute=2, title=HOSTILE),
        shapes.commented(1, minute=3, text=HOSTILE, comment=31, author=HOSTILE[:60]),
        shapes.labelled(2, minute=4, name=HOSTILE, app_url="javascript:alert(1)"),
    )
    claim = await ladder.claim(1, worker=HOSTILE)
    await gate.complete(conn, claim, made, comment=comment(claim))
    failed = await ladder.claim(2, worker=HOSTILE)
    await gate.fail(conn, failed, error=HOSTILE, comment=comment(failed, "failure"))
    return claim.session_id, failed.session_id
