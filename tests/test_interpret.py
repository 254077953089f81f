"""What each kind of delivery says of stories, for every shape that Shortcut sends or may send."""

import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.model import Fact, FactKind, Interpretation, Known, Need, NeedKind
from app.shortcut.envelope import read
from app.shortcut.event import MAX_FACTS
from app.worker.interpret import interpret

SAMPLES = Path(__file__).parent / "samples" / "deliveries"
RECEIVED = datetime(2026, 9, 14, 12, 0, tzinfo=UTC)
SENT = RECEIVED - timedelta(minutes=1)

ADA = "6a100001-0000-4000-8000-000000000001"
GRACE = "6a100002-0000-4000-8000-000000000002"
BOT = "6a100009-0000-4000-8000-000000000009"
ACME = "6a1001f4-0000-4000-8000-0000000001f4"
STORY = "https://app.shortcut.com/acme/story"
CSV = "Export invoices as CSV"
CRITERIA = "Acceptance criteria:\n- one row per invoice\n- UTF-8 with BOM"

TO_DO = Need(NeedKind.STATE, 500000007)


def told(body: bytes, known: Known | None = None) -> Interpretation:
    """The body as the service interprets it: by the kind and the time that recording it read."""
    delivery = read("main", body, [])
    return interpret(
        delivery.kind,
        body,
        workspace="acme",
        received_at=RECEIVED,
        occurred_at=delivery.occurred_at,
        known=known or {},
    )


def sample(name: str) -> bytes:
    return (SAMPLES / f"{name}.json").read_bytes()


def v1(*actions: object, references: object = None, **more: object) -> bytes:
    envelope = {"version": "v1", "id": "6a10", "changed_at": SENT.isoformat(), "member_id": ADA}
    return json.dumps({**envelope, "actions": actions, "references": references, **more}).encode()


def v2(**more: object) -> bytes:
    envelope = {
        "version": "v2",
        "id": "6a10",
        "timestamp": SENT.isoformat(),
        "actor": {"member_id": ADA},
        "workspace2": {"id": ACME},
        "installation_id": "6a58",
    }
    return json.dumps({**envelope, **more}).encode()


def trigger(**more: object) -> bytes:
    return v2(trigger={"type": "mentioned", "entity_type": "story", "entity_id": "42", **more})


def story(changes: object = None, *, verb: str = "update", **more: object) -> dict[str, object]:
    return {"entity_type": "story", "id": 42, "action": verb, "changes": changes, **more}


def comment(verb: str, **more: object) -> dict[str, object]:
    return {"entity_type": "story-comment", "id": 7, "action": verb, "text": "Yes.", **more}


def observed(*changes: object) -> bytes:
    return v2(actions=[story(list(changes))])


def fact(kind: FactKind, **more: Any) -> Fact:
    """A fact about the story of the made-up deliveries."""
    common = {"workspace": "acme", "sc_id": 42, "occurred_at": SENT, "actor": ADA}
    return Fact(**{**common, "kind": kind, **more})


def fact2(kind: FactKind, **more: Any) -> Fact:
    return fact(kind, **{"workspace": ACME, **more})


# --- the samples -----------------------------------------------------------------------------


def at1(second: int, millisecond: int) -> datetime:
    return datetime(2026, 9, 14, 8, 30, second, millisecond * 1000, UTC)


def at2(second: int, millisecond: int) -> datetime:
    return datetime(2026, 9, 14, 9, 0, second, millisecond * 1000, UTC)


def on1(kind: FactKind, sc_id: int, occurred_at: datetime, **more: Any) -> Fact:
    common = {"actor": ADA, "title": CSV, "app_url": f"{STORY}/{sc_id}"}
    base = {"workspace": "acme", "sc_id": sc_id, "occurred_at": occurred_at, "kind": kind}
    return Fact(**{**base, **common, **more})


