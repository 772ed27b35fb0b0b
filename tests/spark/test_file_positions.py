"""Positions of records in files: one per record, whatever a session says about how files are cut and merged."""

from __future__ import annotations

import datetime as dt
import random

import flow_runs as fr
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.errors import OperatorError, RecordError
from penstock.spark.sources.file_times import FileTimes

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
ROWS = 5_000
CUT = {"maxPartitionBytes": "20000", "openCostInBytes": "0"}
MERGED = {"maxPartitionBytes": "1000000000", "openCostInBytes": "0", "maxPartitionNum": "1", "minPartitionNum": "1"}


def write(kind, table, path):
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=500)
    elif kind == "csv":
        pcsv.write_csv(table, path)
    else:
        lines = (f'{{"k":"{r["k"]}","at":"{r["at"].isoformat()}","v":{r["v"]}}}' for r in table.to_pylist())
        path.write_text("\n".join(lines) + "\n")


def numbered(_, event, state):
    n = state[0] if state else 0
    return (event.v, n), (n + 1,)


def careful(_, event, __):
    if event.v == 3 * ROWS - 100:
        raise ValueError("seen")
    return None, None


def start(spark, folder, kind, settings, fn, out):
    """A flow without event time, so that positions alone say the order, over three files in a session with `settings`."""
    rows = [{"k": "a", "at": fr.BEGIN + dt.timedelta(seconds=i), "v": i} for i in range(3 * ROWS)]
    (folder / "in").mkdir()
    for i in range(3):
        path = folder / "in" / f"{i}.{kind}"
        write(kind, pa.Table.from_pylist(rows[ROWS * i : ROWS * i + ROWS], schema=SCHEMA), path)
        fr.stamp(path, i)
    flow = ps.Flow("positions")
    every = 1 if settings is CUT else None
    source = ps.files(str(folder / "in"), "k string, at timestamp, v long", kind, max_files_per_epoch=every)
    flow.source("events", source).key_by("k").stateful_map(fn, "v long, n long", "n long").sink(out)
    session = spark.newSession()
    for key, value in settings.items():
        session.conf.set(f"spark.sql.files.{key}", value)
    run = flow.start(session, checkpoint=folder / "c", workers=2, trigger="available_now")
    assert {key: session.conf.get(f"spark.sql.files.{key}") for key in settings} == settings
    return run


@pytest.mark.parametrize("settings", [CUT, MERGED], ids=["cut", "merged"])
@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_records_of_files_are_in_order_however_the_session_cuts_and_merges_files(spark, tmp_path, kind, settings):
    out = ps.memory(f"order {tmp_path}")
    start(spark, tmp_path, kind, settings, numbered, out).await_termination(600)
    assert sorted((r["v"], r["n"]) for r in out.rows()) == [(i, i) for i in range(3 * ROWS)]


@pytest.mark.parametrize("settings", [CUT, MERGED], ids=["cut", "merged"])
def test_position_of_a_record_is_its_file_and_its_row_however_the_session_cuts_and_merges_files(spark, tmp_path, settings):
    run = start(spark, tmp_path, "json", settings, careful, ps.memory(f"position {tmp_path}"))
    with pytest.raises(OperatorError, match=f"at position events: 2.json row {ROWS - 99}: ValueError: seen"):
        run.await_termination(600)


