"""Conditions between the events of a match: ``FILTER b.price > a.price``, and gaps between neighbours: ``A ;[WITHIN 5 MINUTES] B``.

Runs that share a node of the recogniser may differ in any earlier event, so a condition between events is evaluated for each candidate when
matches are enumerated: every way to bind events that fits the rest of the pattern and the window. What a condition compares has hidden
variables of its own (``automaton.build.side_of``), so a candidate says which events are meant even if a name stands in several places. Then
what is not selected is dropped, equal matches are made one, and the strategy and ``LIMIT`` choose: they see only matches that satisfy the
conditions.

Cost: one candidate after the other, and one pair of bound events after the other, both vectorised. No run is dropped by a condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrow.columns import to_indices
from penstock.errors import OperatorError
from penstock.patterns.algebra import Of, Relation
from penstock.patterns.automaton.build import SIDE, UNBOUND, gap_of, side_of
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
from penstock.patterns.windows import micros, ordered

PAIRS = 1 << 20  # compared at a time
_COMPARE: dict[str, Any] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "=": np.equal,
    "!=": np.not_equal,
}
_CALCULATE = {"+": "add_checked", "-": "subtract_checked", "*": "multiply_checked"}
_WIDEST = 76  # digits of a decimal of 256 bits

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
            [np.array([False, *(side_of(nth, which) in kind for kind in kinds)]) for which in (0, 1)]
            for nth in range(len(pattern.automaton.relations))
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
            places, starts, counts = zip(*(_bound(block, side) for side in sides), strict=True)
            if not len(places[0]) or not len(places[1]):
                continue  # nothing is bound, so there is nothing to compare
            codes, known = self._comparable(relation, *places)
            pairs = counts[0] * counts[1]
            ends = np.cumsum(pairs)
            for low in range(0, int(ends[-1]), PAIRS):
                pair = np.arange(low, min(low + PAIRS, int(ends[-1])))
                match = np.searchsorted(ends, pair, "right")
                nth = pair - (ends - pairs)[match]
                one = starts[0][match] + nth // counts[1][match]
                other = starts[1][match] + nth % counts[1][match]
                true = _COMPARE[relation.op](codes[0][one], codes[1][other]) & known[0][one] & known[1][other]
                keep[match[~true]] = False
            block = filtered(block, keep)
        return block

    def _times(self, numbers: NDArray[np.int32]) -> Ints:
        """The times of events in µs."""
        events, back = np.unique(numbers, return_inverse=True)
        return micros(self._events.column(self._pattern.order[0]).take(to_indices(events)))[back]

    def _comparable(self, relation: Relation, *places: NDArray[np.int32]) -> tuple[list[NDArray[Any]], list[NDArray[np.bool_]]]:
        """Both sides' values as numbers of the same order, and which are not null."""
        values, which = [], []
        for side, numbers in zip((relation.left, relation.right), places, strict=True):
            events, back = np.unique(numbers, return_inverse=True)
            try:
                values.append(_calculated(side, self._events.column(side.attribute).take(to_indices(events))))
            except pa.ArrowInvalid as error:
                raise OperatorError(
                    f"In the condition {relation} the value of {side} does not fit its type; cast {side.attribute} to double."
                ) from error
            which.append(back)
        codes = _ordered_alike(*values)
        known = [np.asarray(value.is_valid().to_numpy(zero_copy_only=False), np.bool_) for value in values]
        return [code[at] for code, at in zip(codes, which, strict=True)], [
            there[at] for there, at in zip(known, which, strict=True)
        ]

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


def _calculated(side: Of, values: Any) -> Any:
    """The values of one side, as Spark computes them: whole numbers, decimals, or doubles if either is one.

    Raises:
        pa.ArrowInvalid: one does not fit.
    """
    if pa.types.is_integer(values.type):
        values = values.cast(pa.int64())
    elif pa.types.is_floating(values.type):
        values = values.cast(pa.float64())
    if side.op is None or side.number is None:
        return values
    text = side.number.text
    if pa.types.is_floating(values.type) or "e" in text.lower():
        other: Any = pa.scalar(float(text), pa.float64())
        return pc.call_function(_CALCULATE[side.op], [_as_doubles(values), other])
    if pa.types.is_integer(values.type) and "." not in text and int(text) < 1 << 63:
        return pc.call_function(_CALCULATE[side.op], [values, pa.scalar(int(text), pa.int64())])
    number = Decimal(text)
    digits, scale = len(number.as_tuple().digits), max(0, -int(number.as_tuple().exponent))
    other = pa.scalar(number, pa.decimal256(max(digits, scale, 1), scale))
    return pc.call_function(_CALCULATE[side.op], [_decimals(values), other])


def _decimals(values: Any) -> Any:
    if pa.types.is_integer(values.type):
        return values.cast(pa.decimal256(19, 0))
    return values.cast(pa.decimal256(values.type.precision, values.type.scale))


def _as_doubles(values: Any) -> Any:
    """The nearest doubles. Arrow divides decimals by a power of ten, which need not give the nearest; to read their text does."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())
    return values.cast(pa.float64(), safe=False)


def _ordered_alike(one: Any, other: Any) -> list[NDArray[Any]]:
    """Numbers in the order of both sides' values; those of nulls mean nothing."""
    kinds = one.type, other.type
    if any(pa.types.is_floating(kind) for kind in kinds):
        return [_doubles(_as_doubles(values)) for values in (one, other)]
    if any(pa.types.is_decimal(kind) for kind in kinds):
        if not all(pa.types.is_null(kind) for kind in kinds):
            scale = max(values.type.scale if pa.types.is_decimal(values.type) else 0 for values in (one, other))
            one, other = (values.cast(pa.decimal256(_WIDEST, scale)) for values in (one, other))
    elif kinds[0] != kinds[1]:  # the type of a column in which all is null, or two kinds of times
        other = other.cast(kinds[0])
    ranks = pc.rank(pa.concat_arrays([one, other]), tiebreaker="dense").to_numpy()
    return [ranks[: len(one)], ranks[len(one) :]]


def _doubles(values: Any) -> Ints:
    """Doubles in Spark's order: NaN equals itself and is greatest; -0.0 and 0.0 are one."""
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
    return np.where(np.isnan(numbers), np.iinfo(np.int64).max, ordered(numbers))


__all__ = ["blocks_of", "counts_of", "recogniser_of"]
