"""A flow that loses its checkpoint or its sinks, again and again, and is computed anew: how such a life is run.

The log is kept as a list. A start that recomputes is given it from the beginning; any other one goes on behind the positions that it knows.

Where a table is read again, rows that are in the sinks have met other tables than a recomputation meets. What a sink holds is then what it held where the
last recomputation began, and what comes after its mark of then. Which one is the last is a matter of the checkpoint: a copy of it goes with what is known of it.

Read next: `test_recompute`.
"""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import changes
import drawing_changes
import oracle
import recipes as r
from trails import Trail, trailed

from penstock.errors import RecoveryError
from penstock.progress.trail import Trail as Waypoints
from penstock.protocol.rescale import Limits
from penstock.sinks.memory import MemorySink
from penstock.testing import Crash, Harness
from penstock.types import MIN_TIME, Mark

NUMBERS = itertools.count()
MOST_STARTS = 6


WAITING = {"concat", "fold"}
"""Aggregates whose rows wait for the frontier."""


class After(changes.Oracle):
    """What a version gives over the whole log, and which of it lies behind a mark.

    Args:
        recipe: The version.
        records: All records.
        markers: As in the other oracle.
        mark: The mark; None: there is none.
        trail: Of the epochs since it began anew.
    """

    def __init__(
        self, recipe: r.Recipe, records: oracle.Records, markers: Mapping[r.Node, int], mark: Mark | None, trail: Trail
    ) -> None:
        there = {} if mark is None else Waypoints.from_text(mark.trail).sources
        parts = {name: {int(p): k.offset for p, k in state.partitions.items()} for name, state in there.items()}
        behind = {n: [(int(x["o"] > parts.get(n, {}).get(x["p"], -1)), x) for _, x in rows] for n, rows in records.items()}
        frontiers = {}
        for node in recipe.nodes:
            if isinstance(node, r.KeyBy):
                joins = [n.other for n in recipe.nodes if isinstance(n, r.Join) and oracle.region_of(n) is node]
                read = [n.name for n in drawing_changes.upstream([node, *joins]) if isinstance(n, r.Source)]
                frontiers[node.name] = min(there[n].frontier if n in there else MIN_TIME for n in read)
        super().__init__(recipe, behind, markers, 0, frontiers, trail=trail)
        self._went_on = trail.resting
        other = trail.resting and trail.tables
        self._resting = After(recipe, records, markers, mark, trail.of_resting()) if other else None

    def _of(self, node: r.Node) -> After | None:
        """What knows the rows of a region whose state goes on."""
        region = node if isinstance(node, r.KeyBy) else oracle.region_left(node)
        return self._resting if region is not None and region.name in self._went_on else None

    def rows(self, node: r.Node) -> list[oracle.Row]:
        other = self._of(node)
        return super().rows(node) if other is None else other.rows(node)

    def tagged(self, node: r.Node) -> list[tuple[oracle.Row, bool]]:
        other = self._of(node)
        return super().tagged(node) if other is None else other.tagged(node)

    def expected(self, node: r.Node, old: Counter[Any]) -> Counter[Any]:
        """What a sink holds in the end that held `old` at the mark."""
        if isinstance(node, r.KeyBy):  # its rows leave the region, as those of the step behind it do
            return old + oracle.multiset(row.data for row in self.rows(node) if self.second_out(node, row))
        updates = isinstance(node, r.Totals) and node.emit == "update"
        if not updates:
            return old + oracle.multiset(row.data for row, after in self.tagged(node) if after)
        waits = bool(WAITING & {kind for _, kind, _ in node.aggregates})
        edge = self._frontiers[oracle.region_of(node).name]
        new = [row for row, after in self.tagged(node.of) if (row.time >= edge if waits else after)]
        names = [*oracle.region_of(node).keys, *(() if node.window is None else ("window_start",))]
        touched = set()
        for row in new:
            windows = [()] if node.window is None else oracle.spans(node.window, row.time)
            touched |= {(*row.key, *map(r.moment, window[:1])) for window in windows}

        def key(data: Any) -> Any:
            return tuple(oracle.one_value(dict(data)[n]) for n in names)

        kept = Counter({row: n for row, n in old.items() if key(row) not in touched})
        return kept + oracle.multiset(row.data for row in self.rows(node) if key(row.data) in touched)


class Store(MemorySink):
    """A sink that outlives a crash, and of which there are copies."""

    durable = True

    def copy(self) -> Any:
        """What it holds, rows and mark."""
        return self._held.mark, self._held.table, list(self._held.epochs)

    def restore(self, copied: Any) -> None:
        """Hold again what it held when it was copied."""
        mark, table, epochs = copied
        self._held.mark, self._held.table, self._held.epochs = mark, table, list(epochs)


