"""Webhooks that were registered from here: Shortcut has no list of them to ask for."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

HOOKS = """
    create table hooks (
        source text primary key,
        integration_id bigint not null,
        retired_id bigint,
        url text not null,
        status text not null default 'alive',
        error text,
        registered_at timestamptz not null default app_clock(),
        checked_at timestamptz,
        next_check_at timestamptz not null default app_clock(),
        constraint hook_status_is_known check (status in ('alive', 'disabled', 'gone'))
    )
"""


def upgrade() -> None:
    op.execute(HOOKS)
