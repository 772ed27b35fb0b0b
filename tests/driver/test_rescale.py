"""Flows rescale in the harness, with state in LMDB: rows, state and files are what they are without a rescale."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from typing import ClassVar

import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.commands import Commander
from penstock.driver.inspect import view_region
from penstock.errors import OperatorError
from penstock.protocol.rescale import ALL_AT_ONCE, Limits
from penstock.testing import Crash, Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
STEPS = Limits(first_bytes=2_000, least_bytes=2_000, most_bytes=4_000, hold_bytes=4_000, measure_entries=50)


def counted(key, event, state):
    n, total = state or (0, 0)
    state = n + 1, total + event.v
    return (key, *state), state


class LastTwo(ps.Operator):
    """A user's own operator: nothing in it knows of rescaling; it only notes that keys came and went."""

    schema = "k string, at timestamp, v long, before long"

    def on_data(self, rows, state):
        names = state.names(rows.keys)
        before = state.get_objects(names)
        values = rows.column("v").to_pylist()
        out = []
        for i in range(len(rows.keys)):
            last = before[i]
            for row in range(rows.starts[i], rows.starts[i + 1]):
                out.append(last)
                last = values[row]
            before[i] = last
        state.put_objects(names, before)
        return rows.emit({**{n: rows.column(n) for n in ("k", "at", "v")}, "before": out})


class Hooked(LastTwo):
    """Counts what its hooks hear; the counts are outside of state only because this is a test."""

    heard: ClassVar[list] = []

    def on_collect(self, keys, state):
        self.heard.append(("collect", len(keys)))

    def on_acquire(self, keys, state):
        self.heard.append(("acquire", len(keys)))


def flow_of(out, last_two=LastTwo):
    flow = ps.Flow("moving")
    schema = "k string, at timestamp, v long"
    a = flow.source("a", ps.files("none", schema), time="at", lateness="5 seconds")
    b = flow.source("b", ps.files("none", schema), time="at", lateness="2 seconds")
    keyed = a.key_by("k", name="first")
    keyed.stateful_map(counted, "k string, n long, total long").sink(out("counted"), name="counted")
    windows = keyed.window(ps.sliding("20 seconds", "10 seconds")).aggregate(n=ps.count(), last=ps.last("v"))
    windows.sink(out("windows"), name="windows")
    keyed.window(ps.session("4 seconds")).aggregate(n=ps.count(), all=ps.collect("v")).sink(out("sessions"), name="sessions")
    keyed.process(last_two()).sink(out("last_two"), name="last_two")
    again = windows.local().key_by("n", name="second")  # behind the first, and keyed by another column
    again.aggregate(windows=ps.count(), newest=ps.max("last")).sink(out("second"), name="second")
    left = a.key_by("k", name="joined")
    left.join(b.key_by("k", name="other"), within="3 seconds").sink(out("joined"), name="joined")
    return flow


def records(epochs, seed=5, keys=40, per_epoch=30):
    dice = random.Random(seed)
    hot = [f"key{dice.randrange(keys)}" for _ in range(2)]
    out = []
    for epoch in range(epochs):
        rows = {}
        for source in "ab":
            rows[source] = [
                {
                    "k": dice.choice([*hot, None, f"key{dice.randrange(keys)}", f"new{epoch}-{dice.randrange(9)}"]),
                    "at": BEGIN + dt.timedelta(seconds=2 * epoch + dice.uniform(0, 5)),
                    "v": dice.randrange(1000),
                }
                for _ in range(per_epoch)
            ]
        out.append(rows)
    return out


def run(data, scales, *, last_two=LastTwo, **options):
    """Everything that the sinks hold in the end, sorted; `scales`: epoch → commands."""
    sinks = {}

    def out(name):
        sinks[name] = ps.memory(f"moving.{name}")
        return sinks[name]

    with Harness(flow_of(out, last_two), **{"workers": 2, "limits": STEPS, **options}) as harness:
        for epoch, rows in enumerate(data):
            for source, part in rows.items():
                harness.push(source, part)
            harness.epoch(*harness.copy(), *scales.get(epoch, ()))
        harness.settle()
        check_placement(harness)
        harness.finish()
        return {name: sorted(map(repr, sink.rows())) for name, sink in sinks.items()}, harness.record


def check_placement(harness):
    """Every entry of state is at the worker that the table names, and nowhere else."""
    for name, region in harness.record.regions.items():
        assert len(region.versions) == region.workers == 1 + max(region.control.routing.owners)
        view = view_region(harness.checkpoint, name)
        seen = set()
        for worker in range(region.workers):
            for row in (row for batch in view.rows(worker) for row in batch.to_pylist()):
                assert region.control.routing.owners[row["bin"]] == worker
                entry = row["bin"], row["operator"], *(row[k] for k in view.spec.keys.names), row["entry"]
                assert entry not in seen
                seen.add(entry)


