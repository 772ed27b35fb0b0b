"""What only the SQL sinks do: upsert, replace, existing tables, several writers of one database."""

from __future__ import annotations

import datetime as dt
import math
import threading
import time
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock import sinks
from penstock.errors import DeclarationError, FencedError, SinkError
from penstock.types import Mark

PAIR = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())])


def upserting(rig, make, table="results", **options):
    sink = rig.sink(table, mode="upsert", key=["a", "b"], **options)
    sink.validate(PAIR, updates=True, key=("b", "a"))
    sink.open(make.mark(-1), PAIR)
    return sink


# -- modes


def test_upsert_when_key_is_held_then_row_is_replaced(sql_rig, make):
    sink = upserting(sql_rig, make)
    assert sink.write([make.batch((1, "x", 10), (2, "x", 20), schema=PAIR)], make.mark(0)) == 2
    assert sink.write([make.batch((1, "x", 11), (1, "y", 30), schema=PAIR)], make.mark(1)) == 2
    assert sql_rig.rows(columns="a, b, v", order="v") == [(1, "x", 11), (2, "x", 20), (1, "y", 30)]


def test_upsert_when_keys_contain_nulls_then_null_is_a_key(sql_rig, make):
    sink = upserting(sql_rig, make)
    keys = [(None, None), (None, "x"), (1, None), (1, "x"), (None, "y"), (2, None)]
    sink.write([make.batch(*((a, b, n) for n, (a, b) in enumerate(keys)), schema=PAIR)], make.mark(0))
    changed = [0, 1, 2, 3]
    rows = [(*keys[n], n + 100) for n in changed]
    assert sink.write([make.batch(*rows, schema=PAIR)], make.mark(1)) == 4
    held = sql_rig.rows(columns="a, b, v", order="v")
    assert held == [(*keys[4], 4), (*keys[5], 5), *rows]


def test_upsert_when_key_is_twice_in_an_epoch_then_last_wins(sql_rig, make):
    sink = upserting(sql_rig, make)
    first = make.batch((1, "x", 1), (None, "x", 2), (1, "x", 3), schema=PAIR)
    second = make.batch((None, "x", 4), (2, "z", 5), schema=PAIR)
    assert sink.write([first, second], make.mark(0)) == 3
    assert sql_rig.rows(columns="a, b, v", order="v") == [(1, "x", 3), (None, "x", 4), (2, "z", 5)]


def test_upsert_when_all_columns_are_the_key_then_rows_stay_distinct(sql_rig, make):
    sink = sql_rig.sink(mode="upsert", key=["n", "word"])
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "a"), (1, "b"))], make.mark(0))
    sink.write([make.batch((1, "a"))], make.mark(1))
    assert sorted(sql_rig.rows()) == [(1, "a"), (1, "b")]


def test_upsert_when_crash_half_way_then_old_rows_stay(sql_rig, make):
    sink = upserting(sql_rig, make)
    sink.write([make.batch((1, "x", 1), schema=PAIR)], make.mark(0))

    def crashing():
        yield make.batch((1, "x", 2), schema=PAIR)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sink.write(crashing(), make.mark(1))
    assert sql_rig.rows(columns="a, b, v") == [(1, "x", 1)]
    sink.write([make.batch((1, "x", 2), schema=PAIR)], make.mark(1))
    assert sql_rig.rows(columns="a, b, v") == [(1, "x", 2)]