def on2(kind: FactKind, sc_id: int, occurred_at: datetime, **more: Any) -> Fact:
    base = {"workspace": ACME, "sc_id": sc_id, "occurred_at": occurred_at, "kind": kind}
    return Fact(**{**base, "actor": GRACE, **more})


CRASH = {"title": "Crash on empty cart"}
SAID: dict[str, list[Fact]] = {
    "v1-batch-without-primary-id": [
        on1(FactKind.LABEL_ADDED, 4105, at1(9, 333), value="patch", value_id="881"),
        on1(
            FactKind.LABEL_ADDED,
            4106,
            at1(9, 333),
            value="patch",
            value_id="881",
            title="Rename the plan",
        ),
    ],
    "v1-branch-from-vcs-without-member": [
        on1(
            FactKind.STATE_ENTERED,
            4104,
            at1(10, 370),
            value="In Development",
            value_id="500000008",
            actor=None,
        ),
    ],
    "v1-comment-created-command": [
        on1(
            FactKind.COMMENTED,
            4101,
            at1(6, 222),
            value="Looks clear to me.\n/draft",
            comment_id=7002,
        ),
    ],
    "v1-comment-created": [
        on1(
            FactKind.COMMENTED,
            4101,
            at1(5, 185),
            actor=GRACE,
            value="One row per invoice, please. Amounts in cents.",
            comment_id=7001,
        ),
    ],
    "v1-comment-updated": [
        on1(
            FactKind.COMMENT_EDITED,
            4101,
            at1(7, 259),
            actor=GRACE,
            value="One row per invoice. Amounts in euros.",
            comment_id=7001,
        ),
    ],
    "v1-description-cleared": [on1(FactKind.DESCRIBED, 4107, at1(13, 481), value="")],
    "v1-label-added-name-in-actions": [
        on1(FactKind.LABEL_ADDED, 4102, at1(3, 111), value="patch", value_id="882", **CRASH),
    ],
    "v1-label-added-name-in-references": [
        on1(FactKind.LABEL_ADDED, 4101, at1(2, 74), value="patch", value_id="881"),
    ],
    "v1-label-id-equals-story-id": [
        on1(FactKind.LABEL_ADDED, 4103, at1(4, 148), value="patch", value_id="4103"),
    ],
    "v1-state-moved-owner-auto-added": [
        on1(FactKind.OWNER_ADDED, 4104, at1(8, 296), value=BOT),
        on1(
            FactKind.STATE_ENTERED,
            4104,
            at1(8, 296),
            value="Ready for patch",
            value_id="500000008",
        ),
    ],
    "v1-story-archived": [on1(FactKind.ARCHIVED, 4101, at1(12, 444))],
    "v1-story-create": [
        on1(
            FactKind.CREATED,
            4101,
            at1(1, 37),
            value=f"As a bookkeeper I want a CSV export.\n\n{CRITERIA}",
        ),
        on1(FactKind.STATE_ENTERED, 4101, at1(1, 37), value="To do", value_id="500000007"),
    ],
    "v1-story-deleted": [on1(FactKind.DELETED, 4102, at1(11, 407), app_url=None, **CRASH)],
    "v2-assigned": [on2(FactKind.ASSIGNED, 4201, at2(1, 53))],
    "v2-comment-reply": [
        on2(
            FactKind.COMMENTED,
            4201,
            at2(2, 106),
            value="In cents.",
            comment_id=7102,
            parent_comment_id=7101,
        ),
    ],
    "v2-mentioned-in-comment": [
        on2(FactKind.MENTIONED, 4202, at2(3, 159), value="@bot please", comment_id=7103),
    ],
    "v2-mentioned-in-description": [on2(FactKind.MENTIONED, 4203, at2(4, 212))],
    "v2-observer-id-as-string-no-changes": [on2(FactKind.TOUCHED, 4201, at2(5, 265))],
    "v2-observer-same-audit-id-as-assigned": [
        on2(FactKind.OWNER_ADDED, 4201, at2(1, 53), value=BOT, app_url=f"{STORY}/4201"),
    ],
    "v2-own-write": [
        on2(FactKind.TOUCHED, 4201, at2(6, 318), actor=BOT, app_url=f"{STORY}/4201"),
    ],
    "v2-validation-ping": [],
}
KNOWN: Known = {
    TO_DO: "To do",
    Need(NeedKind.COMMENT, 7102, 4201): "In cents.",
    Need(NeedKind.COMMENT, 7103, 4202): "@bot please",
}


