from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import lmdb
import pytest
from state_rows import content, rows, times, versions, write

from penstock.errors import StateError, TornFileError
from penstock.state import CatchUp, LocalStore, Metadata, Version, compact, environment, recent_changes
from penstock.state import store as state_store
from penstock.types import MAX_TIME, plain

EPOCHS = [{b"00a": b"1", b"00b": (b"1", 5)}, {b"00a": b"2"}, {b"00b": None, b"00c": b"3"}]
LAST = {b"00a": b"2", b"00c": b"3"}


@pytest.fixture
def local(tmp_path):
    yield str(tmp_path / "local")
    environment.close_environment(str(tmp_path / "local"))


def open_store(local, identity="me", boot="boot", map_size=1 << 26):
    return LocalStore.open(local, identity, boot, map_size)


def open_environment(local):
    return environment.open_environment(local, "me", "boot", 1 << 26)


def test_catch_up_when_fresh_behind_and_level_then_only_missing_files_are_applied(fs, root, local):
    first, _, last = versions(fs, root, *EPOCHS)
    store = open_store(local)
    assert store.catch_up(fs, root, first) == CatchUp(rebuilt=True, files=1, rows=2)
    assert store.catch_up(fs, root, last) == CatchUp(rebuilt=False, files=2, rows=3)
    assert store.catch_up(fs, root, last) == CatchUp(rebuilt=False, files=0, rows=0)
    assert open_store(local).catch_up(fs, root, last) == CatchUp(rebuilt=False, files=0, rows=0)
    with store.at(fs, root, last) as state:
        assert content(state) == LAST


def test_catch_up_when_ahead_then_rebuilt(fs, root, local):
    first, _, last = versions(fs, root, *EPOCHS)
    store = open_store(local)
    store.catch_up(fs, root, last)
    assert store.catch_up(fs, root, first).rebuilt
    with store.at(fs, root, first) as state:
        assert content(state) == {b"00a": b"1", b"00b": b"1"}
        assert state.due(ord("b"), MAX_TIME) == [(b"00b", b"1")]


def test_catch_up_when_base_was_compacted_then_store_at_or_after_it_stays(fs, root, local):
    first, second, last = versions(fs, root, *EPOCHS)
    compacted = last.with_base(compact(fs, root, second, "b", Metadata("base", "me", 1), "s"))
    store = open_store(local)
    store.catch_up(fs, root, second)
    assert store.catch_up(fs, root, compacted) == CatchUp(rebuilt=False, files=1, rows=2)
    store.catch_up(fs, root, first)
    assert store.catch_up(fs, root, compacted) == CatchUp(rebuilt=True, files=2, rows=4)
    with store.at(fs, root, compacted) as state:
        assert content(state) == LAST


@pytest.mark.parametrize("other", [{"identity": "you"}, {"boot": "another"}])
def test_open_when_of_another_identity_or_boot_then_rebuilt(fs, root, local, other):
    last = versions(fs, root, *EPOCHS)[-1]
    open_store(local, **other).catch_up(fs, root, last)
    before = Path(local, "data.mdb").stat()
    mine = open_store(local)
    # What another boot left must not even be mapped, so the file itself is a new one.
    assert Path(local, "data.mdb").stat().st_size < before.st_size
    assert mine.catch_up(fs, root, last).rebuilt


def test_open_when_another_process_replaced_the_files_then_the_new_ones_are_opened(fs, root, local, tmp_path):
    last = versions(fs, root, *EPOCHS)[-1]
    open_store(local).catch_up(fs, root, last)
    shutil.copytree(local, tmp_path / "copy")
    for name in ("data.mdb", "lock.mdb"):
        Path(local, name).unlink()
    shutil.copy(tmp_path / "copy" / "data.mdb", local)
    with open_store(local).at(fs, root, last) as state:
        assert content(state) == LAST
    there = Path(local, "data.mdb").stat()
    assert open_environment(local).inode == (there.st_dev, there.st_ino)


def test_open_when_another_holds_the_guard_then_waits(local):
    Path(local).mkdir()
    with Path(local).parent.joinpath("guard").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        waiting = threading.Thread(target=open_store, args=(local,))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(20)
    assert not waiting.is_alive()


