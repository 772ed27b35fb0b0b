"""A user's first hour, in thirty steps: ``python first_hour_script.py FOLDER``. It is run over Spark and read by type checkers, as a user's script would be."""

from __future__ import annotations

import contextlib
import io
import logging
import sqlite3
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampType

import penstock as ps
from penstock.errors import DeclarationError, FinishedError, SpellingError
from penstock.testing import Harness

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
FLIGHTS = StructType(
    [
        StructField("tail", StringType()),
        StructField("origin", StringType()),
        StructField("at", TimestampType()),
        StructField("delay", DoubleType()),
    ]
)
_steps = 0


def step(what: str) -> None:
    """Say which step comes next."""
    global _steps  # noqa: PLW0603
    _steps += 1
    print(f"step {_steps}: {what}", flush=True)


def write(folder: Path, hours: range) -> pd.DataFrame:
    """A file with six flights an hour."""
    folder.mkdir(exist_ok=True)
    rows = [
        (f"N{i % 4}", ("JFK", "LGA", "EWR")[i % 3], BEGIN + timedelta(hours=hour, minutes=10 * i), float(10 * i - 15 + hour))
        for hour in hours
        for i in range(6)
    ]
    flights = pd.DataFrame(rows, columns=["tail", "origin", "at", "delay"])
    flights.to_csv(folder / f"{hours.start:03d}.csv", index=False)
    return flights


def refused(kind: type[Exception], what: Callable[[], object]) -> str:
    """The sentence with which something is refused."""
    try:
        what()
    except kind as error:
        return str(error)
    raise AssertionError("It was not refused.")


def shown(what: Any) -> str:
    """What a notebook shows."""
    return str(what._repr_html_())