@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("*.json")))
def test_facts_of_the_samples(name: str) -> None:
    """Each sample says exactly these things, once what it refers to is known."""
    said = told(sample(name), KNOWN)
    assert list(said.facts) == SAID[name]
    assert said.needs == ()
    assert (said.nothing is None) == bool(said.facts)


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("v1-story-create", TO_DO),
        ("v2-comment-reply", Need(NeedKind.COMMENT, 7102, 4201)),
        ("v2-mentioned-in-comment", Need(NeedKind.COMMENT, 7103, 4202)),
    ],
)
def test_needs_of_the_samples(name: str, need: Need) -> None:
    """What a delivery refers to and doesn't carry is asked for before anything is said."""
    assert told(sample(name)) == Interpretation(needs=(need,))


# --- nothing in it ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "nothing"),
    [
        (sample("v2-validation-ping"), "a validation ping"),
        (b"", "an empty body"),
        (b"{", "a body that can't be read"),
        (b"{}", "of a kind that is not known here"),
        (b'{"version":"v3"}', "of a kind that is not known here"),
        (v2(), "of a kind that is not known here"),
        (trigger(type="unassigned"), "of a kind that is not known here"),
        (trigger(entity_type="epic"), "about an epic, not a story"),
        (trigger(entity_type="objective"), "no story in it"),
        (trigger(entity_id="x"), "no story in it"),
        (v1(), "no story in it"),
        (v1({"entity_type": "epic", "id": 42, "action": "update"}), "no story in it"),
        (v1({"entity_type": "story-task", "id": 9, "action": "create"}), "no story in it"),
        (v1(comment("create")), "a comment on a story that it doesn't name"),
        (v1(comment("react", story_id=42)), "no story in it"),
        (v1(comment("create", id=None, story_id=42)), "no story in it"),
        (v2(actions=[{"entity_type": "label", "id": 1, "action": "update"}]), "no story in it"),
    ],
)
def test_nothing(body: bytes, nothing: str) -> None:
    """An event that says nothing of a story has a reason that a person can read."""
    assert told(body) == Interpretation(nothing=nothing)


def test_a_kind_that_does_not_fit_its_body() -> None:
    """What was recorded as readable and no longer is ends with a reason, not with an error."""
    said = interpret("v1", b"[", workspace="acme", received_at=RECEIVED, occurred_at=None, known={})
    assert said == Interpretation(nothing="a body that can't be read")


# --- when, who, where ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("occurred_at", "counts"),
    [
        (None, RECEIVED),
        (RECEIVED - timedelta(days=900), RECEIVED - timedelta(days=900)),
        (RECEIVED + timedelta(minutes=5), RECEIVED + timedelta(minutes=5)),
        (RECEIVED + timedelta(minutes=5, seconds=1), RECEIVED),
    ],
)
def test_time(occurred_at: datetime | None, counts: datetime) -> None:
    """The sender's time counts, unless there is none or it lies ahead of ours."""
    said = interpret(
        "v1",
        v1(story()),
        workspace="acme",
        received_at=RECEIVED,
        occurred_at=occurred_at,
        known={},
    )
    assert said.facts == (fact(FactKind.TOUCHED, occurred_at=counts),)