@pytest.mark.parametrize(("kind", "values"), [("int", [0, 7, None]), ("long", [-1, 5]), ("string", ["", "a", None, "7"])])
def test_partition_has_the_name_of_its_value_and_null_and_empty_are_partitions_too(spark, tmp_path, kind, values):
    kinds = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
    schema = SCHEMA.append(pa.field("p", kinds[kind]))
    rows = [{"k": "a", "at": fr.moment(i), "v": i, "p": p} for i, p in enumerate(values * 2)]
    fr.write_parquet(tmp_path / "in", rows, schema, 0)
    flow, out = ps.Flow("names"), ps.memory(f"names {tmp_path}")
    source = ps.files(str(tmp_path / "in"), f"k string, at timestamp, v long, p {kind}")
    events = flow.source("events", source, time="at", lateness="1 minute", position=("p", "v"))
    events.key_by("k").aggregate(n=ps.count()).sink(out)
    each = ps.memory(f"each {tmp_path}")
    events.key_by("k", name="each").stateful_map(lambda k, e, n: ((k, e.p, n), e.v), f"k string, p {kind}, last long").sink(
        each
    )
    flow.start(spark, checkpoint=tmp_path / "c", workers=2, trigger="available_now").await_termination(600)
    partitions = Checkpoint(str(tmp_path / "c")).last().sources["events"].partitions
    assert {name: state.offset for name, state in partitions.items()} == {str(p): len(values) + i for i, p in enumerate(values)}
    assert out.rows() == [{"k": "a", "n": 2 * len(values)}]
    assert sorted(each.rows(), key=lambda r: r["last"] is not None and r["last"] + 1) == [
        {"k": "a", "p": r["p"], "last": r["v"] - 1 if r["v"] else None} for r in rows
    ]


@pytest.mark.parametrize(
    ("p", "v", "message"),
    [
        (1 << 47, 0, f"Source 'events' has partition {1 << 47}; whole numbers must lie within ±2^47; cast it to string."),
        (
            0,
            None,
            (
                "Source 'events' has a record without an offset: column 'v' is null; give every record one, or leave such records out of the "
                "DataFrame with a where(…)."
            ),
        ),
    ],
)
def test_position_that_is_none_is_refused_in_one_sentence(spark, tmp_path, p, v, message):
    rows = [{"k": "a", "at": fr.moment(0), "v": 0, "p": 0}, {"k": "a", "at": fr.moment(1), "v": v, "p": p}]
    fr.write_parquet(tmp_path / "in", rows, SCHEMA.append(pa.field("p", pa.int64())), 0)
    flow = ps.Flow("nowhere")
    source = ps.files(str(tmp_path / "in"), "k string, at timestamp, v long, p long")
    events = flow.source("events", source, time="at", position=("p", "v"))
    events.key_by("k").stateful_map(lambda k, e, s: ((k, e.v), s), "k string, v long").sink(ps.memory(f"none {tmp_path}"))
    with pytest.raises(RecordError) as refused:
        flow.start(spark, checkpoint=tmp_path / "c", workers=2, trigger="available_now").await_termination(600)
    assert str(refused.value) == message


