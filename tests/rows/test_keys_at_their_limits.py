"""Keys at the edge of what a key may be: null, NaN, -0.0, 400 bytes, many columns."""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import dataclass

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import StateError
from penstock.rows.keys import KeyCodec
from penstock.testing import Harness

DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@dataclass
class Reader:
    """In place of a connector: only a schema."""

    schema: pa.Schema


def at(seconds: float) -> dt.datetime:
    return DAY + dt.timedelta(seconds=seconds)


def joined(how: str, left: list, right: list, *, epochs: int) -> list[tuple]:
    """The pairs (id, id_right) of two streams joined on (a, b), cut into one or many epochs."""
    flow = ps.Flow("null keys")
    schema = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    streams = [flow.source(name, Reader(schema), time="at").key_by("a", "b", name=name) for name in ("l", "r")]
    sink = ps.memory(f"null keys {how} {epochs}")
    streams[0].join(streams[1], "10 seconds", how=how).sink(sink)
    with Harness(flow, workers=2) as harness:
        for i in range(max(len(left), len(right))):
            for name, rows in (("l", left), ("r", right)):
                if i < len(rows):
                    key = rows[i]
                    harness.push(name, [{"id": i, "a": key[0], "b": key[1], "at": at(i)}])
            if epochs > 1:
                harness.epoch()
        harness.finish()
    return sorted(((row["id"], row["id_right"]) for row in sink.rows()), key=str)


KEYS = [(1, "x"), (None, "x"), (1, None), (None, None)]


@pytest.mark.parametrize("epochs", [1, 4])
def test_rows_whose_key_has_a_null_match_nothing_and_come_alone_in_outer_joins(epochs):
    assert joined("inner", KEYS, KEYS, epochs=epochs) == [(0, 0)]
    assert joined("left", KEYS, KEYS, epochs=epochs) == [(0, 0), (1, None), (2, None), (3, None)]
    alone = [(None, 1), (None, 2), (None, 3)]
    assert joined("full", KEYS, KEYS, epochs=epochs) == [(0, 0), (1, None), (2, None), (3, None), *alone]


def test_rows_with_a_null_key_leave_nothing_behind_in_an_inner_join():
    flow = ps.Flow("null keys forgotten")
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    streams = [flow.source(name, Reader(schema), time="at").key_by("k", name=name) for name in ("l", "r")]
    streams[0].join(streams[1], "10 days").sink(ps.memory("null keys forgotten"))
    with Harness(flow) as harness:
        for name in ("l", "r"):
            harness.push(name, [{"k": k, "at": at(i)} for i, k in enumerate([None, "a", None])])
        harness.epoch()
        harness.epoch()
        assert len(harness.keys("l")) == 1


def counts(keys: list, kind: pa.DataType, sink: str) -> list[tuple]:
    flow = ps.Flow("long keys")
    made = ps.memory(sink)
    flow.source("s", Reader(pa.schema([("k", kind)]))).key_by("k").aggregate(n=ps.count()).sink(made)
    with Harness(flow, lmdb=True) as harness:
        harness.push("s", [{"k": k} for k in keys])
        harness.finish()
    return [(row["k"], row["n"]) for row in made.rows()]


@pytest.mark.parametrize(("kind", "letter"), [(pa.string(), "x"), (pa.string(), "é"), (pa.binary(), b"x")])
def test_key_of_400_bytes_is_a_key_and_one_of_401_is_refused_with_its_size(kind, letter):
    longest = letter * (400 // len(letter.encode() if isinstance(letter, str) else letter))
    sink = f"long keys {kind} {letter!r}"
    assert counts([longest, longest], kind, sink) == [(longest, 2)]
    more = longest + ("x" if isinstance(letter, str) else b"x")
    with pytest.raises(StateError, match=re.escape("A key of 401 bytes, b'") + ".*longer than 400 bytes"):
        counts([more], kind, f"{sink} more")


@pytest.mark.parametrize(("columns", "most"), [(2, 400), (20, 400), (21, 397), (40, 340)])
def test_key_of_many_columns_may_have_as_many_bytes_as_the_sentence_says(columns, most):
    codec = KeyCodec(pa.schema([(f"c{i}", pa.string()) for i in range(columns)]))

    def encoded(size: int) -> bytes:
        return codec.encode([pa.array(["x" * (size - columns + 1)]), *(pa.array(["y"]) for _ in range(columns - 1))])[0]

    whole = encoded(most)
    assert codec.decode([whole])[0].to_pylist() == ["x" * (most - columns + 1)]
    assert 5 + len(whole) - 2 + 40 <= 511, "what LMDB takes"
    with pytest.raises(StateError, match=f"A key of {most + 1} bytes, b'xxx.* is longer than {most} bytes"):
        encoded(most + 1)


def test_deduplicate_takes_columns_of_any_length():
    flow = ps.Flow("long duplicates")
    sink = ps.memory("long duplicates")
    source = flow.source("s", Reader(pa.schema([("k", pa.int64()), ("s", pa.string()), ("t", pa.string())])))
    source.key_by("k").deduplicate("s", "t").sink(sink)
    long = ["x" * 5000, "x" * 5001, "x" * 5000, None]
    with Harness(flow, lmdb=True) as harness:
        harness.push("s", [{"k": 1, "s": s, "t": "y"} for s in long])
        harness.epoch()
        harness.push("s", [{"k": 1, "s": s, "t": "y"} for s in long])
        harness.finish()
    assert [row["s"] for row in sink.rows()] == ["x" * 5000, "x" * 5001, None]


def test_sub_key_of_an_operator_that_is_too_long_is_refused_in_a_sentence():
    class Subs(ps.Operator):
        ordered = False

        def on_data(self, rows, state):
            state.put_objects(state.names(rows.keys, None, [b"x" * self.size] * len(rows.keys)), [1] * len(rows.keys))

    for size, refused in ((40, False), (41, True)):
        flow = ps.Flow("sub-keys")
        operator = Subs()
        operator.size = size
        flow.source("s", Reader(pa.schema([("k", pa.string())]))).key_by("k").process(operator).sink(ps.memory(f"subs {size}"))
        with Harness(flow, lmdb=True) as harness:
            harness.push("s", [{"k": "k" * 400}])
            if refused:
                with pytest.raises(StateError, match="gave a sub-key of 41 bytes, more than 40"):
                    harness.finish()
            else:
                harness.finish()


def test_nan_is_one_key_and_so_is_zero_whatever_its_sign_also_within_lists():
    rows = [math.nan, -math.nan, 0.0, -0.0, math.inf, -math.inf, None, None]
    found = {str(k): n for k, n in counts(rows, pa.float64(), "double keys")}
    assert found == {"nan": 2, "0.0": 2, "inf": 1, "-inf": 1, "None": 2}
    flow = ps.Flow("lists told apart")
    sink = ps.memory("lists told apart")
    source = flow.source("s", Reader(pa.schema([("k", pa.int64()), ("l", pa.list_(pa.float64()))])))
    source.key_by("k").deduplicate("l").sink(sink)
    with Harness(flow) as harness:
        harness.push("s", [{"k": 1, "l": value} for value in ([0.0, math.nan], [-0.0, -math.nan], [], None, [None], [])])
        harness.finish()
    assert len(sink.rows()) == 4
