"""Event times that tasks read beside their rows: the same rows, and the same records late, as wherever else they are judged."""

from __future__ import annotations

import random
from types import SimpleNamespace

import flow_runs as fr
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.compile import compile_flow
from penstock.errors import RecordError
from penstock.progress.lateness import Base, late_rows
from penstock.spark import engine
from penstock.spark.sources.file_times import FileTimes, JudgedFile
from penstock.spark.sources.footers import read_footers
from penstock.spark.sources.row_times import RowTimes, sources_alone
from penstock.types import MIN_TIME, ROW_BITS

COLUMNS = "k string, at timestamp, v long"
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])


def counted(key, row, state):
    return (key, row.at, row.v, (state or 0) + 1), (state or 0) + 1


def declare(kind, connector):
    def made(sink):
        flow = ps.Flow("row times")
        events = flow.source("events", connector, time="at", lateness="3 seconds")
        if kind == "some":  # a condition on the time itself, of which Spark must go on reading it
            events = events.where(f"v > 0 and at > timestamp '{fr.moment(4).isoformat()}'").select("v", "at", "k")
        keyed = events.key_by("k")
        if kind == "pattern":
            steps = keyed.match("SELECT COUNT(*) WHERE A ; B WITHIN 9 SECONDS", define={"A": "v = 1", "B": "v = 2"})
        else:
            steps = keyed.stateful_map(counted, f"{COLUMNS}, n long")
        steps.sink(sink("out"))
        return flow

    return made


def records(files, seed=5):
    """Records of files one after the other; of the last but one, no record passes a condition or a test."""
    dice, now, out = random.Random(seed), 0, []
    for number in range(files):
        rows = []
        for _ in range(30):
            now += dice.choice([0, 1, 2])
            at = fr.moment(now - dice.choice([0, 0, 1, 5, 9]))
            rows.append({"k": dice.choice("abc"), "at": at, "v": 0 if number == files - 2 else dice.choice([0, 1, 2])})
        out.append(rows)
    return out


@pytest.mark.spark
@pytest.mark.parametrize(("kind", "reached"), [("all", True), ("some", True), ("pattern", True), ("all", False)])
def test_flow_whose_tasks_judge_times_gives_and_counts_what_the_harness_does(spark, tmp_path, monkeypatch, kind, reached):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setattr(engine, "PAGED_ROWS", 1)
    if not reached:  # by tasks, perhaps: the files are in another kind of store than the checkpoint
        monkeypatch.setattr(engine, "resolve", lambda _: (SimpleNamespace(type_name="another"), ""))
    left = []
    monkeypatch.setattr(engine, "RowTimes", lambda *given: left.append(given) or RowTimes(*given))
    files = records(6)
    for number, rows in enumerate(files):
        fr.write_parquet(tmp_path / "in", rows, SCHEMA, number)
    connector = ps.files(str(tmp_path / "in"), COLUMNS, max_files_per_epoch=2)
    found = fr.over_spark(spark, tmp_path / "c", declare(kind, connector), workers=2)
    given = {"events": [row for rows in files for row in rows]}
    wanted = fr.in_harness(declare(kind, ps.files("none", COLUMNS)), given, checkpoint=str(tmp_path / "h"))
    assert not fr.difference(found, wanted)
    assert sum(wanted["out"].values()) > 5
    late = [Checkpoint(str(tmp_path / name)).last().sources["events"].late for name in ("c", "h")]
    assert late[0] == late[1] > 20
    assert len(left) == 3 * reached  # every epoch


@pytest.mark.spark
def test_flow_whose_file_is_changed_before_tasks_read_its_times_stops_with_a_sentence(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "PAGED_ROWS", 1)
    (rows,) = records(1)
    fr.write_parquet(tmp_path / "in", rows, SCHEMA, 0)
    scan = engine.SparkBackend.scan

    def changed(self, *given):
        found = scan(self, *given)
        path = tmp_path / "in" / "f000.parquet"
        pq.write_table(pa.table({"at": pq.read_table(path)["k"]}), path)
        return found

    made = declare("all", ps.files(str(tmp_path / "in"), COLUMNS))
    monkeypatch.setattr(engine.SparkBackend, "scan", changed)
    with pytest.raises(
        RecordError, match=r"event times of file .*f000.parquet can no longer be read; put the file back as it was"
    ):
        fr.over_spark(spark, tmp_path / "c", made)


def based(uris, base):
    times = FileTimes.of(uris, read_footers(uris, "at"), SCHEMA.field("at"))
    return times.bases(times.groups(0), base)


def write(folder, times):
    for number, at in enumerate(times):
        pq.write_table(pa.table({"at": pa.array(at).view(SCHEMA.field("at").type)}), folder / f"{number}.parquet")
    return {(folder / f"{number}.parquet").as_uri(): number for number in range(len(times))}