def test_open_when_owner_file_was_copied_then_record_inside_still_decides(fs, root, local):
    last = versions(fs, root, *EPOCHS)[-1]
    open_store(local, identity="you").catch_up(fs, root, last)
    owner = Path(local, "owner.json")
    owner.write_text(owner.read_text().replace("you", "me"))
    assert open_store(local).catch_up(fs, root, last).rebuilt


@pytest.mark.parametrize("keep", [0, 100, 4096, 8192, -4096])
@pytest.mark.parametrize("cached", [True, False])
def test_open_when_data_is_truncated_then_rebuilt_not_mapped(fs, root, local, keep, cached):
    last = versions(fs, root, {b"00%05d" % n: b"x" * 50 for n in range(2000)})[-1]
    store = open_store(local)
    store.catch_up(fs, root, last)
    if not cached:
        store.close()
    data = Path(local, "data.mdb")
    os.truncate(data, keep if keep >= 0 else data.stat().st_size + keep)
    assert open_store(local).catch_up(fs, root, last).rebuilt
    with open_store(local).at(fs, root, last) as state:
        assert len(state.scan(b"")) == 2000


@pytest.mark.parametrize(("start", "end"), [(0, 160), (16, 160), (20, 24), (24, 160)])
def test_open_when_header_is_garbage_then_rebuilt(fs, root, local, start, end):
    last = versions(fs, root, *EPOCHS)[-1]
    store = open_store(local)
    store.catch_up(fs, root, last)
    store.close()
    data = Path(local, "data.mdb")
    raw = bytearray(data.read_bytes())
    for page in (0, 4096):
        raw[page + start : page + end] = b"\xa5" * (end - start)
    data.write_bytes(raw)
    assert open_store(local).catch_up(fs, root, last).rebuilt


def test_open_when_directory_was_deleted_while_open_then_rebuilt(fs, root, local):
    last = versions(fs, root, *EPOCHS)[-1]
    open_store(local).catch_up(fs, root, last)
    shutil.rmtree(local)
    assert open_store(local).catch_up(fs, root, last).rebuilt


def test_at_when_directory_was_deleted_then_what_this_process_holds_is_not_read_again(fs, root, local):
    store, last = open_store(local), versions(fs, root, *EPOCHS)[-1]
    for version in (Version(), last):
        store.at(fs, root, version).close()
    held = recent_changes.held(local)
    assert held.lineage == last.lineage()
    shutil.rmtree(local)
    for delta in last.deltas:
        Path(root, delta.path).unlink()
    with store.at(fs, root, last) as state:
        assert content(state) == LAST
    recent_changes.evict(local)
    shutil.rmtree(local)
    with pytest.raises(TornFileError, match="d0 is missing"):
        store.at(fs, root, last)


def test_fill_up_when_file_is_shorter_than_its_header_says_then_extended(fs, root, local):
    store = open_store(local)
    store.catch_up(fs, root, versions(fs, root, *EPOCHS)[-1])
    data = Path(local, "data.mdb")
    whole, opened = data.stat().st_size, open_environment(local)
    os.truncate(data, whole - 4096)
    environment.fill_up(local, opened)
    assert data.stat().st_size == whole


def test_at_when_a_file_is_torn_then_named_and_store_keeps_what_it_has(fs, root, local):
    first, _, last = versions(fs, root, *EPOCHS)
    store = open_store(local)
    store.catch_up(fs, root, first)
    Path(root, "d2").write_bytes(b"torn")
    with pytest.raises(TornFileError, match=f"{root}/d2 is truncated to 4 of"):
        store.at(fs, root, last)
    base = write(fs, root, "b", {b"00z": b"1"}, 9, "base", lineage="elsewhere")
    Path(root, "b").unlink()
    with pytest.raises(TornFileError, match=f"{root}/b is missing"):
        store.at(fs, root, Version(9, base))
    Path(root, "d2").unlink()
    write(fs, root, "d2", EPOCHS[2], 2)
    assert store.catch_up(fs, root, last) == CatchUp(rebuilt=False, files=2, rows=3)


def stored_lineage(local):
    opened = open_environment(local)
    with opened.env.begin() as txn:
        return json.loads(txn.get(b"store", db=opened.meta))["lineage"]


def held_rows(local):
    layer = recent_changes.held(local)
    return None if layer is None else len(layer.changes.values)