@pytest.mark.parametrize("sql_rig", ["sqlite", "postgresql"], indirect=True)
def test_upsert_when_table_is_large_then_is_not_scanned(sql_rig, make):
    """Half of the key is the same in all rows, so an index on that half alone would be no better than a scan."""
    sink = upserting(sql_rig, make)
    big = pa.table({"a": pa.array([7] * 50_000), "b": [f"k{n}" for n in range(50_000)], "v": range(50_000)}, schema=PAIR)
    sink.write(big.to_batches(), make.mark(0))
    indexes = {"sqlite": "SELECT sql FROM sqlite_master", "postgresql": "SELECT indexdef FROM pg_indexes"}[sql_rig.system]
    assert any("penstock_key_" in str(row) for row in sql_rig.query(indexes))
    if sql_rig.system == "postgresql":
        sql_rig.query("ANALYZE results")
    started = time.perf_counter()
    rows = [(7, f"k{n}", -1) for n in range(0, 50_000, 100)] + [(None, "k1", -1), (7, None, -1)]
    assert sink.write([make.batch(*rows, schema=PAIR)], make.mark(1)) == 502
    assert time.perf_counter() - started < 2  # 500 scans of 50,000 rows take longer
    assert sql_rig.query("SELECT COUNT(*), SUM(CASE WHEN v = -1 THEN 1 ELSE 0 END) FROM results") == [(50_002, 502)]


def test_replace_when_epoch_has_rows_then_they_are_all_there_is(sql_rig, make):
    sink = sql_rig.sink(mode="replace")
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "a"), (2, "b"))], make.mark(0))
    sink.write([make.batch((3, "c")), make.batch((4, "d"))], make.mark(1))
    assert sql_rig.rows() == [(3, "c"), (4, "d")]


def test_replace_when_epoch_is_empty_then_table_stays(sql_rig, make):
    sink = sql_rig.sink(mode="replace")
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "a"))], make.mark(0))
    sink.write([make.batch()], make.mark(1))
    assert sql_rig.rows() == [(1, "a")]
    assert sql_rig.stored_epoch() == 1


# -- declarations


@pytest.mark.parametrize(
    ("options", "updates", "key", "message"),
    [
        ({"mode": "upsert"}, True, ("n",), r"no key: write key=\['n'\]"),
        ({"mode": "upsert", "key": "nn"}, False, (), "key column 'nn', but the output has only"),
        ({"mode": "upsert", "key": "word"}, True, ("n",), r"rows are one per \['n'\]: write key=\['n'\]"),
        ({"mode": "replace"}, True, ("n",), "only the keys that changed in the last epoch"),
    ],
)
def test_validate_when_mode_cannot_work_then_says_what_to_write(sql_rig, make, options, updates, key, message):
    with pytest.raises(DeclarationError, match=message):
        sql_rig.sink(**options).validate(make.schema, updates=updates, key=key)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("t", pa.duration("us"))], "Column 't' has type duration"),
        ([("t", pa.int64()), ("t", pa.string())], "Column 't' is twice"),
    ],
)
def test_validate_when_a_column_cannot_be_stored_then_is_named(sql_rig, fields, message):
    with pytest.raises(DeclarationError, match=message):
        sql_rig.sink().validate(pa.schema(fields), updates=False, key=())


@pytest.mark.parametrize(
    ("url", "table", "options", "message"),
    [
        ("mysql://user:secret@h/d", "t", {}, r"'mysql://user:\*\*\*@h/d' is no database that sql\(\) knows"),
        ("results.db", "t", {}, "write sqlite:///"),
        ("sqlite://", "t", {}, "database in memory"),
        ("duckdb:///:memory:", "t", {}, "database in memory"),
        ("sqlite:///r.db", "a.t", {}, "name without a dot"),
        ("duckdb:///r.db", "a.b.t", {}, "table or schema.table"),
        ("postgresql://h/d", "t" * 64, {}, "longer than the 63 bytes"),
        ("sqlite:///r.db", "t", {"mode": "insert"}, "write 'append', 'upsert' or 'replace'"),
        ("sqlite:///r.db", "t", {"key": "k"}, 'add mode="upsert"'),
    ],
)
def test_sql_when_declared_wrongly_then_says_so_at_once(url, table, options, message):
    with pytest.raises(DeclarationError, match=message):
        sinks.sql(url, table, **options)


def test_repr_and_errors_when_url_has_a_password_then_it_is_not_shown():
    sink = sinks.sql("postgresql://me:secret@127.0.0.1:1/d", "t")
    assert "secret" not in repr(sink)
    with pytest.raises(SinkError, match="refused to open") as raised:
        sink.open(Mark("f", "out", 1), pa.schema([("n", pa.int64())]))
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


# -- existing tables


