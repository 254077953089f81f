"""Takes out one guard at a time and shows that a test goes red: `make mutants`.

Each mutant is a copy of the code with one text replaced, against the tests that must notice.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from app.embedded import postgres
from tests.conftest import FAST, quick_directory

ROOT = Path(__file__).parent.parent
COPIED = ("app", "migrations", "tests", "pyproject.toml")
AT_A_TIME = 2
LONGEST_SECONDS = 900
#: pytest's exit code when a test failed; any other is no proof, nor is a test that hangs.
RED = 1
HUNG = -1

GATE, SESSIONS, EVENTS = "app/db/gate.py", "app/db/sessions.py", "app/db/events.py"
OPERATE, RETENTION = "tests/test_operate.py", "app/db/retention.py"
HOOKS, INSTALLATIONS = "app/db/hooks.py", "app/db/installations.py"
FORGIVES, ANEW = "tests/test_gate.py what_an_end", "tests/test_gate.py begins_anew"
OUTBOX, CLAIMS, DRAFT = "app/db/outbox.py", "app/worker/claims.py", "app/worker/draft.py"
STOPPING = "           and (stopping_until is null or stopping_until <= app_now())\n"
BEAT_FENCE = "where id = $1 and claim_generation = $2 and status in ('asking', 'drafting')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A guard that is taken out, and the tests that must go red.

    Attributes:
        nth: which occurrence of the text is replaced, from 1; 0 for all.
        tests: a file and, after a space, what pytest's `-k` is given.
    """

    guard: str
    file: str
    old: str
    new: str
    tests: str
    nth: int = 1


def _budgets(move: str, file: str, before: str, tests: str) -> tuple[Mutant, Mutant]:
    """What begins both budgets anew, behind `before`: without the one, without the other."""
    both = f"{before}attempts = 0, crashes = 0,"
    return (
        Mutant(
            guard=f"{move} forgives attempts",
            file=file,
            old=both,
            new=f"{before}crashes = 0,",
            tests=tests,
        ),
        Mutant(
            guard=f"{move} forgives crashes",
            file=file,
            old=both,
            new=f"{before}attempts = 0,",
            tests=tests,
        ),
    )


