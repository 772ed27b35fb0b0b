"""A pattern over a stream of record batches: one worker of ``penstock.match``.

Events arrive sorted by key and order (by order alone if keys must be processed together). They are read in chunks. Between two
chunks only the events that open runs still need are kept, so memory is bounded by the windows, not by the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrow.columns import coalesce_batches, concat_batches, key_values, to_indices
from penstock.errors import RecordError
from penstock.patterns.enumeration.maximal import ID, Maximal, MaximalDisjoint, Share, share, spread
from penstock.patterns.enumeration.work import CountedSplit, EnumerationTask, load_work, split
from penstock.patterns.plan import WHEN, Pattern
from penstock.patterns.recogniser.recogniser import Batch, Block, walk
from penstock.patterns.recogniser.tables import Tables
from penstock.patterns.relations import blocks_of, counts_of, recogniser_of
from penstock.patterns.sorting import LEAST, different
from penstock.patterns.windows import earliest, step_back_text, steps_back, times, without_text
from penstock.types import HASH, MASK

CHUNK_ROWS = 1 << 18
RESULT_ROWS = 1 << 16

Ints = NDArray[np.int64]


WORK, PLACE = "__ps_work", "__ps_place"


@dataclass(frozen=True, slots=True)
class Spread:
    """How a worker hands over the enumeration of many matches.

    Attributes:
        split: the method, with the number of matches from which on it applies.
        workers: the number of workers that share.
        first: the first receiver; the number of the task.
    """

    split: CountedSplit | MaximalDisjoint | Maximal
    workers: int
    first: int


def spread_schema(result: pa.Schema) -> pa.Schema:
    """The columns of results mixed with handed-over work."""
    return pa.schema([*result, pa.field(WORK, pa.binary()), pa.field(PLACE, pa.int32())])


def enumerated(
    pattern: Pattern,
    result: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    load: Callable[[bytes], EnumerationTask | Share] = load_work,
) -> Iterator[pa.RecordBatch]:
    """Enumerate handed-over work; pass on results.

    Args:
        pattern: as for ``matches_of``.
        result: the result's columns.
        batches: the output of ``matches_of`` with a ``Spread``.
        load: reads the work: ``load_work``, or ``load_share`` for maximal matches.
    """
    for batch in batches:
        work = batch.column(WORK)
        plain = batch.filter(work.is_null()).select(result.names)
        if plain.num_rows:
            yield plain
        for raw in work.drop_null():
            yield from _told(pattern, result, load(raw.as_py()))


def _told(pattern: Pattern, result: pa.Schema, part: EnumerationTask | Share) -> Iterator[pa.RecordBatch]:
    shown = pa.schema([field for field in result if field.name != ID])
    for block in part.blocks(RESULT_ROWS):
        rows = _rows_of(pattern, shown, block, part.events)
        if isinstance(part, Share) and len(shown) < len(result):
            rows = pa.RecordBatch.from_arrays([*rows.columns, part.identity(block)], schema=result)
        yield rows


def _rows_of(pattern: Pattern, result: pa.Schema, block: Block, events: pa.RecordBatch) -> pa.RecordBatch:
    start = events.column(pattern.order[0]).take(to_indices(block.starts))
    return _row_of(pattern, result, events, block.ends, [start], pattern.shape.arrays(block, events))


def _row_of(
    pattern: Pattern, result: pa.Schema, events: pa.RecordBatch, ends: Ints, start: list[Any], arrays: list[Any]
) -> pa.RecordBatch:
    at = to_indices(ends)
    keys = [key_values(events.column(name).take(at)) for name in pattern.key_columns]
    return pa.RecordBatch.from_arrays([*keys, *start, events.column(pattern.order[0]).take(at), *arrays], schema=result)


def matches_of(
    pattern: Pattern,
    columns: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    spread: Spread | None = None,
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Recognise a pattern.

    Args:
        pattern: the pattern.
        columns: the input's columns: ``pattern.needed``, ``pattern.key_columns``, the test results as ``__ps_mask0`` and so on,
            and ``__ps_when`` if the first order column does not measure the window. Others are ignored.
        batches: the input, sorted by key and order; by order alone if ``pattern.needs_global_order``.
        spread: if given, many matches are handed over as work, see ``enumerated``.
        chunk_rows: the least number of events per chunk, unless they are large.

    Yields:
        Results, in the order of their closing events; with a ``spread``, rows of ``spread_schema``.

    Raises:
        RecordError: two events of one key have the same position in the order, or an event has none.
        OperatorError: an event closes more matches than allowed.
    """
    worker = _Worker(pattern, columns, spread)
    for chunk in coalesce_batches(batches, chunk_rows):
        yield from worker.read(chunk)


