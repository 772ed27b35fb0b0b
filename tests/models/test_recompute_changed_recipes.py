"""Any flow, changed in any way, whose state is computed anew: rows up to each sink's mark stay, and those after it are what the new code gives over the whole log.

Read next: `recomputing`, `changes`, `drawing_changes`.
"""

from __future__ import annotations

import itertools
import pickle
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from typing import Any

import changes
import drawing
import drawing_changes
import oracle
import pytest
import recipes as r
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recomputing import After, Store
from test_against_oracle import compare, examples
from trails import trailed

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.errors import ChangedFlowError, RecoveryError
from penstock.testing import Crash, Harness
from penstock.types import Mark

NUMBERS = itertools.count()
COUNTED: Counter[str] = Counter()
MIDWAY = ("let it give more", "another ahead= would do that too")
"""Refused after the first mark, whose sink has been given rows."""


class Switch:
    """A flow that runs, stops or crashes, and is computed anew with other code.

    Args:
        recipe: Two versions.
        data: Its log.
        dice: What happens.
        kept: Whether the checkpoint is still there at the switch; otherwise it is lost.
        grows: Whether the first version lacks outputs, with or without the steps that only these have.

    Attributes:
        marks: The sinks' marks where the flow began anew.
        stored: What the sinks held then.
    """

    def __init__(self, recipe: r.Recipe, data: oracle.Records, dice: random.Random, *, kept: bool, grows: bool = False) -> None:
        self.recipe, self.dice, self.kept = recipe, dice, kept
        self.name = f"switched {next(NUMBERS)}"
        self.log = [
            (name, x)
            for name, _, x in sorted(((n, e, x) for n, rows in data.items() for e, x in rows), key=lambda e: (e[1], e[2]["o"]))
        ]
        self.sinks: dict[r.Node, Store] = {}
        self.steps = self.crash_at = 0
        self.marks: dict[r.Node, Mark | None] = {}
        self.stored: dict[r.Node, Counter[Any]] = {}
        self.absent = {*dice.sample(recipe.sinks, dice.randrange(1, len(recipe.sinks)))} if grows else set()
        self.bare = dice.random() < 0.5

    def declared(self, version: int) -> tuple[r.Recipe, ps.Flow, dict[r.Node, r.Node], dict[r.Node, Any]]:
        """A version as a recipe and as a flow, what each node is in it, and the streams of these."""
        made, known = changes.project(self.recipe, version)
        flow, streams = ps.Flow(self.name), {}
        absent = self.absent if version == 0 else ()
        read = drawing_changes.upstream([known[s] for s in self.recipe.sinks if s in known and s not in absent])
        for node in made.nodes:
            if not absent or self.bare or node in read or isinstance(node, r.Source):
                streams[node] = r.declare_node(flow, node, streams)
        taken: set[r.Node] = set()
        for i, base in enumerate(self.recipe.sinks):
            node = known.get(base)
            if node is not None and node not in taken and base not in absent:
                taken.add(node)
                self.sinks[base] = Store(f"{self.name} {i}")
                streams[node].sink(self.sinks[base], name=f"out{i}")
        return made, flow, known, streams

    def step(self, _: str) -> None:
        self.steps += 1
        if self.steps == self.crash_at:
            raise Crash

    def feed(self, harness: Harness, records: Iterable[tuple[str, Any]], most: int) -> None:
        sources = {s.name: s for s in self.recipe.sources()}
        known = {(n, p): k.offset for n, s in harness.record.sources.items() for p, k in s.partitions.items()}
        todo = [x for x in records if harness.record.recovery or x[1]["o"] > known.get((x[0], str(x[1]["p"])), -1)]
        while todo and not harness.record.finished:
            some = todo[: self.dice.randrange(1, most + 1)]
            del todo[: len(some)]
            for name, source in sources.items():
                if here := [x for n, x in some if n == name]:
                    harness.push(name, r.table(source, here))
            harness.epoch()

    def started(self, version: int, folder: str) -> Harness:
        self.steps = 0
        _, flow, _, _ = self.declared(version)
        workers = self.dice.randrange(1, 4)
        return Harness(flow, workers=workers, checkpoint=folder, recover="recompute", on_step=self.step)

    def held(self) -> dict[r.Node, Mark | None]:
        """The sinks' marks."""
        return {node: sink.held(f"out{self.recipe.sinks.index(node)}") for node, sink in self.sinks.items()}

    def contents(self) -> dict[r.Node, Counter[Any]]:
        return {node: oracle.multiset(sink.rows()) for node, sink in self.sinks.items()}

    def before(self, folder: str) -> None:
        """The first version, which stops somewhere."""
        cut = self.dice.randrange(len(self.log) + 1)
        self.crash_at = 0 if self.dice.random() < 0.4 else self.dice.randrange(1, self.dice.choice([20, 60, 200]))
        copies = []
        try:
            with self.started(0, folder) as harness:
                size = self.dice.choice([1, 3, 8, 30])
                for at in range(0, cut, size):
                    self.feed(harness, self.log[: min(at + size, cut)], size)
                    if self.dice.random() < 0.2:
                        copies.append({node: sink.copy() for node, sink in self.sinks.items()})
        except Crash:
            COUNTED["crashed"] += 1
        if copies and self.dice.random() < 0.4:  # some sinks are restored from a copy
            copied = self.dice.choice(copies)
            for node in self.dice.sample([*copied], self.dice.randrange(1, len(copied) + 1)):
                self.sinks[node].restore(copied[node])

    def last_mark(self) -> Mark:
        """That of the sink that had come farthest at the switch."""
        marks = [mark for node, mark in self.marks.items() if mark is not None and node not in self.absent]
        return max(marks, key=lambda mark: (sum(mark.positions.values()), mark.frontier))

    def keep(self) -> None:
        """Keep what the sinks hold: from here on the flow begins anew."""
        self.marks, self.stored = self.held(), self.contents()

    def after(self, folder: str) -> str:
        """The second version, in as many starts as it takes, to its end; gives its checkpoint, or nothing: it goes on with the one that there was."""
        dice, crashes = self.dice, self.dice.choice([0, 0, 1, 2])
        checkpoint = f"{folder}/0" if self.kept else f"{folder}/1"
        for number in range(2, 99):
            self.crash_at = dice.randrange(1, dice.choice([20, 60])) if number - 2 < crashes else 0
            try:
                held = self.held()
                with self.started(1, checkpoint) as harness:
                    if harness.record.recovery is None and checkpoint.endswith("/0"):
                        return ""
                    assert harness.record.recovery is not None
                    for node in self.absent:
                        if held.get(node) is None:  # a new output, if the checkpoint tells that it is one
                            told = harness.record.recovery.outputs.get(f"out{self.recipe.sinks.index(node)}", 0)
                            self.marks[node] = self.last_mark() if told else None
                    self.feed(harness, self.log, dice.choice([20, 60]))
                    if not harness.record.finished:
                        harness.finish()
                    return checkpoint
            except Crash:
                if dice.random() < 0.4:
                    checkpoint = f"{folder}/{number}"
        raise AssertionError