def scale(workers, region=None):
    return {"command": "scale", "workers": workers, "region": region}


@pytest.fixture(scope="module")
def calm():
    data = records(24)
    return data, run(data, {})[0]


@pytest.mark.parametrize("lmdb", [False, True], ids=["memory", "lmdb"])
def test_rows_when_every_operator_rescales_under_way_are_those_of_a_flow_that_never_does(calm, lmdb):
    data, wanted = calm
    scales = {
        2: [scale(5)],
        7: [scale(3)],
        9: [scale(1, "first")],
        10: [scale(8, "second")],
        15: [scale(4), scale(2, "joined")],
    }
    found, record = run(data, scales, lmdb=lmdb)
    assert found == wanted
    assert {n: r.workers for n, r in record.regions.items()} == {"first": 4, "second": 4, "joined": 2}


@pytest.mark.parametrize("limits", [ALL_AT_ONCE, Limits(), STEPS], ids=["at once", "standard", "small steps"])
def test_rows_when_steps_are_small_or_large_are_the_same(calm, limits):
    data, wanted = calm
    assert run(data, {1: [scale(6)], 12: [scale(2)]}, limits=limits)[0] == wanted


def test_rows_when_every_pair_of_numbers_from_1_to_8_is_passed_once_are_the_same():
    tour = [1]
    pairs = set(itertools.permutations(range(1, 9), 2))
    while pairs:  # the complete graph has an Euler circuit; going to the number with most ways left finds it
        here = tour[-1]
        there = max((b for a, b in pairs if a == here), key=lambda b: (sum(a == b for a, _ in pairs), b))
        pairs.remove((here, there))
        tour.append(there)
    data = records(2 * len(tour), per_epoch=4)
    scales = {2 * i: [scale(n)] for i, n in enumerate(tour)}
    assert run(data, scales, workers=1, limits=Limits())[0] == run(data, {}, workers=1)[0]


@pytest.mark.soak
def test_rows_when_a_flow_goes_back_and_forth_fifty_times_are_the_same():
    data = records(102, per_epoch=4)
    found, record = run(data, {2 * i: [scale(3 if i % 2 else 2)] for i in range(50)}, limits=Limits(), lmdb=True)
    assert found == run(data, {})[0]
    assert record.regions["first"].workers == 3


def test_hooks_of_a_users_operator_when_keys_move_hear_of_as_many_coming_as_going(calm):
    data, wanted = calm
    Hooked.heard = []
    assert run(data, {3: [scale(4)]}, last_two=Hooked)[0] == wanted
    went = sum(n for what, n in Hooked.heard if what == "collect")
    came = sum(n for what, n in Hooked.heard if what == "acquire")
    assert went == came > 0


@pytest.mark.parametrize("hook", ["on_collect", "on_acquire"])
def test_hook_of_a_users_operator_when_it_raises_is_named_with_its_operator_and_region(calm, hook):
    def fails(*_):
        raise ValueError("no room")

    failing = type("Failing", (LastTwo,), {hook: fails})
    with pytest.raises(OperatorError, match=rf"Operator .*region '\w+' failed in {hook}: ValueError.*no room"):
        run(calm[0], {3: [scale(4)]}, last_two=failing)


def test_keys_when_they_are_placed_apart_and_called_back_are_where_they_should_be(calm):
    data, wanted = calm
    sinks = {}
    with Harness(flow_of(lambda n: sinks.setdefault(n, ps.memory(f"moving.{n}"))), workers=3, limits=STEPS) as harness:
        for epoch, rows in enumerate(data):
            for source, part in rows.items():
                harness.push(source, part)
            commands = []
            if epoch == 8:
                chosen = harness.keys("first")[::3]
                commands = [{"command": "move", "region": "first", "keys": chosen, "worker": 2}]
            if epoch == 14:
                table = harness.record.regions["first"].control.routing
                assert {table.worker_of(k) for k in chosen} == {2}
                commands = [{"command": "move", "region": "first", "keys": chosen, "worker": None}]
            harness.epoch(*commands)
        harness.settle()
        assert not harness.record.regions["first"].control.routing.pinned_keys
        check_placement(harness)
        harness.finish()
        assert {n: sorted(map(repr, s.rows())) for n, s in sinks.items()} == wanted


def big(key, event, state):
    n, body = state or (0, b"")
    return (key, n + 1), (n + 1, body or bytes([n % 251]) * event.v)


