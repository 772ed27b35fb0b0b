from __future__ import annotations

import pytest
from state_rows import times

from penstock.errors import StateError
from penstock.state import MemoryState
from penstock.types import MAX_TIME, MIN_TIME


def test_put_when_then_read_then_seen_before_any_commit():
    state = MemoryState()
    state.put_many([b"00a", b"00b", b"00a"], [b"1", b"2", b"3"])
    assert state.get_many([b"00b", b"00a", b"00c", b"00a"]) == [b"2", b"3", None, b"3"]


def test_changes_when_put_and_deleted_then_harmless_delete_in_key_order():
    state = MemoryState()
    state.put_many([b"00b", b"00a", b"00c"], [b"2", b"1", b""], times(5, MAX_TIME, 6))
    state.delete_many([b"00b"])
    assert state.changes().to_pylist() == [
        {"key": b"00a", "value": b"1", "timer": MAX_TIME},
        {"key": b"00b", "value": None, "timer": MAX_TIME},
        {"key": b"00c", "value": b"", "timer": 6},
    ]


def test_put_when_without_timers_then_old_timer_goes():
    state = MemoryState()
    state.put_many([b"00aX"], [b"1"], times(5))
    assert state.due(ord("a"), 6) == [(b"00aX", b"1")]
    state.put_many([b"00aX"], [b"2"])
    assert state.due(ord("a"), 6) == []


@pytest.mark.parametrize("committed", [False, True])
def test_due_when_times_tie_then_ordered_by_time_and_key_and_bound_is_excluded(committed):
    state = MemoryState()
    keys = [b"00aZ", b"00aY", b"00aX", b"00aW", b"00bX", b"00aV", b"00aU"]
    state.put_many(keys, [b"v"] * 7, times(5, 5, -1, 6, 0, MIN_TIME, MAX_TIME))
    if committed:
        state.apply(state.changes())
    assert [key for key, _ in state.due(ord("a"), 6)] == [b"00aV", b"00aX", b"00aY", b"00aZ"]


def test_due_when_committed_entry_is_moved_or_deleted_then_old_timer_does_not_fire():
    state = MemoryState()
    state.put_many([b"00aX", b"00aY"], [b"1", b"2"], times(5, 5))
    state.apply(state.changes())
    state.put_many([b"00aX"], [b"3"], times(9))
    state.delete_many([b"00aY"])
    assert state.due(ord("a"), 6) == []
    assert state.due(ord("a"), 10) == [(b"00aX", b"3")]


def test_scan_when_written_in_turn_then_always_sorted_and_complete():
    state = MemoryState()
    for number in range(200):
        name = b"00%03d" % (number * 77 % 200)
        state.put_many([name], [name])
        found = state.scan(b"00")
        assert len(found) == number + 1
        assert found == sorted(found)
    assert [key for key, _ in state.scan(b"0019")] == [b"0019%d" % digit for digit in range(10)]


def test_scan_when_many_are_written_between_then_none_is_missed():
    state = MemoryState()
    for first in (0, 1):
        keys = [b"00%03d" % number for number in range(198 + first, -1, -2)]
        state.put_many(keys, keys)
        assert [key for key, _ in state.scan(b"0010")] == sorted(
            key for key in state.changes()["key"].to_pylist() if key[:4] == b"0010"
        )
    assert len(state.scan(b"0010")) == 10


@pytest.mark.parametrize("call", ["get_many", "put_many", "delete_many"])
@pytest.mark.parametrize(("key", "words"), [(b"x" * 481, "has 481 bytes, more than 480"), (b"xx", "has 2 bytes, but")])
def test_any_call_when_key_length_is_wrong_then_refused_and_nothing_written(call, key, words):
    state = MemoryState()
    keys = [b"00a", key]
    with pytest.raises(StateError, match=words):
        getattr(state, call)(keys, *([[b"", b""]] if call == "put_many" else []))
    assert state.changes().num_rows == 0


def test_put_when_lengths_differ_then_refused_and_nothing_written():
    state = MemoryState()
    for values, timers, words in (
        ([b"1"], None, "2 keys, 1 values and no timers"),
        ([b"1", b"2"], times(1), "2 values and 1 timers"),
    ):
        with pytest.raises(StateError, match=words):
            state.put_many([b"00a", b"00b"], values, timers)
    assert state.changes().num_rows == 0


def test_memory_when_discarded_then_as_at_last_apply():
    state = MemoryState()
    state.put_many([b"00a"], [b"1"])
    state.apply(state.changes())
    state.put_many([b"00a", b"00b"], [b"2", b"2"], times(1, 2))
    state.discard()
    assert state.scan(b"") == [(b"00a", b"1")]
    assert state.due(ord("a"), MAX_TIME) == []
    assert [batch.to_pylist() for batch in state.iterate()] == [[{"key": b"00a", "value": b"1", "timer": MAX_TIME}]]
