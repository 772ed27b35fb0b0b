"""Random flows, changed between two runs over Spark: refused and left as they were, or what the code before the stop and the code after it give.

Read next: `changes`, `test_changed_recipes`.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import changes
import drawing
import drawing_changes
import oracle
import pyarrow.parquet as pq
import pytest
import recipes as r
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_against_oracle import compare
from test_changed_recipes import AMBIGUOUS
from trails import Trail, trailed

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.errors import ChangedFlowError

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Running(changes.Running):
    """As in process, with files in place of what is pushed."""

    def __init__(self, spark, folder: Path, recipe: r.Recipe, data: oracle.Records) -> None:
        super().__init__(recipe, data, drawing.CALM)
        self.spark, self.folder, self.files = spark, folder, 0
        for source in recipe.sources():
            (folder / source.name).mkdir(parents=True)

    def write(self, epochs: range) -> None:
        for source in self.recipe.sources():
            for half in (epochs[: len(epochs) // 2], epochs[len(epochs) // 2 :]):
                rows = [record for epoch, record in self.data[source.name] if epoch in half]
                if rows:
                    self.files += 1
                    path = self.folder / source.name / f"{self.files}.parquet"
                    pq.write_table(r.table(source, rows), path)
                    os.utime(path, (1_700_000_000 + self.files,) * 2)

    def start(self, which: int, *, drain: bool) -> tuple[str, ...]:
        flow, known, streams = self.declare(which)
        run = flow.start(
            self.spark, checkpoint=str(self.folder / "checkpoint"), trigger="available_now", drain=drain, workers=2
        )
        self.mark(known, streams, str(self.folder / "checkpoint"))
        run.await_termination()
        return run.changes

    def declared(self, flow, node, streams):
        if not isinstance(node, r.Source):
            return r.declare_node(flow, node, streams)
        lateness = dt.timedelta(microseconds=node.lateness_us)
        files = ps.files(self.folder / node.name, r.TIMED)
        about = {"position": ("p", "o"), "partitions": node.partitions, "on_error": "skip"}
        about["ahead"] = None if node.ahead_us is None else dt.timedelta(microseconds=node.ahead_us)  # others go by the clock
        return flow.source(node.name, files, time="at", lateness=lateness, **about)


def check(data, spark, folder: Path) -> None:
    recipe = data.draw(drawing.recipes(steps=4, changing=True))
    change = data.draw(drawing_changes.changes(recipe))
    if change is None:
        return
    records = data.draw(drawing.records(change.recipe, most=16))
    last = max((epoch for rows in records.values() for epoch, _ in rows), default=0)
    stop = data.draw(st.integers(0, last))
    running = Running(spark, folder / str(next(changes.NUMBERS)), change.recipe, records)
    running.write(range(stop + 1))
    with trailed(change.recipe) as trail:
        run_and_compare(running, change, stop, trail)


def run_and_compare(running: Running, change: drawing_changes.Change, stop: int, trail: Trail) -> None:
    records = running.data
    last = max((epoch for rows in records.values() for epoch, _ in rows), default=0)
    running.start(0, drain=False)
    before = Checkpoint(str(running.folder / "checkpoint")).last()
    names = [node.name for node in change.recipe.nodes if isinstance(node, r.KeyBy)]
    none = -(1 << 62)  # where there were no files there was no epoch
    frontiers = {name: before.regions[name].frontier if name in before.regions else none for name in names}
    running.write(range(stop + 1, last + 1))
    refusal = ""
    try:
        running.start(1, drain=True)
    except ChangedFlowError as error:
        refusal = str(error)
        assert Checkpoint(str(running.folder / "checkpoint")).last() == before
        assert running.start(0, drain=True) == ()
    must = change.must == "refused" and before.epoch >= 0  # without an epoch there is nothing to lose
    assert bool(refusal) == must or any(words in refusal for words in AMBIGUOUS), f"{change.what}: {refusal}"
    if refusal or before.epoch < 0:
        one, known = changes.project(change.recipe, 0 if refusal else 1)
        expected = oracle.Oracle(one, records, {known[n]: m for n, m in running.markers.items() if n in known}, trail=trail)
        wanted = {node: expected.rows(known[node]) if node in known else [] for node in running.tables}
    else:
        both = changes.Oracle(change.recipe, records, running.markers, stop, frontiers, trail=trail)
        wanted = {node: both.rows(node) for node in running.tables}
    for node, found in running.contents().items():
        what = f"{change.what}: {type(node).__name__} {node}"
        compare(what, found, changes.plain(row.data for row in wanted[node]))


def search(n: int, spark, folder: Path) -> None:
    @settings(max_examples=n, database=None, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(data=st.data())
    def each(data):
        check(data, spark, folder)

    each()


def test_changed_flows_over_spark_are_refused_or_give_what_both_versions_give(spark, tmp_path):
    search(4, spark, tmp_path)


@pytest.mark.soak
def test_a_hundred_changed_flows_over_spark_are_refused_or_give_what_both_versions_give(spark, tmp_path):
    search(130, spark, tmp_path)
