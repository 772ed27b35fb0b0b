"""Enumeration from maximal matches: every other match is part of one.

``MaximalDisjoint`` first finds the maximal matches of a closing event. A configuration is a number of events per variable. All
maximal matches with room for a configuration go to one worker, which walks them together and emits each part of that size once.
``Maximal`` gives each maximal match to a worker by itself, so matches that are part of several are emitted several times and
deduplicated afterwards.

This is correct only for a sequence ``A ; B+ ; C`` of different types with gaps: there, every choice of at least one event per
variable that keeps the closing event is a match. Other patterns are refused.

Read next: ``parts`` (the walk); ``work``, which splits ranges of ranks instead and needs none of this.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrow.columns import to_indices
from penstock.errors import OperatorError, QueryError
from penstock.patterns import algebra as s
from penstock.patterns.automaton.build import Automaton
from penstock.patterns.enumeration.parts import DONE, MARKS, MATCHES, TOO_MANY, configurations, counters_of, submatches
from penstock.patterns.enumeration.work import LIGHT
from penstock.patterns.recogniser.recogniser import Block, too_many_matches
from penstock.patterns.scopes import bounds, relations_in, subformulas
from penstock.patterns.source_locations import error_in

ITEM: Final = "__ps_item"
ID: Final = "__ps_match"
MOST_CONFIGURATIONS: Final = 1 << 22

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MaximalDisjoint:
    """Enumerate from maximal matches, divided by the sizes of their parts; for sequences of different types only.

    Attributes:
        light: how many matches a worker enumerates itself before it spreads them.

    Example:
        >>> events = spark.createDataFrame([(1, "A"), (2, "B"), (3, "B")], "at int, kind string")
        >>> ps.match(events, "SELECT * WHERE A ; B+", order_by="at", type="kind", enumerate_with=ps.MaximalDisjoint()).count()
        3
    """

    light: int = LIGHT


@dataclass(frozen=True, slots=True)
class Maximal:
    """Enumerate from maximal matches, one by one, then deduplicate. Kept for comparison.

    Attributes:
        light: how many matches a worker enumerates itself before it spreads them.

    Example:
        >>> events = spark.createDataFrame([(1, "A"), (2, "B"), (3, "B")], "at int, kind string")
        >>> ps.match(events, "SELECT * WHERE A ; B+", order_by="at", type="kind", enumerate_with=ps.Maximal()).count()
        3
    """

    light: int = LIGHT


def labelled(query: s.Query, name: str) -> s.Query:
    """A query for the maximal matches of ``query``, with a mark for each part of the sequence.

    Args:
        query: the query.
        name: the method's name, for the error.

    Raises:
        QueryError: parts of a maximal match need not be matches, or not all matches are parts of one.
    """

    def refuse(why: str, word: object) -> QueryError:
        return error_in(query.text, word, f"{name} cannot enumerate this query, because {why}; use CountedSplit().")

    if query.strategy != "ALL":
        raise refuse(f"SELECT {query.strategy} keeps only some of the matches", query.clauses.get("strategy"))
    if query.limit is not None:
        raise refuse("LIMIT keeps only some of the matches", query.clauses.get("limit"))
    items: list[tuple[s.Event, tuple[str, ...]]] = []
    formula = _label(query.formula, items, (), refuse)
    types = [item.type for item, _ in items]
    for n, kind in enumerate(types):
        if kind in types[:n]:
            raise refuse(f"type {str(kind)!r} stands in it twice", kind)
    projection = query.projection
    if isinstance(projection, s.Chosen):
        for item, names in items:
            if not any(i.variable in (item.type, *names) for i in projection.items):
                raise refuse(f"it does not select {item.type!r}, so that several matches look the same", item.type)
        projection = s.Chosen((*projection.items, *(s.Item(f"{ITEM}{n}") for n in range(len(items)))))
    elif not isinstance(projection, s.Everything):
        raise refuse(f"SELECT {projection} shows no events", query.clauses.get("projection"))
    return replace(query, strategy="MAX", formula=formula, projection=projection)


def _label(formula: s.Formula, items: list[Any], names: tuple[str, ...], refuse: Any, *, repeated: bool = False) -> s.Formula:
    """The formula with a name for each event of the sequence; ``items`` gets them in order."""
    match formula:
        case s.Event():
            items.append((formula, names))
            return s.As(formula, f"{ITEM}{len(items) - 1}")
        case s.As(inner=inner, name=name):
            return replace(formula, inner=_label(inner, items, (*names, name), refuse, repeated=repeated))
        case s.Filtered(inner=inner, filter=condition):
            if (relation := next(relations_in(formula), None)) is not None:
                raise refuse(f"it compares events: {relation}", relation.op)
            if _has_or(condition):
                raise refuse("its filter has an OR between variables", next(bounds(condition)).variable)
            return replace(formula, inner=_label(inner, items, names, refuse, repeated=repeated))
        case s.Plus(gap=s.Window()) | s.Then(gap=s.Window()):
            raise refuse(f"neighbours have a longest gap: {formula}", _first_word(formula))
        case s.Plus(inner=inner, contiguous=False):
            return replace(formula, inner=_label(inner, items, names, refuse, repeated=True))
        case s.Then(left=left, right=right, contiguous=False) if not repeated:
            first = _label(left, items, names, refuse)
            return replace(formula, left=first, right=_label(right, items, names, refuse))
        case s.Then(contiguous=False):
            raise refuse(f"it repeats a sequence: ({formula})+", _first_word(formula))
    raise refuse(f"it is more than a sequence of types with gaps: {formula}", _first_word(formula))


def _first_word(formula: s.Formula) -> str:
    return next(part.type for part in subformulas(formula) if isinstance(part, s.Event | s.Not))


def _has_or(condition: s.Filter) -> bool:
    if isinstance(condition, s.Bound | s.Relation):
        return False
    return isinstance(condition, s.AnyOf) or _has_or(condition.left) or _has_or(condition.right)


# --------------------------------------------------------------------------------------------------------------------- shares


@dataclass(frozen=True, slots=True)
class Share:
    """Maximal matches, and those of their configurations that one worker enumerates.

    Attributes:
        positions, kinds: the marked events of all maximal matches. ``runs``: int64[matches, variables + 1], the start of each
            match's events per variable.
        groups: int64[groups + 1], the first match of each group that is walked together.
        jobs: int64[jobs], the group of each configuration. ``sizes``: int64[jobs, variables].
        serial: int64[groups], a number for the closing event of each.
        numbers: int32[events], the numbers of the events where the matches were found.
        most: more matches of one closing event are an error.
        events: event number i is row i.
    """

    positions: NDArray[np.int32]
    kinds: NDArray[np.int16]
    runs: Ints
    groups: Ints
    jobs: Ints
    sizes: Ints
    serial: Ints
    numbers: NDArray[np.int32]
    most: int
    events: pa.RecordBatch

    def blocks(self, block_matches: int) -> Iterator[Block]:
        deepest = int(self.sizes.sum(axis=1).max(initial=1))
        widest = int(np.diff(self.groups).max(initial=1))
        active, at = (np.empty((deepest + 1, widest), np.int64) for _ in range(2))
        levels = np.empty((5, deepest + 1), np.int64)
        counters, marks = counters_of(), 8 * block_matches
        while True:
            marks = max(marks, deepest)
            starts, ends = np.empty(block_matches, np.int64), np.empty(block_matches, np.int64)
            offsets, positions, kinds = (
                np.zeros(block_matches + 1, np.int64),
                np.empty(marks, np.int32),
                np.empty(marks, np.int16),
            )
            counters[[MATCHES, MARKS]] = 0
            code = submatches(
                self.positions, self.kinds, self.runs, self.groups, self.jobs, self.sizes, self.most,
                active, at, levels, counters, starts, ends, offsets, positions, kinds,
            )  # fmt: skip
            if code == TOO_MANY:
                raise too_many_matches(self.most)
            n, used = int(counters[MATCHES]), int(counters[MARKS])
            if n:
                yield Block(starts[:n], ends[:n], offsets[: n + 1], positions[:used], kinds[:used])
            if code == DONE:
                return

    def identity(self, block: Block) -> Any:
        """An identity of each match of a task, as bytes: the numbers of the closing event and of each event."""
        closing = self.positions[self.runs[self.groups[:-1], -1] - 1]
        order = np.argsort(closing, kind="stable")
        serial = self.serial[order][np.searchsorted(closing[order], block.ends)]
        lengths = np.diff(block.offsets)
        begin = block.offsets[:-1] + 2 * np.arange(len(lengths))
        words = np.empty(len(block.positions) + 2 * len(lengths), np.int32)
        own = np.repeat(2 * np.arange(1, len(lengths) + 1), lengths) + np.arange(len(block.positions))
        words[own] = self.numbers[block.positions]
        words[begin], words[begin + 1] = serial & 0x7FFFFFFF, serial >> 31
        offsets = np.append(4 * begin, 4 * len(words)).astype(np.int32)
        return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets.data), pa.py_buffer(words.data)])

    def part(self, chosen: Ints) -> Share:
        """Some of the configurations with what they need; groups and events are renumbered."""
        groups, jobs = np.unique(self.jobs[chosen], return_inverse=True)
        matches = np.concatenate([np.arange(self.groups[g], self.groups[g + 1]) for g in groups])
        lengths = self.runs[matches, -1] - self.runs[matches, 0]
        ends = np.cumsum(lengths)
        marks = np.arange(ends[-1]) + np.repeat(self.runs[matches, 0] - ends + lengths, lengths)
        runs = self.runs[matches] + (ends - lengths - self.runs[matches, 0])[:, None]
        rows, positions = np.unique(self.positions[marks], return_inverse=True)
        begin = np.concatenate([[0], np.cumsum(np.diff(self.groups)[groups])])
        own, kinds, events = positions.astype(np.int32), self.kinds[marks], self.events.take(to_indices(rows))
        sizes, serial, numbers = self.sizes[chosen], self.serial[groups], self.numbers[rows]
        return Share(own, kinds, runs, begin, jobs, sizes, serial, numbers, self.most, events)

    def dump(self) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.events.schema) as writer:
            writer.write_batch(self.events)
        values = [getattr(self, field.name) for field in fields(self)[:-1]]
        return pickle.dumps([*values, sink.getvalue().to_pybytes()], protocol=5)


def load_share(raw: bytes) -> Share:
    """Read what ``Share.dump`` returned."""
    *values, events = pickle.loads(raw)
    events = pa.ipc.open_stream(events).read_next_batch()
    return Share(**dict(zip([field.name for field in fields(Share)], [*values, events], strict=True)))


def share(
    block: Block, automaton: Automaton, events: pa.RecordBatch, serial: int, most: int, *, together: bool
) -> tuple[Share, Any]:
    """All matches that are part of some maximal ones.

    Args:
        block: the maximal matches of some closing events, all of each.
        automaton: that of the query from ``labelled``.
        events: event number i is row i.
        serial: a number for the first closing event; the others have the next ones.
        most: more matches of one closing event are an error.
        together: whether the maximal matches of a closing event are walked together, so that each part is emitted once.

    Returns:
        The whole share, and an upper bound of each configuration's matches, float64[jobs].

    Raises:
        OperatorError: there are more than ``MOST_CONFIGURATIONS``.
    """
    kinds = [next(int(name[len(ITEM) :]) for name in kind if name.startswith(ITEM)) for kind in automaton.kinds]
    item = np.array([-1, *kinds], np.int64)[block.kinds]
    number = 1 + max(kinds)
    n = len(block.ends)
    runs = np.empty((n, number + 1), np.int64)
    owner = np.repeat(np.arange(n), np.diff(block.offsets))
    runs[:, 0] = block.offsets[:-1]
    counts = np.bincount(owner * number + item, minlength=n * number).reshape(n, number)
    runs[:, 1:] = runs[:, :1] + np.cumsum(counts, axis=1)
    closings, group = np.unique(block.ends, return_inverse=True)
    begin = np.searchsorted(block.ends, closings) if together else np.arange(n)
    groups = np.append(begin, n).astype(np.int64)
    scratch = np.empty((2, number), np.int64)
    room = configurations(runs, groups, np.empty(0, np.int64), np.empty((0, number), np.int64), np.empty(0), scratch)
    if room > MOST_CONFIGURATIONS:
        raise OperatorError(
            f"The maximal matches have {room:,} combinations of sizes; narrow the pattern or its window, or use CountedSplit()."
        )
    jobs, sizes, costs = np.empty(room, np.int64), np.empty((room, number), np.int64), np.empty(room)
    used = configurations(runs, groups, jobs, sizes, costs, scratch)
    closed, numbers = serial + group[begin], np.arange(events.num_rows, dtype=np.int32)
    whole = Share(block.positions, block.kinds, runs, groups, jobs[:used], sizes[:used], closed, numbers, most, events)
    return whole, costs[:used]


def spread(whole: Share, costs: Any, workers: int) -> Iterator[tuple[int, Share]]:
    """Divide a share: the costliest configurations first, each to the worker with the least load."""
    loads = [(0.0, worker) for worker in range(workers)]
    owner = np.empty(len(costs), np.int64)
    for job in np.argsort(-costs, kind="stable"):
        load, worker = loads[0]
        owner[job] = worker
        heapq.heapreplace(loads, (load + float(costs[job]), worker))
    for worker in range(workers):
        chosen = np.flatnonzero(owner == worker)
        if len(chosen):
            yield worker, whole.part(chosen)
