"""Cases through the real code, without Spark: the batch worker, and the operator of a flow epoch by epoch."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from ceql_drawing import Case, draw

from penstock.operators.base import Context, KeyedState
from penstock.operators.match import Match as MatchOperator
from penstock.patterns import algebra as s
from penstock.patterns.automaton.build import Excluded, TypeIs
from penstock.patterns.batch import Spread, enumerated, matches_of
from penstock.patterns.enumeration.work import CountedSplit
from penstock.patterns.plan import KEY, WHEN, Pattern, ready
from penstock.patterns.recogniser.tables import BITS
from penstock.patterns.reference import Answer, Match, Seen, evaluate, holds, passes
from penstock.routing.hashing import spark_xxhash64
from penstock.rows.keys import KeyCodec
from penstock.rows.rows import Order, group_rows
from penstock.types import MASK

COLUMNS = ("p", "at")
SQL_COLUMNS = "p long, at timestamp, types string, t string, v long, w long, n long, k long, j long"
SCHEMA = pa.schema(
    {
        "p": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "types": pa.string(),
        "t": pa.string(),
        **dict.fromkeys("vwnkj", pa.int64()),
    }
)
DEFINE = {kind: f"types LIKE '%{kind}%'" for kind in "ABC"}


@dataclass(frozen=True)
class Counted:
    """So many matches end with this event."""

    end: int
    matches: int


Told = tuple[tuple[object, ...], Match | Counted]


def suitable(seed: int) -> Case | None:
    """A drawn case that a flow can be asked, or None: by single columns, and without arithmetic, in which DuckDB is not Spark."""
    case = draw(seed, keyed=True, needs_global_order=False)
    if any(len(group) > 1 for group in case.query.partition_by) or any(c in str(case.query) for c in "%/"):
        return None
    if case.query.window is not None and case.query.window.size == 0:  # means something, but cannot be written
        return None
    return replace(case, events_window="key")


def records_of(case: Case) -> list[dict[str, object]]:
    """The events as a flow's source reads them."""
    begin = dt.datetime.fromtimestamp(0, dt.UTC)
    return [
        {"p": p, "at": begin + dt.timedelta(microseconds=e.at), "types": "".join(sorted(e.types)), **e.values}
        for p, e in enumerate(case.events)
    ]


def key_of(case: Case, event: Seen) -> tuple[object, ...]:
    return tuple(next((event.values[a] for a in g if event.values[a] is not None), None) for g in case.query.partition_by)


def pattern_of(case: Case, **options: object) -> Pattern:
    names = tuple("_".join(group) for group in case.query.partition_by)
    return ready(case.query, COLUMNS, order=("at",), keys=names, scope=case.scope, events_window=case.events_window, **options)


def mask(pattern: Pattern, event: Seen) -> int:
    total = 0
    for bit, test in enumerate(pattern.automaton.tests):
        if isinstance(test, TypeIs):
            true = test.type in event.types and (test.stream is None or event.stream in ("", test.stream))
        elif isinstance(test, Excluded):
            true = test.type in event.types and (test.condition is None or passes(test.condition, event))
        else:
            true = holds(test, event)
        total |= true << bit
    return total


def table_of(case: Case, pattern: Pattern) -> pa.RecordBatch:
    """The events as the engine would hand them over, sorted; `p` is an event's position in the whole stream."""
    rows = []
    read = [p for p, event in enumerate(case.events) if not case.query.streams or event.stream in ("", *case.query.streams)]
    for counted, position in enumerate(read):
        event = case.events[position]
        key = key_of(case, event)
        if None not in key:
            bits = mask(pattern, event)
            words = [bits >> (BITS * i) & ((1 << BITS) - 1) for i in range(pattern.words)]
            when = event.values["n"] if case.query.window and case.query.window.kind == "attribute" else counted
            rows.append((key, position, event.at, words, when))
    if not pattern.needs_global_order:
        rows.sort(key=lambda row: (row[0], row[1]))
    data = {"p": pa.array([r[1] for r in rows], pa.int64()), "at": pa.array([r[2] for r in rows], pa.timestamp("us"))}
    data |= {f"{MASK}{i}": pa.array([r[3][i] for r in rows], pa.int64()) for i in range(pattern.words)}
    data |= {pattern.key_columns[i]: pa.array([r[0][i] for r in rows], pa.int64()) for i in range(len(pattern.keys))}
    data[WHEN] = pa.array([r[4] for r in rows], pa.int64())
    for name in set(pattern.needed) - data.keys():
        kind = dict(case.kinds).get(name, SCHEMA.field(name).type)
        data[name] = pa.array([case.events[r[1]].values[name] for r in rows], kind)
    return pa.RecordBatch.from_pydict(data)


def in_batch(case: Case, light: int | None = None) -> list[Told]:
    """What the batch worker answers, reading in chunks that end at the cuts. `light`: enumerate as shared work from there on."""
    pattern = pattern_of(case)
    table = table_of(case, pattern)
    edges = [0, *[c for c in case.cuts if c < table.num_rows], table.num_rows]
    pieces = [table.slice(a, b - a) for a, b in itertools.pairwise(edges) if b > a]
    spread = Spread(CountedSplit(light), 3, 1) if light is not None and pattern.spreads else None
    found = list(matches_of(pattern, table.schema, iter(pieces), spread, chunk_rows=1))
    if spread is not None and found:
        result = pa.schema([f for f in found[0].schema if not f.name.startswith("__ps_")])
        found = list(enumerated(pattern, result, found))
    return [row for batch in found for row in answers_in(case, pattern, batch)]


