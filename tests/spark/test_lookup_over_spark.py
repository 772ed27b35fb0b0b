"""Tables beside a stream over Spark: as in process, whatever the keys' types, before and behind a region, and given as whatever."""

from __future__ import annotations

import math
from decimal import Decimal

import flow_runs as fr
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import DeclarationError, PenstockError, RecordError
from penstock.flow.lookup import looked_up

pytestmark = pytest.mark.spark

COLUMNS = "n long, k string, x double, i int, d decimal(10, 2), b binary, day date, yes boolean, at timestamp"
SCHEMA = pa.schema(
    [
        ("n", pa.int64()), ("k", pa.string()), ("x", pa.float64()), ("i", pa.int32()), ("d", pa.decimal128(10, 2)), ("b", pa.binary()),
        ("day", pa.date32()), ("yes", pa.bool_()), ("at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
DAY = fr.moment(0).date()
ROWS = [
    dict(zip(SCHEMA.names, (n, *row), strict=True))
    for n, row in enumerate(
        [
            ("a", math.nan, 1, Decimal("1.50"), b"\0", DAY, True, fr.moment(0)),
            ("b", -0.0, 2, Decimal("-2.00"), b"", DAY, False, fr.moment(1)),
            (None, None, None, None, None, None, None, fr.moment(2)),
            ("é", math.inf, -(2**31), Decimal("0.01"), b"\xff", None, True, fr.moment(90)),
            ("", 5e-324, 2**31 - 1, Decimal("99999999.99"), None, DAY, None, fr.moment(3)),
            ("A", 0.1, 7, None, b"a", DAY, None, fr.moment(4)),
        ]
    )
]
TABLES = {
    "k": pa.table(
        {"k": pa.array(["é", "", "a", None], pa.large_string()), "to": ["E", "empty", "A", "null"], "x": [1, 2, 3, 4]}
    ),
    "x": pa.table({"x": [math.nan, 0.0, None, 5e-324], "to": ["nan", "zero", "null", "tiny"]}),
    "i": pa.table({"i": pa.array([1, -(2**31), 2**31, None], pa.int64()), "to": ["one", "least", "beyond", "null"]}),
    "d": pa.table(
        {"d": pa.array([Decimal("1.500"), Decimal("0.011"), Decimal("-2.000"), None], pa.decimal128(30, 3)), "to": [*"abcd"]}
    ),
    "b": pa.table({"b": [b"", b"\xff", None], "to": [1.5, None, 3.0]}),
    "day": pa.table({"day": [DAY, None], "to": [[1, 2], [3]]}),
    "yes": pa.table({"yes": [True, None], "at": [fr.moment(7), fr.moment(8)]}),
    "none": pa.table({"k": pa.array([], pa.string()), "to": pa.array([], pa.int64())}),
}


def declared(source, tables):
    def declare(sink):
        flow = ps.Flow("looked up over spark")
        rows = source(flow)
        for name, table in tables.items():
            on = "k" if name == "none" else name
            for how in ("left", "inner"):
                rows.lookup(table, on, how).sink(sink(f"{name} {how}"))
        several = (
            rows.where("n <> 1")
            .lookup(tables["k"], "K")
            .lookup(tables["x"], {"x": "x"})
            .with_columns(to="concat(to, to_right)")
            .drop("to_right")
        )
        several.sink(sink("several"))
        hours = several.key_by("to").lookup(tables["i"], "i").window(ps.tumbling("1 minute"))
        hours.aggregate(n=ps.count(), last=ps.last("to_right"), most=ps.max("n")).sink(sink("region"))
        behind = rows.key_by("k", name="behind").deduplicate().local().lookup(tables["k"], ["k"])
        behind.select("n", "to").sink(sink("behind"))
        rows.lookup(tables["b"], "b").union(rows.lookup(tables["b"], "b", "inner")).sink(sink("union"))
        return flow

    return declare


def test_tables_beside_a_stream_are_over_spark_what_they_are_in_process_in_one_epoch_or_many(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    for i in range(3):
        fr.write_parquet(tmp_path / "in", ROWS[2 * i : 2 * i + 2], SCHEMA, i)

    def files(per_epoch):
        made = ps.files(str(tmp_path / "in"), COLUMNS, max_files_per_epoch=per_epoch)
        return lambda flow: flow.source("s", made, time="at", lateness="1 hour")

    wanted = fr.in_harness(declared(files(9), TABLES), {"s": ROWS}, workers=2)
    found = {name: {dict(row)["n"] for row in rows} for name, rows in wanted.items() if name.endswith("inner")}
    assert found == {
        "k inner": {0, 3, 4}, "x inner": {0, 1, 4}, "i inner": {0, 3}, "d inner": {0, 1}, "b inner": {1, 3}, "day inner": {0, 1, 4, 5},
        "yes inner": {0, 3}, "none inner": set(),
    }  # fmt: skip
    for per_epoch in (9, 1):
        got = fr.over_spark(spark, tmp_path / f"c{per_epoch}", declared(files(per_epoch), TABLES), workers=2)
        assert not fr.difference(got, wanted), per_epoch


def test_table_given_as_whatever_when_it_has_the_same_rows_is_the_same(spark, tmp_path):
    fr.write_parquet(tmp_path / "in", ROWS, SCHEMA, 0)
    pq.write_table(TABLES["k"], tmp_path / "table.parquet")
    other = spark.newSession()
    given = {
        "arrow": TABLES["k"],
        "path": str(tmp_path / "table.parquet"),
        "folder": tmp_path / "table.parquet",
        "spark": spark.read.parquet(str(tmp_path / "table.parquet")),
        "another session": other.read.parquet(str(tmp_path / "table.parquet")).where("true"),
        "pandas": pd.DataFrame(TABLES["k"].to_pydict()),
    }
    flow = ps.Flow("given")
    rows = flow.source("s", ps.files(str(tmp_path / "in"), COLUMNS))
    assert len({looked_up(rows.schema, table, "k", "left").identity() for table in given.values()}) == 1

    def declare(sink):
        flow = ps.Flow("given")
        rows = flow.source("s", ps.files(str(tmp_path / "in"), COLUMNS))
        for name, table in given.items():
            rows.lookup(table, "k").sink(sink(name))
        return flow

    found = fr.over_spark(spark, tmp_path / "c", declare)
    assert all(rows == found["arrow"] for rows in found.values())


def test_stream_given_as_a_table_is_refused(spark):
    flow = ps.Flow("refused")
    rows = flow.source("s", ps.files("none", "value long, v long"))
    stream = spark.readStream.format("rate").load()
    with pytest.raises(DeclarationError, match=r"^lookup needs a table, and this DataFrame is a stream; make it a source"):
        rows.lookup(stream, "value")


def test_key_whose_type_spark_alone_knows_is_compared_or_refused_when_the_flow_starts(spark, tmp_path):
    fr.write_parquet(tmp_path / "in", ROWS, SCHEMA, 0)

    def declare(sink, expression="shiftright(n, 1)"):
        flow = ps.Flow("late types")
        rows = flow.source("s", ps.files(str(tmp_path / "in"), COLUMNS)).transform(lambda f: f, None)
        half = rows.with_columns(half=expression)
        half.lookup(pa.table({"half": pa.array([0, 2], pa.int8()), "to": ["a", "b"]}), "half", "inner").select("n", "to").sink(
            sink("out")
        )
        return flow

    [out] = fr.over_spark(spark, tmp_path / "c", declare).values()
    assert {tuple(dict(row).values()) for row in out} == {(0, "a"), (1, "a"), (4, "b"), (5, "b")}
    assert not fr.over_spark(spark, tmp_path / "c1", lambda sink: declare(sink, "null"))["out"]
    with pytest.raises(
        DeclarationError, match="compares 'half' of the stream, which is string, with 'half' of the table, which is int8"
    ):
        fr.over_spark(spark, tmp_path / "c2", lambda sink: declare(sink, "reflect('java.lang.String', 'valueOf', n)"))


def test_step_behind_a_table_that_fails_names_the_record(spark, tmp_path):
    fr.write_parquet(tmp_path / "in", ROWS[:2], SCHEMA, 0)
    flow = ps.Flow("failing")
    rows = flow.source("s", ps.files(str(tmp_path / "in"), COLUMNS))
    table = pa.table({"k": ["a", "b"], "by": [1, 0]})
    rows.lookup(table, "k").with_columns(w="n / by").sink(ps.memory("failing lookup"))
    with pytest.raises(RecordError, match=r"with_columns\(w='n / by'\)"):
        flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now").await_termination(600)


def test_table_that_is_refreshed_is_over_spark_another_one_in_each_epoch_and_the_same_when_it_is_run_again(spark, tmp_path):
    for i in range(4):
        fr.write_parquet(tmp_path / "in", [{"n": n, "at": fr.moment(n)} for n in (2 * i, 2 * i + 1)], SCHEMA, i)
    calls, failing, out = iter(range(100)), [True], ps.memory("refreshed over spark")

    def table():
        return spark.createDataFrame([(n, call) for call in [next(calls)] for n in range(8)], "n long, call long")

    def fail_once(frame, epoch):
        if epoch == 2 and failing:
            failing.clear()
            raise ValueError("once")

    def flow():
        made = ps.Flow("refreshed")
        source = made.source("s", ps.files(str(tmp_path / "in"), COLUMNS, max_files_per_epoch=1), time="at", lateness="1 hour")
        looked = source.lookup(table, "n", "inner", refresh=0).select("n", "call")
        looked.sink(out, name="out")
        looked.select("n").sink(ps.foreach_epoch(fail_once), name="failing")
        return made

    run = flow().start(spark, checkpoint=tmp_path / "c", workers=2, trigger="available_now")
    with pytest.raises(PenstockError, match="once"):
        run.await_termination(600)
    met = {row["n"] // 2: row["call"] for row in out.rows()}
    assert met == {0: 1, 1: 2, 2: 3}
    flow().start(spark, checkpoint=tmp_path / "c", workers=2, trigger="available_now").await_termination(600)
    met = {row["n"] // 2: row["call"] for row in out.rows()}
    assert {n: call for n, call in met.items() if n < 3} == {0: 1, 1: 2, 2: 3}
    assert met[3] > 3


def test_step_that_fails_on_rows_of_a_table_that_was_refreshed_names_the_record(spark, tmp_path):
    fr.write_parquet(tmp_path / "in", ROWS[:2], SCHEMA, 0)
    tables = iter([pa.table({"k": ["a", "b"], "by": [0, 1]}), pa.table({"k": ["a", "b"], "by": [1, 0]})])
    flow = ps.Flow("failing")
    rows = flow.source("s", ps.files(str(tmp_path / "in"), COLUMNS))
    rows.lookup(lambda: next(tables), "k", refresh="1 hour").with_columns(w="n / by").sink(
        ps.memory("failing refreshed lookup")
    )
    with pytest.raises(RecordError, match=r"with_columns\(w='n / by'\) failed on the record at .*row 2: "):
        flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now").await_termination(600)


def test_csv_and_json_files_as_tables_have_the_rows_that_a_source_of_them_has(spark, tmp_path):
    schema = "k string, n int, x double, d decimal(6,2), yes boolean, day date, at timestamp"
    text = '''k,n,x,d,yes,day,at
a,1,0.5,1.50,true,2024-01-02,2024-01-02 03:04:05
"b, ""b""",,NaN,,FALSE,,2024-01-02T03:04:05.25+01:00
c,-3,1e3,-2.00,"",1969-12-31,2024-01-02T03:04:05Z
é,4,-0.0,,,,2024-01-02
'''
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "t.csv").write_text(text)
    (tmp_path / "json").mkdir()
    lines = [
        '{"k": "a", "n": 1, "x": 0.5, "yes": true, "at": "2024-01-02 03:04:05", "more": 1, "day": "2024-01-02", "raw": "AAE="}',
        '{"n": 2, "k": "b", "at": "2024-01-02"}',
    ]
    (tmp_path / "json" / "t.json").write_text("\n".join(lines))

    def declare(sink):
        flow = ps.Flow("files as tables")
        for kind, columns in (
            ("csv", schema),
            ("json", "k string, n int, x double, yes boolean, at timestamp, day date, raw binary"),
        ):
            files = ps.files(str(tmp_path / kind), columns, kind)
            flow.source(kind, files).lookup(files, "k").sink(sink(kind))
        return flow

    found = fr.over_spark(spark, tmp_path / "c", declare)
    assert [len(rows) for rows in found.values()] == [4, 2]
    for rows in found.values():
        for row in map(dict, rows):
            assert {n: str(v) for n, v in row.items() if f"{n}_right" in row} == {
                n.removesuffix("_right"): str(v) for n, v in row.items() if n.endswith("_right")
            }
