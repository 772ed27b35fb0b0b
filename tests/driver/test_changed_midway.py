"""Code that changes at a bad moment: when a sink holds an epoch that is not committed, or a region upstream has a key on hold."""

from __future__ import annotations

import itertools

import pytest
from changing import SCHEMA, Reader, counted, row

import penstock as ps
from penstock.errors import ChangedFlowError
from penstock.protocol.rescale import Limits
from penstock.testing import Crash, Harness

NUMBERS = itertools.count()


def windowed(stream, **aggregates):
    return stream.window(ps.tumbling("10 seconds")).aggregate(**(aggregates or {"n": ps.count()}))


class Started:
    """One checkpoint; each start may have another declaration, with as many sinks as it likes, and may crash before a step."""

    def __init__(self, folder):
        self.folder, self.number = str(folder / "checkpoint"), next(NUMBERS)

    def table(self, name):
        return ps.memory(f"midway {name} {self.number}")

    def rows(self, name):
        return [tuple(r[n] for n in r if n not in ("k", "window_end")) for r in self.table(name).rows()]

    def harness(self, declare, *, crash=None, lateness="10 seconds", **options):
        def before(step):
            if crash is not None and step.startswith(crash):
                raise Crash

        flow = ps.Flow("midway")
        declare(self, flow.source("s", Reader(SCHEMA), time="at", lateness=lateness))
        return Harness(flow, checkpoint=self.folder, on_step=before, **options)

    def run(self, declare, *rows, end=False, **options):
        with self.harness(declare, **options) as harness:
            harness.push("s", list(rows))
            try:
                harness.epoch()
            except Crash:
                assert "crash" in options
            if end:
                harness.finish()


@pytest.fixture
def started(tmp_path):
    return Started(tmp_path)


def windows(at, stream):
    windowed(stream.key_by("k")).sink(at.table("m"))


def starts(started):
    return [(r["window_start"].second, r["n"]) for r in started.table("m").rows()]


CHANGES = {
    "a lesser lateness": (windows, {"lateness": "1 second"}),
    "a filter": (lambda at, s: windowed(s.where("x > 1").key_by("k")).sink(at.table("m")), {}),
    "a step before": (lambda at, s: windowed(s.key_by("k").deduplicate("id")).sink(at.table("m")), {}),
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("which", CHANGES)
def test_change_when_a_sink_holds_an_epoch_that_is_not_committed_is_refused_until_it_is(which, first, started):
    changed, options = CHANGES[which]
    if not first:
        started.run(windows, row(0))
    started.run(windows, row(1), row(15), crash="commit")
    for _ in range(2):
        with pytest.raises(
            ChangedFlowError, match=r"Output 'k.aggregate' of checkpoint .* holds epoch .* start the flow as it was"
        ):
            started.run(changed, row(1), row(15), **options)
    started.run(windows, row(1), row(15))
    started.run(changed, row(27), row(39), end=True, **options)
    assert starts(started) == [(0, 1 if first else 2), (10, 1), (20, 1), (30, 1)]


@pytest.mark.parametrize("which", CHANGES)
def test_going_back_to_the_old_code_when_the_sink_holds_an_epoch_of_the_new_is_refused_until_it_is_committed(which, started):
    changed, options = CHANGES[which]
    started.run(windows, row(0))
    started.run(changed, row(3), row(15), crash="commit", **options)
    with pytest.raises(ChangedFlowError, match="start the flow as it was"):
        started.run(windows, row(3), row(15))
    started.run(changed, row(3), row(15), end=True, **options)
    assert starts(started) == [(0, 2), (10, 1)]


@pytest.mark.parametrize("crash", ["decide", "compute"])
@pytest.mark.parametrize("which", CHANGES)
def test_change_when_the_run_before_crashed_ahead_of_its_sink_goes_on(crash, which, started):
    changed, options = CHANGES[which]
    started.run(windows, row(0))
    started.run(windows, row(3), row(15), crash=crash)
    started.run(changed, row(3), row(15), end=True, **options)
    assert starts(started) == [(0, 2), (10, 1)]


def test_change_of_what_does_not_feed_the_output_that_is_ahead_goes_on(started):
    def both(step):
        def declare(at, stream):
            stream.select("x").sink(at.table("raw"))
            step(stream.key_by("k")).sink(at.table("n"))

        return declare

    started.run(both(counted), row(1), row(15), crash="compute k.")
    started.run(both(lambda keyed: counted(keyed.deduplicate("id"), name="stateful_map")), row(1), row(15), end=True)
    assert started.rows("raw") == [(1,), (15,)]
    assert started.rows("n") == [(1, 1), (15, 2)]


def test_region_that_comes_to_read_one_with_a_key_on_hold_is_refused_until_the_rescale_has_ended(started):
    limits = Limits(first_bytes=40, least_bytes=40, most_bytes=80, hold_bytes=60)

    def pinned_keys(at, stream):
        counted(stream.key_by("k", name="a")).sink(at.table("a"))
        windowed(stream.key_by("k", name="c")).sink(at.table("m"))

    def behind(at, stream):
        first = counted(stream.key_by("k", name="a"))
        first.sink(at.table("a"))
        windowed(first.local().with_columns(k="'z'").key_by("k", name="c")).sink(at.table("m"))

    rows = [row(i, k=f"{i}{'k' * 90}") for i in range(8)]
    with started.harness(pinned_keys, limits=limits, workers=2) as harness:
        harness.push("s", rows)
        harness.epoch()
        harness.push("s", [row(40)])
        harness.scale("a", 5)
        for _ in range(20):
            if harness.record.regions["a"].control.held:
                break
            harness.epoch()
        harness.push("s", [{**r, "x": r["x"] + 40, "at": row(r["x"] + 40)["at"]} for r in rows])
        harness.epoch()
        harness.push("s", [row(100)])
        harness.epoch()
        assert harness.record.regions["a"].control.held
        assert not harness.record.regions["c"].control.held
    given = len(started.rows("m"))
    with pytest.raises(
        ChangedFlowError, match=r"State of region 'c' .* comes to read region 'a', where a key is on hold .* until its rescale"
    ):
        started.harness(behind, limits=limits, workers=2)
    with started.harness(pinned_keys, limits=limits, workers=2) as harness:
        harness.settle()
    with started.harness(behind, limits=limits, workers=2) as harness:
        harness.finish()
    last = [(r["k"], r["n"]) for r in started.table("m").rows()[given:]]
    assert sorted(last) == [
        ("a", 1),
        ("z", 1),
    ]  # the record of 100, which waited at both: as it was read, and as it is read now
