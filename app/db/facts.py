"""Facts: what each event says of each story, in an order that no order of arrival can change."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from app.db.connect import Connection
from app.model import Fact, FactKind


async def add(conn: Connection, facts: Sequence[tuple[int, UUID, int, Fact]]) -> None:
    """Stores (event id, its dedupe key, position in the event, fact)."""
    await conn.executemany(
        """
        insert into facts (event_id, dedupe_key, position, workspace, sc_id, occurred_at, kind,
                           actor, value, value_id, comment_id, parent_comment_id, title, app_url)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
        """,
        [
            (
                event_id,
                dedupe_key,
                position,
                fact.workspace,
                fact.sc_id,
                fact.occurred_at,
                fact.kind,
                fact.actor,
                fact.value,
                fact.value_id,
                fact.comment_id,
                fact.parent_comment_id,
                fact.title,
                fact.app_url,
            )
            for event_id, dedupe_key, position, fact in facts
        ],
    )


async def forget(conn: Connection, event_ids: Sequence[int]) -> None:
    """Takes back what these events said when they were applied before."""
    await conn.execute("delete from facts where event_id = any($1::bigint[])", event_ids)


async def of_story(conn: Connection, workspace: str, sc_id: int) -> list[tuple[int, Fact]]:
    """All that is known of a story, oldest first, each fact with the id of its event.

    Ties are broken by what the sender signed.
    """
    rows = await conn.fetch(
        """
        select event_id, workspace, sc_id, occurred_at, kind, actor, value, value_id, comment_id,
               parent_comment_id, title, app_url
          from facts
         where workspace = $1 and sc_id = $2
         order by occurred_at, dedupe_key, position
        """,
        workspace,
        sc_id,
    )
    return [_told(**row) for row in rows]


def _told(event_id: int, kind: str, **said: Any) -> tuple[int, Fact]:
    return event_id, Fact(kind=FactKind(kind), **said)