@pytest.mark.parametrize("wrong", [None, "", 5, [], {}])
def test_actor_and_workspace_may_be_missing(wrong: object) -> None:
    """Automations have no member id, and without a workspace of its own the source's counts."""
    nobody = fact(FactKind.TOUCHED, actor=None)
    assert told(v1(story(), member_id=wrong)).facts == (nobody,)
    body = v2(actions=[story()], actor={"member_id": wrong}, workspace2={"id": wrong})
    assert told(body).facts == (nobody,)
    assert told(v2(actions=[story()], actor=wrong, workspace2=wrong)).facts == (nobody,)


@pytest.mark.parametrize(
    ("sc_id", "counts"),
    [(42, 42), ("42", 42), ((1 << 63) - 1, (1 << 63) - 1), ("7" * 19, 7_777_777_777_777_777_777)],
)
def test_story_ids(sc_id: object, counts: int) -> None:
    """A story's id is the same as a number and as text, as far as 64 bits go."""
    assert [f.sc_id for f in told(v1(story(id=sc_id))).facts] == [counts]
    assert [f.sc_id for f in told(v2(actions=[story(id=sc_id)])).facts] == [counts]
    assert [f.sc_id for f in told(trigger(entity_id=sc_id)).facts] == [counts]


@pytest.mark.parametrize(
    "sc_id", [None, True, 0, -1, 42.0, 1 << 63, "", "-1", "4 2", "٤٢", "9" * 19, "1" * 50, [42], {}]
)
def test_what_is_no_story_id(sc_id: object) -> None:
    """A story without a usable id is skipped, and so is what is said of it."""
    nothing = Interpretation(nothing="no story in it")
    assert told(v1(story(id=sc_id))) == nothing
    assert told(v2(actions=[story(id=sc_id)])) == nothing
    assert told(trigger(entity_id=sc_id)) == nothing


@pytest.mark.parametrize(
    "app_url",
    [
        *(None, 5, "", "javascript:alert(1)", "//example.com", "https://", "https://x y"),
        "https://example.com/\n",
        "https://example.com/\ud83d",
        "https://example.com/" + "x" * 500,
    ],
)
def test_app_url_is_a_link_or_none(app_url: object) -> None:
    """Only what a page may link to is kept as the story's address."""
    assert told(v1(story(app_url=app_url))).facts == (fact(FactKind.TOUCHED),)


def test_what_cannot_be_stored_is_replaced() -> None:
    """NUL and lone surrogates are legal in JSON and nowhere else."""
    bad, good = "a\0b\ud83d", "a\ufffdb\ufffd"
    body = v1(
        story({"description": {"new": bad}, "owner_ids": {"adds": [bad]}}, name=bad),
        comment("create", text=bad, story_id=42),
        story({"label_ids": {"adds": [1]}}, name=bad),
        member_id=bad,
        references=[{"entity_type": "label", "id": 1, "name": bad}],
    )
    described, owned, commented, labelled = told(body).facts
    assert (described.value, described.title, described.actor) == (good, good, good)
    assert (owned.value, commented.value, labelled.value) == (good, good, good)
    gone = {Need(NeedKind.COMMENT, 7, 42): bad}
    assert [f.value for f in told(trigger(comment_id="7"), gone).facts] == [good]
    assert told(v2(actions=[story()], workspace2={"id": bad})).facts[0].workspace == good


def test_long_text() -> None:
    """A title and ids are cut to what is shown and indexed; what was written stays whole."""
    long = "x" * 100_000
    body = v1(story({"description": {"new": long}}, name=long), member_id=long)
    said = told(body).facts[0]
    assert (said.value, said.title, said.actor) == (long, "x" * 1_000, "x" * 200)


# --- v1 --------------------------------------------------------------------------------------