def markers_of(nodes: Iterable[r.Node], checkpoint: str) -> dict[r.Node, int]:
    """The `part` of rows that the frontier triggers, by node, as the newest run of a checkpoint numbers its steps."""
    opened = Checkpoint(checkpoint)
    specs = pickle.loads(opened.specs(opened.newest_run()))
    return {
        n: -(specs[region].ordinal * 256 + specs[region].steps[at].slot + 1) for n, (region, at) in r.steps_of(nodes).items()
    }


def check(
    change: drawing_changes.Change, records: oracle.Records, seed: int, *, kept: bool = False, grows: bool = False
) -> None:
    """Run a flow with a change, and compare. `kept`: the checkpoint is surely still there at the switch; `grows`: see `Switch`."""
    dice = random.Random(seed)
    kept = kept or ((grows or change.must == "refused") and dice.random() < 0.5)
    switch = Switch(change.recipe, records, dice, kept=kept, grows=grows)
    (_, _, known, streams), (made, _, known_after, streams_after) = (switch.declared(version) for version in (0, 1))
    if any(
        known.get(n) in streams and n in known_after and streams[known[n]].schema != streams_after[known_after[n]].schema
        for n in change.recipe.sinks
    ):
        COUNTED["another table"] += 1
        return
    with tempfile.TemporaryDirectory(prefix="penstock-switched-") as folder, trailed(change.recipe, switch.keep) as trail:
        switch.before(f"{folder}/0")
        switch.keep()
        if not kept:
            trail.restore(None)
        if not any(switch.marks.values()):
            COUNTED["nothing given out"] += 1
            return
        refusal = ""
        try:
            checkpoint = switch.after(folder)
        except (RecoveryError, ChangedFlowError) as error:
            refusal = str(error)
            checkpoint = ""
        if refusal:
            COUNTED[re.sub(r"'[^']*'|[0-9]+", "…", refusal)] += 1
            if not any(words in refusal for words in MIDWAY):
                assert switch.contents() == switch.stored
                assert switch.kept, f"{change.what}: {refusal}"
            return
        if not checkpoint:
            COUNTED["goes on"] += 1
            return
        markers = markers_of(made.nodes, checkpoint)
    COUNTED["recomputed"] += 1
    COUNTED["a step that means something else"] += change.must == "refused"
    COUNTED["checkpoint kept"] += switch.kept
    COUNTED["regions that go on behind a table that changes"] += bool(trail.resting and trail.tables)
    for node, found in switch.contents().items():
        after = known_after.get(node)
        mark, wanted = switch.marks[node], switch.stored.get(node, Counter())
        if after is not None:
            wanted = After(made, records, markers, mark, trail).expected(after, wanted)
        what = f"{change.what}, {'kept' if switch.kept else 'lost'}: {type(node).__name__} {node}"
        compare(what, found, wanted)