def rows_of(database: Path, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def chained(tail: str, flight: Any, before: Any) -> tuple[Any, Any]:
    """A late flight after a late flight of the same aircraft."""
    if before is None or before.delay <= 0 or flight.delay <= 0:
        return None, flight
    return (before.origin, flight.origin, flight.delay), flight


def declared(folder: Path) -> tuple[ps.Flow, ps.Stream]:
    """The flow of the first half hour."""
    flow = ps.Flow("first hour")
    source = ps.files(folder / "in", FLIGHTS, "csv")
    flights = flow.source("flights", source, time="AT", lateness="10m", on_error=ps.memory("first hour, malformed"))
    known = flights.filter(F.col("delay").isNotNull()).with_columns({"hours": "delay / 60"}).drop("hours")
    by_hour = known.key_by(["origin"]).window(ps.tumbling("1h")).aggregate(F.avg("delay").alias("mean"), n=ps.count("*"))
    by_hour.sink(ps.sql(f"sqlite:///{folder}/out.db", "by_hour"), name="by_hour")
    worst = known.key_by("origin", name="worst").aggregate(worst=ps.max("delay"))
    worst.sink(ps.sql(f"sqlite:///{folder}/out.db", "worst", mode="upsert", key="Origin"), name="worst")
    flights.late.sink(ps.memory("first hour, late"), name="late")
    return flow, flights


def first_half(spark: SparkSession, folder: Path) -> None:
    """Declare, look, run, compare, run again."""
    step("look what is installed")
    assert ps.__version__

    step("get some data")
    first = write(folder / "in", range(4))

    step("declare a flow as a user of Spark would: StructType, Columns, lists, other cases of letters")
    flow, flights = declared(folder)

    step("mistype a column")
    assert "did you mean 'delay'" in refused(DeclarationError, lambda: flights.where("dealy > 5")).lower()

    step("type what Spark calls it")
    assert "key_by" in refused(SpellingError, lambda: getattr(flights, "groupBy"))  # noqa: B009

    step("look for col in the module")
    assert "pyspark.sql.functions" in refused(SpellingError, lambda: getattr(ps, "col"))  # noqa: B009

    step("read what was declared")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        flow.explain()
    assert "region origin: key (origin string)" in said.getvalue()
    assert "first hour" in repr(flow)

    step("turn the log on")
    log = io.StringIO()
    logging.basicConfig(level=logging.INFO, stream=log, format="%(name)s %(message)s")

    step("run it on what there is")
    run = flow.start(spark, checkpoint=folder / "checkpoint", trigger="available_now", drain=False, workers=2)
    ps.watch(run)
    assert run.state.startswith("What there was has been read")

    step("read what it says of itself")
    assert "penstock.runs first hour: run 1 on " in log.getvalue()
    assert "penstock.epochs first hour: epoch 0: 24 rows in, " in log.getvalue()
    assert "24 rows read" in repr(run)

    step("compare with pandas")
    database = folder / "out.db"
    hours = first.assign(hour=first["at"].dt.strftime("%Y-%m-%d %H")).groupby(["origin", "hour"], as_index=False)
    means = hours.agg(mean=("delay", "mean"), n=("delay", "count"))
    complete = means[means["hour"] < "2024-01-01 03"]
    found = rows_of(database, "SELECT origin, window_start, mean, n FROM by_hour")
    assert sorted((o, w[:13], m, n) for o, w, m, n in found) == sorted(complete.itertuples(index=False, name=None))

    step("give it more, with a late record and one that is none")
    write(folder / "in", range(4, 6))
    (folder / "in" / "late.csv").write_text("tail,origin,at,delay\nN9,JFK,2024-01-01 00:00:00,5\nN9,JFK,never,5\n")

    step("run it again, from a new declaration")
    flow, _ = declared(folder)
    run = flow.start(spark, checkpoint=folder / "checkpoint", trigger="available_now", drain=False)
    assert run.await_termination()
    assert run.progress["sources"]["flights"]["rows"] == 37
    assert (len(ps.memory("first hour, late").rows()), len(ps.memory("first hour, malformed").rows())) == (1, 1)

    step("look into the state")
    state: DataFrame = ps.read_state(spark, folder / "checkpoint", "worst")
    assert {row["origin"] for row in state.collect()} == {"JFK", "LGA", "EWR"}

    step("end it for good")
    flow, _ = declared(folder)
    run = flow.start(spark, checkpoint=folder / "checkpoint", trigger="available_now")
    assert run.await_termination()
    assert run.finished
    assert len(rows_of(database, "SELECT * FROM by_hour")) == 18

    step("start it once more although it has ended")
    assert "reached the end of its input" in refused(
        FinishedError, lambda: declared(folder)[0].start(spark, checkpoint=folder / "checkpoint")
    )


def second_half(spark: SparkSession, folder: Path) -> None:
    """State of one's own, patterns, a live run."""
    step("test a function with state, without Spark")
    alone, out = ps.Flow("alone"), ps.memory("first hour, alone")
    schema = "tail string, origin string, at timestamp, delay double"
    rows = alone.source("s", ps.files(folder / "in", schema, "csv"), time="at")
    late = rows.key_by("tail").stateful_map(chained, "came_from string, origin string, delay double")
    late.sink(out)
    with Harness(alone) as harness:
        harness.push("s", [{"tail": "N1", "origin": o, "at": BEGIN, "delay": d} for o, d in (("A", 5.0), ("B", 7.0))])
        harness.finish()
    assert out.rows() == [{"came_from": "A", "origin": "B", "delay": 7.0}]

    step("find a pattern in a DataFrame, with Columns")
    batch = spark.createDataFrame([("N1", "x", 1), ("N1", "y", 2), ("N2", "x", 3)], "tail string, kind string, at int")
    found = ps.match(batch, "SELECT * WHERE x ; y PARTITION BY [tail]", order_by=F.col("at"), type=F.col("KIND"))
    assert [(m["tail"], m["match_start"]) for m in found.collect()] == [("N1", 1)]

    step("order it by what is no column")
    assert (
        "did you mean 'at'"
        in refused(DeclarationError, lambda: ps.match(batch, "SELECT * WHERE x ; y", order_by=["att"], type="kind")).lower()
    )

    step("declare chains, a join, a pattern and distinct flights")
    flow = ps.Flow("live")
    flights = flow.source("flights", ps.files(folder / "live", FLIGHTS, "csv", max_files_per_epoch=1), time="at")
    flights.key_by("tail").deduplicate("origin", within="1 day").sink(ps.memory("first hour, distinct"), name="distinct")
    chains = flights.key_by("tail", name="chains").stateful_map(chained, "came_from string, origin string, delay double")
    chains.sink(ps.sql(f"sqlite:///{folder}/live.db", "chains"), name="chains")
    late = flights.where("delay > 0").key_by("origin", name="late")
    flights.key_by("origin", name="all").join(late, within="1 hour", how="inner").sink(ps.noop(), name="pairs")
    query = "SELECT * WHERE (fine ; bad) WITHIN 2 HOURS"
    matches = flights.key_by("tail", name="pattern").match(query, {"fine": "delay <= 0", "bad": F.col("delay") > 0})
    matches.sink(ps.memory("first hour, matches"), name="matches")

    step("look at it as a notebook would")
    assert shown(flow).startswith("<svg")

    step("let it run")
    write(folder / "live", range(3))
    run = flow.start(spark, checkpoint=folder / "live checkpoint", workers=2, trigger="100 milliseconds")

    step("ask for workers that cannot be")
    assert "There is no region 'chain'" in refused(DeclarationError, lambda: run.scale("chain", 3))

    step("scale it while it runs")
    handle = run.scale("chains", 3)
    write(folder / "live", range(3, 5))
    assert handle.wait(300)
    assert handle.state == "done"
    assert run.regions["chains"]["workers"] == 3

    step("place a key")
    assert run.move("chains", ["N1"], worker=2).wait(300)

    step("keep a snapshot, go on, and look at figures")
    assert run.snapshot("noon").wait(300)
    write(folder / "live", range(5, 6))
    assert "<table>" in shown(run)

    step("end it")
    assert run.shutdown(timeout=300)
    assert run.outcome.startswith("The flow finished in epoch")
    assert run.progress["sources"]["flights"]["rows"] == 36

    step("count what came out")
    assert len(rows_of(folder / "live.db", "SELECT * FROM chains")) > 0
    assert len(ps.memory("first hour, distinct").rows()) == 6
    assert ps.memory("first hour, matches").table().num_rows > 0
    assert "rows" in shown(ps.memory("first hour, matches"))

    step("look whether keys are skewed")
    skew: pd.DataFrame = ps.skew(spark.read.csv(str(folder / "in" / "000.csv"), header=True), "tail", workers=2)
    assert "KeyGrouping" in " ".join(map(str, skew["strategy"]))

    step("route by hand")
    assert ps.route(ps.KeyGrouping(), ["a", "b"], workers=2).shape == (2,)


def main(folder: Path) -> None:
    """All of it."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "2")
    spark = builder.getOrCreate()
    first_half(spark, folder)
    second_half(spark, folder)
    assert _steps == 30, _steps
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