def test_a_story_born_with_everything() -> None:
    """What a new story is born with counts like what it gets later."""
    born = story(
        verb="create",
        name="Crash",
        description="It crashes.",
        label_ids=[1],
        owner_ids=[BOT],
        workflow_state_id=5,
        completed=True,
        archived=False,
    )
    references = [
        {"entity_type": "label", "id": 1, "name": "patch"},
        {"entity_type": "workflow-state", "id": 5, "name": "Done", "type": "done"},
    ]
    assert told(v1(born, references=references)).facts == (
        fact(FactKind.CREATED, value="It crashes.", title="Crash"),
        fact(FactKind.LABEL_ADDED, value="patch", value_id="1", title="Crash"),
        fact(FactKind.OWNER_ADDED, value=BOT, title="Crash"),
        fact(FactKind.STATE_ENTERED, value="Done", value_id="5", title="Crash"),
        fact(FactKind.COMPLETED, title="Crash"),
    )


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"archived": {"new": True, "old": False}}, [fact(FactKind.ARCHIVED)]),
        ({"archived": {"new": False, "old": True}}, [fact(FactKind.UNARCHIVED)]),
        ({"completed": {"new": True}}, [fact(FactKind.COMPLETED)]),
        ({"completed": {"new": False}}, [fact(FactKind.TOUCHED)]),
        ({"description": {"new": "So."}}, [fact(FactKind.DESCRIBED, value="So.")]),
        ({"description": {"old": "So."}}, [fact(FactKind.DESCRIBED, value="")]),
        ({"description": {"new": None, "old": "So."}}, [fact(FactKind.DESCRIBED, value="")]),
        ({"name": {"new": "Crash"}}, [fact(FactKind.DESCRIBED, title="Crash")]),
        ({"estimate": {"new": 4}, "comment_ids": {"adds": [7]}}, [fact(FactKind.TOUCHED)]),
        (
            {"comment_ids": {"removes": [7]}},
            [fact(FactKind.COMMENT_DELETED, comment_id=7)],
        ),
        (
            {"owner_ids": {"adds": [BOT], "removes": [GRACE]}},
            [fact(FactKind.OWNER_REMOVED, value=GRACE), fact(FactKind.OWNER_ADDED, value=BOT)],
        ),
        (
            {"archived": {"new": True}, "name": {"new": "Crash"}, "owner_ids": {"adds": [BOT]}},
            [
                fact(FactKind.DESCRIBED, title="Crash"),
                fact(FactKind.OWNER_ADDED, value=BOT),
                fact(FactKind.ARCHIVED),
            ],
        ),
    ],
)
def test_v1_changes(changes: object, facts: list[Fact]) -> None:
    """Each change that matters is one fact; the rest only ties the event to its story."""
    assert list(told(v1(story(changes))).facts) == facts


def test_v1_names_are_looked_up_by_type_and_id() -> None:
    """Labels and states come by id; what the event doesn't name is asked for, all at once."""
    changes = {
        "label_ids": {"adds": [1, 2], "removes": [3]},
        "workflow_state_id": {"new": 1, "old": 2},
    }
    references = [
        {"entity_type": "label", "id": 1, "name": "patch"},
        {"entity_type": "label", "id": 3},
        {"entity_type": "workflow-state", "id": 2, "name": "To do"},
    ]
    label_2, label_3 = Need(NeedKind.LABEL, 2), Need(NeedKind.LABEL, 3)
    state = Need(NeedKind.STATE, 1)
    body = v1(story(changes), references=references)

    assert told(body) == Interpretation(needs=(label_3, label_2, state))
    assert told(body, {label_2: "ui", label_3: None, state: None}).facts == (
        fact(FactKind.LABEL_REMOVED, value_id="3"),
        fact(FactKind.LABEL_ADDED, value="patch", value_id="1"),
        fact(FactKind.LABEL_ADDED, value="ui", value_id="2"),
        fact(FactKind.STATE_ENTERED, value_id="1"),
    )


