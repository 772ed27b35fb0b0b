"""Any flow in a group, whose partitions go from one application to another at any time: what one sequential pass over each partition gives.

Handed over at the end of an epoch, after a crash at any step, or while the old owner is only paused and wakes up later.

Read next: `drawing`, `test_against_oracle`.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import Counter
from dataclasses import dataclass, field, replace

import drawing
import judging
import oracle
import pytest
import recipes as r
from hypothesis import given
from hypothesis import strategies as st
from test_against_oracle import compare, examples
from test_records_ahead import AHEAD
from test_silent_sources import CLOSING
from trails import clocks, trailed

import penstock as ps
from penstock.errors import FencedError
from penstock.flow.shared import of_partition, shared_by
from penstock.testing import Crash, Harness

PARTITIONS = 2
SEEN: Counter[str] = Counter()


class OfPartition(oracle.Oracle):
    """What one partition gives."""

    number = 0

    def _records_of(self, source):
        return judging.judged(replace(source, partitions=(self.number,)), self._records[source.name], self._clock)


@dataclass
class Owner:
    """An application's work on a partition.

    Attributes:
        dies_at: At which of its steps it crashes; None: at none.
    """

    flow: ps.Flow
    checkpoint: str
    workers: int
    dies_at: int | None = None
    steps: int = 0
    harness: Harness = field(init=False)

    def __post_init__(self):
        self.harness = Harness(self.flow, workers=self.workers, checkpoint=self.checkpoint, on_step=self.step)

    def step(self, _: str) -> None:
        self.steps += 1
        if self.steps == self.dies_at:
            raise Crash


def begun(built, number, folder, fate) -> Owner:
    """A new owner of a partition; one that dies while it starts is followed by another."""
    while True:
        dies_at = fate.randint(1, 40) if fate.random() < 0.3 else None
        with contextlib.suppress(Crash):
            return Owner(of_partition(built.flow, number), f"{folder}/partitions/{number}", fate.randint(1, 4), dies_at)


def work_through(built, recipe, data, number, folder, fate) -> list[str]:
    """One partition from its beginning to its end, by many owners; tells what happened."""
    sources = {s.name: s for s in recipe.sources()}
    last = max((epoch for rows in data.values() for epoch, _ in rows), default=0)
    inputs = {e: {n: [record for at, record in rows if at == e] for n, rows in data.items()} for e in range(last + 1)}
    owner, told, asleep = begun(built, number, folder, fate), [], []

    def feed(harness: Harness, epoch: int) -> None:
        for name, here in inputs.get(epoch, {}).items():
            if here:
                harness.push(name, r.table(sources[name], here))

    while not owner.harness.record.finished:
        epoch = owner.harness.record.epoch + 1
        feed(owner.harness, epoch)
        try:
            owner.harness.epoch(*(["end"] if epoch > last else []), advance_us=fate.choice(drawing.JUMPS_US))
        except Crash:
            told.append("died")
            owner = begun(built, number, folder, fate)
            continue
        what = fate.choice(["goes on", "goes on", "hands over", "is paused"])
        told.append(what)
        if what != "goes on" and not owner.harness.record.finished:
            before, owner = owner, begun(built, number, folder, fate)
            before.dies_at = None
            asleep += [before] * (what == "is paused")
        if asleep and fate.random() < 0.5:
            woken = asleep.pop()
            feed(woken.harness, woken.harness.record.epoch + 1)
            with contextlib.suppress(FencedError):
                woken.harness.epoch("end")
                raise AssertionError("an application worked on a partition that it had lost")
            told.append("woken")
    return told


@examples(12)
@given(data=st.data(), seed=st.integers(0, 1 << 20))
def test_partitions_that_go_from_application_to_application_give_what_a_sequential_pass_over_each_gives(
    data, seed, tmp_path_factory
):
    check(data.draw(drawing.recipes(steps=5, shared=PARTITIONS, changing=True)), data, seed, tmp_path_factory.mktemp("group"))


@pytest.mark.slow
@examples(20)
@given(data=st.data(), seed=st.integers(0, 1 << 20))
def test_partitions_whose_sources_close_and_put_records_aside_give_what_a_pass_gives_that_knows_each_ones_clock(
    data, seed, tmp_path_factory
):
    recipe = data.draw(drawing.recipes(steps=5, shared=PARTITIONS, options={**AHEAD, **CLOSING}, changing=True))
    check(recipe, data, seed, tmp_path_factory.mktemp("group"))


def check(recipe, data, seed, folder) -> None:
    records, fate = data.draw(drawing.records(recipe, most=30)), random.Random(seed)
    tables = {}

    def sink(name: str, node: r.Node):
        tables[node] = name
        return ps.sql(f"sqlite:///{folder}/out.db", name)

    built = r.build(recipe, "shared", sink)
    assert shared_by(built.flow).stream == "pushed"
    wanted = {node: Counter() for node in recipe.sinks}
    looked_up = {n.column for n in recipe.nodes if isinstance(n, r.Lookup)}
    shown = {node: [*r.STANDARD, *(c for c in oracle.columns(node) if c in looked_up)] for node in recipe.sinks}
    for number in range(PARTITIONS):
        mine = {n: [(e, record) for e, record in rows if record["p"] == number] for n, rows in records.items()}
        with clocks() as clock, trailed(recipe) as trail:
            work_through(built, recipe, mine, number, folder, fate)
        markers = r.Built(of_partition(built.flow, number), {}, built.steps).markers()
        expected, asleep = (OfPartition(recipe, mine, markers, known, trail) for known in (clock, {}))
        expected.number = asleep.number = number
        for node, rows in wanted.items():
            if isinstance(node, r.Late | r.Ahead):
                SEEN[type(node).__name__] += len(expected.rows(node))
                SEEN["late by the clock"] += expected.content(node) != asleep.content(node)
            rows.update(tuple(row.data[n] for n in shown[node]) for row in expected.rows(node))
    with contextlib.closing(sqlite3.connect(folder / "out.db")) as base:
        for node, rows in wanted.items():
            compare(str(node), Counter(base.execute(f"SELECT {', '.join(shown[node])} FROM {tables[node]}").fetchall()), rows)
