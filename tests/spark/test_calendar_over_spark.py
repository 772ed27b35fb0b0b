"""Days and months of a zone over Spark, partly added up by the JVM, are those of pandas; the JVM's own zones are never asked."""

from __future__ import annotations

import datetime as dt

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps

pytestmark = pytest.mark.spark


def counted(key, event, n):
    n = (n or 0) + 1
    return (key, event.window_start, n), n


def test_days_and_months_of_a_zone_over_spark_are_those_of_pandas(spark, tmp_path):
    days = pd.date_range("2024-02-20", "2024-12-10", freq="37min", tz="UTC")
    table = pa.table(
        {"k": [str(i % 3) for i in range(len(days))], "at": pa.array(days, pa.timestamp("us", "UTC")), "v": range(len(days))}
    )
    (tmp_path / "in").mkdir()
    for i in range(3):  # each over the whole time
        pq.write_table(table.take(list(range(i, len(days), 3))), tmp_path / "in" / f"{i}.parquet")
    flow, found = ps.Flow("calendar"), {}
    rows = flow.source("s", ps.files(tmp_path / "in", "k string, at timestamp, v long"), time="at", lateness="400 days")
    windows = {
        "D": ps.tumbling("1 day", zone="America/New_York"),
        "MS": ps.tumbling("1 month", zone="America/New_York"),
        "QS": ps.tumbling("1 quarter", zone="America/New_York"),
    }
    keyed = rows.key_by("k")
    for name, window in windows.items():
        found[name] = ps.memory(name)
        keyed.window(window).aggregate(n=ps.count(), v=ps.sum("v")).sink(found[name], name=name)
    found["mapped"] = ps.memory("mapped")
    keyed.window(windows["D"]).stateful_map(counted, "k string, w timestamp, n long").sink(found["mapped"], name="mapped")
    flow.start(spark, checkpoint=tmp_path / "checkpoint", workers=2, trigger="available_now").await_termination(600)

    frame = table.to_pandas()
    frame["at"] = frame["at"].dt.tz_convert("America/New_York").dt.tz_localize(None)
    for name in windows:
        starts = (
            frame["at"].dt.to_period({"D": "D", "MS": "M", "QS": "Q"}[name]).dt.start_time.dt.tz_localize("America/New_York")
        )
        wanted = frame.assign(w=starts.dt.tz_convert("UTC")).groupby(["k", "w"])["v"].agg(["size", "sum"]).reset_index()
        rows = {(r["k"], r["window_start"]): (r["n"], r["v"]) for r in found[name].rows()}
        assert rows == {(k, w.to_pydatetime()): (n, v) for k, w, n, v in wanted.itertuples(index=False)}
    days = [r for r in found["D"].rows() if r["window_end"] - r["window_start"] != dt.timedelta(1)]
    assert {r["window_end"] - r["window_start"] for r in days} == {dt.timedelta(hours=23), dt.timedelta(hours=25)}
    last = {(r["k"], r["w"]): r["n"] for r in sorted(found["mapped"].rows(), key=lambda r: r["n"])}
    assert last == {(r["k"], r["window_start"]): r["n"] for r in found["D"].rows()}