def test_open_when_table_has_more_columns_then_is_accepted(sql_rig, make):
    sql_rig.query("CREATE TABLE results (word VARCHAR, extra INTEGER DEFAULT 7, n BIGINT)")
    sink = sql_rig.sink()
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "a"))], make.mark(0))
    assert sql_rig.rows(columns="n, word, extra") == [(1, "a", 7)]


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("n BIGINT", "has no column 'word': let it be added with evolve=True, add it as"),
        ("n VARCHAR, word VARCHAR", "has column 'n' of type .*, which does not hold int64 exactly: make it"),
        ("n BIGINT, word DATE", "has column 'word' of type .*DATE.*, which does not hold string"),
    ],
)
def test_open_when_table_does_not_fit_then_column_is_named_and_no_mark_is_left(sql_rig, make, ddl, message):
    sql_rig.query(f"CREATE TABLE results ({ddl})")
    with pytest.raises(SinkError, match=f"(?i){message}"):
        sql_rig.sink().open(make.mark(-1), make.schema)
    sql_rig.query("DROP TABLE results")
    assert sql_rig.sink().open(make.mark(-1, flow="another"), make.schema) is None


@pytest.mark.parametrize(("declared", "arrow"), [("NUMERIC(10, 2)", pa.decimal128(10, 3)), ("REAL", pa.float64())])
def test_open_when_column_would_round_then_is_refused(sql_rig, make, declared, arrow):
    sql_rig.query(f"CREATE TABLE results (v {declared})")
    if sql_rig.system == "sqlite" and declared == "REAL":
        assert sql_rig.sink().open(make.mark(-1), pa.schema([("v", arrow)])) is None
        return
    with pytest.raises(SinkError, match=r"column 'v' of type .* does not hold"):
        sql_rig.sink().open(make.mark(-1), pa.schema([("v", arrow)]))


def test_open_when_table_was_dropped_but_not_its_mark_then_is_refused(sql_rig, make):
    sink = sql_rig.sink()
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "a"))], make.mark(0))
    sink.close()
    sql_rig.query("DROP TABLE results")
    with pytest.raises(SinkError, match="is gone, but its mark says that it held output 'out' up to epoch 0"):
        sql_rig.sink().open(make.mark(0, run=2), make.schema)


def test_open_when_table_is_spelled_otherwise_then_is_the_same_table(sql_rig, make):
    sink = sql_rig.sink("results")
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "a"))], make.mark(0))
    other = {"sqlite": "RESULTS", "duckdb": "Main.Results", "postgresql": "public.results"}[sql_rig.system]
    assert sql_rig.sink(other).open(make.mark(0, run=2), make.schema) == make.mark(0)


def test_write_when_table_is_in_a_schema_then_it_is_stored_there(postgres_rig, make):
    postgres_rig.query("CREATE SCHEMA sales")
    sink = postgres_rig.sink("sales.results", mode="upsert", key="n")
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "a"))], make.mark(0))
    assert postgres_rig.rows("sales.results") == [(1, "a")]
    assert postgres_rig.query("SELECT target FROM penstock_marks") == [("sales.results",)]


# -- values


def test_write_when_values_are_nested_then_they_are_json(sql_rig, make):
    schema = pa.schema(
        [
            ("l", pa.list_(pa.int64())),
            ("s", pa.struct([("d", pa.date32()), ("x", pa.float64())])),
            ("m", pa.map_(pa.string(), pa.int8())),
        ]
    )
    sink = sql_rig.sink()
    sink.validate(schema, updates=False, key=())
    sink.open(make.mark(-1), schema)
    rows = [([1, None], {"d": dt.date(2020, 1, 2), "x": math.nan}, [("é", 1)]), (None, None, None)]
    sink.write([make.batch(*rows, schema=schema)], make.mark(0))
    found = sql_rig.rows(columns="l, s, m")
    if sql_rig.system == "postgresql":  # where they are jsonb, which Python reads as what they hold
        assert found == [([1, None], {"d": "2020-01-02", "x": None}, {"é": 1}), (None, None, None)]
    else:
        assert found == [("[1, null]", '{"d": "2020-01-02", "x": null}', '{"é": 1}'), (None, None, None)]


