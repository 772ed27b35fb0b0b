"""Any step over any type at its edges, cut into any epochs, on any number of workers: what plain Python makes of the values.

Read next: `test_against_oracle`, whose flows have many steps and few types.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from decimal import Decimal
from typing import Any

import drawing
import oracle
import pyarrow as pa
import recipes as r
from hypothesis import given
from hypothesis import strategies as st
from spelled import EPOCH_0
from test_against_oracle import examples

import penstock as ps
from penstock.testing import Harness

UTC = pa.timestamp("us", "UTC")
MOST = Decimal(10**38 - 1)
EDGES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "tinyint": (pa.int8(), [-128, 127, 0]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1, 0]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1, 0, 2**62]),
    "float": (pa.float32(), [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5]),
    "double": (pa.float64(), [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1.7976931348623157e308]),
    "string": (pa.string(), ["", "a", "é" * 200, "x" * 400, "\x00", "NaN"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\xff" * 400, b"a"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1)]),
    "timestamp": (
        UTC,
        [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC), EPOCH_0],
    ),
    "timestamp_ntz": (pa.timestamp("us"), [dt.datetime.min, dt.datetime.max]),  # noqa: DTZ901
    "decimal(38, 0)": (pa.decimal128(38, 0), [MOST, MOST.copy_negate(), Decimal(0)]),
    "decimal(38, 38)": (pa.decimal128(38, 38), [Decimal("1E-38"), Decimal(f"-{MOST}E-38"), Decimal(0)]),
    "array<double>": (pa.list_(pa.float64()), [[], [None], [math.nan], [0.0], [-0.0], [1.5] * 100]),
    "struct<a: string, b: array<int>>": (
        pa.struct([("a", pa.string()), ("b", pa.list_(pa.int32()))]),
        [{"a": "", "b": []}, {"a": None, "b": None}, {"a": "é", "b": [2**31 - 1, None]}],
    ),
}
NESTED = ("array<double>", "struct<a: string, b: array<int>>")
ORDERED = [name for name in EDGES if name not in NESTED]


def plain(value: Any) -> Any:
    """A value that equals itself and can be counted."""
    if isinstance(value, dict):
        return tuple((name, plain(inner)) for name, inner in sorted(value.items()))
    if isinstance(value, list):
        return tuple(map(plain, value))
    return oracle.one_value(value)


def run(kind: str, records: list[tuple[int, Any]], workers: int, cuts: set[int], declare: Any) -> Counter:
    """What a flow over columns k, n and e (of the kind) holds in the end."""
    number = next(drawing.NUMBERS)
    flow, sink = ps.Flow(f"edges{number}"), ps.memory(f"edges{number}")
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("e", EDGES[kind][0]), ("at", UTC)])
    source = flow.source("s", r.Reader(schema), time="at")
    declare(source).sink(sink)
    with Harness(flow, workers=workers) as harness:
        for n, (k, value) in enumerate(records):
            harness.push("s", [{"k": k, "n": n, "e": value, "at": r.moment(n)}])
            if n in cuts:
                harness.epoch()
        harness.finish()
    return Counter(tuple((name, plain(value)) for name, value in sorted(row.items())) for row in sink.rows())


@st.composite
def cases(draw: Any, kinds: list[str]) -> tuple[str, list[tuple[int, Any]], int, set[int]]:
    """A type, records (k, e), workers, and after which records an epoch ends."""
    kind = draw(st.sampled_from(kinds))
    values = st.sampled_from([None, *EDGES[kind][1]])
    records = draw(st.lists(st.tuples(st.sampled_from([0, 1, 2]), values), min_size=1, max_size=12))
    return kind, records, draw(st.integers(1, 4)), draw(st.sets(st.integers(0, 11)))


def rows_of(found: list[dict[str, Any]]) -> Counter:
    return Counter(tuple((name, plain(value)) for name, value in sorted(row.items())) for row in found)


@examples(60)
@given(case=cases(ORDERED))
def test_rows_keyed_by_any_value_are_those_of_equal_values(case):
    kind, records, workers, cuts = case
    counted: dict[Any, list[Any]] = {}
    for _, value in records:
        counted.setdefault(plain(value), [value, 0])[1] += 1
    found = run(kind, records, workers, cuts, lambda s: s.key_by("e").aggregate(n=ps.count()))
    assert found == rows_of([{"e": value, "n": n} for value, n in counted.values()])


@examples(60)
@given(case=cases([*EDGES]))
def test_aggregates_of_any_value_give_values_back(case):
    kind, records, workers, cuts = case
    wanted = []
    for k in {k for k, _ in records}:
        values = [value for of, value in records if of == k]
        some = [value for value in values if value is not None]
        distinct = len({plain(value) for value in some})
        row = {"k": k, "first": values[0], "last": values[-1], "all": some, "distinct": distinct, "n": len(some)}
        if kind in ORDERED:
            row |= {name: oracle.aggregate(name, values) for name in ("min", "max")}
        wanted.append(row)

    def declare(source: Any) -> Any:
        made = {"first": ps.first("e"), "last": ps.last("e"), "all": ps.collect("e"), "distinct": ps.count_distinct("e")}
        ordered = {"min": ps.min("e"), "max": ps.max("e")} if kind in ORDERED else {}
        return source.key_by("k").aggregate(**made, **ordered, n=ps.count("e"))

    assert run(kind, records, workers, cuts, declare) == rows_of(wanted)


@examples(60)
@given(case=cases([*EDGES]))
def test_duplicates_of_any_value_are_dropped_and_only_these(case):
    kind, records, workers, cuts = case
    seen, wanted = set(), []
    for n, (k, value) in enumerate(records):
        if (k, plain(value)) not in seen:
            wanted.append({"k": k, "n": n})
        seen.add((k, plain(value)))
    found = run(kind, records, workers, cuts, lambda s: s.key_by("k").deduplicate("e").local().select("k", "n"))
    assert found == rows_of(wanted)


@examples(60)
@given(case=cases([*EDGES]), declared=st.booleans())
def test_state_that_holds_any_value_gives_it_back(case, declared):
    kind, records, workers, cuts = case
    last: dict[int, Any] = {}
    wanted = []
    for n, (k, value) in enumerate(records):
        wanted.append({"n": n, "before": last.get(k)})
        last[k] = value

    def before(key: Any, event: Any, state: Any) -> Any:
        return (event.n, None if state is None else state[0]), (event.e, 1)

    state = f"e {kind}, m int" if declared else None
    found = run(kind, records, workers, cuts, lambda s: s.key_by("k").stateful_map(before, f"n long, before {kind}", state))
    assert found == rows_of(wanted)


@examples(60)
@given(case=cases(ORDERED), how=st.sampled_from(["inner", "left", "full"]))
def test_rows_are_joined_by_any_value_but_null(case, how):
    kind, records, workers, cuts = case
    left = [(n, value) for n, (k, value) in enumerate(records) if k != 1]
    right = [(n, value) for n, (k, value) in enumerate(records) if k != 2]
    pairs = [
        (a, b) for a, v in left for b, w in right if v is not None and (plain(v),) == (plain(w),)
    ]  # in a tuple NaN is itself
    met = {a for a, _ in pairs}, {b for _, b in pairs}
    alone = [(a, None) for a, _ in left if a not in met[0]] if how != "inner" else []
    alone += [(None, b) for b, _ in right if b not in met[1]] if how == "full" else []

    def declare(source: Any) -> Any:
        one, other = source.where("k <> 1").key_by("e", name="one"), source.where("k <> 2").key_by("e", name="other")
        return one.join(other, "1 day", how).local().select("n", "n_right")

    found = run(kind, records, workers, cuts, declare)
    assert found == rows_of([{"n": a, "n_right": b} for a, b in [*pairs, *alone]])
