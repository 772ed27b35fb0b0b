"""What a flow gives, by one slow and obvious pass over all records: lists, dicts and sorted().

It knows of no epochs, workers, states, frontiers or crashes: lateness is decided per source partition in offset order; then
every key's rows are processed in the order (event time, partition, offset, sub-index) until nothing is left.

An epoch counts in three places, as the docs say. Without event time the order is (epoch, partition, offset). What is late after a silence, of a
source that closes, goes by the clock times of epochs, which it is given (`judging`). And a table that is read again is that of the epoch which a row
meets it in (`trails`).

Read next: `test_against_oracle`.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import judging
import pyarrow as pa
import recipes as r
from deadlines import deadlines
from judging import Clock, Records
from plain_values import aggregate, one_value
from spelled import micros
from table_versions import kept
from trails import Trail

from penstock.routing.hashing import spark_xxhash64


@dataclass(frozen=True)
class Row:
    """A row and its place: `sub` is a tuple that grows with each step that gives several rows for one.

    `met`: the epoch that has read it, or in which it has left its last region, if a step must know.
    """

    epoch: int
    time: int
    part: int
    offset: int
    sub: tuple[int, ...]
    data: Mapping[str, Any]
    key: tuple[Any, ...] = ()
    met: int = 0

    @property
    def order(self) -> tuple[Any, ...]:
        return (self.epoch, self.time, self.part, self.offset, self.sub)

    def child(self, n: int, data: Mapping[str, Any]) -> Row:
        """The n-th row that this one gives rise to."""
        return replace(self, sub=(*self.sub, n), data=data)


class Oracle:
    """The content of every node of a recipe.

    Args:
        recipe: The flow.
        records: All records.
        markers: Place of rows that the frontier triggers, by node (they sort before records of the same time).
        clock: By epoch, what the clock showed (µs) and whether another run had the epoch before; for sources that close after a silence.
        trail: Which epochs have read and given out what, for tables that are read again; None: none becomes another one.
    """

    def __init__(
        self,
        recipe: r.Recipe,
        records: Records,
        markers: Mapping[r.Node, int],
        clock: Clock = MappingProxyType({}),
        trail: Trail | None = None,
    ) -> None:
        self._clock, self._trail = clock, trail
        self._recipe = recipe
        self._records = records
        self._markers = markers
        self._ordinals = {s: i for i, s in enumerate(recipe.sources())}
        self._known: dict[r.Node, list[Row]] = {}

    def content(self, node: r.Node) -> Counter[Any]:
        """What a sink on the node holds at the end, as a multiset."""
        return multiset(row.data for row in self.rows(node))

    def rows(self, node: r.Node) -> list[Row]:
        if node not in self._known:
            self._known[node] = self._met(node, self.made_rows(node))
        return self._known[node]

    def _met(self, node: r.Node, rows: list[Row]) -> list[Row]:
        """The rows of a node with the epoch in which they were read, or left its region."""
        if self._trail is None or not self._trail.tables:
            return rows
        if isinstance(node, r.Source):
            return [replace(row, met=self._trail.read_in(node.name, row.data["p"], row.offset)) for row in rows]
        region = region_left(node)
        if region is None:
            return rows
        timed = all(source.timed for source in self._recipe.sources())
        left = self._trail.left_in
        return [replace(row, met=left(region.name, hash_of(row.key), row.time, row.met, timed=timed)) for row in rows]

    def made_rows(self, node: r.Node) -> list[Row]:
        if isinstance(node, r.Source):
            return self._judged(node, "on time")
        if isinstance(node, r.Late):
            return self._judged(node.of, "late")
        if isinstance(node, r.Ahead):
            return self._judged(node.of, "ahead")
        if isinstance(node, r.Union):
            return [replace(row, key=()) for n in node.of for row in self.rows(n)]
        rows = self.rows(node.of)
        if isinstance(node, r.Where):
            return [row for row in rows if r.CONDITIONS[node.condition](row.data)]
        if isinstance(node, r.Columns):
            return [with_column(row, node.new) for row in rows]
        if isinstance(node, r.Standard):
            return [replace(row, data={n: row.data[n] for n in r.STANDARD}) for row in rows]
        if isinstance(node, r.Lookup):
            return [c for row in rows for c in self.looked_up(node, row)]
        if isinstance(node, r.Repeat):
            return [c for row in rows for c in repeated(row)]
        if isinstance(node, r.Local):
            return rows
        if isinstance(node, r.KeyBy):
            for step in node.then:
                rows = (
                    [x for x in rows if r.CONDITIONS[step](x.data)]
                    if isinstance(step, str)
                    else [with_column(x, step) for x in rows]
                )
            return [replace(row, key=tuple(one_value(row.data[c]) for c in node.keys)) for row in rows]
        if isinstance(node, r.Map):
            step = self._timed if node.fn in r.TIMED_FUNCTIONS else mapped
            return [out for group in by_key(rows) for out in step(node, group)]
        if isinstance(node, r.Totals):
            return [out for group in by_key(rows) for out in self._totals(node, group)]
        if isinstance(node, r.Distinct):
            return [out for group in by_key(rows) for out in distinct(node, group)]
        if isinstance(node, r.Join):
            return self._joined(node, rows)
        assert isinstance(node, r.Process)
        if node.operator in r.TIMED_FUNCTIONS:
            process = self._timed
        elif node.operator in r.TIMED_OPERATORS:
            latest = self._latest(node)

            def process(node: r.Process, group: list[Row]) -> list[Row]:
                return deadlines(node, group, latest, lambda at, data, n: self._at_frontier(node, group[0].key, at, data, n))
        elif node.operator in r.PLAIN_OPERATORS:

            def process(node: r.Process, group: list[Row]) -> list[Row]:
                return mapped(r.Map(node.of, node.operator, None, ttl_us=node.ttl_us), group)
        else:
            process = {"previous": previous}.get(node.operator, self._tally)
        return [out for group in by_key(rows) for out in process(node, group)]

    def looked_up(self, node: r.Lookup, row: Row) -> list[Row]:
        """The row with the value of its key; none: null, or no row."""
        key, rows = one_value(row.data[node.on]), node.rows
        if node.again is not None and self._trail is not None:
            rows = self._trail.table(node.column, row.met)
        there = kept(node.on, rows, narrow=node.narrow)
        found = [v for k, v in there if k is not None and (one_value(k) is key or one_value(k) == key)]
        value = found[0] if found else None
        return [replace(row, data={**row.data, node.column: value})] if found or node.how == "left" else []

    def _judged(self, source: r.Source, kind: str) -> list[Row]:
        """The source's records of one kind: on time, or what is put aside."""
        found = self._records_of(source)
        ordinal = self._ordinals[source] << 48
        return [
            Row(0 if source.timed else epoch, micros(x["at"]) if source.timed else 0, ordinal + x["p"], x["o"], (), x)
            for what, epoch, x in found
            if what == kind
        ]

    def _records_of(self, source: r.Source) -> list[tuple[str, int, Mapping[str, Any]]]:
        """Each record of a source and what it is."""
        return judging.judged(source, self._records[source.name], self._clock)

    def _at_frontier(self, node: r.Node, key: tuple[Any, ...], time: int, data: Mapping[str, Any], sub: int = 0) -> Row:
        return Row(0, time, self._markers.get(node, 0), hash_of(key), (sub,), data, key)

    def _totals(self, node: r.Totals, group: list[Row]) -> list[Row]:
        key = group[0].key
        names = region_of(node).keys
        out = []
        for start, end, rows in _windows(node.window, group):
            rows.sort(key=lambda row: row.order[1:])  # first, last and collect go by the position, whatever the epoch
            data: dict[str, Any] = dict(zip(names, key, strict=True))
            if node.window is not None:
                data |= {"window_start": r.moment(start), "window_end": r.moment(end)}
            for name, kind, column in node.aggregates:
                data[name] = aggregate(kind, [True if column is None else row.data[column] for row in rows])
            together = sum(row.time == end - 1 for row in out)  # windows of a zone may end at one moment
            out.append(self._at_frontier(node, key, end - 1, data, together))
        return out

    def _timed(self, node: r.Map | r.Process, rows: list[Row], marked: r.Node | None = None) -> list[Row]:
        """A function with a timer per key, which fires before the first row at or after its time.

        At the end of input it fires up to the greatest time that any record of the region's sources has, then once more.
        """
        fn, on_timer = r.TIMED_FUNCTIONS[node.fn if isinstance(node, r.Map) else node.operator]
        key = rows[0].key if len(rows[0].key) > 1 else rows[0].key[0]
        out: list[Row] = []
        state, at, last = None, None, rows[0].time

        def fire() -> None:
            nonlocal state, at
            fired = at
            given, state, *more = on_timer(key, state, r.moment(fired))
            at = None if not more or more[0] is None else micros(more[0])
            assert at is None or at > fired
            out.extend(self._at_frontier(marked or node, rows[0].key, fired, data, n) for n, data in enumerate(_given(given)))

        def lives() -> bool:
            return at is not None and (node.ttl_us is None or at <= last + node.ttl_us)

        for row in rows:
            while lives() and at <= row.time:
                fire()
            if node.ttl_us is not None and row.time - last >= node.ttl_us:
                state = at = None
            given, state, *more = fn(key, SimpleNamespace(**row.data), state)
            if more:
                at = None if more[0] is None else max(micros(more[0]), row.time + 1)
            elif state is None:
                at = None
            last = row.time
            out.extend(row.child(n, data) for n, data in enumerate(_given(given)))
        while lives() and at <= max(last, self._latest(node)):
            fire()
        if lives():
            fire()
        return out

    def _latest(self, node: r.Node) -> int:
        """The greatest time of all records of the sources that feed a node's region, without those that are ahead, or how far the clock has brought
        the region before the end.
        """
        found: list[Any] = [node]
        for one in found:  # grows
            befores = one.of if isinstance(one, r.Union) else [getattr(one, "of", None), getattr(one, "other", None)]
            joins = [n for n in self._recipe.nodes if isinstance(n, r.Join) and region_of(n) is one]
            found += [n for n in [*befores, *(n.other for n in joins)] if n is not None and not any(n is f for f in found)]
        judged = (self._records_of(n) for n in found if isinstance(n, r.Source))
        times = (record["at"] for source in judged for what, _, record in source if what != "ahead")
        latest = max((micros(at) for at in times if at is not None), default=-(1 << 63))
        return latest if self._trail is None else max(latest, self._trail.last_frontier(region_of(node).name))

    def _joined(self, node: r.Join, lefts: list[Row]) -> list[Row]:
        keys = region_of(node).keys
        rights = [replace(row, key=tuple(one_value(row.data[c]) for c in keys)) for row in self.rows(node.other)]
        left_names = columns(node.of)
        right_names = {n: f"{n}_right" if n in left_names else n for n in columns(node.other) if n not in keys}
        if node.how == "asof":
            return [replace(left, data=_pair(left.data, _as_of(left, rights, node.within_us), right_names)) for left in lefts]
        pairs: list[tuple[Row, Row, Row]] = []
        for left in lefts:
            for right in rights:
                if _meet(left, right, node.within_us):
                    later, other = (left, right) if left.order > right.order else (right, left)
                    pairs.append((later, other, replace(left, data=_pair(left.data, right.data, right_names))))
        out = []
        pairs.sort(key=lambda pair: (pair[0].order, pair[1].order))
        for n, (later, _, pair) in enumerate(pairs):
            out.append(replace(later, sub=(*later.sub, n), data=pair.data))
        alone = [left for left in lefts if not any(_meet(left, right, node.within_us) for right in rights)]
        for left in alone if node.how in ("left", "full") else ():
            out.append(self._at_frontier(node, left.key, left.time + node.within_us, _pair(left.data, {}, right_names)))  # noqa: PERF401
        alone = [right for right in rights if not any(_meet(left, right, node.within_us) for left in lefts)]
        for right in alone if node.how in ("right", "full") else ():
            data = _pair(dict.fromkeys(left_names) | dict(zip(keys, right.key, strict=True)), right.data, right_names)
            out.append(self._at_frontier(node, right.key, right.time + node.within_us, data))
        return out

    def _tally(self, node: r.Node, group: list[Row]) -> list[Row]:
        counts = Counter(row.time - row.time % r.Tally.span_us for row in group)
        return [
            self._at_frontier(
                node,
                group[0].key,
                start + r.Tally.span_us - 1,
                {"k": "tally", "j": 0, "v": n, "x": None, "s": str(r.moment(start))},
            )
            for start, n in sorted(counts.items())
        ]