class Memory:
    """State of one worker, as an operator sees it."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def get_many(self, keys):
        return [self.values.get(k) for k in keys]

    def put_many(self, keys, values, timers=None):
        self.values.update(zip(keys, values, strict=True))

    def delete_many(self, keys):
        for key in keys:
            self.values.pop(key, None)


def in_epochs(case: Case) -> tuple[list[Told], Memory]:
    """What the operator of a flow answers, one epoch for each stretch between cuts; and what it remembers at the end."""
    pattern = pattern_of(case)
    table = table_of(case, pattern)
    columns = table.schema
    codec = KeyCodec(pa.schema([pa.field(name, pa.int64()) for name in pattern.keys]))
    memory = Memory()
    out = []
    edges = [0, *case.cuts, len(case.events) + 1]
    positions = table.column("p").to_numpy()
    for low, high in itertools.pairwise(edges):
        part = table.filter(pa.array((positions >= low) & (positions < high)))
        if not part.num_rows:
            continue
        operator = MatchOperator(pattern, str(case.query))
        context = Context("r", 0, 0, codec, (columns,), operator.output_schema([columns], codec.schema))
        operator.start(context)
        at = part.column("p").to_numpy()
        order = Order(
            part.column("at").cast(pa.int64()).to_numpy(), np.zeros(len(at), np.int64), at, np.zeros(len(at), np.int64)
        )
        keys = [part.column(f"{KEY}{i}") for i in range(len(pattern.keys))]
        rows = group_rows(part, order, spark_xxhash64(keys), keys, codec)
        emitted = operator.on_data(rows, KeyedState(memory, context))
        if emitted is not None:
            out += answers_in(case, pattern, emitted.data)
    return out, memory


def answers_in(case: Case, pattern: Pattern, batch: pa.RecordBatch) -> list[Told]:
    """A result's rows as matches. Times are unique, so they tell positions."""
    position = {event.at: i for i, event in enumerate(case.events)}
    at = lambda moment: position[moment.microsecond + 1_000_000 * moment.second]  # noqa: E731
    out = []
    projection = case.query.projection
    listed = {item.variable: item.attributes for item in projection.items} if isinstance(projection, s.Chosen) else {}
    for row in batch.to_pylist():
        key = tuple(row[name] for name in pattern.keys)
        if pattern.shape.counts:
            out.append((key, Counted(at(row["match_end"]), int(row["matches"]))))
            continue
        bound: dict[int, list[str]] = {}
        for column in pattern.shape.bound:
            for shown in row[column.name]:
                place = shown["p"] if "p" in shown else at(shown["at"])
                check_shown(case, listed.get(column.name, ()), shown, place)
                bound.setdefault(place, []).extend([] if column.variable is None else [column.variable])
        data = tuple(sorted(bound))
        whole = tuple(e["p"] for e in row["events"]) if "events" in row else data
        assert whole == data
        out.append((key, Match(at(row["match_start"]), at(row["match_end"]), data, tuple(tuple(bound[p]) for p in data))))
    return out


def check_shown(case: Case, attributes: tuple[str, ...], shown: dict[str, Any], place: int) -> None:
    """An event of a result has the columns that the query lists, if any, and they are those of the event at this place."""
    event = case.events[place]
    assert not attributes or attributes == tuple(shown)
    assert all(shown[name] == event.values[name] for name in event.values if name in shown)
    assert "at" not in shown or shown["at"].microsecond + 1_000_000 * shown["at"].second == event.at


def complaint(case: Case, answered: list[Told]) -> str | None:
    """What is wrong with answers, judged by the reference; None if they are right."""
    expected = evaluate(case.query, case.events, scope=case.scope, events_window=case.events_window)
    if len(set(answered)) < len(answered):
        return f"told twice: {[a for a, n in Counter(answered).items() if n > 1]}"
    if isinstance(case.query.projection, s.CountAll):
        counts = [(key, Counted(end, sum(g.count for g in groups))) for (key, end), groups in expected.items()]
        return None if Counter(answered) == Counter(counts) else f"the numbers are {counts}, given {answered}"
    given: dict[tuple[tuple[object, ...], int], set[Match]] = {}
    for key, match in answered:
        given.setdefault((key, match.end), set()).add(match)
    if extra := given.keys() - expected.keys():
        return f"nothing ends at {extra}"
    for place, groups in expected.items():
        mine = given.get(place, set())
        if wrong := mine - {m for g in groups for m in g.matches}:
            return f"{place}: no match is {wrong}; right are {groups}"
        for group in groups:
            told = len(mine & group.matches)
            if told > group.count if case.query.limit else told != group.count:
                return f"{place}: {told} of {group.count} wanted of {group.matches}, given {mine}"
        if case.query.limit and len(mine) != (most := min(case.query.limit, sum(group.count for group in groups))):
            return f"{place}: {most} are wanted of {groups}, given {mine}"
    return None


__all__ = ["Answer", "complaint", "in_batch", "in_epochs"]