def test_key_when_its_state_is_larger_than_a_step_is_held_and_other_keys_never_wait():
    def flow(out):
        made = ps.Flow("large")
        source = made.source("a", ps.files("none", "k string, at timestamp, v long"), time="at", lateness="1 second")
        source.key_by("k").stateful_map(big, "k string, n long").sink(out)
        return made

    out = ps.memory("large")
    keys = [f"k{i}" for i in range(8)]
    with Harness(flow(out), workers=8, limits=STEPS, lmdb=True) as harness:
        shown = {}
        for epoch in range(24):
            at = BEGIN + dt.timedelta(seconds=2 * epoch)
            harness.push("a", [{"k": k, "at": at, "v": 100_000 if k == "k3" else 10} for k in keys])
            copied = harness.copy() if epoch % 5 == 4 else []
            record = harness.epoch(*copied, *([scale(1)] if epoch == 3 else []))
            shown[epoch] = {(r["k"], r["n"]) for r in out.rows()}
            held = record.regions["k"].control.held
            assert {h.bytes > 100_000 for h in held} <= {True}
            for k in keys:
                if epoch and k != "k3":
                    assert (k, epoch) in shown[epoch], f"{k} waited in epoch {epoch}"
        waited = [e for e in range(1, 24) if ("k3", e) not in shown[e]]
        assert waited, "the large key was never on hold"
        harness.settle()
        harness.finish()
        assert sorted((r["k"], r["n"]) for r in out.rows()) == sorted((k, n) for k in keys for n in range(1, 25))


def test_end_of_input_when_a_key_is_on_hold_waits_for_it():
    out = ps.memory("ending")
    flow = ps.Flow("ending")
    source = flow.source("a", ps.files("none", "k string, at timestamp, v long"), time="at")
    keyed = source.key_by("k").stateful_map(big, "k string, n long")
    keyed.local().key_by("n").aggregate(keys=ps.count()).sink(out)
    with Harness(flow, workers=7, limits=STEPS) as harness:
        for epoch in range(4):
            harness.push("a", [{"k": "x", "at": BEGIN + dt.timedelta(seconds=epoch), "v": 50_000}])
            moved = {"command": "move", "region": "k", "worker": 5}
            harness.epoch(*([{**moved, "keys": harness.keys("k")}] if epoch == 2 else []))
        for _ in range(5):
            if harness.record.regions["k"].control.held:
                break
            harness.epoch()
        assert harness.record.regions["k"].control.held
        assert not harness.epoch("end").finished  # rule H7
        assert harness.finish().finished
        assert sorted((r["n"], r["keys"]) for r in out.rows()) == [(n, 1) for n in range(1, 5)]


@pytest.mark.parametrize("step", ["decide", "compute counted", "during counted", "stored joined", "commit", "committed"])
def test_rows_when_every_epoch_of_a_rescale_crashes_once_are_the_same(calm, step):
    data, wanted = calm
    crashed = set()

    def before(name):
        epoch = harness_of[0].record.epoch if harness_of else -1
        if name == step and epoch not in crashed and 2 <= epoch <= 16:
            crashed.add(epoch)
            raise Crash

    sinks, harness_of = {}, []
    with Harness(
        flow_of(lambda n: sinks.setdefault(n, ps.memory(f"moving.{n}"))), workers=2, limits=STEPS, on_step=before
    ) as harness:
        harness_of.append(harness)
        for epoch, rows in enumerate(data):
            for source, part in rows.items():
                harness.push(source, part)
            try:
                harness.epoch(*{3: [scale(6)], 9: [scale(2)]}.get(epoch, ()))
            except Crash:
                while True:
                    harness.restart(forget_local_state=epoch % 2 == 0)
                    try:
                        harness.resume()
                        break
                    except Crash:
                        continue
        harness.settle()
        harness.finish()
        assert len(crashed) > 8
        assert {n: sorted(map(repr, s.rows())) for n, s in sinks.items()} == wanted


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (scale(0), "A region cannot have 0 workers; give a whole number from 1 to 4096."),
        (scale(2, "nobody"), "There is no region 'nobody' to scale; there are first, joined, second."),
        (scale(True), "A region cannot have True workers; give a whole number from 1 to 4096."),
        ({"command": "move", "region": "first", "keys": [1], "worker": 9}, "Region 'first' has no worker 9; it has workers 0 to 1."),
        ({"command": "load", "name": "none"}, "There is no snapshot 'none'; there are none."),
        ({"command": "dance"}, "'dance' is no command that this version knows."),
    ],
)  # fmt: skip
def test_command_when_it_makes_no_sense_is_refused_and_changes_nothing(command, why):
    with Harness(flow_of(ps.memory), workers=2) as harness:
        harness.push("a", records(1)[0]["a"])
        before = harness.epoch().regions
        after = harness.epoch(command)
        assert list(after.refused.values()) == [why]
        assert {n: r.control for n, r in after.regions.items()} == {n: r.control for n, r in before.items()}