# --------------------------------------------------------------------------------------------------------------- the steps


def by_key(rows: list[Row]) -> list[list[Row]]:
    """Rows of each key, in order."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.order):
        groups[row.key].append(row)
    return list(groups.values())


def _windows(window: r.Window | None, rows: list[Row]) -> list[tuple[int, int, list[Row]]]:
    """(start, end, rows) of every window with a row; rows in order."""
    if window is None:
        return [(0, 0, list(rows))]
    if window.kind == "session":
        bursts: list[list[Row]] = []
        for row in rows:
            if not bursts or row.time - bursts[-1][-1].time >= window.size_us:
                bursts.append([])
            bursts[-1].append(row)
        return [(b[0].time, b[-1].time + window.size_us, b) for b in bursts]
    found: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        for span in spans(window, row.time):
            found[span].append(row)
    return [(start, end, found[start, end]) for start, end in sorted(found)]


def spans(window: r.Window, time: int) -> list[tuple[int, int]]:
    """(start, end) of the windows that hold a time."""
    slide = window.slide_us if window.kind == "sliding" else window.size_us
    if window.zone is None:
        last = (time - window.offset_us) // slide * slide + window.offset_us
        starts = [last - i * slide for i in range(window.size_us // slide + 2)]
        return [(start, start + window.size_us) for start in reversed(starts) if start <= time < start + window.size_us]
    first = min(window.zone.offsets) + time - window.offset_us - 2 * (max(window.zone.offsets) - min(window.zone.offsets))
    number, found = (first - window.size_us) // slide, {}
    while (start := shown(window.zone, number * slide + window.offset_us)) <= time:
        end = shown(window.zone, number * slide + window.offset_us + window.size_us)
        found[start] = end  # of those that begin at one moment the last one
        number += 1
    return sorted((start, end) for start, end in found.items() if time < end)


def shown(zone: Any, local: int) -> int:
    """The first moment at which a zone's clock shows a local time or a later one."""
    bounds = [None, *zone.changes, None]
    for begin, end, offset in zip(bounds, bounds[1:], zone.offsets, strict=True):
        if begin is not None and begin + offset >= local:
            return begin
        if end is None or local - offset < end:
            return local - offset
    raise AssertionError


