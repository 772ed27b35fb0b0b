"""What the tests of patterns share: no broken automaton outlives the test that breaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.operators.match import tables_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_tables_of_other_tests() -> Iterator[None]:
    """A process keeps the tables of its last patterns: those of a broken automaton, too."""
    tables_of.cache_clear()
    yield
    tables_of.cache_clear()