@pytest.mark.parametrize(
    ("state_type", "kinds"),
    [
        ("done", [FactKind.STATE_ENTERED, FactKind.COMPLETED]),
        ("started", [FactKind.STATE_ENTERED]),
        (None, [FactKind.STATE_ENTERED]),
    ],
)
def test_a_state_may_complete_the_story(state_type: object, kinds: list[FactKind]) -> None:
    """Entering a state of the type `done` completes a story."""
    reference = {"entity_type": "workflow-state", "id": 5, "name": "Shipped", "type": state_type}
    body = v1(story({"workflow_state_id": {"new": 5}}), references=[reference])
    assert [f.kind for f in told(body).facts] == kinds


SIBLING = {"comment_ids": {"adds": [7]}}
REFERENCE = {"entity_type": "story", "id": 42, "name": "Crash", "app_url": f"{STORY}/42"}
CRASHED = {"title": "Crash", "app_url": f"{STORY}/42"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            v1(comment("create"), story(SIBLING, name="Crash")),
            fact(FactKind.COMMENTED, value="Yes.", comment_id=7, title="Crash"),
        ),
        (
            v1(comment("create", story_id="42", app_url=f"{STORY}/42#activity-7")),
            fact(FactKind.COMMENTED, value="Yes.", comment_id=7),
        ),
        (
            v1(comment("create"), references=[REFERENCE]),
            fact(FactKind.COMMENTED, value="Yes.", comment_id=7, **CRASHED),
        ),
        (
            v1(comment("create", parent_id=6), story(SIBLING), references=[REFERENCE]),
            fact(FactKind.COMMENTED, value="Yes.", comment_id=7, parent_comment_id=6, **CRASHED),
        ),
        (
            v1(comment("create", author_id=GRACE, story_id=42), member_id=None),
            fact(FactKind.COMMENTED, value="Yes.", comment_id=7, actor=GRACE),
        ),
        (
            v1(comment("update", author_id=GRACE, story_id=42), member_id=None),
            fact(FactKind.COMMENT_EDITED, value="Yes.", comment_id=7, actor=None),
        ),
        (
            v1(comment("update", text=None, story_id=42)),
            fact(FactKind.COMMENT_EDITED, comment_id=7),
        ),
        (
            v1(comment("delete", story_id=42)),
            fact(FactKind.COMMENT_DELETED, comment_id=7),
        ),
        (
            v1(comment("delete", parent_id=6), story({"comment_ids": {"removes": [7]}})),
            fact(FactKind.COMMENT_DELETED, comment_id=7),
        ),
    ],
)
def test_v1_comments(body: bytes, expected: Fact) -> None:
    """A comment's story is in the sibling action, in the comment, or the only one referred to."""
    assert told(body).facts == (expected,)


def test_a_comment_with_two_possible_stories_has_none() -> None:
    """Two referred stories are a guess, and a guess would put words into the wrong conversation."""
    body = v1(comment("create"), references=[REFERENCE, {**REFERENCE, "id": 43}])
    assert told(body) == Interpretation(nothing="a comment on a story that it doesn't name")


