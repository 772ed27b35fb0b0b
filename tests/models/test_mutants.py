"""The checker is checked: break one guarantee at a time, and a small search must notice.

Every mutant is what a plausible mistake would do. The same search over the unbroken product finds nothing.
"""

from __future__ import annotations

import drawing
import numpy as np
import pytest
import recipes as r
from hypothesis import given
from hypothesis import strategies as st
from test_against_oracle import always_the_same, check

from penstock.driver import epoch
from penstock.errors import PenstockError
from penstock.routing.table import Routing
from penstock.rows import rows as rows_module
from penstock.sinks import marks
from penstock.state.worker import MemoryState
from penstock.testing import Harness, engine
from penstock.types import MAX_TIME, MIN_TIME
from penstock.worker.waiting_rows import Waiting


def a_flow() -> r.Recipe:
    """Two regions, order, windows, late records, three partitions."""
    source = r.Source("a", lateness_us=2 * r.SECOND, partitions=(0, 1, 2))
    first = r.KeyBy(source, ("k",), "first")
    told = r.Map(first, "history")
    windows = r.Totals(first, (("v", "sum", "v"), ("s", "concat", "s")), r.Window("tumbling", 5 * r.SECOND))
    second = r.KeyBy(told, ("j",), "second")
    counted = r.Map(second, "history")
    late = r.Late(source)
    return r.Recipe([source, first, told, windows, second, counted, late], [told, windows, counted, late])


def search() -> None:
    """Raise for the first difference that some dozen fixed examples show; each mutant needs ten at most."""

    @always_the_same(80)
    @given(st.data())
    def compare(data):
        recipe = a_flow()
        check(recipe, data.draw(drawing.records(recipe, most=45)), data.draw(drawing.courses))

    compare()


def lateness_judged_per_epoch(patch):
    def late(part, chunk, offset, time, candidate_chunks, lateness):
        before = {}
        for (number, _), base in candidate_chunks.items():
            before[number] = min(before.get(number, MAX_TIME), base.latest)
        return np.array(
            [
                before.get(p, MIN_TIME) != MIN_TIME and t < before[p] - lateness
                for p, t in zip(part.tolist(), time.tolist(), strict=True)
            ],
            bool,
        )

    patch.setattr(engine, "late_rows", late)


def lateness_judged_by_the_whole_source(patch):
    def late(part, chunk, offset, time, candidate_chunks, lateness):
        greatest = max((b.latest for b in candidate_chunks.values()), default=MIN_TIME)
        out = np.zeros(len(time), bool)
        for i in np.lexsort((offset, part)).tolist():
            out[i] = greatest != MIN_TIME and int(time[i]) < greatest - lateness
            greatest = max(greatest, int(time[i]))
        return out

    patch.setattr(engine, "late_rows", late)


def frontier_of_the_fastest_partition(patch):
    judge = epoch.check_lateness

    def fastest(before, chunks, **how):
        judged = judge(before, chunks, **how)
        seen = [p.latest - how["lateness_us"] for p in judged.state.partitions.values() if p.latest != MIN_TIME]
        judged.state.frontier = max([judged.state.frontier, *seen])
        return judged

    patch.setattr(epoch, "check_lateness", fastest)


def sink_ignores_its_mark(patch):
    patch.setattr(marks, "holds_epoch", lambda *_, **__: False)


def changes_of_an_epoch_that_was_not_committed_stay(patch):
    def stay(self):
        self.apply(self.changes())

    patch.setattr(MemoryState, "discard", stay)


def routing_changes_with_every_run(patch):
    runs = [0]
    restart, workers = Harness.restart, Routing.workers_of

    def salted(self, **how):
        runs[0] = self.runs = getattr(self, "runs", 0) + 1
        restart(self, **how)

    patch.setattr(Harness, "restart", salted)
    patch.setattr(Routing, "workers_of", lambda table, hashes: workers(table, hashes + runs[0] * 7919))


def rows_in_order_of_arrival(patch):
    def by_key(hashes, order, chosen=None, codes=None):
        rows = np.arange(len(hashes)) if chosen is None else chosen
        index = rows[np.argsort(hashes[rows], kind="stable")]
        return index, hashes[index], order.take(index)

    patch.setattr(rows_module, "grouped", by_key)


def ties_in_event_time_in_order_of_arrival(patch):
    def by_time(hashes, order, chosen=None, codes=None):
        rows = np.arange(len(hashes)) if chosen is None else chosen
        index = rows[np.lexsort((order.time[rows], *([] if codes is None else [codes[rows]]), hashes[rows]))]
        return index, hashes[index], order.take(index)

    patch.setattr(rows_module, "grouped", by_time)


def rows_do_not_wait(patch):
    patch.setattr("penstock.worker.task.Waiting.keep", lambda *_: None)


def rows_released_twice(patch):
    release = Waiting.release
    patch.setattr("penstock.worker.waiting_rows._SPANS", 2)  # many rows to a chunk, so that some stay when others go
    patch.setattr(Waiting, "release", lambda self, _, frontier: release(self, MIN_TIME, frontier))


def epoch_committed_before_it_is_stored(patch):
    store = epoch.EpochDriver._store

    def early(self, epoch, backend_, frames, decision):
        for name in self._flow.regions:
            frames.region(name)
        self._checkpoint.commit(self._record(epoch, decision), self._settings.run)
        store(self, epoch, backend_, frames, decision)

    patch.setattr(epoch.EpochDriver, "_store", early)


def late_records_lost(patch):
    source = engine.LocalBackend.source

    def lost(self, *args):
        return engine.SourceFrames(source(self, *args).on_time)

    patch.setattr(engine.LocalBackend, "source", lost)


MUTANTS = [
    lateness_judged_per_epoch,
    lateness_judged_by_the_whole_source,
    frontier_of_the_fastest_partition,
    sink_ignores_its_mark,
    changes_of_an_epoch_that_was_not_committed_stay,
    routing_changes_with_every_run,
    rows_in_order_of_arrival,
    ties_in_event_time_in_order_of_arrival,
    rows_do_not_wait,
    rows_released_twice,
    epoch_committed_before_it_is_stored,
    late_records_lost,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_when_a_guarantee_is_broken_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        search()


@pytest.mark.slow
def test_search_when_nothing_is_broken_finds_none():
    search()
