"""Workspaces that have installed the agent app, with their tokens, which are encrypted."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    create table installations (
        workspace text primary key,
        slug text not null,
        member_id text,
        scope text,
        access bytea not null,
        refresh bytea,
        expires_at timestamptz,
        refresh_at timestamptz,
        generation bigint not null default 1,
        refreshing_until timestamptz not null default '-infinity',
        status text not null default 'active',
        error text,
        installed_at timestamptz not null default app_clock(),
        refreshed_at timestamptz not null default app_clock(),
        constraint installation_status_is_known check (status in ('active', 'revoked'))
    )
    """,
    # A link that an operator was given, until somebody comes back by it.
    """
    create table oauth_states (
        hash bytea primary key,
        verifier bytea not null,
        created_at timestamptz not null default app_clock()
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