# --- v2 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (
            {"attribute": "labels", "adds": [{"id": 1, "name": "patch"}], "removes": []},
            [fact2(FactKind.LABEL_ADDED, value="patch", value_id="1")],
        ),
        (
            {"attribute": "labels", "adds": [{"name": "patch"}], "removes": [{"id": "1"}, {}]},
            [
                fact2(FactKind.LABEL_REMOVED, value="old", value_id="1"),
                fact2(FactKind.LABEL_ADDED, value="patch"),
            ],
        ),
        (
            {"attribute": "owners", "adds": [{"id": BOT}], "removes": [{"id": ADA}]},
            [fact2(FactKind.OWNER_REMOVED, value=ADA), fact2(FactKind.OWNER_ADDED, value=BOT)],
        ),
        (
            {"attribute": "workflow_state", "adds": [{"id": 5, "name": "Done", "type": "done"}]},
            [
                fact2(FactKind.STATE_ENTERED, value="Done", value_id="5"),
                fact2(FactKind.COMPLETED),
            ],
        ),
        ({"attribute": "archived", "adds": [True]}, [fact2(FactKind.ARCHIVED)]),
        ({"attribute": "archived", "adds": [False]}, [fact2(FactKind.UNARCHIVED)]),
        ({"attribute": "completed", "adds": [True]}, [fact2(FactKind.COMPLETED)]),
        ({"attribute": "completed", "adds": [False]}, [fact2(FactKind.TOUCHED)]),
        ({"attribute": "description", "adds": ["So."]}, [fact2(FactKind.DESCRIBED, value="So.")]),
        (
            {"attribute": "description", "adds": ["So"], "truncated": True},
            [fact2(FactKind.DESCRIBED)],
        ),
        (
            {"attribute": "description", "adds": [], "removes": ["So"], "truncated": True},
            [fact2(FactKind.DESCRIBED, value="")],
        ),
        ({"attribute": "name", "adds": ["Crash"]}, [fact2(FactKind.DESCRIBED, title="Crash")]),
        ({"attribute": "team", "adds": [{"id": "x"}]}, [fact2(FactKind.TOUCHED)]),
        ({"attribute": ["labels"], "adds": [1]}, [fact2(FactKind.TOUCHED)]),
    ],
)
def test_v2_changes(change: object, facts: list[Fact]) -> None:
    """The observer's list of changes says the same things in another form."""
    assert list(told(observed(change), {Need(NeedKind.LABEL, 1): "old"}).facts) == facts


@pytest.mark.parametrize(
    ("action", "kinds"),
    [
        (story(verb="create"), [FactKind.CREATED]),
        (story(verb="delete"), [FactKind.DELETED]),
        (story(verb="restore"), [FactKind.TOUCHED]),
        ({"entity_type": "story", "id": "42", "action": "update"}, [FactKind.TOUCHED]),
        (story([]), [FactKind.TOUCHED]),
    ],
)
def test_v2_actions(action: object, kinds: list[FactKind]) -> None:
    """A difference that is absent means unknown, and the event is tied to its story."""
    assert told(v2(actions=[action])).facts == tuple(fact2(kind) for kind in kinds)


def test_v2_names_may_come_without_the_change() -> None:
    """A slim label without a name is looked up like one of v1's."""
    body = observed({"attribute": "labels", "adds": [{"id": 1}]})
    assert told(body) == Interpretation(needs=(Need(NeedKind.LABEL, 1),))


def comment_need(text: str | None) -> Known:
    return {Need(NeedKind.COMMENT, 7, 42): text}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (trigger(type="assigned"), fact2(FactKind.ASSIGNED)),
        (trigger(context="description"), fact2(FactKind.MENTIONED)),
        (trigger(context="description", comment_id="7"), fact2(FactKind.MENTIONED)),
        (trigger(context="comment"), fact2(FactKind.MENTIONED)),
        (trigger(context="comment", comment_id=True), fact2(FactKind.MENTIONED)),
        (
            trigger(context="comment", comment_id="7", comment_parent_id="6"),
            fact2(FactKind.MENTIONED, value="Hi", comment_id=7, parent_comment_id=6),
        ),
        (trigger(comment_id=7), fact2(FactKind.MENTIONED, value="Hi", comment_id=7)),
        (
            trigger(type="comment-reply", comment_id="7", parent_comment_id="6"),
            fact2(FactKind.COMMENTED, value="Hi", comment_id=7, parent_comment_id=6),
        ),
        (trigger(type="comment-reply", parent_comment_id="6"), fact2(FactKind.TOUCHED)),
    ],
)
def test_v2_interactions(body: bytes, expected: Fact) -> None:
    """A mention is never lost, whatever its comment's id looks like."""
    assert told(body, comment_need("Hi")).facts == (expected,)


@pytest.mark.parametrize("kind", ["mentioned", "comment-reply"])
def test_a_comment_that_is_gone_says_nothing(kind: str) -> None:
    """What was deleted before it was read only ties the event to its story."""
    body = trigger(type=kind, comment_id="7")
    assert told(body, comment_need(None)).facts == (fact2(FactKind.TOUCHED),)