def test_at_when_few_deltas_are_lacking_then_held_and_put_into_the_store_together(fs, root, local):
    made = versions(fs, root, *({b"00a": b"%d" % n, b"00%02d" % n: (b"v", n)} for n in range(20)))
    store = open_store(local)
    stored = []
    for n, version in enumerate(made):
        with store.at(fs, root, version) as state:
            assert content(state) == {b"00a": b"%d" % n} | {b"00%02d" % i: b"v" for i in range(n + 1)}
            assert [key for key, _ in state.due(ord("0"), MAX_TIME)] == [b"00%02d" % i for i in range(min(n + 1, 10))]
            assert state.measure(0, 1 << 16, 1)[0] == [(0x3030, sum(len(k) + len(v) + 8 for k, v in content(state).items()))]
        stored.append(version.lineages().index(stored_lineage(local)) - 1)
    assert stored == [0] * 9 + [9] * 9 + [18] * 2  # by the number of the epoch
    assert held_rows(local) == 2
    assert store.catch_up(fs, root, made[-1]).files == 1


@pytest.mark.parametrize(
    "entries", [{b"00%05d" % n: b"v" for n in range((1 << 16) + 1)}, {b"00a": os.urandom(5 << 20)}, {b"00a": bytes(9 << 20)}]
)
def test_at_when_a_delta_is_large_then_put_into_the_store_at_once(fs, root, local, entries):
    first, second = versions(fs, root, {b"00b": b"1"}, entries)
    store = open_store(local)
    for version in (first, second):
        with store.at(fs, root, version) as state:
            assert state.get_many([b"00b", b"00a"]) == [b"1", entries.get(b"00a") if version is second else None]
        assert stored_lineage(local) == version.lineage()


def test_at_when_a_base_is_adopted_that_the_store_lacks_then_what_is_held_brings_it_there(fs, root, local):
    made = versions(fs, root, *({b"00%02d" % n: b"v"} for n in range(6)))
    store = open_store(local)
    for version in made[:5]:
        store.at(fs, root, version).close()
    adopted = made[5].with_base(compact(fs, root, made[3], "b", Metadata("base", "me", 3), "s"))
    Path(root, "b").unlink()  # to fill the store anew would need it
    with store.at(fs, root, adopted) as state:
        assert sorted(content(state)) == [b"00%02d" % n for n in range(6)]


def test_at_when_a_process_holds_none_of_many_deltas_then_they_are_put_into_the_store(fs, root, local):
    most = recent_changes.READ_DELTAS
    made = versions(fs, root, *({b"00a": b"%d" % n} for n in range(2 * most + 2)))
    store = open_store(local)
    store.at(fs, root, made[0]).close()
    for at, stored in ((most, 0), (2 * most + 1, 2 * most + 1)):  # so many are read, one more is not
        recent_changes.evict(local)
        with store.at(fs, root, made[at]) as state:
            assert content(state) == {b"00a": b"%d" % at}
        assert stored_lineage(local) == made[stored].lineage()


def test_measure_when_another_process_moves_the_store_meanwhile_then_as_before(fs, root, local):
    made = versions(fs, root, {b"00a": b"1"}, {b"00a": b"22", b"00b": b"2"}, {b"00a": b"333"})
    store = open_store(local)
    store.at(fs, root, made[0]).close()
    with store.at(fs, root, made[1]) as state:
        store.catch_up(fs, root, made[2])
        assert state.measure(0, 1 << 16, 9) == ([(0x3030, 3 + 2 + 8 + 3 + 1 + 8)], 1 << 16)


def test_held_when_another_process_moves_the_store_then_not_put_over_it(fs, root, local):
    made = versions(fs, root, *({b"00a": b"%d" % n} for n in range(12)))
    store = open_store(local)
    for version in made[:9]:
        store.at(fs, root, version).close()
    mine = recent_changes.held(local)
    recent_changes.evict(local)
    store.catch_up(fs, root, made[10])
    recent_changes.hold(local, mine)
    with store.at(fs, root, made[11]) as state:
        assert content(state) == {b"00a": b"11"}
    with store.at(fs, root, made[10]) as state:
        assert content(state) == {b"00a": b"10"}


