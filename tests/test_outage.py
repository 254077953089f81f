"""PostgreSQL stands still, then is stopped, under deliveries to real processes: `make outage`."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.outage import Options, run


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that the server's own user can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="draftgate-outage-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.parametrize("spool", [True, False])
async def test_nothing_acknowledged_is_lost_while_the_database_is_away(home, spool):
    """With a spool each delivery is acknowledged, without one 2xx or 503; all are there once."""
    options = Options(seconds=8, per_second=20, spool=spool, commit_timeout_seconds=6)

    figures = await run(options, home)

    assert figures.kept
    assert set(figures.answers) == ({"200", "202"} if spool else {"200", "503"})
    assert figures.all_acknowledged == spool
    assert figures.recorded >= figures.answers["200"] + figures.answers.get("202", 0)
    assert "Traceback" not in (home / "log").read_text()
