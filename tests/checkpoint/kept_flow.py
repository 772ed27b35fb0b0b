"""Checkpoints that are kept with the tests, one set for each format of the epoch record: what they are of, and how they are made.

Run as a script, it writes those of the present format beside it (``kept/format-<n>-<stage>.tar.gz``, and with ``spark`` as argument that of
Spark). Do so once, when the format has changed; never write those of an older format anew. The input is made by arithmetic alone, and flow
and input must stay as they are while a checkpoint of theirs is kept.

A stage is where the run was interrupted, see `STAGES`. Paths are relative: the test unpacks a checkpoint into a folder and works there.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import re
import sqlite3
import sys
import tarfile
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock.checkpoint import housekeeping
from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.formats import FORMAT
from penstock.driver.commands import Commander
from penstock.protocol.commands import Load, Scale, Snapshot
from penstock.protocol.rescale import Limits
from penstock.state.compaction import should_compact
from penstock.testing import Crash, Harness

KEPT = Path(__file__).parent / "kept"
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
STEPS = Limits(first_bytes=300, least_bytes=300, most_bytes=600, hold_bytes=600, measure_entries=20)
EPOCHS = 12
SCHEMA = pa.schema(
    [
        ("p", pa.int64()),
        ("o", pa.int64()),
        ("k", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("v", pa.int64()),
    ]
)
TABLES = ("counted", "totals", "windows", "sessions", "matches", "second", "joined", "late")


@dataclass
class Reader:
    schema: pa.Schema = SCHEMA


def counted(key, event, state):
    n, total = state or (0, 0)
    return (key, n + 1, total + event.v), (n + 1, total + event.v)


def total(key, event, state):
    found = (state.total if state else 0) + event.v
    return (key, event.v, found), (found,)


def flow_of(a, b=None):
    """The flow; `b`: a second source, for a join."""
    flow = ps.Flow("kept")
    into = lambda name: ps.parquet(f"out/{name}")  # noqa: E731
    options = {"time": "at", "lateness": "5 seconds", "position": ("p", "o")}
    events = flow.source("a", a, **options)
    keyed = events.key_by("k", name="first")
    keyed.stateful_map(counted, "k string, n long, total long").sink(into("counted"), name="counted")
    keyed.stateful_map(total, "k string, v long, total long", state="total long").sink(into("totals"), name="totals")
    windows = keyed.window(ps.sliding("20 seconds", "10 seconds")).aggregate(n=ps.count(), mean=ps.mean("v"), last=ps.last("v"))
    windows.sink(into("windows"), name="windows")
    sessions = keyed.window(ps.session("4 seconds"))
    sessions.aggregate(all=ps.collect("v"), kinds=ps.count_distinct("v")).sink(into("sessions"), name="sessions")
    rising = keyed.match("SELECT x[v], y[v] WHERE A AS x ; B AS y WITHIN 9 SECONDS", define={"A": "v < 200", "B": "v > 800"})
    rising.sink(into("matches"), name="matches")
    second = windows.local().key_by("n", name="second")
    second.deduplicate("last").sink(into("second"), name="second")
    newest = second.aggregate(windows=ps.count(), newest=ps.max("last"), middle=ps.quantile("mean", 0.5))
    newest.sink(ps.sql("sqlite:///out.db", "newest", mode="upsert", key=["n"]), name="newest")
    events.late.sink(into("late"), name="late")
    if b is not None:
        other = flow.source("b", b, **options).key_by("k", name="other")
        events.key_by("k", name="joined").join(other, within="3 seconds").sink(into("joined"), name="joined")
    return flow


def rows(source: int, epoch: int) -> list[dict]:
    """The records of a source in an epoch; one of each epoch is late, one key of ten is hot."""
    found = []
    for i in range(20):
        n = 20 * epoch + i
        mixed = (n * 2_654_435_761 + source * 40_503) % 2**32 >> 7
        second = 3 * epoch + mixed % 5 - (30 if i == 7 and epoch > 2 else 0)
        key = "hot" if mixed % 3 == 0 else f"k{mixed % 11}" if mixed % 13 else None
        at = BEGIN + dt.timedelta(seconds=second, microseconds=mixed % 1_000_000)
        found.append({"p": source, "o": n, "k": key, "at": at, "v": mixed % 1_000})
    return found


def push(harness: Harness, epoch: int) -> None:
    harness.push("a", rows(0, epoch))
    harness.push("b", rows(1, epoch))


def stored() -> dict[str, list]:
    """What the sinks in the present folder hold, sorted."""
    found = {name: pq.read_table(f"out/{name}").to_pylist() for name in TABLES if Path("out", name).is_dir()}
    with sqlite3.connect("out.db") as database:
        found["newest"] = database.execute("SELECT * FROM newest").fetchall()
    return {name: sorted(map(repr, rows)) for name, rows in found.items()}


def harness_of(crash: str = "", *, joined: bool = True, **options) -> Harness:
    """A harness in the present folder that crashes before a step; without the second source as over Spark, if not `joined`."""

    def on_step(step: str) -> None:
        if step == crash:
            raise Crash

    return Harness(
        flow_of(Reader(), Reader() if joined else None),
        checkpoint="checkpoint",
        workers=2,
        limits=STEPS,
        on_step=on_step,
        **options,
    )


def moving() -> None:
    """In the middle of a rescale, keys on hold, a second command waiting; epoch 7 has been stored and crashed before its commit."""
    with harness_of() as harness:
        commands = {1: [Snapshot("early")], 3: [Scale("first", 4), Scale("joined", 3)]}
        for epoch in range(7):
            push(harness, epoch)
            harness.epoch(*commands.get(epoch, []))
        assert harness.record.regions["first"].control.held
        assert harness.record.regions["first"].control.goal
    with suppress(Crash), harness_of("commit") as harness:
        push(harness, 7)
        harness.epoch(Snapshot("late"))
    commander = Commander(Checkpoint("checkpoint"))
    commander.scale("second", 3)


def going_back() -> None:
    """On its way back to a snapshot for the second time: the intent is committed, the first sink has not taken back its rows yet."""
    with harness_of() as harness:
        for epoch, command in enumerate([Scale("first", 3), Snapshot("early"), Snapshot("other"), Load("early")]):
            push(harness, epoch)
            harness.epoch(command)
        for _ in range(2):
            harness.epoch()
    with suppress(Crash), harness_of("rewind counted") as harness:
        harness.load("early")
    assert Checkpoint("checkpoint").last().rollback_pending


def frame_of(spark):
    """Source `a` over Spark, a source in Python; it reads as many epochs as the file ``upto`` in the present folder says."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    records = [tuple(row.values()) for epoch in range(EPOCHS) for row in rows(0, epoch)]
    upto = Path("upto").resolve()

    class Span(InputPartition):
        def __init__(self, begin, end):
            self.begin, self.end = begin, end

    class Records(DataSourceStreamReader):
        def initialOffset(self):  # noqa: N802  (so Spark calls it)
            return {"record": 0}

        def latestOffset(self, start=None, limit=None):  # noqa: N802
            return {"record": 20 * int(upto.read_text())}

        def partitions(self, start, end):
            return [Span(start["record"], end["record"])]

        def read(self, span):
            yield from records[span.begin : span.end]

    class Kept(DataSource):
        @classmethod
        def name(cls):
            return "kept"

        def schema(self):
            return "p long, o long, k string, at timestamp, v long"

        def streamReader(self, schema):  # noqa: N802
            return Records()

    spark.dataSource.register(Kept)
    return spark.readStream.format("kept").load()