def mapped(node: r.Map, rows: list[Row]) -> list[Row]:
    states: dict[int, Any] = {}
    out: list[Row] = []
    key = rows[0].key if len(rows[0].key) > 1 else rows[0].key[0]
    for i, row in enumerate(rows):
        n = 0
        if node.ttl_us is not None and i and row.time - rows[i - 1].time >= node.ttl_us:
            states.clear()
        for start in [0] if node.window is None else [start for start, _ in spans(node.window, row.time)]:
            given, states[start] = r.FUNCTIONS[node.fn](key, SimpleNamespace(**row.data), states.get(start))
            for one in [] if given is None else given if isinstance(given, list) else [given]:
                out.append(row.child(n, one if isinstance(one, dict) else dict(zip(r.STANDARD, one, strict=True))))
                n += 1
    return out


def _given(given: Any) -> list[Mapping[str, Any]]:
    """The rows that a function returns."""
    rows = [] if given is None else given if isinstance(given, list) else [given]
    return [one if isinstance(one, dict) else dict(zip(r.STANDARD, one, strict=True)) for one in rows]


def distinct(node: r.Distinct, rows: list[Row]) -> list[Row]:
    kept: dict[tuple[Any, ...], int] = {}
    out = []
    for row in rows:
        value = tuple(one_value(row.data[c]) for c in node.columns)
        if value in kept and (node.within_us is None or row.time - kept[value] <= node.within_us):
            continue
        kept[value] = row.time
        out.append(row.child(0, row.data))
    return out


