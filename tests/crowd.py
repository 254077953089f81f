"""Much of everything, as a database has it after a while."""

from app.db.connect import Connection

MANY = 20_000
BIG = (
    *("patch_sessions", "events", "facts", "outbox", "timeline"),
    *("conversation", "drafts", "late_results", "replays"),
)
MANY_EVENTS = """
    insert into events (source, dedupe_key, kind, body, status, reason, received_at)
    select 'shortcut', gen_random_uuid(), 'v1', '{}',
           case when n % 5000 = 0 then 'failed' else 'applied' end, 'so it is',
           now() - ($1 - n) * interval '1 minute'
      from generate_series(1, $1::int) as n
"""


async def crowd(conn: Connection) -> None:
    """Fills the big tables with far more rows than one would read."""
    await conn.execute(
        """
        insert into patch_sessions (workspace, sc_id, title, status, decided_at, heard_at,
                                    last_error, updated_at)
        select 'shortcut', n, 'Export ' || n,
               case when n % 5000 = 0 then 'failed' else 'drafted' end, now(), now(), 'it broke',
               now() - n * interval '1 second'
          from generate_series(1, $1::int) as n
        """,
        MANY,
    )
    await conn.execute(MANY_EVENTS, MANY)
    await conn.execute(
        """
        insert into facts (event_id, position, dedupe_key, workspace, sc_id, occurred_at, kind)
        select id, 0, dedupe_key, 'shortcut', id, received_at, 'touched' from events
        """
    )
    await conn.execute(
        """
        insert into outbox (session_id, key, kind, text, status, last_error, sent_at)
        select id, id::text, 'draft', '',
               case when id % 5000 = 0 then 'failed' when id % 100 = 1 then 'pending'
                    else 'sent' end,
               'it broke', case when id % 5000 = 0 or id % 100 = 1 then null else now() end
          from patch_sessions
        """
    )
    await conn.execute(
        """
        insert into timeline (session_id, move, status, generation)
        select id, 'open', 'opened', 0 from patch_sessions
        """
    )
    await conn.execute(
        """
        insert into conversation (session_id, comment_id, text, said_at, as_of)
        select id, id, 'words', now(), now() from patch_sessions
        """
    )
    await conn.execute(
        """
        with made as (insert into drafts (session_id, revision, generation, summary, patch)
                      select id, 1, 1, '', '' from patch_sessions returning session_id)
        insert into late_results (session_id, generation, summary, patch)
        select session_id, 1, '', '' from made
        """
    )
    await conn.execute(
        "insert into replays (event_id, nonce, actor) select id, 'n', 'operator' from events"
    )
    for table in BIG:
        await conn.execute(f"vacuum analyze {table}")