@dataclass
class Lived:
    """What came of a life.

    Attributes:
        contents: By node, what its sink holds.
        markers: As the oracle needs them.
        before: Likewise before the last start.
        refusal: Why it could not go on; empty: it came to its end.
        recomputed: How many starts computed state anew.
        crashed: How many starts crashed.
        since: How many starts computed state anew from the time that they were told.
    """

    contents: dict[r.Node, Counter[Any]]
    markers: Mapping[r.Node, int]
    before: dict[r.Node, Counter[Any]] = field(default_factory=dict)
    refusal: str = ""
    recomputed: int = 0
    crashed: int = 0
    since: int = 0


class Life:
    """One flow, its log, its sinks and its checkpoints.

    Args:
        recipe: The flow.
        data: Its log.
        dice: What happens.
        edit: Gives the log that is there after the first run, of that before; none: the same.
        rescales: Whether the number of workers changes.
        jumps: Whether the clock jumps, so that partitions become idle.
        silences: Whether there are epochs without records, after longer times, so that sources are silent.
        since: Event time (µs) before which no record matters to what comes at or after it: starts all of whose sinks have come that far are told it.
    """

    def __init__(
        self,
        recipe: r.Recipe,
        data: oracle.Records,
        dice: random.Random,
        edit: Callable[[list[tuple[str, Any]]], list[tuple[str, Any]]] = lambda log: log,
        *,
        rescales: bool = True,
        jumps: bool = False,
        silences: bool = False,
        since: int | None = None,
    ) -> None:
        self.recipe, self.dice, self.edit, self.rescales = recipe, dice, edit, rescales
        self.jumps, self.silences, self.since = jumps, silences, since
        self.name = f"recomputed {next(NUMBERS)}"
        self.log = sorted(
            ((name, epoch, record) for name, rows in data.items() for epoch, record in rows), key=lambda x: (x[1], x[2]["o"])
        )
        self.records: list[tuple[str, Any]] = [(name, record) for name, _, record in self.log]
        self.sources = {s.name: s for s in recipe.sources()}
        self.sinks: dict[r.Node, Store] = {}
        self.copies: list[dict[r.Node, Any]] = []
        self.kept: list[str] = []
        self.trail = Trail(recipe)
        self.began: tuple[dict[r.Node, Mark | None], dict[r.Node, Counter[Any]]] = ({}, {})
        self.pasts: dict[str, Any] = {}
        self.steps, self.crash_at = 0, 0
        self.small = dice.random() < 0.2
        self.lived = Lived({}, {})
        self.pushed: set[tuple[str, Any, int]] = set()

    def run(self) -> Lived:
        """Live it to the end, or to a refusal."""
        with (
            tempfile.TemporaryDirectory(prefix="penstock-recompute-") as self.folder,
            trailed(self.recipe, self._begins) as self.trail,
        ):
            return self._run()

    def expected(self, data: oracle.Records) -> dict[r.Node, Counter[Any]]:
        """By node, what its sink holds in the end, given its records."""
        markers = self.lived.markers
        if not self.trail.tables:
            whole = oracle.Oracle(self.recipe, data, markers)
            return {node: whole.content(node) for node in self.sinks}
        marks, held = self.began
        found = {node: After(self.recipe, data, markers, marks.get(node), self.trail) for node in self.sinks}
        return {node: after.expected(node, held.get(node, Counter())) for node, after in found.items()}

    def _begins(self) -> None:
        self.began = dict(zip(self.sinks, self.marks(), strict=True)), self.contents()

    def _run(self) -> Lived:
        dice, harness = self.dice, None
        reached, folder, starts = 0, self._new(), dice.randrange(2, MOST_STARTS)
        for start in range(starts + 1):
            last = start == starts
            self.steps, self.crash_at = 0, 0 if last or dice.random() < 0.3 else dice.randrange(1, dice.choice([20, 60, 200]))
            reached = len(self.records) if last else dice.randrange(min(reached, len(self.records)), len(self.records) + 1)
            try:
                if harness is None or dice.random() < 0.7:
                    folder = self._disaster(folder) if start else folder
                    self.lived.before = self.contents()
                    harness = None
                    harness, self.pushed = self._begun(folder), set()
                else:
                    self.lived.before = self.contents()
                    harness.restart(forget_local_state=dice.random() < 0.5)
                    harness.resume()
                self._feed(
                    harness, self._due(harness, reached), finish=reached == len(self.records) and (last or dice.random() < 0.5)
                )
            except Crash:
                self.lived.crashed += 1
            except RecoveryError as error:
                self.lived.refusal = str(error)
                break
            if start == 0:
                self.records = self.edit(self.records)
        self.lived.contents = self.contents()
        return self.lived

    def _begun(self, folder: str) -> Harness:
        built = r.build(self.recipe, self.name, self._sink)
        self.lived.markers = built.markers()
        step, hold = (40, 60) if self.small else (1 << 20, 1 << 20)
        limits = Limits(first_bytes=step, least_bytes=step, most_bytes=2 * step, hold_bytes=hold, measure_entries=20)
        workers = self.dice.randrange(1, 4)
        marks = self.marks()
        since = None
        if self.since is not None and all(mark is not None and mark.frontier >= self.since for mark in marks):
            since = r.moment(self.since)
        harness = Harness(
            built.flow, workers=workers, checkpoint=folder, recover="recompute", since=since, on_step=self._step, limits=limits
        )
        self.lived.recomputed += any("computed anew" in notice for notice in harness.notices)
        self.lived.since += any("since=" in notice for notice in harness.notices)
        return harness

    def trim(self, gone: int) -> Callable[[list[tuple[str, Any]]], list[tuple[str, Any]]]:
        """An `edit`: so many of the first records are gone, as far as all sinks hold them, with all copies of before."""

        def trimmed(log: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
            self.copies, self.kept = [], []
            held = self.marks()

            def behind(name: str, x: Any) -> bool:
                return any(m is None or m.positions.get(f"{name}/{x['p']}", -1) < x["o"] for m in held)

            return log[min(gone, next((i for i, (name, x) in enumerate(log) if behind(name, x)), len(log))) :]

        return trimmed

    def marks(self) -> list[Any]:
        """What each sink says that it holds; None: nothing."""
        return [sink.held(f"out{i}") for i, sink in enumerate(self.sinks.values())]

    def contents(self) -> dict[r.Node, Counter[Any]]:
        """By node, what its sink holds."""
        return {node: oracle.multiset(sink.rows()) for node, sink in self.sinks.items()}

    def _sink(self, name: str, node: r.Node) -> Store:
        made = Store(name)
        self.sinks[node] = made
        return made

    def _new(self) -> str:
        return f"{self.folder}/c{next(NUMBERS)}"

    def _step(self, _: str) -> None:
        self.steps += 1
        if self.steps == self.crash_at:
            raise Crash

    def _due(self, harness: Harness, reached: int) -> list[tuple[str, Any]]:
        """What a start is given of the log: all of it while it recomputes (the same harness not again), otherwise what comes behind the positions that it knows."""
        records = self.records[:reached]
        if harness.record.recovery is not None:
            return [(name, x) for name, x in records if (name, x["p"], x["o"]) not in self.pushed]
        known = {(name, key): p.offset for name, s in harness.record.sources.items() for key, p in s.partitions.items()}
        return [(name, x) for name, x in records if x["o"] > known.get((name, str(x["p"])), -1)]

    def _feed(self, harness: Harness, todo: list[tuple[str, Any]], *, finish: bool) -> None:
        dice = self.dice
        most = dice.choice(
            [12, 30, 60] if harness.record.recovery is not None else [2, 5, 12, 60]
        )  # too small ones do not come by the marks
        while todo and not harness.record.finished:
            some = todo[: dice.randrange(1, most + 1)]
            del todo[: len(some)]
            self.pushed |= {(name, x["p"], x["o"]) for name, x in some}
            for name, source in self.sources.items():
                here = [x for n, x in some if n == name]
                if here:
                    harness.push(name, r.table(source, here))
            if self.silences and harness.record.recovery is None and dice.random() < 0.15:
                harness.epoch(advance_us=dice.choice([5, 60]) * r.SECOND)
            harness.epoch(*self._steered(harness), advance_us=dice.choice([1, 1, 60]) * r.SECOND if self.jumps else r.SECOND)
            if dice.random() < 0.12 and len(self.copies) < 3:
                self._keep(harness)
        while finish and not harness.record.finished:
            harness.epoch(*(harness.copy() if harness.record.ending else ["end"]))

    def _steered(self, harness: Harness) -> list[Any]:
        regions = [*harness.record.regions]
        out: list[Any] = harness.copy() if self.small else []
        if regions and self.rescales and self.dice.random() < 0.1:
            out.append({"command": "scale", "region": self.dice.choice(regions), "workers": self.dice.randrange(1, 5)})
        if self.dice.random() < 0.03:
            out.append({"command": "snapshot", "name": f"s{next(NUMBERS)}"})
        return out

    def _keep(self, harness: Harness) -> None:
        """Make a copy of the sinks, and sometimes of the checkpoint."""
        self.copies.append({node: sink.copy() for node, sink in self.sinks.items()})
        if self.dice.random() < 0.5:
            self.kept.append(self._new())
            shutil.copytree(harness.checkpoint, self.kept[-1], ignore=shutil.ignore_patterns("local"))
            self.pasts[self.kept[-1]] = self.trail.copy(), self.began

    def _disaster(self, folder: str) -> str:
        """What is lost between two starts; gives the checkpoint that is left."""
        dice = self.dice
        if self.copies and dice.random() < 0.35:
            copied = dice.choice(self.copies)
            for node in dice.sample(sorted(copied, key=self.recipe.nodes.index), dice.randrange(1, len(copied) + 1)):
                self.sinks[node].restore(copied[node])
        fate = dice.random()
        if fate < 0.55:
            self._back_to(None, ({}, {}))
            return self._new()
        if fate < 0.75 and self.kept:
            new, kept = self._new(), dice.choice(self.kept)
            shutil.copytree(kept, new)
            self._back_to(*self.pasts[kept])
            return new
        return folder

    def _back_to(self, trail: Any, began: Any) -> None:
        """What is known of the checkpoint that is left."""
        self.trail.restore(trail)
        self.began = began
