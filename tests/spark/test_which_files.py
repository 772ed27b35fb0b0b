"""Which files an epoch reads: all of them, however old, in the order of time and name, and the same ones when it runs again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import penstock as ps
from penstock.runtime.checkpoint import Checkpoint

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long"
DAY = 86_400


def put(folder: Path, name: str, values, at: float, *, key: str = "a") -> Path:
    """A CSV file dated `at` seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("k,v\n" + "".join(f"{key},{v}\n" for v in values))
    os.utime(path, (at, at))
    return path


def read(spark, folder: Path, checkpoint: Path, sink, **options) -> None:
    """Read a folder to its end, in the order of positions."""
    flow = ps.Flow("files")
    events = flow.source("events", ps.files(folder / "in", SCHEMA, "csv", **options))
    events.key_by("k").stateful_map(lambda k, e, n: ((e.v, n or 0), (n or 0) + 1), "v long, n long").sink(sink)
    flow.start(spark, checkpoint=checkpoint, workers=1, trigger="available_now").await_termination(600)


def in_order(sink) -> list[int]:
    """The values in the order in which they were read."""
    return [r["v"] for r in sorted(sink.rows(), key=lambda r: r["n"])]


def test_old_file_when_newer_ones_were_read_before_is_read_too(spark, tmp_path):
    out, now = ps.memory(f"old {tmp_path}"), 1_700_000_000
    put(tmp_path / "in", "1.csv", [1, 2], now)
    put(tmp_path / "in", "2.csv", [3, 4], now - 30 * DAY)
    put(tmp_path / "in", "3.csv", [0], 0)  # as archives that are the same whenever they are made date their files
    read(spark, tmp_path, tmp_path / "c", out)
    assert in_order(out) == [0, 3, 4, 1, 2]
    assert Checkpoint(str(tmp_path / "c")).last().sources["events"].files == 3


def test_old_file_when_it_comes_later_is_read_too(spark, tmp_path):
    out, now = ps.memory(f"late {tmp_path}"), 1_700_000_000
    put(tmp_path / "in", "1.csv", [1, 2], now)
    flow = ps.Flow("files")
    events = flow.source("events", ps.files(tmp_path / "in", SCHEMA, "csv"))
    events.key_by("k").stateful_map(lambda k, e, n: ((e.v, n or 0), (n or 0) + 1), "v long, n long").sink(out)
    for days in (30, 400):
        flow.start(spark, checkpoint=tmp_path / "c", workers=1, trigger="available_now", drain=False).await_termination(600)
        put(tmp_path / "in", f"{days}.csv", [days], now - days * DAY)
    flow.start(spark, checkpoint=tmp_path / "c", workers=1, trigger="available_now", drain=False).await_termination(600)
    assert in_order(out) == [1, 2, 30, 400]
