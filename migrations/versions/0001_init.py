"""The whole first schema: events, facts, sessions and what hangs on them."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

STATEMENTS = (
    # One clock. STABLE, or an index condition on it becomes a filter; tests set draftgate.now.
    """
    create function app_now() returns timestamptz language sql stable parallel safe as $$
        select coalesce(nullif(current_setting('draftgate.now', true), '')::timestamptz,
                        statement_timestamp())
    $$
    """,
    # The wall clock, for what is stamped after a row lock may have been waited for.
    """
    create function app_clock() returns timestamptz language sql volatile as $$
        select coalesce(nullif(current_setting('draftgate.now', true), '')::timestamptz,
                        clock_timestamp())
    $$
    """,
    """
    create table events (
        id bigint generated always as identity primary key,
        source text not null,
        dedupe_key uuid not null,
        event_id text,
        kind text not null,
        occurred_at timestamptz,
        received_at timestamptz not null default app_now(),
        headers text not null default '{}',
        body bytea not null,
        status text not null default 'pending',
        reason text,
        attempts integer not null default 0,
        next_attempt_at timestamptz not null default app_now(),
        to_read boolean not null default false,
        constraint events_are_recorded_once unique (source, dedupe_key),
        constraint events_status_is_known check
            (status in ('pending', 'applied', 'ignored', 'quarantined', 'failed')),
        constraint events_end_with_a_reason check (status = 'pending' or reason is not null)
    ) with (autovacuum_vacuum_scale_factor = 0.05)
    """,
    # Two queues: what can be applied, and what needs the API first.
    """
    create index events_pending on events (to_read, next_attempt_at, id) where status = 'pending'
    """,
    # For people: finished events by status, and all by time. The door pays next to nothing for
    # them: what it writes is pending, and a block range index is touched once in many rows.
    "create index events_finished on events (status, id) where status <> 'pending'",
    """
    create index events_by_time on events using brin (received_at)
        with (pages_per_range = 32, autosummarize = on)
    """,
    # Who had an event interpreted again; the nonce makes one request for it one replay.
    """
    create table replays (
        event_id bigint not null references events on delete cascade,
        nonce text not null,
        at timestamptz not null default app_clock(),
        actor text not null,
        primary key (event_id, nonce),
        constraint nonce_is_short check (length(nonce) between 1 and 128)
    )
    """,
    """
    create table facts (
        event_id bigint not null references events on delete cascade,
        position integer not null,
        dedupe_key uuid not null,
        workspace text not null,
        sc_id bigint not null,
        occurred_at timestamptz not null,
        kind text not null,
        actor text,
        value text,
        value_id text,
        comment_id bigint,
        parent_comment_id bigint,
        title text,
        app_url text,
        primary key (event_id, position),
        constraint facts_are_about_a_story check (sc_id > 0)
    )
    """,
    # In the order in which a story's facts are folded, which no arrival order can change.
    """
    create index facts_of_a_story
        on facts (workspace, sc_id, occurred_at, dedupe_key, position)
    """,
    "create index facts_by_number on facts (sc_id, event_id)",
    """
    create table patch_sessions (
        id bigint generated always as identity primary key,
        workspace text not null,
        sc_id bigint not null,
        title text,
        app_url text,
        description text,
        status text not null,
        prior_status text,
        claim_token uuid,
        claim_generation bigint not null default 0,
        claimed_by text,
        claimed_at timestamptz,
        claim_expires_at timestamptz,
        phase_ends_at timestamptz,
        progressed_at timestamptz,
        attempts integer not null default 0,
        crashes integer not null default 0,
        interruptions integer not null default 0,
        next_attempt_at timestamptz not null default app_now(),
        last_error text,
        revision integer not null default 0,
        rounds integer not null default 0,
        cost_usd numeric not null default 0,
        decided_at timestamptz not null,
        heard_at timestamptz not null,
        created_at timestamptz not null default app_now(),
        updated_at timestamptz not null default app_now(),
        constraint one_session_per_story unique (workspace, sc_id),
        constraint session_is_about_a_story check (sc_id > 0),
        constraint session_status_is_known check (status in
            ('opened', 'asking', 'clarifying', 'clarified', 'drafting', 'drafted', 'failed',
             'closed')),
        constraint session_has_a_claim_only_while_owned check (
            (status in ('asking', 'drafting')) = (claim_token is not null)
            and (claim_token is null) = (claimed_by is null)
            and (claim_token is null) = (claimed_at is null)
            and (claim_token is null) = (claim_expires_at is null)
            and (claim_token is null) = (phase_ends_at is null)
            and (claim_token is null) = (progressed_at is null)),
        constraint session_remembers_where_it_was_claimed check (
            prior_status is not distinct from
            case status when 'asking' then 'opened' when 'drafting' then 'clarified' end),
        constraint session_fails_with_a_reason check (status <> 'failed' or last_error is not null),
        constraint session_counts_are_not_negative check
            (claim_generation >= 0 and attempts >= 0 and crashes >= 0 and interruptions >= 0
             and revision >= 0 and rounds >= 0 and cost_usd >= 0)
    ) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)
    """,
    # The hot scans. None contains claim_expires_at, so that heartbeats stay HOT.
    """
    create index sessions_to_clarify on patch_sessions (next_attempt_at, id)
        where status = 'opened'
    """,
    """
    create index sessions_to_draft on patch_sessions (next_attempt_at, id)
        where status = 'clarified'
    """,
    """
    create index sessions_owned on patch_sessions (id)
        where status in ('asking', 'drafting')
    """,
    # For people: the last moved first, of all or of one status; by number.
    "create index sessions_by_move on patch_sessions (updated_at, id)",
    "create index sessions_by_status on patch_sessions (status, updated_at, id)",
    "create index sessions_by_number on patch_sessions (sc_id)",
    # A worker that asks again with its token can't be given two sessions.
    """
    create unique index one_session_per_claim_token on patch_sessions (claim_token)
        where claim_token is not null
    """,
    """
    create table conversation (
        session_id bigint not null references patch_sessions on delete cascade,
        comment_id bigint not null,
        author text,
        text text,
        said_at timestamptz not null,
        as_of timestamptz not null,
        spoken boolean not null default false,
        primary key (session_id, comment_id)
    )
    """,
    # What was asked of people, a row for each round.
    """
    create table questions (
        id bigint generated always as identity primary key,
        session_id bigint not null references patch_sessions on delete cascade,
        generation bigint not null,
        questions text[] not null,
        asked_at timestamptz not null default app_clock(),
        constraint asked_once_per_claim unique (session_id, generation)
    )
    """,
    """
    create table drafts (
        id bigint generated always as identity primary key,
        session_id bigint not null references patch_sessions on delete cascade,
        revision integer not null,
        generation bigint not null,
        summary text not null,
        patch text not null,
        cost_usd numeric not null default 0,
        meta jsonb not null default '{}',
        created_at timestamptz not null default app_now(),
        constraint one_draft_per_revision unique (session_id, revision)
    )
    """,
    # What came from a worker that had lost its claim: evidence, and paid for.
    """
    create table late_results (
        id bigint generated always as identity primary key,
        session_id bigint not null references patch_sessions on delete cascade,
        generation bigint not null,
        summary text not null,
        patch text not null,
        cost_usd numeric not null default 0,
        meta jsonb not null default '{}',
        created_at timestamptz not null default app_now(),
        adopted_at timestamptz,
        constraint one_late_result_per_claim unique (session_id, generation)
    )
    """,
    """
    create table timeline (
        id bigint generated always as identity primary key,
        session_id bigint not null references patch_sessions on delete cascade,
        at timestamptz not null default app_clock(),
        move text not null,
        status text not null,
        generation bigint not null,
        actor text,
        event_id bigint,
        reason text
    )
    """,
    "create index timeline_of_a_session on timeline (session_id, id)",
    """
    create table outbox (
        id bigint generated always as identity primary key,
        session_id bigint not null references patch_sessions on delete cascade,
        key text not null,
        kind text not null,
        text text not null,
        status text not null default 'pending',
        claim_generation bigint not null default 0,
        claimed_by text,
        claim_expires_at timestamptz,
        attempts integer not null default 0,
        next_attempt_at timestamptz not null default app_now(),
        last_error text,
        comment_id bigint,
        created_at timestamptz not null default app_now(),
        sent_at timestamptz,
        constraint owed_once unique (key),
        constraint key_fits_an_external_id check (length(key) <= 128),
        constraint outbox_status_is_known check
            (status in ('pending', 'sending', 'sent', 'failed')),
        constraint outbox_has_a_claim_only_while_sending check
            ((status = 'sending') = (claim_expires_at is not null)
             and (status = 'sending') = (claimed_by is not null)),
        constraint sent_has_a_time check ((status = 'sent') = (sent_at is not null)),
        constraint outbox_fails_with_a_reason check (status <> 'failed' or last_error is not null)
    ) with (fillfactor = 80)
    """,
    "create index outbox_pending on outbox (next_attempt_at, id) where status = 'pending'",
    "create index outbox_sending on outbox (id) where status = 'sending'",
    "create index outbox_of_a_session on outbox (session_id, id)",
    "create index outbox_by_status on outbox (status, id)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