MUTANTS = (
    # --- the claim
    Mutant(
        guard="status in the claim of a known row",
        file=GATE,
        old="           and status = 'clarified' and next_attempt_at <= app_now()",
        new="           and next_attempt_at <= app_now()",
        tests="tests/test_gate.py second_claim",
    ),
    Mutant(
        guard="next_attempt_at in the claim of a known row",
        file=GATE,
        old="           and status = 'clarified' and next_attempt_at <= app_now()",
        new="           and status = 'clarified'",
        tests="tests/test_gate.py before_its_time",
    ),
    Mutant(
        guard="the lock before the claim of a known row is stamped",
        file=GATE,
        old="where workspace = $1 and sc_id = $2 for update",
        new="where workspace = $1 and sc_id = $2",
        tests="tests/test_gate.py lease_begins",
    ),
    Mutant(
        guard="the clock of the lease in the claim of a known row",
        file=GATE,
        old="claim_expires_at = app_clock() + $5",
        new="claim_expires_at = app_now() + $5",
        tests="tests/test_gate.py lease_begins",
    ),
    Mutant(
        guard="the clock of the lease in the beat",
        file=GATE,
        old="least(app_clock() + $3, phase_ends_at)",
        new="least(app_now() + $3, phase_ends_at)",
        tests="tests/test_gate.py stamped_afterwards",
    ),
    Mutant(
        guard="the clock of the backoff in the release",
        file=GATE,
        old="next_attempt_at = app_clock() + $8",
        new="next_attempt_at = app_now() + $8",
        tests="tests/test_gate.py stamped_afterwards",
    ),
    Mutant(
        guard="status in the pull",
        file=GATE,
        old="         where status = 'clarified' and next_attempt_at <= app_now()\n",
        new="         where next_attempt_at <= app_now()\n",
        tests="tests/test_gate.py being_claimed",
    ),
    Mutant(
        guard="next_attempt_at in the pull",
        file=GATE,
        old="         where status = 'clarified' and next_attempt_at <= app_now()\n",
        new="         where status = 'clarified'\n",
        tests="tests/test_gate.py before_its_time",
    ),
    Mutant(
        guard="SKIP LOCKED in the pull",
        file=GATE,
        old="         limit 1\n           for update skip locked",
        new="         limit 1\n           for update",
        tests="tests/test_gate.py passed_by",
    ),
    Mutant(
        guard="the pull's own MATERIALIZED query",
        file=GATE,
        old="          from next\n         where session.id = next.id\n",
        new=(
            "         where session.id in (select id from patch_sessions"
            " where status = 'clarified' and next_attempt_at <= app_now()"
            " order by next_attempt_at, id limit 1 for update skip locked)\n"
        ),
        tests="tests/test_gate.py any_plan",
    ),
    Mutant(
        guard="the order of the pull",
        file=GATE,
        old="         order by next_attempt_at, id\n",
        new="         order by id\n",
        tests="tests/test_gate.py longest_due",
    ),
    Mutant(
        guard="the generation grows with a claim",
        file=GATE,
        old="               claim_generation = claim_generation + 1, claimed_by = $4",
        new="               claimed_by = $4",
        tests="tests/test_gate.py generation_of_its_own or reassigned",
    ),
    Mutant(
        guard="a session that was taken waits: a known row",
        file=GATE,
        old=STOPPING,
        new="",
        tests="tests/test_gate.py until_its_worker",
    ),
    Mutant(
        guard="a session that was taken waits: the pull",
        file=GATE,
        old=STOPPING,
        new="",
        nth=2,
        tests="tests/test_gate.py until_its_worker",
    ),
    Mutant(
        guard="a session that was taken waits no longer than its lease: a known row",
        file=GATE,
        old=STOPPING,
        new="           and stopping_until is null\n",
        tests="tests/test_gate.py than_its_lease",
    ),
    Mutant(
        guard="a session that was taken waits no longer than its lease: the pull",
        file=GATE,
        old=STOPPING,
        new="           and stopping_until is null\n",
        nth=2,
        tests="tests/test_gate.py than_its_lease",
    ),
    Mutant(
        guard="only who was stopped last is waited for",
        file=GATE,
        old="where id = $1 and stopping_generation = $2",
        new="where id = $1 and $2::bigint > 0 and stopping_generation is not null",
        tests="tests/test_gate.py stopped_last",
    ),
    Mutant(
        guard="that work has stopped is told once",
        file=GATE,
        old="where id = $1 and stopping_generation = $2",
        new="where id = $1 and $2::bigint > 0",
        tests="tests/test_gate.py told_once or ended_itself",
    ),
    Mutant(
        guard="an expiry says whose claim it took",
        file=GATE,
        old="                   stopping_generation = claim_generation,"
        " stopping_until = claim_expires_at,\n",
        new="",
        tests="tests/test_gate.py wakes_late",
    ),
    Mutant(
        guard="a story's close waits for the worker",
        file=SESSIONS,
        old="               stopping_generation = claim_generation,"
        " stopping_until = claim_expires_at,\n               updated_at",
        new="               updated_at",
        tests="tests/test_gate.py until_its_worker",
    ),
    Mutant(
        guard="an operator's taking away waits for the worker",
        file=SESSIONS,
        old="                       stopping_generation = claim_generation,"
        " stopping_until = claim_expires_at,\n",
        new="",
        tests="tests/test_gate.py until_its_worker",
    ),
    Mutant(
        guard="an operator's close waits for the worker",
        file=SESSIONS,
        old="                       stopping_until = coalesce(claim_expires_at, stopping_until),\n",
        new="                       stopping_until = stopping_until,\n",
        tests="tests/test_gate.py until_its_worker",
    ),
    Mutant(
        guard="a second close waits for the worker still",
        file=SESSIONS,
        old="coalesce(claim_expires_at, stopping_until)",
        new="coalesce(claim_expires_at, app_clock())",
        tests="tests/test_gate.py until_its_worker",
    ),
    Mutant(
        guard="a second close knows the worker still",
        file=SESSIONS,
        old="stopping_generation = case when status in ('asking', 'drafting')\n",
        new="stopping_generation = case when claim_generation > 0\n",
        tests="tests/test_gate.py until_its_worker",
    ),
    Mutant(
        guard="a worker whose claim was taken says that its work has ended",
        file=DRAFT,
        old="                    if not done:\n",
        new="                    if done is None:\n",
        tests="tests/test_work.py lost_its_claim_has_ended or lets_others_begin",
    ),
    Mutant(
        guard="one session per token",
        file="migrations/versions/0001_init.py",
        old="create unique index one_session_per_claim_token",
        new="create index one_session_per_claim_token",
        tests="tests/test_gate.py one_token",
    ),
    Mutant(
        guard="asking again by the token",
        file=CLAIMS,
        old="found = await gate.held(conn, bid.token) if in_doubt else None",
        new="found = None",
        tests="tests/test_lost_replies.py claim",
    ),
    Mutant(
        guard="a claim whose answer is lost is asked for until half its lease is over",
        file=CLAIMS,
        old="            if not in_doubt or time.monotonic() >= give_up_at:\n",
        new="            if True:\n",
        tests="tests/test_lost_replies.py after_an_outage",
    ),
    Mutant(
        guard="a claim whose answer is lost is not asked for when its lease is half over",
        file=CLAIMS,
        old="            if not in_doubt or time.monotonic() >= give_up_at:\n",
        new="            if not in_doubt:\n",
        tests="tests/test_lost_replies.py asked_for_for_ever",
    ),
    # --- the fence
    Mutant(
        guard="generation in the beat",
        file=GATE,
        old=BEAT_FENCE,
        new=BEAT_FENCE.replace("claim_generation = $2", "$2::bigint > 0"),
        tests="tests/test_gate.py reassigned",
    ),
    Mutant(
        guard="status in the beat",
        file=GATE,
        old=f"{BEAT_FENCE}\n               and phase_ends_at > app_clock()\n",
        new="where id = $1 and claim_generation = $2"
        " and coalesce(phase_ends_at > app_clock(), true)\n",
        tests="tests/test_gate.py ended_can_not",
    ),
    Mutant(
        guard="the end of the phase in the beat",
        file=GATE,
        old="least(app_clock() + $3, phase_ends_at)",
        new="app_clock() + $3",
        tests="tests/test_gate.py outlives_the_phase",
    ),
    Mutant(
        guard="generation in every ending",
        file=GATE,
        old="         where id = $1 and claim_generation = $2 and status in (<owned>)",
        new="         where id = $1 and $2::bigint > 0 and status in (<owned>)",
        tests="tests/test_gate.py reassigned",
    ),
    Mutant(
        guard="status in every ending",
        file=GATE,
        old="         where id = $1 and claim_generation = $2 and status in (<owned>)",
        new="         where id = $1 and claim_generation = $2",
        tests="tests/test_gate.py ended_can_not",
    ),
    Mutant(
        guard="an ending that had succeeded is recognised",
        file=GATE,
        old="select true from ended union all select true from outbox where key = $5",
        new="select true from ended",
        tests="tests/test_gate.py completing_again",
    ),
    *_budgets("a clearing", GATE, "status = 'clarified', ", FORGIVES),
    *_budgets("a completion", GATE, "        status = 'drafted', ", FORGIVES),
    *_budgets("a question", GATE, "status = 'clarifying', ", FORGIVES),
    *_budgets("an adoption", GATE, "revision = revision + 1, ", ANEW),
    *_budgets("an operator's retry", SESSIONS, "set status = 'clarified', ", ANEW),
    *_budgets(
        "an operator's reopening",
        SESSIONS,
        "else 'clarified' end,\n                       ",
        ANEW,
    ),
    Mutant(
        guard="a failure counts",
        file=GATE,
        old="status = 'failed', attempts = attempts + 1,",
        new="status = 'failed',",
        tests=FORGIVES,
    ),
    Mutant(
        guard="an interruption is no failure",
        file=GATE,
        old="attempts = attempts + $9::int,",
        new="attempts = attempts + 1,",
        tests=FORGIVES,
    ),
    Mutant(
        guard="a failure is no interruption",
        file=GATE,
        old="interruptions = interruptions + 1 - $9::int",
        new="interruptions = interruptions + 1",
        tests=FORGIVES,
    ),
    # --- expiry and operators
    Mutant(
        guard="the end of the lease in the expiry",
        file=GATE,
        old="             where status in ('asking', 'drafting') and claim_expires_at <= app_now()",
        new="             where status in ('asking', 'drafting')",
        tests="tests/test_gate.py live_claim",
    ),
    Mutant(
        guard="status in the expiry",
        file=GATE,
        old="             where status in ('asking', 'drafting') and claim_expires_at <= app_now()",
        new="             where coalesce(claim_expires_at, app_now()) <= app_now()",
        tests="tests/test_machine.py expire",
    ),
    Mutant(
        guard="SKIP LOCKED in the expiry",
        file=GATE,
        old="             limit $1\n               for update skip locked",
        new="             limit $1\n               for update",
        tests="tests/test_gate.py being_written",
    ),
    Mutant(
        guard="the expiry's own MATERIALIZED query",
        file=GATE,
        old="              from lapsed\n             where session.id = lapsed.id\n",
        new=(
            "              from (select $1::int, null::text as claimed_by, null::uuid as token,"
            " false as spent) as lapsed\n"
            "             where session.id in (select id from patch_sessions where status in"
            " ('asking', 'drafting') and claim_expires_at <= app_now() order by id limit $1"
            " for update skip locked)\n"
        ),
        tests="tests/test_gate.py no_more_than_its_limit",
    ),
    Mutant(
        guard="the generation grows with an expiry",
        file=GATE,
        old="                   claim_generation = claim_generation + 1, crashes = crashes + 1,",
        new="                   crashes = crashes + 1,",
        tests="tests/test_gate.py run_out_is_taken_back",
    ),
    Mutant(
        guard="the crash budget",
        file=GATE,
        old="crashes + 1 >= $2 as spent",
        new="$2 < 0 as spent",
        tests="tests/test_gate.py crashes_have",
    ),
    Mutant(
        guard="status in the adoption of a late result",
        file=GATE,
        old="               and session.status in ('clarified', 'failed', 'drafted')",
        new="",
        tests="tests/test_gate.py adopted_while or adopt",
    ),
    Mutant(
        guard="a late result is adopted once",
        file=GATE,
        old="             where session_id = $1 and generation = $2 and adopted_at is null",
        new="             where session_id = $1 and generation = $2",
        tests="tests/test_gate.py adopted_once",
    ),
    Mutant(
        guard="the lock of the late result that is adopted",
        file=GATE,
        old="and adopted_at is null\n               for update\n",
        new="and adopted_at is null\n",
        tests="tests/test_gate.py two_operators",
    ),
    Mutant(
        guard="status when an operator takes a session away",
        file=SESSIONS,
        old="                 where id = $1 and status in ('asking', 'drafting')",
        new="                 where id = $1",
        tests="tests/test_gate.py only_what_is_owned",
    ),
    Mutant(
        guard="the generation grows when an operator takes a session away",
        file=SESSIONS,
        old="                       claim_generation = claim_generation + 1,\n",
        new="",
        tests="tests/test_gate.py operator_can_take",
    ),
    Mutant(
        guard="the generation grows when a worker closes",
        file=GATE,
        old="status = 'closed', claim_generation = claim_generation + 1",
        new="status = 'closed'",
        tests="tests/test_gate.py closes_its_session",
    ),
    Mutant(
        guard="the row lock of a session that is decided about",
        file=SESSIONS,
        old="         order by id\n           for update\n",
        new="         order by id\n",
        tests="tests/test_gate.py decided_about",
    ),
    Mutant(
        guard="status in the operator's retry",
        file=SESSIONS,
        old="                 where id = $1 and status = 'failed'",
        new="                 where id = $1",
        tests="tests/test_machine.py retry",
    ),
    Mutant(
        guard="the generation grows when a story's close takes the claim",
        file=SESSIONS,
        old="               progressed_at = null, claim_generation = claim_generation + 1,",
        new="               progressed_at = null,",
        tests="tests/test_order.py newer_closing",
    ),
    Mutant(
        guard="the server ends a transaction that stands still",
        file="app/db/connect.py",
        old="f\" set local idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'\"",
        new='""',
        tests="tests/test_apply.py stands_still",
    ),
    Mutant(
        guard="a claim is durable before work begins",
        file="app/db/connect.py",
        old='{"application_name": f"draftgate {purpose}"}',
        new='{"application_name": f"draftgate {purpose}", "synchronous_commit": "off"}',
        tests="tests/test_apply.py no_crash",
    ),
    Mutant(
        guard="one worker at a time applies a story",
        file=SESSIONS,
        old="        select pg_advisory_xact_lock(key)",
        new="        select key",
        tests="tests/test_apply.py one_worker_at_a_time",
    ),
    # --- webhooks
    Mutant(
        guard="what was seen is the same hook's",
        file=HOOKS,
        old="then app_clock() else next_check_at end\n"
        "         where source = $1 and integration_id = $2\n",
        new="then app_clock() else next_check_at end\n"
        "         where source = $1 and $2::bigint is not null\n",
        tests="tests/test_hooks.py successor",
    ),
    Mutant(
        guard="only the hook that was deleted is forgotten",
        file=HOOKS,
        old="delete from hooks where source = $1 and integration_id = $2",
        new="delete from hooks where source = $1 and $2::bigint is not null",
        tests="tests/test_hooks.py successor",
    ),
    Mutant(
        guard="hooks that another one looks at",
        file=HOOKS,
        old="               for update skip locked",
        new="               for update",
        tests="tests/test_hooks.py do_not_look_at_once",
    ),
    Mutant(
        guard="hooks that are not due",
        file=HOOKS,
        old="             where next_check_at <= app_now()\n",
        new="",
        tests="tests/test_hooks.py said_once",
    ),
    # --- installations
    Mutant(
        guard="one refresh at a time",
        file=INSTALLATIONS,
        old="           and refreshing_until <= app_now()\n",
        new="",
        tests="tests/test_installs.py refreshed_once",
    ),
    Mutant(
        guard="tokens that come late",
        file=INSTALLATIONS,
        old="         where workspace = $1 and generation = $2\n        returning generation",
        new="         where workspace = $1 and $2::int8 is not null\n        returning generation",
        tests="tests/test_installs.py come_late",
    ),
    Mutant(
        guard="a revocation that comes late",
        file=INSTALLATIONS,
        old="         where workspace = $1 and generation = $2 and status = 'active'\n"
        "        returning workspace\n"
        '        """,\n'
        "        it.workspace,\n"
        "        it.generation,\n"
        "        error,",
        new="         where workspace = $1 and $2::bigint is not null and status = 'active'\n"
        "        returning workspace\n"
        '        """,\n'
        "        it.workspace,\n"
        "        it.generation,\n"
        "        error,",
        tests="tests/test_installs.py come_late",
    ),
    Mutant(
        guard="a link that is too old",
        file=INSTALLATIONS,
        old=" and created_at >= app_now() - $2::interval",
        new=" and $2::interval is not null",
        tests="tests/test_installs.py not_for_long",
    ),
    # --- recording and applying
    Mutant(
        guard="sources whose events wait",
        file=EVENTS,
        old="           and source <> all ($2::text[])\n",
        new="           and $2::text[] is not null\n",
        tests="tests/test_sources.py wait_alone",
    ),
    Mutant(
        guard="ON CONFLICT in the record",
        file=EVENTS,
        old="    on conflict (source, dedupe_key) do nothing\n",
        new="",
        tests="tests/test_receive.py recorded_elsewhere",
    ),
    Mutant(
        guard="the look before the record",
        file=EVENTS,
        old="     where not exists (select from events as e\n",
        new="     where true or not exists (select from events as e\n",
        tests="tests/test_receive.py duplicate_delivery_writes",
    ),
    Mutant(
        guard="SKIP LOCKED in taking events",
        file=EVENTS,
        old="           for update skip locked",
        new="           for update",
        tests="tests/test_apply.py pass_by",
    ),
    Mutant(
        guard="the answer waits for the commit",
        file="app/door/record.py",
        old="        new = await events.record(conn, list(distinct.values()))\n",
        new=(
            "        new = set(distinct)\n"
            "        asyncio.ensure_future(events.record(conn, list(distinct.values())))\n"
        ),
        tests="tests/test_receive.py hangs or before_it_is_answered or elsewhere",
    ),
    Mutant(
        guard="the signature",
        file="app/door/receive.py",
        old="        if not verify(self._secrets[source], body, signatures):",
        new="        if not signatures:",
        tests="tests/test_receive.py after_signing",
    ),
    Mutant(
        guard="stories are locked in one order",
        file=SESSIONS,
        old="                 order by key) as keys\n",
        new="                ) as keys\n",
        tests="tests/test_apply.py locked_in_one_order",
    ),
    Mutant(
        guard="sessions are locked in one order",
        file=SESSIONS,
        old="         order by id\n           for update\n",
        new="           for update\n",
        tests="tests/test_apply.py order_of_their_ids",
    ),
    Mutant(
        guard="status when a story's close takes the claim",
        file=SESSIONS,
        old="         where workspace = $1 and sc_id = $2 and status in ('asking', 'drafting')",
        new="         where workspace = $1 and sc_id = $2",
        tests="tests/test_gate.py is_evicted",
    ),
    Mutant(
        guard="a move forgives attempts",
        file=SESSIONS,
        old="attempts = case when $11 then 0 else attempts end",
        new="attempts = attempts",
        tests="tests/test_gate.py fresh_budgets",
    ),
    Mutant(
        guard="only a move forgives attempts",
        file=SESSIONS,
        old="attempts = case when $11 then 0 else attempts end",
        new="attempts = 0",
        tests="tests/test_gate.py keeps_the_budgets",
    ),
    Mutant(
        guard="a move forgives crashes",
        file=SESSIONS,
        old="crashes = case when $11 then 0 else crashes end",
        new="crashes = crashes",
        tests="tests/test_gate.py fresh_budgets",
    ),
    Mutant(
        guard="only a move forgives crashes",
        file=SESSIONS,
        old="crashes = case when $11 then 0 else crashes end",
        new="crashes = 0",
        tests="tests/test_gate.py keeps_the_budgets",
    ),
    Mutant(
        guard="a move ends the backoff",
        file=SESSIONS,
        old="next_attempt_at = case when $11 then app_clock() else next_attempt_at end",
        new="next_attempt_at = next_attempt_at",
        tests="tests/test_gate.py fresh_budgets",
    ),
    Mutant(
        guard="only a move ends the backoff",
        file=SESSIONS,
        old="next_attempt_at = case when $11 then app_clock() else next_attempt_at end",
        new="next_attempt_at = app_clock()",
        tests="tests/test_gate.py keeps_the_budgets",
    ),
    Mutant(
        guard="the newest version of a comment",
        file=SESSIONS,
        old="case when excluded.as_of >= said.as_of then",
        new="case when true then",
        tests="tests/test_order.py versions_of or deleted",
    ),
    Mutant(
        guard="the author of a comment is its first",
        file=SESSIONS,
        old="case when excluded.said_at < said.said_at\n",
        new="case when true\n",
        tests="tests/test_order.py versions_of",
    ),
    Mutant(
        guard="a comment's version never gets older",
        file=SESSIONS,
        old="as_of = greatest(said.as_of, excluded.as_of)",
        new="as_of = excluded.as_of",
        tests="tests/test_order.py versions_of",
    ),
    Mutant(
        guard="a comment was said when it was said first",
        file=SESSIONS,
        old="said_at = least(said.said_at, excluded.said_at)",
        new="said_at = excluded.said_at",
        tests="tests/test_order.py versions_of",
    ),
    Mutant(
        guard="a comment that has spoken has spoken",
        file=SESSIONS,
        old="spoken = said.spoken or excluded.spoken",
        new="spoken = excluded.spoken",
        tests="tests/test_order.py edited_later",
    ),
    Mutant(
        guard="a deleted comment is not told",
        file=SESSIONS,
        old="         where session_id = $1 and text is not null\n",
        new="         where session_id = $1\n",
        tests="tests/test_order.py deleted",
    ),
    Mutant(
        guard="an edit does not speak",
        file=SESSIONS,
        old="           and said.comment_id = any($3::bigint[]) and said.spoken\n",
        new="           and said.comment_id = any($3::bigint[])\n",
        tests="tests/test_order.py edit_was_heard",
    ),
    Mutant(
        guard="the newest draft is revised",
        file=SESSIONS,
        old="order by revision desc limit 1",
        new="order by revision limit 1",
        tests="tests/test_gate.py newest_draft",
    ),
    Mutant(
        guard="a late title puts out no newer one",
        file="app/decide.py",
        old="fact.title and (self.title_at is None or at >= self.title_at)",
        new="fact.title",
        tests="tests/test_migrations.py titles_of_before",
    ),
    Mutant(
        guard="a comment makes no title old",
        file="app/decide.py",
        old="    return at or (session.heard_at",
        new="    return (session.heard_at",
        tests="tests/test_order.py hides_no_late_word",
    ),
    Mutant(
        guard="a comment is obeyed once",
        file="app/decide.py",
        old=" and not again:",
        new=":",
        tests="tests/test_order.py obeyed_once",
    ),
    Mutant(
        guard="an old command is not obeyed",
        file="app/decide.py",
        old="if fact.occurred_at < session.decided_at:\n        return None",
        new="if False:\n        return None",
        tests="tests/test_order.py older_than",
    ),
    Mutant(
        guard="a batch counts in the sender's order",
        file="app/worker/apply.py",
        old="        told.sort(",
        new="        list(told).sort(",
        tests="tests/test_order.py sender_s_order",
    ),
    Mutant(
        guard="a conversation is decided anew with its session",
        file="app/worker/apply.py",
        old="        await sessions.forget_conversations(conn, again)",
        new="        pass",
        tests="tests/test_order.py same_time_end",
    ),
    Mutant(
        guard="facts of a replay replace the old ones",
        file="app/db/facts.py",
        old="where event_id = any($1::bigint[]) returning",
        new="where false returning",
        tests="tests/test_apply.py takes_back",
    ),
    Mutant(
        guard="facts of a replay come after the old ones are gone",
        file="app/db/facts.py",
        old="     where (select count(*) from forgotten) >= 0\n",
        new="",
        tests="tests/test_apply.py takes_back",
    ),
    Mutant(
        guard="stories are decided anew in the sender's order",
        file="app/db/facts.py",
        old="         order by occurred_at, dedupe_key, position\n",
        new="         order by position\n",
        tests="tests/test_order.py closing_fact_before",
    ),
    Mutant(
        guard="the database is not an event's fault",
        file="app/worker/apply.py",
        old="        except (*DATABASE_ERRORS, ShortcutError):",
        new="        except ShortcutError:",
        tests="tests/test_apply.py no_event_s_fault",
    ),
    Mutant(
        guard="the database is not a batch's fault",
        file="app/worker/apply.py",
        old="        except DATABASE_ERRORS:\n            raise\n",
        new="",
        tests="tests/test_apply.py costs_a_try",
    ),
    Mutant(
        guard="only what is pending is taken again",
        file=EVENTS,
        old="where id = $1 and status = 'pending' for update",
        new="where id = $1 for update",
        tests="tests/test_apply.py is_done",
    ),
    Mutant(
        guard="who takes an event again waits",
        file=EVENTS,
        old="where id = $1 and status = 'pending' for update",
        new="where id = $1 and status = 'pending'",
        tests="tests/test_apply.py waited_for",
    ),
    Mutant(
        guard="an event ends once",
        file=EVENTS,
        old="where e.id = outcome.id and e.status = 'pending'",
        new="where e.id = outcome.id",
        tests="tests/test_apply.py is_done",
    ),
    Mutant(
        guard="only what is pending is put off",
        file=EVENTS,
        old="         where id = $1 and status = 'pending'\n",
        new="         where id = $1\n",
        tests="tests/test_apply.py is_done",
    ),
    Mutant(
        guard="only what is pending is set aside",
        file=EVENTS,
        old="where id = any($1::bigint[]) and status = 'pending'",
        new="where id = any($1::bigint[])",
        tests="tests/test_apply.py is_done",
    ),
    Mutant(
        guard="what must be read for is not applied",
        file=EVENTS,
        old="where status = 'pending' and not to_read and",
        new="where status = 'pending' and",
        tests="tests/test_apply.py left_to_who_reads",
    ),
    Mutant(
        guard="the lease of who reads",
        file=EVENTS,
        old="set next_attempt_at = app_clock() + $1\n",
        new="set next_attempt_at = app_clock() + 0 * $1::interval\n",
        tests="tests/test_apply.py left_to_who_reads",
    ),
    Mutant(
        guard="only what has ended is replayed",
        file=EVENTS,
        old="where id = $1 and status <> 'pending'",
        new="where id = $1",
        tests="tests/test_apply.py all_its_tries",
    ),
    Mutant(
        guard="a replay is not told of a session that is being deleted",
        file=EVENTS,
        old="               for key share\n",
        new="",
        tests=f"{OPERATE} being_deleted",
    ),
    Mutant(
        guard="a replay has all its tries",
        file=EVENTS,
        old="reason = null, attempts = 0, to_read",
        new="reason = null, to_read",
        tests="tests/test_apply.py all_its_tries",
    ),
    Mutant(
        guard="a replay may need nothing",
        file=EVENTS,
        old="attempts = 0, to_read = false,",
        new="attempts = 0,",
        tests="tests/test_apply.py all_its_tries",
    ),
    Mutant(
        guard="what nobody waits for is not recorded",
        file="app/door/record.py",
        old="            if not waiting[1].done():  # The process",
        new="            if True:  # The process",
        tests="tests/test_record.py waits_for_any_more",
    ),
    Mutant(
        guard="the rows of a batch",
        file="app/door/record.py",
        old="rows = 1 if self._singly else BATCH_ROWS",
        new="rows = 1 if self._singly else 100_000",
        tests="tests/test_record.py so_many_deliveries",
    ),
    Mutant(
        guard="the bytes of a batch",
        file="app/door/record.py",
        old=" and size < BATCH_BYTES:",
        new=":",
        tests="tests/test_record.py so_many_bytes",
    ),
    # --- holding a claim
    Mutant(
        guard="the heartbeat",
        file=CLAIMS,
        old="            alive = await self.once(seconds=ends - sent)\n",
        new="            alive: bool | None = True\n",
        tests="tests/test_claims.py longer_than_the_lease",
    ),
    Mutant(
        guard="a beat that finds no row ends the work",
        file=CLAIMS,
        old="            elif alive is False or time.monotonic() >= ends:",
        new="            elif alive is None and time.monotonic() >= ends:",
        tests="tests/test_claims.py losing_the_claim",
    ),
    Mutant(
        guard="the self-fence",
        file=CLAIMS,
        old="            elif alive is False or time.monotonic() >= ends:",
        new="            elif alive is False:",
        tests="tests/test_claims.py can_not_know",
    ),
    Mutant(
        guard="work ends when its beats break",
        file=CLAIMS,
        old="        except Exception:\n            log",
        new="        except BaseExceptionGroup:\n            log",
        tests="tests/test_claims.py refuses_are",
    ),
    Mutant(
        guard="a beat is given up for the next one",
        file=CLAIMS,
        old="async with asyncio.timeout(self._interval_seconds):",
        new="if True:",
        tests="tests/test_claims.py given_up_for",
    ),
    Mutant(
        guard="what may still be held is given back, and no crash",
        file=DRAFT,
        old="                return self._release(\n"
        '                    claim, "the database could not be reached in time", failed=False\n'
        "                )\n",
        new="                return partial(gate.beat, claim=claim, lease=timedelta(0))\n",
        tests="tests/test_lost_replies.py is_no_crash",
    ),
    Mutant(
        guard="an ending is tried for as long as the phase",
        file=DRAFT,
        old="give_up_at = max(phase_ends, time.monotonic()",
        new="give_up_at = max(0, time.monotonic()",
        tests="tests/test_lost_replies.py as_long_as",
    ),
    Mutant(
        guard="the end of the phase in the beat's WHERE",
        file=GATE,
        old="               and phase_ends_at > app_clock()\n",
        new="",
        tests="tests/test_gate.py past_the_phase",
    ),
    Mutant(
        guard="the last attempt of the clarify phase",
        file=DRAFT,
        old="        if claim.attempt < self.limits.max_attempts:",
        new="        if claim.phase is Phase.CLARIFY or claim.attempt < self.limits.max_attempts:",
        tests="tests/test_work.py last_attempt_too",
    ),
    Mutant(
        guard="a late result is kept",
        file=DRAFT,
        old="        await gate.keep_late_result(conn, claim, draft)\n",
        new="        pass\n",
        tests="tests/test_work.py reassigned",
    ),
    # --- the outbox
    Mutant(
        guard="our own marker is looked for",
        file="app/worker/outbox.py",
        old="found is None and owed.attempts > 0:",
        new="found is None and owed.attempts < 0:",
        tests="tests/test_outbox.py without_an_answer or died",
    ),
    Mutant(
        guard="no posting by a sender that stood still",
        file="app/worker/outbox.py",
        old="    if time.monotonic() > post_by:",
        new="    if post_by < 0:",
        tests="tests/test_outbox.py stood_still",
    ),
    Mutant(
        guard="a refused token is waited out",
        file="app/worker/outbox.py",
        old="        if error.status in _OF_THE_TOKEN:",
        new="        if error.status < 0:",
        tests="tests/test_outbox.py refused_for_a_while",
    ),
    Mutant(
        guard="status in the claim of a row of the outbox",
        file=OUTBOX,
        old="             where status = 'pending' and next_attempt_at <= app_now()",
        new="             where next_attempt_at <= app_now()",
        tests="tests/test_outbox.py told_once",
    ),
    Mutant(
        guard="next_attempt_at in the claim of a row of the outbox",
        file=OUTBOX,
        old="             where status = 'pending' and next_attempt_at <= app_now()",
        new="             where status = 'pending'",
        tests="tests/test_outbox.py too_many_requests",
    ),
    Mutant(
        guard="the outbox's own MATERIALIZED query",
        file=OUTBOX,
        old="              from next\n             where outbox.id = next.id\n",
        new=(
            "             where outbox.id in (select id from outbox where status = 'pending'"
            " and next_attempt_at <= app_now() order by next_attempt_at, id limit 1"
            " for update skip locked)\n"
        ),
        tests="tests/test_outbox.py one_row_under_any_plan",
    ),
    Mutant(
        guard="SKIP LOCKED in the expiry of the outbox",
        file=OUTBOX,
        old="             limit $1\n               for update skip locked",
        new="             limit $1\n               for update",
        tests="tests/test_outbox.py being_written",
    ),
    Mutant(
        guard="the MATERIALIZED query in the expiry of the outbox",
        file=OUTBOX,
        old="              from lapsed\n             where outbox.id = lapsed.id\n",
        new=(
            "             where outbox.id in (select id from outbox where status = 'sending'"
            " and claim_expires_at <= app_now() order by id limit $1 for update skip locked)\n"
        ),
        tests="tests/test_outbox.py no_more_rows_than_its_limit",
    ),
    Mutant(
        guard="the generation grows with each sender",
        file=OUTBOX,
        old="claim_generation = claim_generation + 1, ",
        new="",
        nth=0,
        tests="tests/test_outbox.py taken_over",
    ),
    Mutant(
        guard="status in what a sender says",
        file=OUTBOX,
        old="where id = $1 and claim_generation = $2 and status = 'sending'",
        new="where id = $1 and claim_generation = $2",
        nth=0,
        tests="tests/test_outbox.py last_word",
    ),
    Mutant(
        guard="status in the operator's retry of a comment",
        file=OUTBOX,
        old=" and status = 'failed'",
        new="",
        tests="tests/test_outbox.py given_up_is_sent_again",
    ),
    Mutant(
        guard="SKIP LOCKED in the outbox",
        file=OUTBOX,
        old="             limit 1\n               for update skip locked",
        new="             limit 1\n               for update",
        tests="tests/test_outbox.py share_a_row",
    ),
    Mutant(
        guard="generation in what a sender says",
        file=OUTBOX,
        old="where id = $1 and claim_generation = $2 and status = 'sending'",
        new="where id = $1 and $2::bigint > 0 and status = 'sending'",
        nth=0,
        tests="tests/test_outbox.py taken_over",
    ),
    Mutant(
        guard="a sender's time in the expiry of the outbox",
        file=OUTBOX,
        old="where status = 'sending' and claim_expires_at <= app_now()",
        new="where status = 'sending'",
        tests="tests/test_outbox.py live_sender",
    ),
    # --- the budget of requests
    Mutant(
        guard="an empty budget gives nothing",
        file="app/db/budgets.py",
        old="extract(epoch from app_clock() - budget.as_of)::float8 >= 1",
        new="extract(epoch from app_clock() - budget.as_of)::float8 >= -1e9",
        tests="tests/test_budget.py no_minute",
    ),
    Mutant(
        guard="a budget fills up to its burst",
        file="app/db/budgets.py",
        old="remaining = least($2, budget.remaining",
        new="remaining = greatest($2, budget.remaining",
        tests="tests/test_budget.py no_minute",
    ),
    Mutant(
        guard="a budget that is closed gives nothing",
        file="app/db/budgets.py",
        old="values ($1, 0, app_clock() + $2::interval)",
        new="values ($1, 0, app_clock())",
        tests="tests/test_budget.py closes_it",
    ),
    Mutant(
        guard="a closed budget begins empty",
        file="app/db/budgets.py",
        old="as_of = greatest(budget.as_of, excluded.as_of), remaining = 0",
        new="as_of = greatest(budget.as_of, excluded.as_of)",
        tests="tests/test_budget.py not_all_at_once",
    ),
    Mutant(
        guard="a longer closing stands",
        file="app/db/budgets.py",
        old="as_of = greatest(budget.as_of, excluded.as_of), remaining",
        new="as_of = excluded.as_of, remaining",
        tests="tests/test_budget.py longer_closing",
    ),
    # --- the breaker
    Mutant(
        guard="a muted story is sent nothing",
        file=OUTBOX,
        old="where session.id = session_id) is null)",
        new="where session.id = session_id and false) is null)",
        tests="tests/test_loops.py goes_on",
    ),
    Mutant(
        guard="it is said that a story is muted",
        file=OUTBOX,
        old="and (kind = 'muted' or (select muted_at",
        new="and (false or (select muted_at",
        tests="tests/test_loops.py two_bots",
    ),
    Mutant(
        guard="so many comments mute a story",
        file=SESSIONS,
        old="and $2 <= (select count(*) from outbox",
        new="and $2 < (select count(*) from outbox",
        tests="tests/test_loops.py two_bots",
    ),
    Mutant(
        guard="a story is muted once",
        file=SESSIONS,
        old="where id = (select session_id from outbox where id = $1) and muted_at is null",
        new="where id = (select session_id from outbox where id = $1)",
        tests="tests/test_loops.py two_bots",
    ),
    Mutant(
        guard="the hour in which comments count",
        file=SESSIONS,
        old="and sent_at > greatest(app_now() - interval '1 hour',",
        new="and sent_at > greatest(app_now() - interval '9 hours',",
        tests="tests/test_loops.py slowly",
    ),
    Mutant(
        guard="what was sent before an unmuting counts no more",
        file=SESSIONS,
        old="set muted_at = null, counted_from = app_clock(), updated_at",
        new="set muted_at = null, updated_at",
        tests="tests/test_loops.py goes_on",
    ),
    Mutant(
        guard="only a muted story is unmuted",
        file=SESSIONS,
        old="where id = $1 and muted_at is not null",
        new="where id = $1",
        tests="tests/test_operate.py machine_says_so",
    ),
    Mutant(
        guard="what is told of a muted story moves nothing",
        file="app/decide.py",
        old="    if session.muted and not",
        new="    if False and not",
        tests="tests/test_loops.py two_bots",
    ),
    # --- webhooks
    Mutant(
        guard="a webhook that can't be known is made once",
        file="app/db/hooks.py",
        old="error = $3, next_check_at = 'infinity'",
        new="error = $3, next_check_at = next_check_at",
        tests="tests/test_hooks.py id_is_not_told",
    ),
    Mutant(
        guard="a webhook that is alive again is watched again",
        file="app/db/hooks.py",
        old="$3 = 'alive' and next_check_at = 'infinity'",
        new="false and $3 = 'alive'",
        tests="tests/test_hooks.py id_is_not_told",
    ),
    # --- reconciling
    Mutant(
        guard="one process reconciles",
        file="app/db/reconciliations.py",
        old="where done.next_run_at <= app_clock()",
        new="where true",
        tests="tests/test_reconcile.py by_one_process",
    ),
    Mutant(
        guard="a later mark stands",
        file="app/db/reconciliations.py",
        old="where done.through <= excluded.through",
        new="where true",
        tests="tests/test_reconcile.py later_mark",
    ),
    Mutant(
        guard="sessions are looked after in turn",
        file="app/db/reconciliations.py",
        old="where workspace = $1 and id > $2 and status <> 'closed'",
        new="where workspace = $1 and $2::bigint >= 0 and status <> 'closed'",
        tests="tests/test_reconcile.py in_turn",
    ),
    Mutant(
        guard="what is closed is not looked after",
        file="app/db/reconciliations.py",
        old="where workspace = $1 and id > $2 and status <> 'closed'",
        new="where workspace = $1 and id > $2",
        tests="tests/test_reconcile.py in_turn",
    ),
    # --- what is rewritten in place
    Mutant(
        guard="edition when a row is sent",
        file=OUTBOX,
        old="status = case when edition = $3 then 'sent' else 'pending' end",
        new="status = 'sent'",
        tests="tests/test_standing.py while_it_is_sent",
    ),
    Mutant(
        guard="edition grows with the text",
        file=OUTBOX,
        old="set text = excluded.text, edition = old.edition + 1, sent_at = null,",
        new="set text = excluded.text, sent_at = null,",
        tests="tests/test_standing.py while_it_is_sent",
    ),
    Mutant(
        guard="a row that is being sent is not taken from its sender",
        file=OUTBOX,
        old="status = case old.status when 'sending' then 'sending' else 'pending' end,",
        new="status = 'pending', claimed_by = null, claim_expires_at = null,",
        tests="tests/test_standing.py while_it_is_sent",
    ),
    Mutant(
        guard="quiet time",
        file=OUTBOX,
        old="and updated_at <= app_now() - $1::interval",
        new="and $1::interval is not null",
        tests="tests/test_standing.py stands_still",
    ),
    Mutant(
        guard="what was told is remembered",
        file=OUTBOX,
        old="where status is distinct from told_status and",
        new="where",
        tests="tests/test_standing.py stands_still",
    ),
    Mutant(
        guard="only workspaces that can be told",
        file=OUTBOX,
        old="and workspace = any($7::text[])",
        new="and $7::text[] is not null",
        tests="tests/test_standing.py can_not_be_told",
    ),
    Mutant(
        guard="SKIP LOCKED when telling",
        file=OUTBOX,
        old="             limit $2\n               for update skip locked\n        ), told as",
        new="             limit $2\n               for update\n        ), told as",
        tests="tests/test_standing.py two_tellers",
    ),
    Mutant(
        guard="nothing is taken back that was not given",
        file=OUTBOX,
        old="where first or (select true",
        new="where true or (select true",
        tests="tests/test_standing.py without_a_draft",
    ),
    # --- the operator
    Mutant(
        guard="status when an operator closes",
        file=SESSIONS,
        old="                 where id = $1 and status <> 'closed'",
        new="                 where id = $1",
        tests=f"{OPERATE} machine_says",
    ),
    Mutant(
        guard="the generation grows when an operator closes",
        file=SESSIONS,
        old="                       claim_generation = claim_generation + 1,\n"
        "                       stopping_generation = case",
        new="                       stopping_generation = case",
        tests=f"{OPERATE} machine_says",
    ),
    Mutant(
        guard="what came before an operator's closing is decided",
        file=SESSIONS,
        old="decided_at = greatest(decided_at, app_clock()), updated_at = app_clock()\n"
        "                 where id = $1 and status <> 'closed'",
        new="updated_at = app_clock()\n                 where id = $1 and status <> 'closed'",
        tests=f"{OPERATE} stays_closed",
    ),
    Mutant(
        guard="status when an operator reopens",
        file=SESSIONS,
        old="                 where id = $1 and status = 'closed'",
        new="                 where id = $1",
        tests=f"{OPERATE} machine_says",
    ),
    Mutant(
        guard="what came before an operator's reopening is decided",
        file=SESSIONS,
        old="decided_at = greatest(decided_at, app_clock()), updated_at = app_clock()\n"
        "                 where id = $1 and status = 'closed'",
        new="updated_at = app_clock()\n                 where id = $1 and status = 'closed'",
        tests=f"{OPERATE} stays_open",
    ),
    Mutant(
        guard="what is pending is not purged",
        file=RETENTION,
        old=" and status <> 'pending'\n",
        new="\n",
        tests="tests/test_cli.py at_rest",
    ),
    Mutant(
        guard="events of a session are not purged",
        file=RETENTION,
        old="               and not exists (select from facts join patch_sessions"
        " using (workspace, sc_id)\n"
        "                                where facts.event_id = events.id)\n",
        new="",
        tests="tests/test_cli.py at_rest",
    ),
    Mutant(
        guard="only closed sessions are purged",
        file=RETENTION,
        old="where status = 'closed' and updated_at",
        new="where updated_at",
        tests="tests/test_cli.py at_rest",
    ),
    Mutant(
        guard="sessions that owe something are not purged",
        file=RETENTION,
        old="session_id = session.id and status in ('pending', 'sending'))",
        new="false)",
        tests="tests/test_cli.py owed",
    ),
    Mutant(
        guard="a session takes its timeline along",
        file="migrations/versions/0012_timelines_without_a_key.py",
        old="delete from timeline using gone where session_id = gone.id;",
        new="",
        tests="tests/test_cli.py at_rest",
    ),
    Mutant(
        guard="all sessions take all timelines along",
        file="migrations/versions/0012_timelines_without_a_key.py",
        old="truncate timeline;",
        new="null;",
        tests="tests/test_migrations.py timeline_along",
    ),
    Mutant(
        guard="no time of receipt is to come",
        file=EVENTS,
        old="least(received_at, app_now())",
        new="coalesce(received_at, app_now())",
        tests="tests/test_spool.py is_the_present",
    ),
    Mutant(
        guard="what was spooled keeps its time of receipt",
        file=EVENTS,
        old="least(received_at, app_now())",
        new="app_now()",
        tests="tests/test_spool.py is_the_present",
    ),
    Mutant(
        guard="only what is in quarantine is read anew",
        file=EVENTS,
        old="where id = $1 and status = 'quarantined'",
        new="where id = $1",
        tests=f"{OPERATE} in_quarantine",
    ),
    # --- connections, health, figures, tokens
    Mutant(
        guard="what is answered is let go of",
        file="app/door/fastlane.py",
        old="        self._about = None\n",
        new="",
        tests="tests/test_connection.py freed_at_once",
    ),
    Mutant(
        guard="one query for however many ask whether this is ready",
        file="app/health.py",
        old="Shared(partial(_database_fault, pool), singly=True)",
        new="Shared(partial(_database_fault, pool))",
        tests="tests/test_metrics.py asked_once",
    ),
    Mutant(
        guard="the token of the figures",
        file="app/health.py",
        old="dependencies=[] if is_open else [Depends(admit)]",
        new="dependencies=[]",
        tests="tests/test_metrics.py token",
    ),
    Mutant(
        guard="wrong tokens are bounded",
        file="app/api/guard.py",
        old="        self._attempts.admit(address)\n",
        new="",
        tests="tests/test_api.py wrong_tokens",
    ),
    Mutant(
        guard="addresses that are counted are bounded",
        file="app/api/guard.py",
        old="        if len(self._failures) > MOST_ADDRESSES:\n"
        "            self._failures.popitem(last=False)\n",
        new="",
        tests="tests/test_api.py addresses",
    ),
    Mutant(
        guard="the nonce of a replay",
        file=EVENTS,
        old="              from noted\n"
        "             where id = noted.event_id and status <> 'pending'",
        new="             where id = $1 and status <> 'pending'",
        tests=f"{OPERATE} runs_once",
    ),
    # --- answers
    Mutant(
        guard="what may have been sent is not taken back",
        file=OUTBOX,
        old="           and status = 'pending' and attempts = 0",
        new="           and status = 'pending'",
        tests="tests/test_commands.py may_have_been_sent",
    ),
)


