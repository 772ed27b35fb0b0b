"""What a Spark user would write for the number of distinct values per key and window, where some keys are hot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)
from pyspark.sql.streaming.state import GroupStateTimeout

SLOW = ("Spark, applyInPandasWithState",)
"""Takes so long that one round is enough."""


def in_pandas(window_s: int) -> Callable[[Any, Iterator[pd.DataFrame], Any], Iterator[pd.DataFrame]]:
    """Of each key and window the distinct values as state; a row when the watermark has passed the window."""

    def count(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        k, w = map(int, key)
        seen = np.frombuffer(state.get[0], np.int64) if state.exists else np.empty(0, np.int64)
        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"k": [k], "w": [w], "n": [len(seen)]})
            return
        seen = np.unique(np.concatenate([seen, *(frame["v"].to_numpy() for frame in frames)]))
        state.update((seen.tobytes(),))
        state.setTimeoutTimestamp((w + window_s) * 1000)

    return count


def ways(stream: DataFrame, window_s: int, salts: int) -> dict[str, tuple[str, DataFrame]]:
    """By name: what it computes, and the query. All give a row (k, w, n) for each key and window once that is complete."""
    length, w = f"{window_s} seconds", "unix_seconds(window.start) as w"
    timed, window, union = stream.withWatermark("at", "1 second"), F.window("at", length), "array_distinct(flatten(s))"
    plain = timed.groupBy(window, "k").agg(F.collect_set("v").alias("s")).selectExpr("k", w, "cast(size(s) as long) as n")
    salt = F.pmod(F.xxhash64("at", "v"), F.lit(salts)).alias("salt")
    first = timed.groupBy(window, "k", salt).agg(F.collect_set("v").alias("s"))
    again = first.groupBy(F.window("window", length), "k").agg(F.collect_list("s").alias("s"))
    keyed = timed.selectExpr("k", f"unix_seconds(at) div {window_s} * {window_s} as w", "at", "v").groupBy("k", "w")
    by_time = "append", GroupStateTimeout.EventTimeTimeout
    pandas = keyed.applyInPandasWithState(in_pandas(window_s), "k long, w long, n long", "seen binary", *by_time)
    return {
        "Spark, groupBy": ("size of collect_set; the JVM combines before the shuffle", plain),
        "Spark, salted by hand": (
            "collect_set by salt, then the size of the union",
            again.selectExpr("k", w, f"cast(size({union}) as long) as n"),
        ),
        "Spark, applyInPandasWithState": ("NumPy's unique for each key and window", pandas),
    }


def run(query: DataFrame, checkpoint: str) -> tuple[list[float], pa.Table]:
    """The seconds of the epochs over what is there now, and the rows."""
    parts, ends = [], [time.perf_counter()]

    def epoch(frame: DataFrame, _: int) -> None:
        parts.append(frame.toArrow())
        ends.append(time.perf_counter())

    writer = query.writeStream.foreachBatch(epoch).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    return np.diff(ends).tolist(), pa.concat_tables(parts)
