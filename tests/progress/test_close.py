"""A source that is silent as a whole, declared with `close_after`: its frontier goes on by the clock, and what that passes is late."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest

import penstock as ps
from penstock.errors import DeclarationError
from penstock.progress.lateness import Chunk, check_lateness
from penstock.progress.source_state import SourceState
from penstock.testing import Crash, Harness
from penstock.types import MAX_TIME, MIN_TIME

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
S = 1_000_000


class Windows:
    """A harness over counts per ten seconds of one source or several. Times are seconds."""

    def __init__(self, folder, *sources, close_after="5 seconds", lateness="2 seconds", **options):
        flow, self.out, self.late = ps.Flow("closing"), ps.memory(f"{folder} counts"), ps.memory(f"{folder} late")
        about = {k: options.pop(k) for k in ("idle_after", "partitions", "position") if k in options}
        streams = [
            flow.source(
                s, ps.files("none", "at timestamp, v long"), time="at", close_after=close_after, lateness=lateness, **about
            )
            for s in sources
        ]
        both = streams[0].union(*streams[1:]).key_by("v % 1 AS k", name="r")
        both.window(ps.tumbling("10 seconds")).aggregate(n=ps.count()).sink(self.out, name="out")
        streams[0].late.sink(self.late, name="late")
        self.harness = Harness(flow, **options)

    def epoch(self, seconds=1, **seen):
        """One epoch, so much clock time after the one before; by source or `source_partition` the times that came; gives the windows so far."""
        for name, times in seen.items():
            source, _, partition = name.partition("_")
            self.harness.push(source, [{"at": BEGIN + dt.timedelta(seconds=t), "v": t} for t in times], partition or 0)
        self.harness.epoch(advance_us=int(seconds * S))
        return self.windows()

    def windows(self):
        return {int((r["window_start"].replace(tzinfo=dt.UTC) - BEGIN).total_seconds()): r["n"] for r in self.out.rows()}

    def late_times(self):
        return [r["v"] for r in self.late.rows()]


def test_last_window_when_its_source_is_silent_comes_out_when_its_time_has_passed(tmp_path):
    flow = Windows(tmp_path, "a")
    flow.epoch(a=[1, 3])  # the frontier is 1
    assert flow.epoch(5) == {}  # silent for 5 s, and not for longer
    assert flow.epoch(8.9) == {}
    assert flow.epoch(0.1) == {0: 2}  # 5 s + 9 s: the frontier is 10
    assert flow.epoch(1, a=[9, 10, 12]) == {0: 2}
    assert flow.late_times() == [9]
    assert flow.epoch(1, a=[23]) == {0: 2, 10: 2}


def test_record_that_comes_after_the_silence_with_the_time_of_the_clock_is_on_time(tmp_path):
    flow = Windows(tmp_path, "a")
    flow.epoch(a=[1])
    assert flow.epoch(60) == {0: 1}
    flow.epoch(1, a=[62, 60])
    assert flow.late_times() == []
    flow.harness.finish()
    assert flow.windows() == {0: 1, 60: 2}


def test_source_that_has_a_record_in_one_partition_is_not_silent(tmp_path):
    flow = Windows(tmp_path, "a")
    flow.epoch(a_0=[1], a_1=[1])
    for t in range(2, 30, 4):
        assert flow.epoch(4, a_0=[t]) == {}


def test_all_partitions_judge_what_comes_after_a_silence_by_the_frontier_also_those_that_come_later(tmp_path):
    flow = Windows(tmp_path, "a")
    flow.epoch(a_0=[4], a_1=[3])
    assert flow.epoch(25) == {0: 2}  # the frontier is 1 + 20
    flow.epoch(1, a_0=[22])
    flow.epoch(1, a_1=[20, 21], a_2=[20, 23])
    assert sorted(flow.late_times()) == [20, 20]
    flow.harness.finish()
    assert flow.windows() == {0: 2, 20: 3}


def test_frontier_that_has_gone_on_does_not_stay_behind_when_the_next_silence_begins(tmp_path):
    flow = Windows(tmp_path, "a", lateness=0)
    flow.epoch(a=[1])
    flow.epoch(25)  # the frontier is 21
    flow.epoch(1, a=[21])
    flow.epoch(6)
    assert flow.harness.record.sources["a"].frontier == int(BEGIN.timestamp() + 22) * S
    flow.epoch(4)
    assert flow.harness.record.sources["a"].frontier == int(BEGIN.timestamp() + 26) * S


def test_source_beside_one_that_is_silent_waits_no_longer_than_the_clock(tmp_path):
    flow = Windows(tmp_path, "a", "b")
    flow.epoch(a=[1], b=[1])
    for second in range(1, 16):
        assert flow.epoch(1, b=[1 + second]) == {}
    assert flow.epoch(1, b=[17]) == {0: 10}  # a is silent for 16 s: its frontier is at −1 + 11


def test_source_that_nothing_ever_came_from_has_no_time_to_go_on_from(tmp_path):
    flow = Windows(tmp_path, "a", "b")
    flow.epoch(b=[1])
    assert flow.epoch(1000, b=[100]) == {}
    flow.epoch(1, a=[1])
    assert flow.late_times() == []


def test_partition_that_must_be_heard_from_first_holds_back_a_silent_source(tmp_path):
    flow = Windows(tmp_path, "a", partitions=[0, 1], position=("v", "v"))
    flow.epoch(a_0=[1])
    assert flow.epoch(1000) == {}


def test_source_without_close_after_stays_where_its_records_are(tmp_path):
    flow = Windows(tmp_path, "a", close_after=None)
    flow.epoch(a=[1])
    assert flow.epoch(3600) == {}


def test_silence_counts_only_while_a_run_listens(tmp_path):
    first = Windows(tmp_path, "a", checkpoint=str(tmp_path / "c"))
    first.epoch(a=[1])
    second = Windows(tmp_path, "a", checkpoint=str(tmp_path / "c"))
    assert second.epoch(1000) == {}  # nothing can have been heard before its first epoch
    assert second.epoch(4, a=[2]) == {}
    assert second.late_times() == []
    assert second.epoch(15.1) == {0: 2}


@pytest.mark.parametrize("step", ["decide", "commit"])
def test_silence_when_an_epoch_runs_again_later_is_what_it_was(tmp_path, step):
    crashed = []

    def before(name):
        if name == step and flow.harness.record.epoch == 0 and not crashed:
            crashed.append(name)
            raise Crash(name)

    flow = Windows(tmp_path, "a", on_step=before)
    flow.epoch(a=[4])
    with contextlib.suppress(Crash):
        flow.epoch(13)
    assert crashed
    flow.harness.restart(forget_local_state=True)
    flow.harness.resume()
    assert flow.windows() == (
        {0: 1} if step == "commit" else {}
    )  # nothing was decided before the crash: the silence begins anew
    flow.epoch(0, a=[9, 10])
    assert flow.late_times() == ([9] if step == "commit" else [])


def test_what_the_clock_has_passed_stays_late_when_close_after_is_taken_out(tmp_path):
    first = Windows(tmp_path, "a", checkpoint=str(tmp_path / "c"))
    first.epoch(a=[1])
    assert first.epoch(25) == {0: 1}  # the frontier is −1 + 20
    second = Windows(tmp_path, "a", checkpoint=str(tmp_path / "c"), close_after=None)
    second.epoch(1)
    second.epoch(1, a=[5, 18, 19])
    assert second.late_times() == [5, 18]


def test_what_the_clock_has_passed_stays_late_when_the_clock_is_set_back(tmp_path):
    flow = Windows(tmp_path, "a")
    flow.epoch(a=[1])
    flow.epoch(25)
    flow.epoch(-3600)
    flow.epoch(1, a=[18, 19])
    assert flow.late_times() == [18]


def test_frontier_of_a_silent_source_never_comes_to_the_end_of_time():
    first = check_lateness(
        SourceState(), [Chunk("0", 0, 0, 5, MAX_TIME - 3, 0, 1)], lateness_us=0, idle_after_us=None, declared=(), now_us=1
    ).state
    after = check_lateness(first, [], lateness_us=0, idle_after_us=None, declared=(), now_us=90, close_after_us=1).state
    assert (first.frontier, after.frontier) == (MAX_TIME - 3, MAX_TIME - 1)
    assert after.frontier > MIN_TIME


def test_close_after_without_event_time_or_of_no_time_is_refused():
    flow = ps.Flow("refused")
    with pytest.raises(
        DeclarationError,
        match=r"^Source 'a' has close_after='5 seconds' and no event time, which alone can go on; declare time= and a duration above 0, "
        r"or leave close_after= out\.$",
    ):
        flow.source("a", ps.files("none", "at timestamp"), close_after="5 seconds")
    with pytest.raises(
        DeclarationError, match=r"has close_after=0 and no time to fall silent in; declare time= and a duration"
    ):
        flow.source("a", ps.files("none", "at timestamp"), time="at", close_after=0)
