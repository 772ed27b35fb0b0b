"""Steps that come to wait for the frontier, or no longer do, or read another input, while rows wait for a step beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from changing import Changing, Last, counted, row

import penstock as ps
from penstock.arrow.columns import concat_batches
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.succession import succeed
from penstock.errors import ChangedFlowError
from penstock.rows.keys import WORKER_BIN
from penstock.state.compaction import iterate
from penstock.state.deltas import SCHEMA as STATE
from penstock.testing import Crash
from penstock.worker.waiting_rows import OPERATOR


def flow(prepare=lambda keyed: keyed, beside=lambda keyed: keyed, **aggregates):
    """An aggregate beside a step that waits, each with something between it and the key."""

    def declare(stream):
        keyed = stream.key_by("k")
        steps = counted(beside(keyed))
        return steps, prepare(keyed).window(ps.tumbling("1 hour")).aggregate(**({"n": ps.count()} | aggregates))

    return declare


def unique(keyed):
    return keyed.deduplicate("id")


@pytest.fixture
def changing(tmp_path):
    return Changing(tmp_path)


def totals(changing):
    return [r["n"] for r in changing.rows() if "n" in r and "window_start" in r], [r["n"] for r in changing.rows() if "x" in r]


WAITS = {"has an aggregate in order": flow(last=Last("v")), "is behind a step in order": flow(unique)}


@pytest.mark.parametrize("after", WAITS)
def test_aggregate_that_comes_to_wait_for_rows_that_it_has_counted_is_refused(after, changing):
    changing.run(flow(), [row(1), row(2)])
    with pytest.raises(
        ChangedFlowError,
        match=r"Rows waiting at the start of region 'k' .* step 'aggregate' has seen them .* and would see them again",
    ):
        changing.run(WAITS[after])
    changing.run(flow(), [row(3)], drain=True)
    assert totals(changing) == ([3], [1, 2, 3])


def test_aggregate_that_no_longer_waits_is_refused_if_rows_wait_for_a_step_that_was_before_it(changing):
    before = WAITS["is behind a step in order"]
    changing.run(before, [row(1), row(2)])
    with pytest.raises(ChangedFlowError, match=r"they wait for step '[a-z]+', and would not come to it now"):
        changing.run(flow())
    changing.run(before, [row(3)], drain=True)
    assert totals(changing) == ([3], [1, 2, 3])


class Commutes(Last):
    """Since this version it says so."""

    commutative = True

    def add(self, state, value):
        return max(state or 0, value)

    def merge(self, a, b):
        return max(a or 0, b or 0)


Commutes.__qualname__ = Last.__qualname__


def alone(last, **options):
    """The aggregate is all that there is, so that no input waits any more; windows after it follow it."""

    def declare(stream):
        keyed = stream.key_by("k", **options)
        hour = keyed.window(ps.tumbling("1 hour")).aggregate(n=ps.count(), last=last)
        return hour, hour.window(ps.tumbling("1 day")).aggregate(days=ps.sum("last"))

    return declare


@pytest.mark.parametrize("options", [{}, {"distribute": ps.PartialKeyGrouping()}], ids=["whole", "divided"])
@pytest.mark.parametrize("declare", [alone, lambda last, **_: flow(last=last)], ids=["alone", "beside a step that waits"])
def test_aggregate_that_says_it_is_commutative_gets_the_rows_that_waited_for_it_once(declare, options, changing):
    changing.run(declare(Last("v")), [row(1), row(2, 15)], [row(3, 18)])
    with changing.harness(declare(Commutes("v"), **options)) as harness:
        said = "Step 'aggregate' of region 'k' no longer waits for the frontier; rows that wait for it are given to it at once."
        assert said in harness.notices
        harness.push("s", [row(4, 20)])
        harness.epoch()
        harness.push("s", [row(5, 23)])
        harness.epoch()
    assert not any("no longer waits" in notice for notice in changing.run(declare(Commutes("v"), **options), [row(6, 26)]))
    changing.run(declare(Commutes("v"), **options), drain=True)
    (found,) = [r for r in changing.rows() if "last" in r]
    assert (found["n"], found["last"]) == (6, 6)
    assert sorted(r["x"] for r in changing.rows() if "x" in r) in ([], [1, 2, 3, 4, 5, 6])


def waiting_chunks(harness):
    """How many entries of state are rows that wait, in whatever slot."""
    checkpoint, found = Checkpoint(harness.checkpoint), 0
    for version in harness.record.regions["k"].versions:
        entries = concat_batches([*iterate(checkpoint.fs, checkpoint.root, version)], STATE)
        found += sum(name.startswith(WORKER_BIN + bytes([OPERATOR])) for name in entries.column(0).to_pylist())
    return found


def test_rows_that_waited_when_the_first_epoch_fails_are_given_again_and_nothing_is_left_of_them(changing):
    changing.run(alone(Last("v")), [row(1), row(2, 15)])
    fails = ["commit"]

    def crash(step):
        if step in fails:
            fails.remove(step)
            raise Crash

    with changing.harness(alone(Commutes("v")), on_step=crash) as harness:
        assert waiting_chunks(harness) == 1
        harness.push("s", [row(3, 16)])
        with pytest.raises(Crash):
            harness.epoch()
        harness.restart()
        harness.epoch()
        assert waiting_chunks(harness) == 0
        harness.finish()
    (found,) = [r for r in changing.rows() if "last" in r]
    assert (found["n"], found["last"]) == (3, 3)


def test_aggregate_that_says_it_is_commutative_shares_its_input_with_one_that_has_seen_the_rows_and_is_refused(changing):
    def both(last):
        def declare(stream):
            keyed = stream.key_by("k").window(ps.tumbling("1 hour"))
            return keyed.aggregate(n=Commutes("v"), name="seen"), keyed.aggregate(last=last, name="waits")

        return declare

    changing.run(both(Last("v")), [row(1), row(2)])
    with pytest.raises(ChangedFlowError, match="step 'seen' has seen them when they came in, and would see them again"):
        changing.run(both(Commutes("v")))


def test_aggregate_that_says_it_is_commutative_and_reads_a_column_that_waiting_rows_lack_is_refused(changing):
    def narrow(stream):
        return stream.key_by("k").window(ps.tumbling("1 hour")).aggregate(n=ps.count(), last=Last("v"))

    def wider(stream):
        hour = stream.with_columns(z="u + 1").key_by("k").window(ps.tumbling("1 hour"))
        return hour.aggregate(n=ps.count(), last=Commutes("v"), z=ps.sum("z"))

    changing.run(narrow, [row(1), row(2, 15)])
    with pytest.raises(ChangedFlowError, match="step 'aggregate' reads the column 'z', which they lack"):
        changing.run(wider)


def test_aggregate_that_comes_to_be_combined_by_the_engine_while_rows_wait_for_it_is_refused(changing):
    changing.run(alone(Last("v")), [row(1), row(2, 15)])
    with changing.harness(alone(Last("v"))) as harness:
        before = harness.record.shape
    region = before.regions["k"]
    for more in ({}, {"__ps_a0": "int64"}):
        at_once = [replace(port, waits=False, columns=port.columns | more) for port in region.ports]
        now = replace(before, regions={"k": replace(region, ports=at_once)})
        if not more:
            assert succeed(before, now, "here").at_once == {"k": {0: region.ports[0].slot}}
        else:
            with pytest.raises(ChangedFlowError, match="rows may wait for step 'aggregate', and nothing would take them now"):
                succeed(before, now, "here").checked()


def test_aggregate_in_order_when_it_is_a_step_of_its_own_goes_on(changing):
    def more(stream):
        keyed = stream.key_by("k")
        hour = keyed.window(ps.tumbling("1 hour"))
        return counted(keyed), hour.aggregate(n=ps.count(), name="aggregate"), hour.aggregate(last=Last("v"), name="last")

    changing.run(flow(), [row(1), row(2)])
    changing.run(more, [row(3)], drain=True)
    assert totals(changing) == ([3], [1, 2, 3])
    assert [r["last"] for r in changing.rows() if "last" in r] == [3]


def test_step_that_comes_to_read_another_input_while_rows_wait_for_it_is_refused(changing):
    def seen(key, event, state):
        n = (0 if state is None else state[0]) + 1
        return (event.v, n), (n,)

    def declare(behind):
        def both(stream):
            keyed = stream.key_by("k")
            other = keyed.where("x > 0").deduplicate("id") if behind else keyed
            return counted(keyed), other.stateful_map(seen, "v long, n long", "n long", name="seen")

        return both

    changing.run(declare(False), [row(1), row(2)])
    with pytest.raises(ChangedFlowError, match="they wait for step 'seen', and would not come to it now"):
        changing.run(declare(True))
    changing.run(declare(False), [row(3)], drain=True)
    assert [(r["v"], r["n"]) for r in changing.rows() if "v" in r] == [(1, 1), (2, 2), (3, 3)]


def test_steps_that_change_places_behind_one_input_go_on(changing):
    def chained(stream):
        return counted(unique(stream.key_by("k")), name="c")

    def beside(stream):
        keyed = stream.key_by("k")
        return counted(keyed, name="c"), unique(keyed)

    changing.run(chained, [row(1), row(2, id=1)])
    changing.run(beside, [row(3, 20), row(4, 31)])
    changing.run(chained, [row(5, 60, id=3)], drain=True)
    assert [(r["x"], r["n"]) for r in changing.rows() if "n" in r] == [(1, 1), (2, 2), (3, 3), (4, 4)]


BEHIND = {
    "where": lambda stream: stream.where("v <> 2"),
    "a column": lambda stream: stream.with_columns(u="v + 1"),
    "a function": lambda stream: stream.map_batches(lambda rows: rows.select(["k", "v"]), "k string, v long"),
}


def without_a_step(behind, step):
    return lambda stream: behind(step(stream.key_by("k")))


@pytest.mark.parametrize("behind", BEHIND)
def test_step_that_goes_when_what_followed_the_region_comes_to_stand_before_it_is_refused(behind, changing):
    changing.run(without_a_step(BEHIND[behind], unique), [row(1), row(2)])
    with pytest.raises(
        ChangedFlowError,
        match=r"they wait for step 'deduplicate', which is gone, and would leave the region without what stands before it now",
    ):
        changing.run(without_a_step(BEHIND[behind], lambda keyed: keyed))
    changing.run(without_a_step(BEHIND[behind], unique), [row(3)], drain=True)
    changing.rows()


def test_step_that_goes_when_nothing_else_changes_lets_the_waiting_rows_out(changing):
    changing.run(without_a_step(lambda stream: stream, unique), [row(1), row(2)])
    changing.run(without_a_step(lambda stream: stream, lambda keyed: keyed), [row(2)], drain=True)
    assert sorted(r["v"] for r in changing.rows()) == [1, 2, 2]
