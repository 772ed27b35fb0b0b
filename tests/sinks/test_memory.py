from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock import sinks
from penstock.errors import DeclarationError, SinkError

PAIR = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())])


def updating(name, make, **claim):
    sink = sinks.memory(name)
    sink.validate(PAIR, updates=True, key=("a", "b"))
    sink.open(make.mark(-1, **claim), PAIR)
    return sink


def test_write_when_output_updates_then_latest_row_of_each_key_is_kept(tmp_path, make):
    sink = updating(str(tmp_path), make)
    sink.write([make.batch((1, "x", 1), (None, "x", 2), (1, "x", 3), (None, None, 4), schema=PAIR)], make.mark(0))
    assert sink.write([make.batch((None, "x", 5), (2, "y", 6), schema=PAIR)], make.mark(1)) == 2
    found = [tuple(row.values()) for row in sinks.memory(str(tmp_path)).rows()]
    assert found == [(1, "x", 3), (None, None, 4), (None, "x", 5), (2, "y", 6)]


def test_write_when_output_does_not_update_then_all_rows_are_kept_whatever_the_key(tmp_path, make):
    sink = sinks.memory(str(tmp_path))
    sink.validate(make.schema, updates=False, key=("n",))
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "a"), (1, "b"))], make.mark(0))
    assert [row["word"] for row in sink.rows()] == ["a", "b"]


def test_table_when_written_then_is_arrow_with_the_schema(tmp_path, make):
    sink = sinks.memory(str(tmp_path))
    assert sink.table().num_columns == 0
    sink.open(make.mark(-1), make.schema)
    assert sink.table().schema == make.schema
    sink.write([make.batch((1, "a"))], make.mark(0))
    assert sink.table() == pa.table([make.batch((1, "a"))[0], make.batch((1, "a"))[1]], schema=make.schema)


def test_open_when_another_flow_then_starts_empty_and_old_one_is_fenced(tmp_path, make):
    old = updating(str(tmp_path), make)
    old.write([make.batch((1, "x", 1), schema=PAIR)], make.mark(0))
    new = updating(str(tmp_path), make, flow="flow-b")
    assert new.rows() == []
    with pytest.raises(Exception, match="flow 'flow-a' may not write"):
        old.write([make.batch((1, "x", 1), schema=PAIR)], make.mark(1))


def test_open_when_another_output_of_the_flow_then_is_refused(tmp_path, make):
    updating(str(tmp_path), make)
    with pytest.raises(SinkError, match="holds output 'out' of the same flow: give output 'late' another name"):
        updating(str(tmp_path), make, output="late")


def test_open_when_columns_changed_after_rows_then_is_refused(tmp_path, make):
    sink = updating(str(tmp_path), make)
    sinks.memory(str(tmp_path)).open(make.mark(-1), make.schema)
    sink.open(make.mark(-1), PAIR)
    sink.write([make.batch((1, "x", 1), schema=PAIR)], make.mark(0))
    with pytest.raises(SinkError, match="of other types: use another name"):
        sinks.memory(str(tmp_path)).open(make.mark(0), make.schema)


def test_names_when_different_then_rows_are_apart(tmp_path, make):
    updating(f"{tmp_path}1", make).write([make.batch((1, "x", 1), schema=PAIR)], make.mark(0))
    assert sinks.memory(f"{tmp_path}2").rows() == []


def test_validate_when_key_cannot_work_then_is_refused(make):
    with pytest.raises(DeclarationError, match="key column 'k'"):
        sinks.memory("m").validate(PAIR, updates=True, key=("k",))
    with pytest.raises(DeclarationError, match="key column 'l' of type list"):
        sinks.memory("m").validate(pa.schema([("l", pa.list_(pa.int8()))]), updates=True, key=("l",))


def test_write_when_keys_are_nan_or_zero_of_either_sign_then_each_is_one(make):
    schema = pa.schema([("x", pa.float64()), ("n", pa.int64())])
    sink = sinks.memory("nan and zero")
    sink.validate(schema, updates=True, key=("x",))
    sink.open(make.mark(-1), schema)
    nan = float("nan")
    keys = [nan, np.copysign(nan, -1.0), 0.0, -0.0, None, None]
    sink.write([make.batch(*((x, n) for n, x in enumerate(keys)), schema=schema)], make.mark(0))
    assert [row["n"] for row in sink.rows()] == [1, 3, 5]
