"""The same work with Spark's own stateful Python: count and sum per key, a row per event."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

OUT = "k long, n long, total double"


class Counter(StatefulProcessor):
    """Row by row, a value state per key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("s", "n long, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803  (Spark's names)
        n, total = self._state.get() if self._state.exists() else (0, 0.0)
        for row in rows:
            n, total = n + 1, total + row.v
            yield Row(k=key[0], n=n, total=total)
        self._state.update((n, total))

    def close(self) -> None:
        """Nothing is open."""


def in_pandas(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Group by group, a tuple state per key."""
    n, total = state.get if state.exists else (0, 0.0)
    for frame in frames:
        counts = n + np.arange(1, len(frame) + 1)
        totals = total + frame["v"].cumsum()
        n, total = int(counts[-1]), float(totals.iloc[-1])
        yield pd.DataFrame({"k": key[0], "n": counts, "total": totals})
    state.update((n, total))


def run(spark: SparkSession, name: str, folder: Any, schema: str, files: int, checkpoint: str) -> list[float]:
    """Periods (s) of the epochs."""
    return list(np.diff(ends(spark, name, folder, schema, files, checkpoint)))


def ends(spark: SparkSession, name: str, folder: Any, schema: str, files: int, checkpoint: str) -> list[float]:
    """When (s, of the performance counter) each epoch over what is there now ended."""
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(folder))
    if name == "transformWithState":
        out = stream.groupBy("k").transformWithState(Counter(), OUT, "append", "None")
    else:
        out = stream.groupBy("k").applyInPandasWithState(
            in_pandas, OUT, "n long, total double", "append", GroupStateTimeout.NoTimeout
        )
    found: list[float] = []

    def epoch(frame: DataFrame, _: int) -> None:
        frame.write.format("noop").mode("append").save()
        found.append(time.perf_counter())

    query = out.writeStream.foreachBatch(epoch).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return found
