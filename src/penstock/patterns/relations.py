"""Conditions between the events of a match: ``FILTER b.price > a.price``, and gaps between neighbours: ``A ;[WITHIN 5 MINUTES] B``.

Runs that share a node of the recogniser may differ in any earlier event, so a condition between events is evaluated for each candidate when
matches are enumerated: every way to bind events that fits the rest of the pattern and the window. What a condition compares has hidden
variables of its own (``automaton.build.side_of``), so a candidate says which events are meant even if a name stands in several places. Then
what is not selected is dropped, equal matches are made one, and the strategy and ``LIMIT`` choose: they see only matches that satisfy the
conditions.

Cost: one candidate after the other, and one pair of bound events after the other, both vectorised. No run is dropped by a
condition; by a gap, runs of one event are (``Automaton.spans``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrow.columns import to_indices
from penstock.errors import OperatorError
from penstock.patterns.algebra import Of, Operand, Relation, bare_text, values_in
from penstock.patterns.automaton.build import SIDE, UNBOUND, gap_of, side_of
from penstock.patterns.comparing import calculated, compared, ordered_alike
from penstock.patterns.plan import Pattern
from penstock.patterns.recogniser import judging, matches
from penstock.patterns.recogniser.recogniser import (
    BEST,
    COMPARED,
    Batch,
    Block,
    Recogniser,
    check_number,
    filtered,
    joined,
    place_in_group,
)
from penstock.patterns.recogniser.tables import Tables
from penstock.patterns.result_columns import COUNT_TYPE, summed
from penstock.patterns.windows import micros

PAIRS = 1 << 20  # compared at a time

Ints = NDArray[np.int64]


class Events(Protocol):
    """Events by number."""

    def column(self, name: str) -> Any: ...


def recogniser_of(pattern: Pattern, tables: Tables, **options: int) -> Recogniser:
    """A recogniser of the pattern's matches; of all candidates if conditions between events choose among them."""
    chooses = not pattern.automaton.judges
    most = pattern.max_matches_per_event
    return Recogniser(
        tables,
        strategy=pattern.strategy if chooses else pattern.followed,
        consume=pattern.consume,
        limit=pattern.limit if chooses else None,
        scope=pattern.scope,
        max_matches_per_event=most if chooses else max(most, COMPARED),
        **options,
    )


def blocks_of(pattern: Pattern, recogniser: Recogniser, batch: Batch, events: Events) -> Iterator[Block]:
    """Read events; yield the matches that end with them.

    Args:
        pattern: the pattern.
        recogniser: from `recogniser_of`.
        batch: the events to read.
        events: the columns of these and of earlier events, by number.

    Raises:
        OperatorError: an event closes more matches than allowed, or a calculation overflows.
    """
    found = recogniser.feed(batch)
    return _Judge(pattern, events).chosen(found) if pattern.automaton.judges else found


def counts_of(pattern: Pattern, recogniser: Recogniser, batch: Batch, events: Events) -> Iterator[tuple[Ints, Any]]:
    """As `blocks_of`: the closing events, and the number of matches of each as decimals."""
    if not pattern.automaton.judges:
        for counts in recogniser.count(batch):
            yield summed(counts.ends, counts.words)
        return
    for block in blocks_of(pattern, recogniser, batch, events):
        ends, numbers = np.unique(block.ends, return_counts=True)
        yield ends, pa.array(numbers, pa.int64()).cast(COUNT_TYPE)


