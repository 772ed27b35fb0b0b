"""A process keeps few stores open, however many flows it runs, and those of a harness that is gone not at all."""

import gc
from pathlib import Path

import penstock as ps
from penstock.state.environment import MOST_OPEN
from penstock.testing import Harness

COUNTED = "k string, n long"


def count(key, event, state):
    n = state.n + 1 if state else 1
    return (key, n), (n,)


def counting(name="counts"):
    flow, out = ps.Flow("counting"), ps.memory(name)
    flow.source("s", ps.files("unused", "k string")).key_by("k").stateful_map(count, COUNTED, state="n long").sink(out)
    return flow, out


def mapped(below=""):
    """How many stores of the folder this process has in its address space."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[-1] for line in lines if line.endswith("data.mdb") and below in line})


def test_harnesses_that_are_all_kept_and_never_closed_hold_few_stores_open_and_go_on():
    (first, out), (others, _) = counting("of the first"), counting("of others")
    kept = []
    for number in range(3 * MOST_OPEN):
        harness = Harness(others if number else first, lmdb=True)
        harness.push("s", [{"k": "a"}])
        harness.epoch()
        kept.append(harness)
    assert 0 < mapped("penstock-harness-") <= MOST_OPEN
    kept[0].push("s", [{"k": "a"}])
    kept[0].epoch()
    assert out.rows()[-1] == {"k": "a", "n": 2}


def test_harness_closes_its_stores_when_it_ends_is_closed_or_is_no_longer_used(tmp_path):
    flow, _ = counting()

    def run(folder):
        harness = Harness(flow, workers=2, lmdb=True, checkpoint=str(tmp_path / folder))
        harness.push("s", [{"k": "a"}, {"k": "b"}])
        harness.epoch()
        assert mapped(str(tmp_path / folder)) == 2
        return harness

    with run("left"):
        pass
    assert mapped(str(tmp_path / "left")) == 0
    closed = run("closed")
    closed.close()
    closed.close()
    assert mapped(str(tmp_path / "closed")) == 0
    run("dropped")
    gc.collect()
    assert mapped(str(tmp_path)) == 0


def test_harness_that_is_no_longer_used_leaves_open_what_another_on_the_same_checkpoint_uses(tmp_path):
    flow, out = counting()
    first, second = (Harness(flow, lmdb=True, checkpoint=str(tmp_path)) for _ in range(2))
    second.push("s", [{"k": "a"}])
    second.epoch()
    del first
    gc.collect()
    assert mapped(str(tmp_path)) == 1
    second.push("s", [{"k": "a"}])
    second.epoch()
    assert out.rows()[-1] == {"k": "a", "n": 2}


def test_restart_that_forgets_local_state_builds_it_again_from_the_checkpoint(tmp_path):
    flow, out = counting()
    with Harness(flow, lmdb=True, checkpoint=str(tmp_path)) as harness:
        harness.push("s", [{"k": "a"}])
        harness.epoch()
        assert list(tmp_path.glob("local/**/data.mdb"))
        harness.restart(forget_local_state=True)
        assert not list(tmp_path.glob("local/**/data.mdb"))
        harness.push("s", [{"k": "a"}])
        harness.epoch()
    assert out.rows()[-1] == {"k": "a", "n": 2}