def test_write_when_nan_then_it_survives_except_in_sqlite(sql_rig, make):
    schema = pa.schema([("f", pa.float64()), ("g", pa.float32())])
    sink = sql_rig.sink()
    sink.open(make.mark(-1), schema)
    sink.write([make.batch((math.nan, -math.inf), schema=schema)], make.mark(0))
    [(nan, infinity)] = sql_rig.rows(columns="f, g")
    assert infinity == -math.inf
    assert nan is None if sql_rig.system == "sqlite" else math.isnan(nan)


def test_write_when_arrow_type_is_wide_or_encoded_then_it_is_stored(sql_rig, make):
    encoded = pa.array(["a", None, "a"]).dictionary_encode()
    seconds = pa.array([0, -1, None], pa.timestamp("s", "Europe/Berlin"))
    batch = pa.RecordBatch.from_arrays(
        [encoded, seconds, pa.array(["x", "y", "z"], pa.large_string()), pa.nulls(3)], names=["e", "t", "l", "unknown"]
    )
    sink = sql_rig.sink()
    sink.open(make.mark(-1), batch.schema)
    sink.write([batch], make.mark(0))
    assert sql_rig.rows(columns="e, l, unknown") == [("a", "x", None), (None, "y", None), ("a", "z", None)]
    times = {"sqlite": "t", "duckdb": "epoch_us(t)", "postgresql": "CAST(EXTRACT(EPOCH FROM t) AS BIGINT) * 1000000"}
    found = [row[0] for row in sql_rig.rows(columns=times[sql_rig.system])]
    assert found == (
        ["1970-01-01 00:00:00.000000", "1969-12-31 23:59:59.000000", None]
        if sql_rig.system == "sqlite"
        else [0, -1_000_000, None]
    )


def test_write_when_time_has_nanoseconds_then_is_refused_not_rounded(sql_rig, make):
    schema = pa.schema([("t", pa.timestamp("ns"))])
    sink = sql_rig.sink()
    sink.open(make.mark(-1), schema)
    with pytest.raises(SinkError, match="would lose data"):
        sink.write([pa.RecordBatch.from_arrays([pa.array([1], pa.timestamp("ns"))], schema=schema)], make.mark(0))
    assert sql_rig.stored_epoch() == -1


def test_write_when_year_has_five_digits_then_sqlite_refuses(sqlite_rig, make):
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    sink = sqlite_rig.sink()
    sink.open(make.mark(-1), schema)
    with pytest.raises(SinkError, match="outside the years 1 to 9999"):
        sink.write([pa.RecordBatch.from_arrays([pa.array([2**62], pa.timestamp("us", "UTC"))], schema=schema)], make.mark(0))


def test_write_when_value_is_too_large_then_is_refused_and_nothing_stored(sql_rig, make):
    schema = pa.schema([("u", pa.uint64())])
    sink = sql_rig.sink()
    sink.open(make.mark(-1), schema)
    with pytest.raises(SinkError):
        sink.write([make.batch((1,), schema=schema), make.batch((2**64 - 1,), schema=schema)], make.mark(0))
    assert sql_rig.rows(columns="u") == []
    assert sql_rig.stored_epoch() == -1


def test_write_when_postgres_gets_a_nul_character_then_says_so(postgres_rig, make):
    sink = postgres_rig.sink()
    sink.open(make.mark(-1), make.schema)
    with pytest.raises(SinkError, match=r"refused to store epoch 0 .*0x00"):
        sink.write([make.batch((1, "a\x00b"))], make.mark(0))
    assert postgres_rig.rows() == []


