"""Facts: what each event says of each story, in an order that no order of arrival can change."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from app.db.connect import Connection
from app.db.events import if_any
from app.model import Fact, FactKind

#: What was said before goes first, which the count of it sees to.
_REPLACE = """
    with forgotten as (
        delete from facts where event_id = any($1::bigint[]) returning event_id
    )
    insert into facts (event_id, dedupe_key, position, workspace, sc_id, occurred_at, kind,
                       actor, value, value_id, comment_id, parent_comment_id, title, app_url)
    select * from unnest($2::bigint[], $3::uuid[], $4::int[], $5::text[], $6::bigint[],
                         $7::timestamptz[], $8::text[], $9::text[], $10::text[], $11::text[],
                         $12::bigint[], $13::bigint[], $14::text[], $15::text[])
     where (select count(*) from forgotten) >= 0
"""
_COLUMNS = 14


async def replace(
    conn: Connection,
    event_ids: Sequence[int],
    facts: Sequence[tuple[int, UUID, int, Fact]],
) -> None:
    """Stores what these events say: (event id, its dedupe key, position in the event, fact).

    What they said when they were applied before is taken back.
    """
    rows = [
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
    ]
    columns = list(zip(*rows, strict=True)) if rows else [()] * _COLUMNS
    await conn.execute(_REPLACE, event_ids, *map(if_any, columns))


async def of_stories(
    conn: Connection, stories: Collection[tuple[str, int]]
) -> dict[tuple[str, int], list[tuple[int, Fact]]]:
    """All that is known of these stories, oldest first, each fact with the id of its event.

    Ties are broken by what the sender signed.
    """
    rows = await conn.fetch(
        """
        select event_id, workspace, sc_id, occurred_at, kind, actor, value, value_id, comment_id,
               parent_comment_id, title, app_url
          from unnest($1::text[], $2::bigint[]) as story (workspace, sc_id)
          join facts using (workspace, sc_id)
         order by occurred_at, dedupe_key, position
        """,
        *zip(*stories, strict=True),
    )
    known: dict[tuple[str, int], list[tuple[int, Fact]]] = {story: [] for story in stories}
    for row in rows:
        known[row["workspace"], row["sc_id"]].append(_told(**row))
    return known


def _told(event_id: int, kind: str, **said: Any) -> tuple[int, Fact]:
    return event_id, Fact(kind=FactKind(kind), **said)