def test_held_when_the_store_moves_before_it_is_put_there_then_the_store_is_left_alone(fs, root, local, monkeypatch):
    made = versions(fs, root, *({b"00a": b"%d" % n} for n in range(5)))
    store = open_store(local)
    for version in made[:3]:
        store.at(fs, root, version).close()
    nearer = LocalStore._nearer

    def overtaken(store, *given):
        found = nearer(store, *given)
        monkeypatch.setattr(LocalStore, "_nearer", nearer)
        store._apply_missing(fs, root, made[4])
        return found

    monkeypatch.setattr(LocalStore, "_nearer", overtaken)
    assert store.catch_up(fs, root, made[4]) == CatchUp(rebuilt=False, files=0, rows=0)
    with store.at(fs, root, made[4]) as state:
        assert content(state) == {b"00a": b"4"}


def test_held_when_the_next_epoch_is_held_as_well_then_an_earlier_state_does_not_see_it(fs, root, local):
    made = versions(fs, root, *({b"00a": (b"%d" % n, n)} for n in range(3)))
    store = open_store(local)
    store.at(fs, root, made[0]).close()
    with store.at(fs, root, made[1]) as old, store.at(fs, root, made[2]) as new:
        assert content(old) == {b"00a": b"1"}
        assert old.due(ord("a"), 2) == [(b"00a", b"1")]
        assert content(new) == {b"00a": b"2"}
        assert new.due(ord("a"), 2) == []


def test_held_when_there_are_many_stores_then_only_of_some(fs, root, tmp_path):
    first, second = versions(fs, root, {b"00a": b"1"}, {b"00a": b"2"})
    for n in range(20):
        store = open_store(str(tmp_path / f"host/{n}"))
        for version in (first, second):
            store.at(fs, root, version).close()
    assert [n for n in range(20) if held_rows(str(tmp_path / f"host/{n}"))] == list(range(12, 20))
    for n in range(20):
        LocalStore.open(str(tmp_path / f"host/{n}"), "me", "boot", 1 << 26).close()


def test_at_when_the_store_moves_on_then_an_earlier_snapshot_does_not(fs, root, local):
    first, _, last = versions(fs, root, *EPOCHS)
    store = open_store(local)
    with store.at(fs, root, first) as old, store.at(fs, root, last) as new:
        assert content(old) == {b"00a": b"1", b"00b": b"1"}
        assert content(new) == LAST
        assert old.due(ord("b"), 6) == [(b"00b", b"1")]


def test_at_when_own_changes_are_abandoned_then_never_seen_again(fs, root, local):
    last = versions(fs, root, *EPOCHS)[-1]
    store = open_store(local)
    with store.at(fs, root, last) as state:
        state.put_many([b"00a"], [b"abandoned"], times(1))
    with store.at(fs, root, last) as state:
        assert content(state) == LAST
        assert state.due(ord("a"), MAX_TIME) == []


def test_load_when_base_is_not_sorted_then_refused(fs, root, local):
    base = write(fs, root, "b", [rows({b"00b": b"1"}), rows({b"00a": b"1"})], 0, "base")
    with pytest.raises(StateError, match="The base b is not sorted by key"):
        open_store(local).catch_up(fs, root, Version(0, base))


def test_load_when_base_has_timers_in_many_parts_then_all_are_indexed(fs, root, local, monkeypatch):
    monkeypatch.setattr("penstock.state.store._INDEX_ROWS", 3)
    entries = {b"00a%03d" % n: (b"v", 100 - n) for n in range(10)}
    parts = [rows({key: entry}) for key, entry in entries.items()]
    base = write(fs, root, "b", parts, 0, "base")
    with open_store(local).at(fs, root, Version(0, base)) as state:
        assert [key for key, _ in state.due(ord("a"), 95)] == [b"00a%03d" % n for n in (9, 8, 7, 6)]
        assert len(state.due(ord("a"), MAX_TIME)) == 10


def test_catch_up_when_map_is_full_then_says_so_and_store_keeps_its_version(fs, root, local, monkeypatch):
    first, last = versions(fs, root, {b"00a": b"1"}, {b"00%05d" % n: b"x" * 500 for n in range(2000)})
    store = open_store(local, map_size=1 << 18)
    store.catch_up(fs, root, first)
    # Throwing the store away would not make room.
    monkeypatch.setattr(LocalStore, "_distrust", lambda _: pytest.fail("thrown away"))
    with pytest.raises(StateError, match=f"{local} has reached its map_size; open it with a larger one"):
        store.catch_up(fs, root, last)
    with store.at(fs, root, first) as state:
        assert content(state) == {b"00a": b"1"}
    assert store.catch_up(fs, root, first) == CatchUp(rebuilt=False, files=0, rows=0)


