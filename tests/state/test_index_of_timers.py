"""The store's index of timers: an entry is found there at its timer or earlier, so that a timer that is put off leaves it as it is."""

from __future__ import annotations

import shutil
import tempfile

import pyarrow.fs as pafs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from state_rows import times, versions

from penstock.state import LocalStore, environment
from penstock.types import MAX_TIME, MIN_TIME

KEYS = [b"00a", b"00a1", b"00b", b"01a"]
EDGES = [MIN_TIME, -3, MAX_TIME - 1, MAX_TIME]
soon = st.integers(0, 4).map(lambda n: ("soon", 10 * n))  # after the epoch's own time
change = st.one_of(st.none(), st.sampled_from(EDGES).map(lambda t: ("at", t)), soon, soon)
epochs = st.lists(st.tuples(st.dictionaries(st.sampled_from(KEYS), change, max_size=3), st.booleans()), min_size=3, max_size=9)


def index(folder):
    """What the index has: (operator, time, key)."""
    found = environment.open_environment(folder, "me", "boot", 1 << 26)
    with found.env.begin(db=found.timers) as txn, txn.cursor() as cursor:
        names = list(cursor.iternext(values=False))
    return [(chr(n[0]), int.from_bytes(n[1:9], "big") - (1 << 63), n[9:]) for n in names]


def due(model, operator, upto):
    found = sorted((t, k) for k, (_, t) in model.items() if k[2] == operator and t < upto and t != MAX_TIME)
    return [(k, model[k][0]) for _, k in found]


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(work=epochs)
def test_due_when_timers_come_go_and_are_put_off_then_as_in_a_plain_dict(work):
    root = tempfile.mkdtemp(prefix="penstock-index-")
    fs, model = pafs.LocalFileSystem(), {}
    changes = [
        {k: None if t is None else (b"%d" % n, t[1] + 10 * n * (t[0] == "soon")) for k, t in changed.items()}
        for n, (changed, _) in enumerate(work)
    ]
    try:
        store = LocalStore.open(f"{root}/local", "me", "boot", 1 << 26)
        made = versions(fs, root, *changes)
        for n, (version, changed, (_, asks)) in enumerate(zip(made, changes, work, strict=True)):
            store.catch_up(fs, root, version)
            model = {k: e for k, e in {**model, **changed}.items() if e is not None}
            with store.at(fs, root, version) as state:
                for operator in b"ab" if asks else b"":
                    assert state.due(operator, 10 * n + 15) == due(model, operator, 10 * n + 15)
                assert [entry for entry in state.entries(b"") if entry[2] < MAX_TIME] == sorted(
                    (k, v, t) for k, (v, t) in model.items() if t < MAX_TIME
                )
            places = index(f"{root}/local")
            keys = [key for _, _, key in places]
            assert len(keys) == len(set(keys))
            assert set(keys) >= {k for k, (_, t) in model.items() if t < MAX_TIME}
            assert all(operator == chr(key[2]) and at <= model[key][1] for operator, at, key in places)
        with store.at(fs, root, version) as state:
            for operator in b"ab":
                assert state.due(operator, MAX_TIME) == due(model, operator, MAX_TIME)
    finally:
        environment.close_environment(f"{root}/local")
        shutil.rmtree(root)


def test_index_when_a_timer_is_put_off_then_moves_only_after_its_place_was_reached(fs, root, tmp_path):
    local = str(tmp_path / "local")
    a, b = b"00a", b"00b"
    timers = [{a: 10, b: 10}, {a: 20}, {a: 30}, {a: 40}, {b: 12}, {b: 15}, {a: MAX_TIME}]
    made = versions(fs, root, *({k: (b"v", t) for k, t in one.items()} for one in timers))
    store = LocalStore.open(local, "me", "boot", 1 << 26)
    for version in made[:3]:
        store.catch_up(fs, root, version)
        assert index(local) == [("a", 10, a), ("b", 10, b)]
    with store.at(fs, root, made[2]) as state:
        assert state.get_timed([a, b])[1].tolist() == times(30, 10).tolist()
        assert state.due(ord("a"), 11) == []
    store.catch_up(fs, root, made[3])
    assert index(local) == [("a", 40, a), ("b", 10, b)]
    with store.at(fs, root, made[3]) as state:
        assert state.due(ord("a"), 41) == [(a, b"v")]
    store.catch_up(fs, root, made[4])
    assert index(local) == [("a", 40, a), ("b", 10, b)]
    with store.at(fs, root, made[4]) as state:
        assert state.due(ord("b"), 12) == []
    store.catch_up(fs, root, made[5])
    assert index(local) == [("a", 40, a), ("b", 15, b)]
    store.catch_up(fs, root, made[6])
    assert index(local) == [("b", 15, b)]
    environment.close_environment(local)


def test_index_when_an_entry_that_was_put_off_is_idle_then_is_not_found_again_and_again(fs, root, tmp_path):
    local = str(tmp_path / "local")
    made = versions(fs, root, {b"00a": (b"v", 10)}, {b"00a": (b"v", 90)}, {b"00b": b"1"}, {b"00b": b"2"}, {b"00a": (b"v", 95)})
    store = LocalStore.open(local, "me", "boot", 1 << 26)
    store.catch_up(fs, root, made[0])
    store.catch_up(fs, root, made[1])
    with store.at(fs, root, made[1]) as state:
        assert state.due(ord("a"), 20) == []
    assert index(local) == [("a", 10, b"00a")]
    store.catch_up(fs, root, made[2])
    assert index(local) == [("a", 90, b"00a")]
    for version in made[3:]:
        store.catch_up(fs, root, version)
        assert index(local) == [("a", 90, b"00a")]
    environment.close_environment(local)


def test_due_when_a_timer_was_put_off_behind_another_then_comes_after_it(fs, root, tmp_path):
    local = str(tmp_path / "local")
    made = versions(fs, root, {b"00a": (b"v", 10), b"01a": (b"v", 20)}, {b"00a": (b"v", 30)})
    store = LocalStore.open(local, "me", "boot", 1 << 26)
    for version in made:
        store.catch_up(fs, root, version)
    with store.at(fs, root, made[1]) as state:
        assert state.due(ord("a"), 31) == [(b"01a", b"v"), (b"00a", b"v")]
    environment.close_environment(local)
