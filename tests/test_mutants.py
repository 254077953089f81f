"""The list of mutants: what `make mutants` takes out is still there to be taken out."""

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant, replaced


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guard)
def test_every_mutant_finds_its_guard(mutant: Mutant) -> None:
    """A guard that was rewritten takes its mutant along, or nobody sees that it is untested."""
    text = (ROOT / mutant.file).read_text()
    assert replaced(text, mutant) != text