def test_catch_up_when_lmdb_stumbles_then_rebuilt_from_the_files(fs, root, local, monkeypatch):
    first, _, last = versions(fs, root, *EPOCHS)
    store = open_store(local)
    store.catch_up(fs, root, first)
    apply, calls = state_store._apply_changes, []

    def stumble(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise lmdb.CorruptedError("page 7")
        return apply(*arguments)

    monkeypatch.setattr(state_store, "_apply_changes", stumble)
    assert store.catch_up(fs, root, last) == CatchUp(rebuilt=True, files=3, rows=5)
    with store.at(fs, root, last) as state:
        assert content(state) == LAST


def test_read_when_lmdb_stumbles_then_says_so_and_the_store_is_rebuilt_next_time(fs, root, local):
    last = versions(fs, root, *EPOCHS)[-1]
    state = open_store(local).at(fs, root, last)
    open_environment(local).env.close()
    with pytest.raises(StateError, match=r"could not be read .* is rebuilt from the checkpoint when the epoch runs again"):
        state.get_many([b"00a"])
    assert not Path(local, "data.mdb").exists()
    assert open_store(local).catch_up(fs, root, last).rebuilt


SCRIPT = """
    import json, random, resource, sys
    from penstock.errors import StateError
    from penstock.state import LocalStore, Version, resolve
    from penstock.types import from_plain
    fs, root = resolve(sys.argv[1])
    task, local, versions = sys.argv[2], sys.argv[3], from_plain(list[Version], json.loads(sys.argv[4]))
    if task == "full":
        store = LocalStore.open(local, "me", "boot", 1 << 26)
        store.catch_up(fs, root, versions[0])
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, 1 << 17))
        try:
            store.catch_up(fs, root, versions[-1])
        except StateError as wrong:
            print(wrong, store.catch_up(fs, root, versions[0]))
    else:
        dice = random.Random(int(task))
        for _ in range(300):
            at = dice.randrange(len(versions)) if dice.random() < 0.3 else len(versions) - 1
            if dice.random() < 0.1:
                LocalStore.open(local, "me", "boot", 1 << 26).distrust()
            with LocalStore.open(local, "me", "boot", 1 << 26).at(fs, root, versions[at]) as state:
                assert state.get_many([b"00a"]) == [b"%d" % at], (at, state.get_many([b"00a"]))
                assert len(state.scan(b"")) == at + 2
        print("done")
"""


def start(task, root, local, made):
    import json

    arguments = [sys.executable, "-c", textwrap.dedent(SCRIPT), root, task, local, json.dumps(made, default=plain)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_catch_up_when_disk_is_full_then_says_so_and_store_is_as_before(fs, root, local):
    made = versions(fs, root, {b"00a": b"1"}, {b"00%05d" % n: b"x" * 500 for n in range(2000)})
    out, wrong = start("full", root, local, made).communicate(timeout=600)
    assert re.search(f"{local} cannot grow .* because the disk is full or failing; free space there", out), wrong
    assert "CatchUp(rebuilt=False, files=0, rows=0)" in out


def test_at_when_processes_want_different_versions_at_once_then_each_sees_its_own(fs, root, local):
    made = versions(fs, root, *({b"00a": b"%d" % n, b"00b%d" % n: b"x"} for n in range(6)))
    running = [start(str(number), root, local, made) for number in range(6)]
    for process in running:
        out, wrong = process.communicate(timeout=600)
        assert out == "done\n", wrong


def _open_and_remove(local):
    for _ in range(150):
        open_store(local)
        environment.remove_environment(local)


def test_store_when_several_processes_open_and_remove_it_at_once_then_none_fails(local):
    with ProcessPoolExecutor(3, get_context("spawn")) as processes:
        list(processes.map(_open_and_remove, [local] * 3))
    assert not Path(local).exists()


def _move_and_remove(local):
    for _ in range(400):
        with environment.moving(local):
            environment.remove_environment(local)


def test_moving_when_several_processes_remove_the_directory_meanwhile_then_none_fails(local):
    with ProcessPoolExecutor(3, get_context("spawn")) as processes:
        list(processes.map(_move_and_remove, [local] * 3))
    assert not Path(local).exists()