def draw(data: Any) -> None:
    recipe = data.draw(drawing.recipes(steps=5, changing=True))
    way = (
        drawing_changes.mean_something_else
        if data.draw(st.booleans())
        else lambda draw, recipe: draw(drawing_changes.changes(recipe))
    )
    change = way(data.draw, recipe)
    sources = [s for n in (change.recipe.sources() if change else ()) for s in (n, n.then) if s]
    if change is None or any(s.idle_after or s.close_after_us is not None for s in sources):
        COUNTED["nothing to change"] += 1
        return  # what is late by the clock the oracle does not know
    grows = len(change.recipe.sinks) > 1 and not change.recipe.refreshed() and data.draw(st.booleans())
    COUNTED["outputs that are new"] += grows
    check(change, data.draw(drawing.records(change.recipe, most=30)), data.draw(st.integers(0, 1 << 32)), grows=grows)


def with_a_region_beside(recipe: r.Recipe) -> r.Recipe:
    """The flow with one region more, right behind a table that changes: where another region changes, the state of this one goes on."""
    column, lookup = next(iter(recipe.refreshed().items()))
    keyed = r.KeyBy(lookup, ("j",), "beside")
    columns = (("v", "sum", column), ("extra", "collect", column), ("k", "max", "k"))
    totals = [r.Totals(keyed, columns, window) for window in (drawing.WINDOWS[0], drawing.WINDOWS[3])]
    counted = r.Map(keyed, "count")
    return r.Recipe([*recipe.nodes, keyed, *totals, counted], [*recipe.sinks, *totals, counted], recipe.tied)


def draw_beside(data: Any) -> None:
    """Change a flow in which the state of a region goes on, which has met tables of before."""
    recipe = data.draw(
        drawing.recipes(steps=3, changing=True).filter(lambda x: x.refreshed() and any(map(oracle.region_left, x.nodes)))
    )
    change = drawing_changes.mean_something_else(data.draw, recipe)
    if change is None:
        COUNTED["nothing to change"] += 1
    else:
        change.recipe = with_a_region_beside(change.recipe)
        check(change, data.draw(drawing.records(change.recipe, most=30)), data.draw(st.integers(0, 1 << 32)), kept=True)


@pytest.mark.slow
@examples(8)
@given(data=st.data())
def test_regions_that_go_on_where_another_one_is_computed_anew_have_met_the_tables_of_before(data):
    draw_beside(data)


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=3_000)
@given(data=st.data())
def test_three_thousand_flows_with_regions_that_go_on_where_another_one_is_computed_anew_have_met_the_tables_of_before(data):
    draw_beside(data)


@pytest.mark.slow
@examples(15)
@given(data=st.data())
def test_changed_flow_that_is_computed_anew_gives_after_the_marks_what_the_new_code_gives(data):
    draw(data)


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=5_000)
@given(data=st.data())
def test_five_thousand_changed_flows_that_are_computed_anew_give_after_the_marks_what_the_new_code_gives(data):
    draw(data)