def test_function_that_raises_names_the_partition_even_if_it_is_negative(spark, tmp_path):
    rows = [{"k": "a", "at": fr.moment(i), "v": i, "p": p} for i, p in enumerate([3, -1])]
    fr.write_parquet(tmp_path / "in", rows, SCHEMA.append(pa.field("p", pa.int64())), 0)
    flow = ps.Flow("raises")
    source = ps.files(str(tmp_path / "in"), "k string, at timestamp, v long, p long")
    events = flow.source("events", source, time="at", position=("p", "v"))
    events.key_by("k").stateful_map(lambda k, e, s: ((k, 1 // (e.p + 1)), s), "k string, v long").sink(
        ps.memory(f"r {tmp_path}")
    )
    with pytest.raises(OperatorError, match="at position events/-1 @ 1: ZeroDivisionError"):
        flow.start(spark, checkpoint=tmp_path / "c", workers=2, trigger="available_now").await_termination(600)


@pytest.mark.parametrize("on_error", ["skip", "fail"])
def test_malformed_record_needs_no_position(spark, tmp_path, on_error):
    (tmp_path / "in").mkdir()
    text = [f'{{"k":"a","at":"{fr.moment(i).isoformat()}","p":-2,"o":{i}}}' for i in range(3)]
    (tmp_path / "in" / "f.json").write_text("\n".join([*text, '{"k":"a","at', '{"k":"a","p":999999999999999}']) + "\n")
    flow, out = ps.Flow("malformed"), ps.memory(f"malformed {tmp_path}")
    source = ps.files(str(tmp_path / "in"), "k string, at timestamp, p long, o long", "json")
    events = flow.source("events", source, time="at", position=("p", "o"), on_error=on_error)
    events.key_by("k").stateful_map(lambda k, e, s: ((k, e.o), s), "k string, o long").sink(out)
    run = flow.start(spark, checkpoint=tmp_path / "c", workers=2, trigger="available_now")
    if on_error == "skip":
        run.await_termination(600)
        assert sorted(r["o"] for r in out.rows()) == [0, 1, 2]
        assert Checkpoint(str(tmp_path / "c")).last().sources["events"].malformed == 2
    else:
        with pytest.raises(
            RecordError, match=r"has 2 malformed records, the first at f\.json 999999999999999 @ null: at is null"
        ):
            run.await_termination(600)


def test_parquet_file_without_a_declared_column_is_refused_by_name_unless_null_will_do(spark, tmp_path):
    folder = tmp_path / "in here"  # a URI writes the space otherwise
    named = pa.schema([SCHEMA.field("k").with_name("K"), *list(SCHEMA)[1:]])  # case counts for nothing
    fr.write_parquet(folder, [{"K": "a", "at": fr.moment(0), "v": 1}], named, 0)

    def ends(name, **options):
        flow, out = ps.Flow("lacking"), ps.memory(f"{name} {tmp_path}")
        events = flow.source("events", ps.files(str(folder), "k string, at timestamp, v long", **options), time="at")
        events.key_by("k").stateful_map(lambda k, e, s: ((k, e.v), s), "k string, v long").sink(out)
        flow.start(spark, checkpoint=tmp_path / name, workers=2, trigger="available_now").await_termination(600)
        return [(r["k"], r["v"]) for r in out.rows()]

    assert ends("whole") == [("a", 1)]
    fr.write_parquet(folder, [{"K": "a", "at": fr.moment(1)}], named.remove(named.get_field_index("v")), 1)
    with pytest.raises(RecordError, match=r"f001.parquet of source 'events' has no column 'v'; write it with all declared"):
        ends("refused")
    assert ends("as null", missing_columns="null") == [("a", 1), ("a", None)]


def test_parquet_column_that_folders_are_named_after_is_not_missing(spark, tmp_path):
    fr.write_parquet(tmp_path / "in" / "k=x", [{"at": fr.moment(0), "v": 1}], pa.schema(list(SCHEMA)[1:]), 0)
    flow, out = ps.Flow("folders"), ps.memory(f"folders {tmp_path}")
    events = flow.source("events", ps.files(str(tmp_path / "in"), "k string, at timestamp, v long"), time="at")
    events.key_by("k").aggregate(total=ps.sum("v")).sink(out)
    flow.start(spark, checkpoint=tmp_path / "c", workers=1, trigger="available_now").await_termination(600)
    assert out.rows() == [{"k": "x", "total": 1}]


def test_rows_of_files_without_event_time_are_counted(spark, tmp_path):
    fr.write_parquet(tmp_path / "in", [{"k": "x", "at": fr.moment(i), "v": i} for i in range(7)], SCHEMA, 0)
    flow, out = ps.Flow("counted"), ps.memory(f"counted {tmp_path}")
    flow.source("events", ps.files(str(tmp_path / "in"), "k string, at timestamp, v long")).sink(out)
    run = flow.start(spark, checkpoint=tmp_path / "c", workers=1, trigger="available_now")
    run.await_termination(600)
    assert run.progress["sources"]["events"]["rows"] == len(out.rows()) == 7


@pytest.mark.parametrize("nulls", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["with nulls", "without"])
def test_times_when_they_are_read_by_the_driver_or_collected_or_grouped_by_spark_say_the_same(
    spark, tmp_path, monkeypatch, nulls
):
    dice = random.Random(5)
    for i in range(3):
        rows = [
            {
                "k": "ab"[j % 2],
                "at": None
                if nulls and j % 100 == 0
                # In the first epoch very many are late; in the others some, and the first chunk is within a second.
                else fr.moment(
                    i * 200
                    + j / (5_000 if i and j < 4_200 else 50)
                    - dice.choice([*[0] * (3 + 10 * i), 3]) * (not i or j >= 4_200)
                ),
                "v": j,
            }
            for j in range(9_000)
        ]
        fr.write_parquet(tmp_path / "in", rows, SCHEMA, i)
    found, jobs = [], []
    for name, by_driver, most in (("files", True, 1 << 18), ("collected", False, 1 << 18), ("spark", False, 0)):
        if not by_driver:
            monkeypatch.setattr("penstock.spark.sources.files.FileTimes.of", lambda *_: None)
        monkeypatch.setattr("penstock.spark.sources.late_records.SMALL_ROWS", most)
        before = spark._jsc.sc().dagScheduler().numTotalJobs()
        flow, out, late = ps.Flow("looked at"), ps.memory(f"{name} {tmp_path}"), ps.memory(f"{name} late {tmp_path}")
        source = ps.files(str(tmp_path / "in"), "k string, at timestamp, v long", max_files_per_epoch=1)
        events = flow.source("events", source, time="at", lateness="1 second", on_error="skip")
        events.key_by("k").stateful_map(numbered, "v long, n long", "n long").sink(out)
        events.late.sink(late)
        flow.start(spark, checkpoint=tmp_path / name, workers=2, trigger="available_now").await_termination(600)
        jobs.append(spark._jsc.sc().dagScheduler().numTotalJobs() - before)
        state = Checkpoint(str(tmp_path / name)).last().sources["events"]
        seen = (state.rows, state.late, state.malformed, {n: (p.latest, p.offset) for n, p in state.partitions.items()})
        found.append((seen, sorted(map(str, out.rows())), sorted(map(str, late.rows()))))
    assert all(other == found[0] for other in found)
    assert found[0][0][:1] + found[0][0][2:3] == (27_000 - 270 * nulls, 270 * nulls)
    assert found[0][0][1] == len(found[0][2]) > 2_500
    assert nulls or jobs[0] <= jobs[1] - 6  # no job to look at the times of an epoch, nor at suspects


def test_where_footers_show_that_no_record_can_be_late_no_times_are_read(spark, tmp_path, monkeypatch):
    for i in range(3):
        for folder in ("told", "untold"):
            (tmp_path / folder).mkdir(exist_ok=True)
            at = [fr.moment(i * 200 + (j * 37) % 100) for j in range(2_000)]
            table = pa.table({"k": ["ab"[j % 2] for j in range(2_000)], "at": at, "v": range(2_000)}, SCHEMA)
            pq.write_table(table, tmp_path / folder / f"{i}.parquet", row_group_size=700, write_statistics=folder == "told")
    found, read, late = [], [], FileTimes.late
    monkeypatch.setattr(FileTimes, "late", lambda files, *given: read.append(given) or late(files, *given))
    for folder, lateness in (("untold", "2 minutes"), ("told", "2 minutes"), ("told", "1 minute")):
        read.clear()
        name = f"{folder} {lateness}"
        flow, out = ps.Flow("told"), ps.memory(f"{name} {tmp_path}")
        source = ps.files(str(tmp_path / folder), "k string, at timestamp, v long", max_files_per_epoch=1)
        events = flow.source("events", source, time="at", lateness=lateness)
        events.key_by("k").stateful_map(numbered, "v long, n long", "n long").sink(out)
        flow.start(spark, checkpoint=tmp_path / name, workers=2, trigger="available_now").await_termination(600)
        state = Checkpoint(str(tmp_path / name)).last().sources["events"]
        seen = (state.rows, {n: (p.latest, p.offset) for n, p in state.partitions.items()}, sorted(map(str, out.rows())))
        found.append((seen, state.late, len(read)))
    assert found[0][0] == found[1][0]
    assert [late for _, late, _ in found[:2]] == [0, 0]
    assert [reads for *_, reads in found] == [0, 0, 3]
    assert found[2][1] > 0