def previous(node: r.Process, rows: list[Row]) -> list[Row]:
    befores = [None, *(row.data["v"] for row in rows)]
    for i, (before, row) in enumerate(itertools.pairwise(rows), start=1):
        if node.ttl_us is not None and row.time - before.time >= node.ttl_us:
            befores[i] = None
    return [row.child(0, {n: row.data[n] for n in r.STANDARD} | {"before": b}) for row, b in zip(rows, befores, strict=False)]


def repeated(row: Row) -> list[Row]:
    times = 1 if row.data["v"] is None else row.data["v"] % 3
    return [row.child(n, {**row.data, "s": f"{row.data['s']}/{n}"}) for n in range(times)]


def with_column(row: Row, new: tuple[str, str]) -> Row:
    return replace(row, data={**row.data, new[0]: r.EXPRESSIONS[new](row.data)})


def _meet(left: Row, right: Row, within_us: int) -> bool:
    """Whether two rows are a pair; null equals nothing."""
    return left.key == right.key and None not in left.key and abs(left.time - right.time) <= within_us


def _as_of(left: Row, rights: list[Row], tolerance_us: int | None) -> Mapping[str, Any]:
    """The last right row of the left row's key that is not after its time; null equals nothing."""
    found = [right for right in rights if right.key == left.key and None not in left.key and right.time <= left.time]
    last = max(found, key=lambda right: right.order, default=None)
    return {} if last is None or (tolerance_us is not None and left.time - last.time > tolerance_us) else last.data


