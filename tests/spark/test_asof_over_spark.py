"""As-of joins over Spark: as in process and as pandas has it, in one epoch or many."""

from __future__ import annotations

import random

import flow_runs as fr
import pandas as pd
import pyarrow as pa
import pytest

import penstock as ps

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("x", pa.float64())])
COLUMNS = "k string, at timestamp, n long, x double"


def drawn(seed, n):
    random_ = random.Random(seed)
    times = sorted(random_.sample(range(10 * n), n))
    return [
        {"k": random_.choice(["a", "b", None, "é"]), "at": fr.moment(t / 10), "n": i, "x": i / 3} for i, t in enumerate(times)
    ]


LEFT, RIGHT = drawn(1, 90), drawn(2, 60)


def test_join_as_of_is_over_spark_what_pandas_gives_in_one_epoch_or_many(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    for name, rows in (("left", LEFT), ("right", RIGHT)):
        for i in range(3):
            part = len(rows) // 3
            fr.write_parquet(tmp_path / name, rows[i * part : (i + 1) * part], SCHEMA, i)

    def declared(per_epoch):
        def declare(sink):
            flow = ps.Flow("asof over spark")
            left, right = (
                flow.source(
                    name, ps.files(str(tmp_path / name), COLUMNS, max_files_per_epoch=per_epoch), time="at", lateness="1 s"
                )
                for name in ("left", "right")
            )
            joined = left.key_by("k").join(right.select("k", "n", "x"), how="asof", tolerance="5 s")
            joined.select("k", "n", "n_right", "x_right").sink(sink("within"))
            left.key_by("k", name="ever").join(right, how="asof").select("n", "n_right", "at_right").sink(sink("ever"))
            return flow

        return declare

    wanted = fr.in_harness(declared(9), {"left": LEFT, "right": RIGHT}, workers=2)
    merged = pd.merge_asof(
        pd.DataFrame(LEFT), pd.DataFrame(RIGHT).dropna(subset="k"), on="at", by="k", tolerance=pd.Timedelta("5 s")
    )
    pairs = {(row.n_x, None if pd.isna(row.n_y) else int(row.n_y)) for row in merged.itertuples()}
    assert {(dict(row)["n"], dict(row)["n_right"]) for row in wanted["within"]} == pairs
    for per_epoch in (9, 1):
        found = fr.over_spark(spark, tmp_path / f"c{per_epoch}", declared(per_epoch), workers=per_epoch % 3 + 1)
        assert not fr.difference(found, wanted), per_epoch