class _Judge:
    """Chooses matches among candidates."""

    def __init__(self, pattern: Pattern, events: Events) -> None:
        self._pattern, self._events = pattern, events
        kinds, shape = pattern.automaton.kinds, pattern.shape
        bound = [[name for name in kind if not name.startswith(SIDE)] for kind in kinds]
        everything = shape.counts or any(b.variable is None for b in shape.bound)
        shown = (bool(names) or (everything and UNBOUND not in kind) for names, kind in zip(bound, kinds, strict=True))
        self._shown = np.array([False, *shown])
        number = {b.variable: i for i, b in enumerate(shape.bound)}
        ways = [tuple(number[name] for name in names) for names in bound]
        rank = {way: i for i, way in enumerate(sorted(set(ways)))}
        self._ways = np.array([0, *(rank[way] for way in ways)], np.int64)
        self._sides = [
            [np.array([False, *(side_of(nth, which) in kind for kind in kinds)]) for which in range(len(relation.variables))]
            for nth, relation in enumerate(pattern.automaton.relations)
        ]
        self._ends = [
            [np.array([False, *(gap_of(nth, which) in kind for kind in kinds)]) for which in (0, 1)]
            for nth in range(len(pattern.automaton.gaps))
        ]

    def chosen(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """All matches of a closing event are judged together."""
        held: list[Block] = []
        for block in map(self._satisfying, blocks):
            if not len(block.ends):
                continue
            if held and held[-1].ends[-1] != block.ends[0]:
                yield self._judged(joined(held))
                held = []
            last = block.ends == block.ends[-1]
            if not last.all():
                yield self._judged(joined([*held, filtered(block, ~last)]))
                held = []
            held.append(filtered(block, last))
        if held:
            yield self._judged(joined(held))

    def _satisfying(self, block: Block) -> Block:
        """The candidates that satisfy every condition."""
        for gap, (before, after) in zip(self._pattern.automaton.gaps, self._ends, strict=True):
            (left, _, passed), (right, _, _) = _bound(block, before), _bound(block, after)
            apart = self._times(right) - self._times(left)  # the n-th event before a gap is that of the n-th after one
            keep = np.ones(len(block.ends), np.bool_)
            keep[np.repeat(np.arange(len(passed)), passed)[apart > int(gap.size)]] = False
            block = filtered(block, keep)
        for relation, sides in zip(self._pattern.automaton.relations, self._sides, strict=True):
            keep = np.ones(len(block.ends), np.bool_)
            for match, rows, places in _choices(relation, [_bound(block, side) for side in sides]):
                keep[match[~self._compared_at(relation, places, rows)]] = False
            block = filtered(block, keep)
        return block

    def _times(self, numbers: NDArray[np.int32]) -> Ints:
        """The times of events in µs."""
        events, back = np.unique(numbers, return_inverse=True)
        return micros(self._events.column(self._pattern.order[0]).take(to_indices(events)))[back]

    def _compared_at(self, relation: Relation, places: list[NDArray[np.int32]], rows: list[Ints]) -> NDArray[np.bool_]:
        """Where a relation is true.

        Args:
            relation: the relation.
            places: for each of its variables, numbers of events bound to it.
            rows: for each of its variables, the index in ``places`` of each choice's event, int64[choices].
        """
        number = {whose: i for i, whose in enumerate(relation.variables)}
        unique = [np.unique(numbers, return_inverse=True) for numbers in places]

        def column(value: Of) -> Any:
            return self._events.column(value.attribute).take(to_indices(unique[number[value.whose]][0]))

        def chosen(value: Of) -> Ints:
            which = number[value.whose]
            return unique[which][1][rows[which] - value.previous]

        sides = relation.left, relation.right
        alone = [dict.fromkeys((value.whose, value.previous) for value in values_in(side)) for side in sides]
        if all(len(instances) <= 1 for instances in alone):  # each side is of one event: computed once per event
            coded = ordered_alike(*(self._value(relation, side, column) for side in sides))
            at = [
                chosen(next(values_in(side))) if there else np.zeros(1, np.int64)
                for side, there in zip(sides, alone, strict=True)
            ]
            one, other = ((codes[i], known[i]) for (codes, known), i in zip(coded, at, strict=True))
            return compared(relation.op, one, other)
        columns = {value: column(value) for value in relation.values}
        values = [self._value(relation, side, lambda value: columns[value].take(to_indices(chosen(value)))) for side in sides]
        return compared(relation.op, *ordered_alike(*values))

    def _value(self, relation: Relation, side: Operand, column: Callable[[Of], Any]) -> Any:
        try:
            return calculated(side, column)
        except pa.ArrowInvalid as error:
            names = ", ".join(dict.fromkeys(value.attribute for value in values_in(side)))
            raise OperatorError(
                f"In the condition {relation} the value of {bare_text(side)} does not fit its type; cast {names} to double."
            ) from error

    def _judged(self, block: Block) -> Block:
        """The matches that the query keeps."""
        block = _without(block, ~self._shown[block.kinds])
        keep = np.ones(len(block.ends), np.bool_)
        mixed = _mixed(block.positions)
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        hashes = (total[block.offsets[1:]] - total[block.offsets[:-1]]).view(np.int64)
        order = np.lexsort((hashes, block.starts, block.ends))
        judging.drop_repeated(
            order, block.ends, block.starts, hashes, block.offsets, block.positions, self._ways[block.kinds], keep
        )
        block = filtered(block, keep)
        strategy, limit = self._pattern.strategy, self._pattern.limit
        if strategy in {"NEXT", "LAST", "MAX", "ANY"}:
            block = self._compared(block, strategy)
        if limit is not None:
            everything = np.ones(len(block.ends), np.bool_)
            block = filtered(block, place_in_group(block.ends, everything) < limit)
        check_number(block.ends, self._pattern.max_matches_per_event)
        return block

    def _compared(self, block: Block, strategy: str) -> Block:
        if self._pattern.scope == "interval":
            block = _taken(block, np.lexsort((block.starts, block.ends)))
        begins = np.ones(len(block.ends), np.bool_)
        begins[1:] = block.ends[1:] != block.ends[:-1]
        if self._pattern.scope == "interval":
            begins[1:] |= block.starts[1:] != block.starts[:-1]
        groups = np.cumsum(begins)
        if strategy == "ANY":
            return filtered(block, begins)
        keep = np.zeros(len(block.ends), np.bool_)
        if strategy == "MAX":
            matches.maximal(groups, block.offsets, block.positions, keep)
        else:
            judging.keep_best(groups, block.offsets, block.positions, BEST[strategy], keep)
        return filtered(block, keep)


def _bound(block: Block, side: NDArray[np.bool_]) -> tuple[NDArray[np.int32], Ints, Ints]:
    """The events bound to one side: of all matches, the first of each match, and how many it has."""
    marked = side[block.kinds]
    before = np.concatenate([[0], np.cumsum(marked)])
    starts = before[block.offsets[:-1]]
    return block.positions[marked], starts, before[block.offsets[1:]] - starts


def _without(block: Block, dropped: NDArray[np.bool_]) -> Block:
    """The same matches without some of their marks."""
    before = np.concatenate([[0], np.cumsum(~dropped)])
    return replace(block, offsets=before[block.offsets], positions=block.positions[~dropped], kinds=block.kinds[~dropped])


def _taken(block: Block, index: Ints) -> Block:
    """The matches in another order."""
    lengths = np.diff(block.offsets)[index]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    marks = np.repeat(block.offsets[index] - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Block(block.starts[index], block.ends[index], offsets, block.positions[marks], block.kinds[marks])


def _mixed(positions: NDArray[np.int32]) -> NDArray[np.uint64]:
    """A number for each event, well mixed, so that sums of different events differ (splitmix64)."""
    mixed = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(27))


def _choices(
    relation: Relation, bound: list[tuple[NDArray[np.int32], Ints, Ints]]
) -> Iterator[tuple[Ints, list[Ints], list[NDArray[np.int32]]]]:
    """Every choice of events that a relation compares, so many at a time.

    Args:
        relation: the relation.
        bound: for each of its variables, what ``_bound`` says.

    Yields:
        The match of each choice; for each variable the index of the choice's event, and the events that it is an index of. With ``PREV`` the
        first event of a match is never the choice's: it is the one before.
    """
    previous = {value.whose for value in relation.values if value.previous}
    first = [int(whose in previous) for whose in relation.variables]
    counts = [np.maximum(count - skipped, 0) for (_, _, count), skipped in zip(bound, first, strict=True)]
    number = np.prod(counts, axis=0)
    ends = np.cumsum(number)
    for low in range(0, int(ends[-1]) if len(ends) else 0, PAIRS):
        nth = np.arange(low, min(low + PAIRS, int(ends[-1])))
        match = np.searchsorted(ends, nth, "right")
        nth = nth - (ends - number)[match]
        rows: list[Ints] = []
        for (_, starts, _), count, skipped in zip(bound, counts, first, strict=True):
            rows.append(starts[match] + nth % count[match] + skipped)
            nth = nth // count[match]
        yield match, rows, [places for places, _, _ in bound]


__all__ = ["blocks_of", "counts_of", "recogniser_of"]