@dataclass
class _Worker:
    pattern: Pattern
    columns: pa.Schema
    spread: Spread | None = None
    turn: int = 0
    closed: int = 0  # closing events so far
    last: pa.RecordBatch | None = None  # the event before the chunk
    kept: pa.RecordBatch | None = None  # events that open runs need
    place: int = 0  # number of events of the current key so far
    numbers: dict[object, int] = field(default_factory=dict)  # rows of keys that are processed together
    latest: Ints = field(
        default_factory=lambda: np.zeros(0, np.int64)
    )  # `when` of the last event of each row, if windows are measured by key

    def __post_init__(self) -> None:
        p = self.pattern
        self.recogniser = recogniser_of(p, Tables(p.follower()), block_matches=RESULT_ROWS)
        fields = [pa.field(name, self.columns.field(own).type) for name, own in zip(p.keys, p.key_columns, strict=True)]
        self.result = p.result(pa.schema([self.columns.field(name) for name in p.needed]), fields)
        if self.spread is not None and isinstance(self.spread.split, Maximal):
            self.result = self.result.append(pa.field(ID, pa.binary()))
        self.carried = [self.columns.get_field_index(name) for name in dict.fromkeys((*p.needed, *p.key_columns))]

    def read(self, chunk: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        new = self._new_keys(chunk)
        self._check_order(chunk, new)
        segments, rows = self._segments(chunk, new)
        if not self.pattern.needs_global_order and new[0]:
            self.recogniser.keep(np.empty(0, np.int64), np.empty(0, np.int64))
            self.kept, self.place, self.latest = None, 0, self.latest[:0]
        when = self._when(chunk, segments, rows)
        low = earliest(self.pattern, chunk, when)
        back, edges = self._steps_back(when, low, segments, rows)
        masks = self.pattern.masks(chunk)
        self._check_types(chunk, masks)
        self.recogniser.rows(int(rows.max()) + 1)
        carried = pa.RecordBatch.from_arrays(
            [chunk.column(i) for i in self.carried], schema=pa.schema([self.columns.field(i) for i in self.carried])
        )
        events = carried if self.kept is None else concat_batches([self.kept, carried])
        letters = self.recogniser.tables.letters(masks)
        batch = Batch(letters, when, low, segments, rows, back, edges, lambda row: self._stepped_back(chunk, row))
        yield from self._results(batch, events)
        self._end(batch, events, chunk)

    def _when(self, chunk: pa.RecordBatch, segments: Ints, rows: Ints) -> Ints:
        """The position of each event in the window's unit."""
        if self.pattern.needs_global_order:
            place = self._places_together(segments, rows) if self.pattern.counts_own_events else np.arange(chunk.num_rows)
        else:
            before = segments[:-1].copy()
            before[:1] -= self.place
            place = np.arange(chunk.num_rows) - np.repeat(before, np.diff(segments))
            self.place = int(place[-1]) + 1
        return times(self.pattern, chunk, place, lambda row: self._without(chunk, row))

    def _places_together(self, segments: Ints, rows: Ints) -> Ints:
        """The number of each event within its key, if keys are processed together."""
        index, key, first = _together(segments, rows)
        nth = np.arange(len(index)) - np.repeat(first, np.diff(np.append(first, len(index))))
        place = np.empty(len(index), np.int64)
        place[index] = nth + self._latest(rows)[key] + 1
        return place

    def _steps_back(self, when: Ints, low: Ints, segments: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Events whose window column is less than that of the previous event, and what was inside the window there."""
        back = edges = np.empty(0, np.int64)
        if self._by_column:
            index, key, first = _together(segments, rows)
            before = self._latest(rows)[key[first]]
            back, edges = steps_back(when[index], low[index], first, before)
            order = np.argsort(index[back])
            back, edges = index[back][order], edges[order]
        if self._by_key:
            self.latest = self._latest(rows)
            self.latest[rows] = when[segments[1:] - 1]  # later ranges of a row overwrite earlier ones
        return back, edges

    def _latest(self, rows: Ints) -> Ints:
        """``when`` of the last event of each row; for new rows, a value before every first event."""
        new = max(0, int(rows.max()) + 1 - len(self.latest))
        return np.append(self.latest, np.full(new, LEAST if self._by_column else -1))

    def _results(self, batch: Batch, events: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        p = self.pattern
        if p.shape.counts:
            for ends, totals in counts_of(p, self.recogniser, batch, events):
                yield _row_of(p, self.result, events, ends, [], [totals])
        elif self.spread is None:
            for block in blocks_of(p, self.recogniser, batch, events):
                yield _rows_of(p, self.result, block, events)
        elif isinstance(self.spread.split, CountedSplit):
            for closings, lows in self.recogniser.closings(batch):
                yield from self._shared(self.spread, closings, lows, events)
        else:
            for block in self.recogniser.feed(batch):
                yield from self._parts(self.spread, block, events)

    def _shared(
        self, spread: Spread, closings: NDArray[np.int32], lows: Ints, events: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        """Enumerate a few matches; hand over many."""
        arena, light, most = self.recogniser.arena, spread.split.light, self.pattern.max_matches_per_event
        blocks = list(walk(arena, closings, lows, too_many=most, left=light + 1, block_matches=RESULT_ROWS))
        if sum(len(block.ends) for block in blocks) <= light:
            for block in blocks:
                yield self._done(_rows_of(self.pattern, self.result, block, events))
            return
        for work in split(arena, closings, lows, events, spread.workers, most):
            yield self._to_do(work, self._turn())

    def _parts(self, by: Spread, block: Block, events: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Enumerate the parts of a few maximal matches; hand over those of many."""
        serial = (by.first << 31) + self.closed
        self.closed += len(np.unique(block.ends))
        together = isinstance(by.split, MaximalDisjoint)
        p = self.pattern
        given, costs = share(block, p.automaton, events, serial, p.max_matches_per_event, together=together)
        if costs.sum() <= by.split.light:
            for rows in _told(p, self.result, given):
                yield self._done(rows)
        else:
            for worker, part in spread(given, costs, by.workers):
                yield self._to_do(part, worker)

    def _done(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        empty, place = pa.nulls(rows.num_rows, pa.binary()), pa.array(np.full(rows.num_rows, self._turn(), np.int32))
        return pa.RecordBatch.from_arrays([*rows.columns, empty, place], schema=spread_schema(self.result))

    def _to_do(self, work: EnumerationTask | Share, place: int) -> pa.RecordBatch:
        row: list[Any] = [pa.nulls(1, field.type) for field in self.result]
        tail: list[Any] = [pa.array([work.dump()], pa.binary()), pa.array([place], pa.int32())]
        return pa.RecordBatch.from_arrays([*row, *tail], schema=spread_schema(self.result))

    def _turn(self) -> int:
        assert self.spread is not None
        self.turn += 1
        return (self.spread.first + self.turn) % self.spread.workers

    def _end(self, batch: Batch, events: pa.RecordBatch, chunk: pa.RecordBatch) -> None:
        if self.pattern.needs_global_order:
            rows = self._going_on()
            lows = earliest(self.pattern, chunk, self.latest[rows]) if self._by_key else np.full(len(rows), batch.low[-1])
        else:
            rows, lows = batch.rows[-1:], batch.low[-1:]
        now = None if self.pattern.needs_global_order else batch.when[-1:]
        needed = self.recogniser.keep(rows, lows, now)
        self.kept = events.take(to_indices(needed))
        self.latest = self.latest[rows] if self._by_key else self.latest
        self.last = chunk.slice(chunk.num_rows - 1)

    def _going_on(self) -> Ints:
        """The rows of keys with open runs; other keys are dropped."""
        rows = np.flatnonzero((self.recogniser.heads[: len(self.numbers)] >= 0).any(axis=1))
        place = dict(zip(rows.tolist(), range(len(rows)), strict=True))
        self.numbers = {key: place[row] for key, row in self.numbers.items() if row in place}
        return rows

    def _segments(self, chunk: pa.RecordBatch, new: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Ranges of one key each, and the row of heads of each. The key that continues from the last chunk has row 0."""
        starts = np.flatnonzero(new)
        if not len(starts) or starts[0] > 0:
            starts = np.concatenate([[0], starts])
        segments = np.append(starts, chunk.num_rows)
        if not self.pattern.needs_global_order:
            return segments, np.arange(len(starts))
        columns = [chunk.column(name).take(to_indices(starts)).to_pylist() for name in self.pattern.key_columns]
        keys = (tuple(nan if value != value else value for value in key) for key in zip(*columns, strict=True))  # noqa: PLR0124
        return segments, np.array([self.numbers.setdefault(key, len(self.numbers)) for key in keys], np.int64)

    def _new_keys(self, chunk: pa.RecordBatch) -> NDArray[np.bool_]:
        new = np.zeros(chunk.num_rows, np.bool_)
        new[0] = self.last is None
        for name in self.pattern.key_columns:
            column = chunk.column(name)
            new[1:] |= different(column[1:], column[:-1])
            if self.last is not None:
                new[:1] |= different(column[:1], self.last.column(name))
        return new

    def _check_order(self, chunk: pa.RecordBatch, new: NDArray[np.bool_]) -> None:
        for name in self.pattern.order:
            column = chunk.column(name)
            if column.null_count:
                row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise RecordError(
                    f"Event {self._shown(chunk, row)} has no value of {name!r}, which orders the events; leave such events out."
                )
        together = ~new if not self.pattern.needs_global_order else np.arange(chunk.num_rows) > (0 if self.last is None else -1)
        same = together.copy()
        for name in self.pattern.order:
            column = chunk.column(name)
            same[1:] &= np.asarray(pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False), np.bool_)
            same[0] &= self.last is not None and column[0] == self.last.column(name)[0]
        if same.any():
            row = int(np.flatnonzero(same)[0])
            before = self._shown(chunk, row - 1) if row else self._shown(self.last, 0)
            shown = self._shown(chunk, row)
            two = f"Two events {shown}" if before == shown else f"Events {before} and {shown}"
            raise RecordError(
                f"{two} have the same position in the order by {', '.join(self.pattern.order)}; "
                "name a further column in order_by that distinguishes them."
            )

    def _check_types(self, chunk: pa.RecordBatch, masks: Sequence[NDArray[Any]]) -> None:
        if self.spread is None or isinstance(self.spread.split, CountedSplit):
            return
        types = np.zeros(chunk.num_rows, np.int64)
        for word, asked in zip(masks, self.pattern.types, strict=True):
            types += np.bitwise_count(word.astype(np.int64) & asked)
        if (types > 1).any():
            row = int(np.flatnonzero(types > 1)[0])
            raise RecordError(
                f"Event {self._shown(chunk, row)} is of two types of the query, so that parts of a maximal match need not be matches; "
                "use enumerate_with=CountedSplit()."
            )

    @property
    def _by_column(self) -> bool:
        return self.pattern.window is not None and self.pattern.window.kind == "attribute"

    @property
    def _by_key(self) -> bool:
        """Whether ``when`` of each row's last event is needed: to number events, or to find decreases."""
        return self._by_column or (self.pattern.needs_global_order and self.pattern.counts_own_events)

    def _stepped_back(self, chunk: pa.RecordBatch, row: int) -> RecordError:
        return RecordError(step_back_text(self.pattern, self._shown(chunk, row)))

    def _without(self, chunk: pa.RecordBatch, row: int) -> RecordError:
        return RecordError(f"Event {self._shown(chunk, row)} {without_text(self.pattern)}")

    def _shown(self, events: pa.RecordBatch | None, row: int) -> str:
        """An event, for a message; its key has the query's name."""
        assert events is not None
        names = dict(zip(self.pattern.key_columns, self.pattern.keys, strict=True))
        shown = {
            names.get(name, name): events.column(name)[row].as_py()
            for name in events.schema.names
            if name in names or not name.startswith((MASK, WHEN, HASH))
        }
        return "(" + ", ".join(f"{name} {value!s:.60}" for name, value in list(shown.items())[:6]) + ")"


def _together(segments: Ints, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """The order that groups events by key, the key of each, and the first of each key."""
    owner = np.repeat(rows, np.diff(segments))
    index = np.argsort(owner, kind="stable")
    key = owner[index]
    return index, key, np.flatnonzero(np.append(True, key[1:] != key[:-1]))