# --- senseless events ------------------------------------------------------------------------


@pytest.mark.parametrize("actions", [None, {}, "x", 5, [None], [[]], [[{}]], [{}], ["story"]])
def test_wrong_actions(actions: object) -> None:
    """Actions of a wrong type are none."""
    assert told(v1(actions=actions)).facts == ()
    assert told(v2(actions=actions)).facts == ()


WRONG: list[object] = [
    None,
    True,
    1.5,
    10**30,
    "x",
    [],
    [None],
    [[1]],
    {},
    {"adds": {}},
    {"new": [1]},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_parts_are_skipped(wrong: object) -> None:
    """A part of a wrong type is skipped, and the rest of the event counts."""
    keys = ("label_ids", "owner_ids", "workflow_state_id", "completed", "comment_ids", "name")
    changes = {key: wrong for key in keys} | {"archived": {"new": True}}
    body = v1(story(changes), {"entity_type": wrong, "id": wrong}, references=wrong)
    assert told(body).facts == (fact(FactKind.ARCHIVED),)
    bad = {"attribute": "labels", "adds": wrong, "removes": wrong}
    said = told(observed(bad, wrong, {"attribute": "archived", "adds": [True]})).facts
    assert said == (fact2(FactKind.ARCHIVED),)


def test_ten_thousand_actions_for_one_story() -> None:
    """Saying a thing often is saying it once."""
    update = story({"archived": {"new": True}})
    body = v1(*[update] * 10_000, *[comment("create", story_id=42)] * 10_000)
    said = told(body)
    assert [f.kind for f in said.facts] == [FactKind.ARCHIVED, FactKind.COMMENTED]


def test_facts_are_bounded() -> None:
    """An event that says more than any real one is cut, and says so."""
    said = told(v1(*[story(id=number + 1) for number in range(MAX_FACTS + 1)]))
    assert len(said.facts) == MAX_FACTS
    assert said.nothing == "only the first 5000 facts in it are read"


def test_each_change_is_bounded() -> None:
    """A story with more labels than any real one doesn't ask for each of them."""
    said = told(v1(story({"label_ids": {"adds": list(range(1, 10_000))}})))
    assert len(said.needs) == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def spots(value: object) -> list[tuple[Any, Any]]:
    """Every place in a JSON value that could hold something else."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    container: Any = value
    return [(container, key) for key in keys] + [
        spot for key in keys for spot in spots(container[key])
    ]


ORIGINALS = [json.loads(path.read_bytes()) for path in sorted(SAMPLES.glob("*.json"))]


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(ORIGINALS))
def test_any_mutation_of_a_sample_is_interpreted(data: st.DataObject, original: object) -> None:
    """Whatever stands where something else should, the answer is facts, needs or a reason."""
    payload = copy.deepcopy(original)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(spots(payload)))
        container[key] = data.draw(JSON)

    said = told(json.dumps(payload).encode(), KNOWN)

    assert bool(said.facts) + bool(said.needs) + (said.nothing is not None) == 1
    for each in said.facts:
        assert 0 < each.sc_id < 1 << 63
        texts = (each.workspace, each.actor, each.value, each.value_id, each.title, each.app_url)
        assert "\0" not in "".join(filter(None, texts))
        assert "".join(filter(None, texts)).encode() is not None


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["v1", "v2:observer", "v2:mentioned", "v2:comment-reply", "unknown", "x"]),
    st.binary(max_size=100) | JSON.map(lambda value: json.dumps(value).encode()),
)
def test_any_body_is_interpreted(kind: str, body: bytes) -> None:
    """No body makes any kind raise."""
    said = interpret(kind, body, workspace="acme", received_at=RECEIVED, occurred_at=None, known={})
    assert said.facts == ()
    assert said.nothing
