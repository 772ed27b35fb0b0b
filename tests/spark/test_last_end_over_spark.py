"""Over Spark, too, a start says how the run before ended, and which epoch is run again."""

from __future__ import annotations

import json

import pytest

import penstock as ps
from penstock.errors import OperatorError

pytestmark = pytest.mark.spark


def refuses(key, event, state):
    if event.v == 2:
        raise ValueError("two")
    return (key, event.v), None


def accepts(key, event, state):
    return (key, event.v), None


def started(spark, folder, fn):
    flow = ps.Flow("last end")
    source = flow.source("a", ps.files(str(folder / "in"), "k string, v long", "json", max_files_per_epoch=1))
    source.key_by("k").stateful_map(fn, "k string, v long", name="step").sink(ps.sql(f"sqlite:///{folder / 'out.db'}", "out"))
    return flow.start(spark, checkpoint=str(folder / "ckpt"), workers=1, trigger="available_now", drain=False)


def test_start_after_a_run_that_failed_says_so_and_what_is_run_again(spark, tmp_path):
    (tmp_path / "in").mkdir()
    for n in range(1, 4):
        (tmp_path / "in" / f"{n}.json").write_text(json.dumps({"k": "a", "v": n}))
    first = started(spark, tmp_path, refuses)
    with pytest.raises(OperatorError):
        first.await_termination()
    assert first.last_end == ""
    second = started(spark, tmp_path, accepts)
    second.await_termination()
    assert second.last_end.startswith("Run 1 (process ")
    assert "ValueError: two" in second.last_end
    assert second.last_end.endswith(" Epoch 1 is run again from the same input.")
    third = started(spark, tmp_path, accepts)
    third.await_termination()
    assert third.last_end == ""