def run_spark(spark, upto: int, *, drain: bool) -> None:
    """Read the epochs up to one over Spark, in the present folder."""
    Path("upto").write_text(str(upto))
    options = {"workers": 2, "trigger": "available_now", "step_budget": STEPS, "drain": drain}
    flow_of(frame_of(spark)).start(spark, checkpoint=str(Path("checkpoint").resolve()), **options).await_termination()


def over_spark() -> None:
    """Between two starts over Spark, in the middle of a rescale, with a snapshot."""
    from penstock.spark.session.local import session

    spark = session("local[2]", "kept")
    run_spark(spark, 3, drain=False)
    commander = Commander(Checkpoint("checkpoint"))
    commander.snapshot("early")
    commander.scale("first", 3)
    run_spark(spark, 6, drain=False)
    spark.stop()
    assert Checkpoint("checkpoint").last().regions["first"].control.goal


STAGES = {"moving": moving, "going_back": going_back}


def unpack(format_: int, stage: str, folder: Path) -> None:
    """Unpack a kept checkpoint and its sinks into a folder; Spark's own log has the paths of the control log, which are mended."""
    with tarfile.open(KEPT / f"format-{format_}-{stage}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    for log in (folder / "checkpoint" / "spark").glob("sources/*/*"):
        log.write_text(re.sub(r'"file:///[^"]+/checkpoint/', f'"file://{folder}/checkpoint/', log.read_text()))


def pack(folder: Path, stage: str, format_: int = FORMAT) -> None:
    """Keep a folder as the checkpoint of a format in a stage; without what says where it was made."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=9) as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".spec"):
            info = archive.gettarinfo(path, str(path.relative_to(folder)))
            info.uid, info.gid, info.uname, info.gname = 0, 0, "", ""
            data = path.read_bytes()
            if path.parent.name == "runs":
                data = json.dumps({**json.loads(data), "host": "there", "pid": 0}).encode()
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"format-{format_}-{stage}.tar.gz").write_bytes(packed.getvalue())


def make(stage: str, interrupted) -> None:
    """Run to a stage in a folder of its own, and keep it; state is compacted soon, so that there are bases, too."""
    should_compact.__kwdefaults__["most_deltas"] = 3
    housekeeping.may_be_held = lambda _: False
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            interrupted()
            pack(Path(folder), stage)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    for name, interrupted in {"spark": over_spark}.items() if sys.argv[1:] else STAGES.items():
        make(name, interrupted)
