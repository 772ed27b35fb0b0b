"""A query with a thousand million matches: one by one in bounded memory, refused with a sentence, or counted at once."""

from __future__ import annotations

import time

import numpy as np
import psutil
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import OperatorError
from penstock.patterns.automaton.build import TypeIs
from penstock.patterns.batch import Spread, enumerated, matches_of
from penstock.patterns.enumeration.work import CountedSplit
from penstock.patterns.plan import Pattern, ready
from penstock.types import MASK

QUERY = "WHERE A+ ; B WITHIN 30 EVENTS"  # over thirty As and a B: as many matches as thirty things have subsets, but one
EVENTS = 31
MATCHES = 2**30 - 1
READ = 10_000_000
ROOM = 200 << 20
"""Bytes by which reading may make the process larger. The rows that are read have more than 1 GB."""


def pattern_of(selected: str, **options: int) -> Pattern:
    return ready(ps.parse(f"SELECT {selected} {QUERY}"), ("at",), order=("at",), keys=(), **options)


def events(pattern: Pattern) -> pa.RecordBatch:
    bits = {test.type: 1 << bit for bit, test in enumerate(pattern.automaton.tests) if isinstance(test, TypeIs)}
    masks = [bits.get("A" if i < EVENTS - 1 else "B", 0) for i in range(EVENTS)]
    return pa.record_batch({"at": np.arange(EVENTS), f"{MASK}0": np.array(masks)})


def rows(pattern: Pattern, spread: Spread | None = None):
    table = events(pattern)
    found = matches_of(pattern, table.schema, iter([table]), spread)
    if spread is None:
        return found
    return enumerated(pattern, pattern.result(pa.schema([table.schema.field("at")]), []), found)


@pytest.mark.parametrize("spread", [None, Spread(CountedSplit(), 2, 0)], ids=["told where found", "handed over"])
def test_rows_of_a_thousand_million_matches_when_read_one_after_another_need_little_memory(spread):
    found = rows(pattern_of("A[at]", max_matches_per_event=1 << 31), spread)
    own, read, largest = psutil.Process(), 0, 0
    next(found)  # what is compiled is compiled now
    before = own.memory_info().rss
    last = None
    while read < READ:
        last = next(found)
        read += last.num_rows
        largest = max(largest, own.memory_info().rss)
    assert len(set(map(str, last.column("A").to_pylist()))) == last.num_rows
    assert largest - before < ROOM


@pytest.mark.parametrize("spread", [None, Spread(CountedSplit(), 2, 0)], ids=["told where found", "handed over"])
def test_thousand_million_matches_when_nothing_else_is_said_are_an_error_that_says_what_to_do(spread):
    with pytest.raises(OperatorError) as refused:
        sum(batch.num_rows for batch in rows(pattern_of("A[at]"), spread))
    assert str(refused.value) == (
        "One event closes more than 10,000,000 matches; narrow the pattern or its window, use LIMIT or COUNT(*), or raise "
        "max_matches_per_event."
    )


def test_thousand_million_matches_when_only_counted_are_counted_exactly_and_at_once():
    pattern = pattern_of("COUNT(*)")
    list(rows(pattern))  # what is compiled is compiled now
    begin = time.process_time()
    [counted] = rows(pattern)
    assert counted.to_pylist() == [{"match_end": EVENTS - 1, "matches": MATCHES}]
    assert time.process_time() - begin < 1