def replaced(text: str, mutant: Mutant) -> str:
    """The text with the guard taken out; fails where the guard is not there any more."""
    parts = text.split(mutant.old)
    if len(parts) <= max(mutant.nth, 1):
        raise ValueError(f"{mutant.file} has no {mutant.old!r}: mend the mutant {mutant.guard!r}")
    if mutant.nth == 0:
        return mutant.new.join(parts)
    before = mutant.old.join(parts[: mutant.nth])
    return before + mutant.new + mutant.old.join(parts[mutant.nth :])


def pytest_arguments(tests: Iterable[str]) -> list[str]:
    """What pytest is called with for all of these."""
    files, words = zip(*(chosen.split(" ", maxsplit=1) for chosen in tests), strict=True)
    return [*sorted(set(files)), "-k", " or ".join(f"({word})" for word in words)]


def run(mutant: Mutant | None, tests: Iterable[str], dsn: str, *, processes: int = 0) -> int:
    """The exit code of these tests on a copy of the code, with the guard taken out of it."""
    with tempfile.TemporaryDirectory(prefix="draftgate-mutant-") as home:
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(home) / name)
        if mutant is not None:
            path = Path(home) / mutant.file
            path.write_text(replaced(path.read_text(), mutant))
        arguments = ("-m", "pytest", "-q", "-x", "-n", str(processes), "-p", "no:cacheprovider")
        environment = {"PYTHONPATH": home, "DRAFTGATE_TEST_DATABASE_URL": dsn}
        try:
            done = subprocess.run(
                [sys.executable, *arguments, *pytest_arguments(tests)],
                cwd=home,
                env={**os.environ, **environment},
                capture_output=True,
                timeout=LONGEST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return HUNG
        return done.returncode


def judge(mutants: Iterable[Mutant], dsn: str) -> list[str]:
    """What is wrong: guards whose loss no test notices. Tells each verdict as it comes."""
    console = Console()
    faults = []

    def verdict(mutant: Mutant) -> tuple[Mutant, int]:
        return mutant, run(mutant, [mutant.tests], dsn)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for mutant, code in pool.map(verdict, mutants):
            caught = code == RED
            said = "[green]caught[/]  " if caught else f"[red]SURVIVED[/] (exit {code})"
            console.print(f"{said} {mutant.guard}  [dim]{mutant.tests}[/]")
            if not caught:
                faults.append(mutant.guard)
    return faults


def main() -> int:
    """Runs the tests on the code as it is, then on each mutant."""
    words = sys.argv[1:]
    mutants = [it for it in MUTANTS if all(word in it.guard for word in words)]
    with (
        tempfile.TemporaryDirectory(prefix="draftgate-mutants-", dir=quick_directory()) as home,
        postgres(Path(home), options=FAST) as dsn,
    ):
        if run(None, [mutant.tests for mutant in mutants], dsn, processes=AT_A_TIME) != 0:
            sys.stderr.write("the tests are not green without any mutant\n")
            return 1
        faults = judge(mutants, dsn)
    sys.stdout.write(f"{len(mutants) - len(faults)} of {len(mutants)} caught\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
