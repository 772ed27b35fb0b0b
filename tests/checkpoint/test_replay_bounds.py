"""A recomputation under way: what the next epoch reads, when it has come to a stop, and what is taken from the mark there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.recovery import Recovery, Stop, with_floors_of
from penstock.progress.source_state import PartitionState, SourceState
from penstock.types import MIN_TIME

FAR = (1 << 63) - 1


def source(**partitions: PartitionState) -> SourceState:
    return SourceState(partitions=partitions)


def at(offset: int, **about) -> PartitionState:
    return PartitionState(0, offset=offset, rows=offset + 1, latest=offset, **about)


def recovery(*stops: SourceState, **about) -> Recovery:
    return Recovery({}, {}, [Stop({"in": s}) for s in stops], {"low": 1, "high": 2, "new": 0}, **about)


def test_next_epoch_reads_up_to_the_next_stop_and_nothing_of_other_partitions():
    limits, files = recovery(source(a=at(5), b=at(7)), source(a=at(9))).limits("in", source(a=at(2), c=at(4)))
    assert limits == {"a": (2, 5), "b": (-1, 7), "c": (4, -1)}
    assert files == 0


def test_epoch_after_the_last_stop_reads_all_that_was_not_read():
    assert recovery().limits("in", source(a=at(2))) == ({"a": (2, FAR)}, None)


def test_epoch_ends_where_another_floor_began_to_hold():
    there = source(a=at(9, floors=[[-1, 0], [3, 10], [6, 20]]))
    reads = []
    offset = -1
    while offset < 9:
        offset = recovery(there).limits("in", source(a=at(offset)))[0]["a"][1]
        reads.append(offset)
    assert reads == [3, 6, 9]


def test_floors_hold_for_the_records_that_they_held_for():
    there = source(a=at(9, floors=[[3, 10], [6, 20]]))
    floors = [with_floors_of(source(a=at(o)), there).partitions["a"].late_floor for o in range(-1, 9)]
    assert floors == [MIN_TIME] * 4 + [10] * 3 + [20] * 3
    assert with_floors_of(source(a=at(8, late_floor=30)), there).partitions["a"].late_floor == 30
    assert with_floors_of(source(a=at(8)), None) == source(a=at(8))


def test_stop_is_reached_when_every_partition_is_there():
    one = recovery(source(a=at(5), b=at(7)))
    assert one.reached({"in": source(a=at(5), b=at(7), c=at(1))})
    assert not one.reached({"in": source(a=at(5), b=at(6))})
    assert not one.reached({"in": source(a=at(5))})
    assert not recovery().reached({"in": source(a=at(5))})


def test_stop_of_files_is_reached_when_as_many_are_read():
    one = recovery(SourceState(files=3, digest="d"))
    assert not one.reached({"in": SourceState(files=2)})
    assert one.reached({"in": SourceState(files=3)})
    assert one.limits("in", SourceState(files=1))[1] == 3


def test_output_is_given_rows_from_the_stop_of_its_own_mark_on():
    def given_rows(r: Recovery) -> list[str]:
        return [name for name in r.outputs if r.gives(name)]

    one = recovery(source(a=at(5)), source(a=at(9)))
    after = one.after(passed=True, again=False, rows=3, now_us=1)
    last = after.after(passed=True, again=False, rows=3, now_us=2)
    assert [given_rows(x) for x in (one, after, last)] == [["new"], ["low", "new"], ["low", "high", "new"]]
    assert [x.active for x in (one, after, last)] == [True, True, False]
    assert [x.ended_us for x in (one, after, last)] == [0, 0, 2]
    assert last.after(passed=False, again=False, rows=9, now_us=5).rows == 6  # what comes after is no replay


@pytest.mark.parametrize("change", [{"rows": 5}, {"rows": 7}, {"latest": 4}, {"latest": 6}], ids=str)
def test_log_when_number_or_times_of_records_differ_at_a_stop_is_refused_with_the_partition(change):
    one = recovery(source(a=at(5)))
    assert one.difference({"in": source(a=at(5))}) is None
    refused = one.difference({"in": source(a=replace(at(5), **change))})
    assert "partition 'a' of source 'in' has other records after position -1 and up to 5" in refused.sentence


def test_log_without_a_partition_of_the_mark_is_refused():
    assert "partition 'b'" in recovery(source(a=at(5), b=at(2))).difference({"in": source(a=at(5))}).sentence


def test_files_when_the_digest_differs_at_a_stop_are_refused():
    one = recovery(SourceState(files=3, digest="d"))
    assert one.difference({"in": SourceState(files=3, digest="d")}) is None
    assert "up to file 3 are not those" in one.difference({"in": SourceState(files=3, digest="e")}).sentence


def test_partition_that_has_records_behind_the_stop_and_lacks_the_one_at_it_is_refused():
    one = recovery(source(a=at(5)))
    assert one.overrun({"in": source(a=at(4))}, {"in": False}) is None
    assert "no record at position 5" in one.overrun({"in": source(a=at(4))}, {"in": True}).sentence
    assert one.overrun({"in": source(a=at(5))}, {"in": True}) is None


def test_at_a_stop_frontier_floors_and_idleness_are_those_of_the_mark():
    there = replace(source(a=at(5, late_floor=3, floors=[[2, 3]], idle=True)), frontier=40, idle=True)
    (found,) = recovery(there).at_stop({"in": source(a=at(5), b=at(1))}, 99).values()
    assert (found.frontier, found.idle, found.heard_us) == (40, True, 99)
    a = found.partitions["a"]
    assert (a.late_floor, a.floors, a.idle, a.heard_us) == (3, [[2, 3]], True, 99)
    assert found.partitions["b"] == at(1)


def test_what_is_missing_names_the_position_reached_and_the_one_needed():
    told = recovery(source(a=at(5), b=at(2))).missing({"in": source(a=at(4), b=at(2))})
    assert told == "partition 'a' of source 'in' ends at position 4, and the mark stands at 5"
    assert recovery(SourceState(files=3)).missing({"in": SourceState(files=1)}) == "source 'in' has 1 files of 3"


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 31), min_size=1, max_size=8),
    st.data(),
)
def test_replay_of_any_log_comes_by_every_stop_and_reads_each_record_once(ends, sizes, data):
    """However the log is cut, each epoch is given what is left over again."""
    one, state, read, given_up_to, passed = recovery(*(source(a=at(e)) for e in sorted(ends))), source(), [], -1, []
    for _ in range(200):
        after, upto = one.limits("in", state)[0].get("a", (-1, FAR))
        given_up_to = min(30, max(given_up_to, given_up_to + data.draw(st.sampled_from(sizes))))
        mine = [o for o in range(given_up_to + 1) if after < o <= upto]
        read += mine
        state = source(a=at(mine[-1])) if mine else state
        stopped = one.reached({"in": state})
        if stopped:
            passed.append(state.partitions["a"].offset)
            assert one.difference({"in": state}) is None
        one = one.after(passed=stopped, again=False, rows=len(mine), now_us=1)
        if len(read) == 31:
            break
    assert read == [*range(31)]
    assert passed == sorted(ends)


def test_frontier_before_a_stop_is_never_ahead_of_that_of_the_mark():
    one = recovery(replace(source(a=at(5)), frontier=40))
    assert one.before_stop({"in": SourceState(frontier=50)})["in"].frontier == 40
    assert one.before_stop({"in": SourceState(frontier=30)})["in"].frontier == 30
    assert recovery().before_stop({"in": SourceState(frontier=50)})["in"].frontier == 50
