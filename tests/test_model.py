"""The model of the claim protocol: it holds, and only with every guard in its place."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

MODEL = Path(__file__).parent.parent / "docs" / "model" / "claim.pml"
LONGEST_SECONDS = 900
#: Compiled to visit all states; to find a fault soon; and to find cycles, none of them progress.
ALL_STATES, FIRST_FAULT = ("-O2", "-DSAFETY"), ("-O0", "-DSAFETY")
CYCLES = ("-O1", "-DNP", "-DNOFAIR")
#: With questions to be cleared up before the draft.
CLARIFY = "-DSTART=opened"

Search = Callable[..., str]


@pytest.fixture
def search(require_tool, tmp_path) -> Search:
    """Visits every state of the model, and gives spin's report."""
    spin, gcc = require_tool("spin"), require_tool("gcc")

    def run(*command: str) -> str:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_SECONDS,
            check=True,
        )
        return done.stdout

    def search(*defined: str, compiled: tuple[str, ...]) -> str:
        run(spin, *defined, "-a", str(MODEL))
        run(gcc, "-DNOREDUCE", "-DNOCLAIM", "-DMEMLIM=3900", *compiled, "-opan", "pan.c")
        report = run("./pan", "-w25", "-m10000", *(["-l"] if compiled is CYCLES else []))
        if "errors: 0" not in report:
            trail = str(tmp_path / "claim.pml.trail")
            report += run(spin, "-t", "-p", "-k", trail, *defined, str(MODEL))
        return report

    return search


def is_exhaustive(report: str) -> bool:
    """Every state was visited, and nothing was wrong with any."""
    return "errors: 0" in report and not re.search("not completed|too small|MEMLIM", report)


def broken_property(report: str) -> str:
    """What the failed assertion is there for, as the comment behind it says."""
    failed = re.search(r"claim\.pml:(\d+), Error: assertion violated", report)
    assert failed, report
    line = MODEL.read_text().splitlines()[int(failed[1]) - 1]
    return line.partition("/* ")[2].removesuffix(" */")


def test_the_claim_protocol_holds(search):
    """The claim protocol holds for three workers and two sessions."""
    assert is_exhaustive(search("-DUPSETS=3", compiled=ALL_STATES))


def test_it_holds_with_the_clarify_phase(search):
    """It holds through both phases, and no step of the model is dead but those that must be."""
    report = search("-DUPSETS=2", CLARIFY, compiled=ALL_STATES)

    unreached = re.findall(r'claim\.pml:\d+, state \d+, "(.*)"', report)
    dead = [step for step in unreached if step != "-end-" and "assert(" not in step]
    assert is_exhaustive(report)
    assert dead == []


@pytest.mark.parametrize(
    "defined", [("-DUPSETS=2",), ("-DUPSETS=1", CLARIFY)], ids=["draft", "clarify"]
)
def test_no_run_goes_on_for_ever(search, defined):
    """There is no cycle, so every run leads to where nothing is left to do: all is at rest."""
    assert is_exhaustive(search(*defined, compiled=CYCLES))


@pytest.mark.parametrize(
    ("guard", "broken"),
    [
        ("GENERATION", "only the live claim writes"),
        ("STATUS", "only the live claim writes"),
        ("BEAT_GENERATION", "only the live claim beats"),
        ("BEAT_STATUS", "only the live claim beats"),
        ("READY", "a story has one drafter"),
        ("STOPPING", "a story has one drafter"),
        ("TOKEN", "a bid holds one session"),
        ("UNIQUE_TOKEN", "a bid holds one session"),
        ("SELF_FENCE", "a story has one drafter"),
        ("EXPIRY", "every session comes to rest"),
        ("IDEMPOTENT_END", "what was accepted is known"),
    ],
)
def test_a_guard_that_is_taken_out_is_missed(search, guard, broken):
    """Without any one of the guards, one of the properties fails."""
    report = search("-DUPSETS=2", f"-DNO_{guard}", compiled=FIRST_FAULT)

    assert broken_property(report) == broken


def test_where_two_drafters_can_meet(search):
    """Beyond what a lease tells: a bound that does not end with its phase."""
    report = search("-DUPSETS=2", "-DPHASE_END", compiled=FIRST_FAULT)

    assert broken_property(report) == "a story has one drafter"