def test_write_when_decimal_key_then_it_is_upserted(sql_rig, make):
    schema = pa.schema([("k", pa.decimal128(20, 4)), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
    sink = sql_rig.sink(mode="upsert", key=["k", "at"])
    sink.open(make.mark(-1), schema)
    row = (Decimal("1.5000"), dt.datetime(1969, 1, 1, tzinfo=dt.UTC))
    for epoch in range(3):
        sink.write([make.batch((*row, epoch), (Decimal(2), None, epoch), schema=schema)], make.mark(epoch))
    assert sql_rig.rows(columns="v") == [(2,), (2,)]


# -- several writers


def test_two_outputs_when_in_one_database_then_each_has_its_mark(sql_rig, make):
    first, second = sql_rig.sink("one"), sql_rig.sink("two", mode="upsert", key="n")
    first.open(make.mark(-1, output="one"), make.schema)
    second.open(make.mark(-1, output="two"), make.schema)
    for epoch in range(3):
        first.write([make.batch((epoch, "a"))], make.mark(epoch, output="one"))
        second.write([make.batch((0, str(epoch)))], make.mark(epoch, output="two"))
    first.write([], make.mark(3, output="one"))
    assert sql_rig.rows("one") == [(0, "a"), (1, "a"), (2, "a")]
    assert sql_rig.rows("two") == [(0, "2")]
    marks = sql_rig.query("SELECT output, epoch FROM penstock_marks ORDER BY output")
    assert marks == [("one", 3), ("two", 2)]


def test_two_outputs_when_appending_to_one_table_then_both_are_kept(sql_rig, make):
    for output in ("one", "two"):
        sink = sql_rig.sink()
        assert sink.open(make.mark(-1, output=output), make.schema) is None
        assert sink.write([make.batch((1, output))], make.mark(0, output=output)) == 1
    assert sql_rig.rows() == [(1, "one"), (1, "two")]


def test_writers_when_two_runs_race_then_every_epoch_is_stored_once(sql_rig, make):
    """Both believe that they own the flow. Run 2 opens while run 1 writes; from then on only run 2 stores."""
    epochs, fenced = 12, []
    started = threading.Event()

    def keep_writing(run, first):
        sink = sql_rig.sink()
        held = sink.open(make.mark(first, run=run), make.schema)
        try:
            for epoch in range(held.epoch + 1 if held else 0, epochs):
                sink.write([make.batch((epoch, f"{epoch}-{part}")) for part in range(3)], make.mark(epoch, run=run))
                if epoch == 2:
                    started.set()
        except FencedError:
            fenced.append(run)
        finally:
            started.set()
            sink.close()

    old = threading.Thread(target=keep_writing, args=(1, -1))
    old.start()
    started.wait(60)
    new = threading.Thread(target=keep_writing, args=(2, epochs))
    new.start()
    old.join(60)
    new.join(60)
    assert fenced in ([], [1])
    assert sorted(sql_rig.rows()) == sorted((epoch, f"{epoch}-{part}") for epoch in range(epochs) for part in range(3))


def test_writers_when_threads_share_a_database_then_all_succeed(sql_rig, make):
    failures = []

    def keep_writing(output):
        try:
            sink = sql_rig.sink(output)
            sink.open(make.mark(-1, output=output), make.schema)
            for epoch in range(8):
                sink.write([make.batch((epoch, output))], make.mark(epoch, output=output))
            sink.close()
        except Exception as error:  # noqa: BLE001  (asserted below)
            failures.append(error)

    threads = [threading.Thread(target=keep_writing, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    for n in range(4):
        assert sql_rig.rows(f"t{n}") == [(epoch, f"t{n}") for epoch in range(8)]


def test_write_when_mark_was_deleted_meanwhile_then_is_refused(sql_rig, make):
    sink = sql_rig.sink()
    sink.open(make.mark(-1), make.schema)
    sql_rig.query("DELETE FROM penstock_marks")
    with pytest.raises(SinkError, match="has no mark of output 'out'"):
        sink.write([make.batch((1, "a"))], make.mark(0))
    assert sql_rig.rows() == []


def test_write_when_mark_fell_back_then_is_refused(sql_rig, make):
    sink = sql_rig.sink()
    sink.open(make.mark(-1, run=3), make.schema)
    sql_rig.query("UPDATE penstock_marks SET run = 2")
    with pytest.raises(SinkError, match="fallen back to a mark of run 2"):
        sink.write([make.batch((1, "a"))], make.mark(0, run=3))