def _pair(left: Mapping[str, Any], right: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {**left, **{new: right.get(old) for old, new in names.items()}}


# ----------------------------------------------------------------------------------------------------------- looking at a recipe


def region_of(node: Any) -> r.KeyBy:
    """The region a keyed step is in."""
    while not isinstance(node, r.KeyBy):
        node = node.of
    return node


def region_left(node: Any) -> r.KeyBy | None:
    """The region that rows have left as those of a node; None: it is no step of a region."""
    if issubclass(getattr(node, "kind", type(node)), r.Map | r.Totals | r.Distinct | r.Join | r.Process):
        return region_of(node)
    return node.of if isinstance(node, r.Local) and isinstance(node.of, r.KeyBy) else None


def columns(node: Any) -> list[str]:
    """Names of the columns of a stream."""
    if isinstance(node, r.Source):
        return [*r.TIMED.names] if node.timed else [*r.UNTIMED.names]
    if isinstance(node, r.Standard | r.Map):
        return [*r.STANDARD]
    if isinstance(node, r.Process):
        return [*r.STANDARD, "before"] if node.operator == "previous" else [*r.STANDARD]
    if isinstance(node, r.Union):
        return columns(node.of[0])
    if isinstance(node, r.Totals):
        window = [] if node.window is None else ["window_start", "window_end"]
        return [*region_of(node).keys, *window, *(n for n, _, _ in node.aggregates)]
    before = columns(node.of)
    if isinstance(node, r.Columns):
        return [*(n for n in before if n != node.new[0]), node.new[0]]
    if isinstance(node, r.Lookup):
        return [*before, node.column]
    if isinstance(node, r.KeyBy):
        for step in node.then:
            before = before if isinstance(step, str) else [*(n for n in before if n != step[0]), step[0]]
    if isinstance(node, r.Join):
        keys = region_of(node).keys
        return before + [f"{n}_right" if n in before else n for n in columns(node.other) if n not in keys]
    return before


def hash_of(key: tuple[Any, ...]) -> int:
    """Rows that the frontier triggers at one time are ordered by their key's hash."""
    types = {int: pa.int64(), float: pa.float64()}
    kinds = [types.get(type(value), pa.string()) for value in key]
    return int(spark_xxhash64([pa.array([v], kind) for v, kind in zip(key, kinds, strict=True)])[0])


def multiset(rows: Iterable[Mapping[str, Any]]) -> Counter[Any]:
    """Rows without order, with their number."""
    return Counter(tuple(sorted((n, one_value(v)) for n, v in row.items())) for row in rows)