class Counts:
    def __init__(self):
        self.value = {}

    def add(self, more):
        self.value |= more


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rows_get_the_times_of_their_file_and_lose_those_that_are_late(tmp_path, monkeypatch, data):
    monkeypatch.setattr("penstock.spark.sources.file_times._READ_ROWS", data.draw(st.integers(1, 9)))
    monkeypatch.setattr("penstock.spark.sources.file_times.CHUNK_BITS", data.draw(st.integers(0, 3)))
    times = [np.array(data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=40)), np.int64) + 10**15 for _ in range(2)]
    lateness, floor = data.draw(st.integers(0, 30)), data.draw(st.sampled_from([MIN_TIME, 10**15 + 20]))
    uris = write(tmp_path, times)
    files = based(uris, Base(MIN_TIME, floor))

    every = np.concatenate(times)
    one = np.zeros(len(every), np.int64)
    late = late_rows(one, one, np.arange(len(every)), every, {(0, 0): Base(MIN_TIME, floor)}, lateness)
    offsets = np.concatenate([(number << ROW_BITS) + np.arange(len(at)) for number, at in enumerate(times)])
    came = np.array(data.draw(st.lists(st.booleans(), min_size=len(every), max_size=len(every))))
    shift, counts = data.draw(st.sampled_from([0, 8])), Counts()
    sent = (offsets[came] << shift) + (5 if shift else 0)
    batches, begin = [], 0
    while begin < len(sent):
        end = begin + data.draw(st.integers(1, 20))
        batches.append(pa.record_batch([pa.array(sent[begin:end]), pa.array(sent[begin:end])], names=["c0", "c1"]))
        begin = end
    column = data.draw(st.integers(0, 2))
    found = list(RowTimes(files, lateness, "n", counts, 0, shift, column)(batches))
    rest = [i for i in range(3) if i != column]
    kept = came & ~late
    assert [t for batch in found for t in batch.column(column).cast(pa.int64()).to_pylist()] == every[kept].tolist()
    for place in rest:
        assert [v >> shift for batch in found for v in batch.column(place).to_pylist()] == offsets[kept].tolist()
    for number in range(2):
        mine = offsets >> ROW_BITS == number
        wanted = int(late[mine].sum())
        assert counts.value.get(("n", number)) == (wanted if came[mine].any() else None)
        assert JudgedFile(*files[number], lateness).finish() == wanted


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_late_rows_of_files_are_found_by_the_driver_with_what_was_seen_before_their_chunks(tmp_path, monkeypatch, data):
    monkeypatch.setattr("penstock.spark.sources.file_times._READ_ROWS", data.draw(st.integers(1, 9)))
    monkeypatch.setattr("penstock.spark.sources.file_times.MANY_LATE", most := data.draw(st.sampled_from([1, 5, 100])))
    bits = data.draw(st.integers(0, 3))
    monkeypatch.setattr("penstock.spark.sources.file_times.CHUNK_BITS", bits)
    times = [np.array(data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=40)), np.int64) + 10**15 for _ in range(2)]
    lateness, floor = data.draw(st.integers(0, 30)), data.draw(st.sampled_from([MIN_TIME, 10**15 + 20]))
    uris = write(tmp_path, times)
    files = FileTimes.of(uris, read_footers(uris, "at"), SCHEMA.field("at"))
    offsets, before = files.late(files.bases(files.groups(7), Base(MIN_TIME, floor)), 7, lateness)

    every = np.concatenate(times)
    one = np.zeros(len(every), np.int64)
    late = late_rows(one, one, np.arange(len(every)), every, {(0, 0): Base(MIN_TIME, floor)}, lateness)
    places = np.concatenate([(number << ROW_BITS) + np.arange(len(at)) for number, at in enumerate(times)])
    wanted = [places[late & (places >> ROW_BITS == number)].tolist() for number in range(2)]
    assert offsets.tolist() == wanted[0][: most + 1] + wanted[1][: most + 1]
    chunks = {offset >> bits for of_file in wanted for offset in of_file}
    seen = {chunk: max(every[places >> bits < chunk], default=MIN_TIME) for chunk in chunks}
    assert before == {(7, chunk): Base(latest, floor) for chunk, latest in seen.items()}


def test_file_that_is_gone_or_shorter_stops_the_task_with_a_sentence(tmp_path):
    path = tmp_path / "a b.parquet"
    pq.write_table(pa.table({"at": pa.array([10**15] * 4).view(SCHEMA.field("at").type)}), path)
    files = based({path.as_uri(): 3}, Base(MIN_TIME, MIN_TIME))
    with pytest.raises(RecordError, match=r"a b.parquet has fewer rows than Spark has read of it; leave files as they are"):
        JudgedFile(*files[3], 0).of(np.array([2, 4]))
    path.unlink()
    with pytest.raises(RecordError, match=r"times of file .*a b.parquet can no longer be read; put the file back as it was"):
        JudgedFile(*files[3], 0).of(np.array([2]))


def alone(flow):
    plan = flow.plan()
    compiled = compile_flow(plan, lambda node, _: node.schema, lambda *_: None, lambda _: 0)
    return list(sources_alone(compiled))


def test_times_are_left_to_tasks_only_where_nobody_else_needs_them():
    def events(path="in", **options):
        flow = ps.Flow("alone")
        return flow, flow.source("events", ps.files(path, COLUMNS, **options), time="at")

    flow, source = events()
    source.key_by("k").stateful_map(counted, f"{COLUMNS}, n long").sink(ps.noop())
    assert alone(flow) == ["events"]

    flow, source = events()
    source.where("v > 1").select("k", "v", "at").key_by("k").match(
        "SELECT * WHERE A ; B", define={"A": "v = 1", "B": "v = 2"}
    ).sink(ps.noop())
    assert alone(flow) == ["events"]

    for change in ("late", "twice", "other times", "union", "csv", "sum"):
        flow, source = events(**({"format": "csv"} if change == "csv" else {}))
        keyed = source.select("k", "v", at="at + interval 1 second") if change == "other times" else source
        if change == "union":
            keyed = source.union(flow.source("more", ps.files("in", COLUMNS), time="at"))
        keyed = keyed.key_by("k")
        out = keyed.aggregate(n=ps.sum("v")) if change == "sum" else keyed.stateful_map(counted, f"{COLUMNS}, n long")
        out.sink(ps.noop())
        if change == "late":
            source.late.sink(ps.noop(), name="late")
        if change == "twice":
            source.select("v").sink(ps.noop(), name="twice")
        assert alone(flow) == [], change
