"""Spark compiles the code of a flow in its first epochs only: new code in each would have to be compiled, and warmed up, each time."""

from __future__ import annotations

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps

pytestmark = pytest.mark.spark

FILES = 8
SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.float64())])
COLUMNS = "k long, at timestamp, v double"


def sources(spark, folder):
    """Per kind a source that reads one file per epoch."""
    one = {"max_files_per_epoch": 1}
    frame = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder / "parquet"))
    return {
        "parquet": ps.files(str(folder / "parquet"), COLUMNS, **one),
        "text": ps.files(str(folder / "csv"), COLUMNS, format="csv", **one),
        "frame": frame,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("code")
    for n in range(FILES):
        rows = [{"k": i % 3, "at": fr.moment(10 * n + i), "v": float(i)} for i in range(6)]
        fr.write_parquet(place / "parquet", rows, SCHEMA, n)
        text = "".join(f"{r['k']},{r['at'].isoformat()},{r['v']}\n" for r in rows)
        fr.write_text(place / "csv", "k,at,v\n" + text, n, "csv")
    return place


@pytest.mark.parametrize("kind", ["parquet", "text", "frame"])
@pytest.mark.parametrize("time", [{"time": "at", "lateness": "1 second"}, {}], ids=["timed", "untimed"])
def test_later_epochs_of_a_flow_compile_nothing(spark, tmp_path, folder, kind, time):
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    counts = []

    def before(step):
        if step == "committed":
            counts.append(compiled.getCount())

    flow = ps.Flow(f"code_{kind}")
    rows = flow.source("rows", sources(spark, folder)[kind], **time)
    last = rows.where("v > 1").key_by("k").stateful_map(lambda key, row, state: ((key, row.v), state), "k long, v double")
    last.sink(ps.memory(f"{tmp_path.name}"))
    flow.start(spark, checkpoint=tmp_path / "run", workers=2, trigger="available_now", on_step=before).await_termination(600)
    assert len(counts) >= FILES
    assert counts[FILES - 1] == counts[2]