def test_snapshot_when_the_flow_goes_on_still_shows_the_state_of_its_epoch(tmp_path):
    data = records(60)
    with Harness(flow_of(ps.memory), workers=2, limits=STEPS, checkpoint=str(tmp_path / "c")) as harness:
        for epoch, rows in enumerate(data):
            for source, part in rows.items():
                harness.push(source, part)
            harness.epoch(*{5: [scale(4)], 7: [{"command": "snapshot", "name": "before"}]}.get(epoch, ()))
            if epoch == 7:
                assert harness.record.regions["first"].control.goal is not None  # in the middle of a rescale
                there = state_of(tmp_path / "c", "first")
        assert Checkpoint(str(tmp_path / "c")).snapshot_names() == ["before"]
        assert state_of(tmp_path / "c", "first", "before") == there != state_of(tmp_path / "c", "first")


def state_of(checkpoint, region, snapshot=None):
    view = view_region(str(checkpoint), region, snapshot)
    rows = (row for w in range(len(view.versions)) for batch in view.rows(w) for row in batch.to_pylist())
    return sorted(repr({n: v for n, v in row.items() if n != "worker"}) for row in rows)


def test_region_with_the_name_of_no_command_when_the_flow_is_stateless_is_refused():
    flow = ps.Flow("plain")
    flow.source("a", ps.files("none", "k string")).sink(ps.memory("plain"))
    with Harness(flow) as harness:
        harness.push("a", [{"k": "x"}])
        assert list(harness.epoch(scale(2)).refused.values()) == [
            "The flow has no region, so there is nothing to scale; only keyed stages have workers."
        ]


def test_harness_when_a_rescale_does_not_end_says_so():
    with Harness(flow_of(ps.memory), limits=STEPS) as harness:
        harness.push("a", records(1)[0]["a"])
        harness.scale(None, 8)
        with pytest.raises(AssertionError, match="still rescaling after 0 epochs"):
            harness.settle(most=0)


def test_copy_of_a_key_on_hold_when_files_are_tidied_before_it_is_named_stays(tmp_path):
    flow = ps.Flow("tidied")
    source = flow.source("a", ps.files("none", "k string, at timestamp, v long"), time="at")
    out = ps.memory("tidied")
    source.key_by("k").stateful_map(big, "k string, n long").sink(out)
    with Harness(flow, workers=7, limits=STEPS, checkpoint=str(tmp_path / "c")) as harness:
        copied = []
        for epoch in range(60):
            harness.push("a", [{"k": "x", "at": BEGIN + dt.timedelta(seconds=epoch), "v": 50_000}])
            moved = {"command": "move", "region": "k", "worker": 5}
            harness.epoch(*([{**moved, "keys": harness.keys("k")}] if epoch == 2 else []), *(copied if epoch == 55 else []))
            if harness.record.regions["k"].control.held and not copied:
                copied = harness.copy()  # done soon, and told of much later
        assert not harness.record.regions["k"].control.held
        harness.finish()
    assert sorted(r["n"] for r in out.rows()) == list(range(1, 61))


def test_snapshot_when_the_epoch_crashes_after_it_was_written_is_taken_and_not_refused(tmp_path):
    crashed = []

    def before(step):
        if step == "kept s" and not crashed:
            crashed.append(step)
            raise Crash

    with Harness(flow_of(ps.memory), on_step=before, checkpoint=str(tmp_path / "c")) as harness:
        harness.push("a", records(1)[0]["a"])
        harness.epoch()
        with pytest.raises(Crash):
            harness.epoch({"command": "snapshot", "name": "s"})
        harness.restart()
        assert not harness.resume().refused
        assert Checkpoint(str(tmp_path / "c")).read_snapshot("s").epoch == 1


def test_command_when_the_log_has_been_tidied_since_is_known_to_be_done(tmp_path):
    with Harness(flow_of(ps.memory), checkpoint=str(tmp_path / "c")) as harness:
        harness.push("a", records(1)[0]["a"])
        harness.epoch()
        opened = Checkpoint(str(tmp_path / "c"))
        asked = Commander(opened).scale("first", 1)
        assert not asked.done
        (tmp_path / "c" / "control" / asked.name).unlink()  # as `tidy` does once it was obeyed and 64 more were
        assert asked.done
