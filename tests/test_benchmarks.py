"""The benchmarks measure what they say, and the documents show what was measured."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from app.shortcut import envelope
from app.shortcut.signature import SIGNATURE_HEADER, verify
from benchmarks import payloads, report
from benchmarks.answers import Load
from benchmarks.figures import Figures
from benchmarks.payloads import BODY_BYTES, SECRET

ROOT = Path(__file__).parent.parent
LATEST = ROOT / "benchmarks" / "results" / "latest.json"


@pytest.fixture
def results():
    """What the last run found, if its figures are there."""
    if not LATEST.exists():
        pytest.skip("no run has been kept")
    return json.loads(LATEST.read_text())


@pytest.mark.parametrize("name", ["README.md", "docs/performance.md", "docs/scale.md"])
def test_the_documents_show_the_latest_figures(results, name):
    """The figures in a document are those of the run that was kept."""
    text = (ROOT / name).read_text()

    assert "<!-- make bench: " in text
    assert report.replaced(text, results) == text


def test_tables_and_chart_are_of_the_latest_run(results):
    """What people read beside the JSON says the same."""
    assert report.markdown(results) == LATEST.with_suffix(".md").read_text()
    assert report.chart(results) == LATEST.with_name("receive.svg").read_text()


@pytest.mark.parametrize("make", [payloads.irrelevant, payloads.opening])
def test_payloads_are_signed_distinct_and_of_one_size(tmp_path, make):
    """Each request is a whole delivery of 1 kB that the door takes, and none comes twice."""
    requests = payloads.write(tmp_path / "requests", make, 50)

    heads, bodies = zip(*(request.split(b"\r\n\r\n") for request in requests), strict=True)
    headers = [dict(line.split(b": ") for line in head.split(b"\r\n")[1:]) for head in heads]
    signatures = [{name.lower(): value for name, value in h.items()} for h in headers]
    keys = {envelope.read("shortcut", body, []).dedupe_key for body in bodies}

    assert {len(body) for body in bodies} == {BODY_BYTES}
    assert len(keys) == 50
    assert all(
        verify([SECRET.encode()], body, [signature[SIGNATURE_HEADER]])
        for body, signature in zip(bodies, signatures, strict=True)
    )


def test_the_same_seed_makes_the_same_deliveries():
    """A run can be repeated, byte for byte."""
    one, other = (payloads.body(payloads.opening, 7, random.Random(3)) for _ in range(2))

    assert one == other


def test_ratios_are_of_pairs():
    """The ratio is the median of each pair's, not the ratio of two medians."""
    figures = Figures()

    ratio = figures.add("ours", "1/s", [10, 40, 90], reference="theirs", beside=[10, 20, 30])

    (entry,) = figures.entries
    assert (ratio, entry.median, entry.min, entry.max, entry.n) == (2, 40, 10, 90, 3)


def test_a_target_is_met_on_its_own_side():
    """A lower bound is met from above, an upper one from below, and both at the bound."""
    figures = Figures()
    for value in (1, 2, 3):
        figures.reach("least", value, least=2)
        figures.stay("most", value, most=2)

    assert [target.met for target in figures.targets] == [False, True, True, True, True, False]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b""])
async def test_what_is_refused_is_no_answer_time(answer):
    """It ends the measurement, rather than being waited for."""

    async def refuse(reader, writer):
        await reader.read(1)
        writer.write(answer)
        writer.close()

    load = Load()
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        await load.connect(server.sockets[0].getsockname()[1], 1)
        load.offer(0.0, b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(RuntimeError, match="refused"):
            await load.answered(1)
    assert not load.times
