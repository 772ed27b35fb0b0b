"""A flow goes back to a snapshot, in the harness: what the sinks hold in the end is what it is without."""

from __future__ import annotations

import json

import pytest
from test_rescale import STEPS, check_placement, flow_of, records, run, scale

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.housekeeping import remove_unused
from penstock.checkpoint.record import RolledBack
from penstock.driver.commands import Commander
from penstock.driver.rollback import rollback_refusal
from penstock.errors import CheckpointError, DeclarationError, PenstockError
from penstock.protocol.commands import Load
from penstock.testing import Crash, Harness


def snapshot(name):
    return {"command": "snapshot", "name": name}


def load(name, **options):
    return {"command": "load", "name": name, **options}


@pytest.fixture(scope="module")
def calm():
    data = records(24)
    return data, run(data, {})[0]


def feed(harness, rows):
    for source, part in rows.items():
        harness.push(source, part)


def small(tmp_path, out=lambda name: ps.memory(f"back.{name}")):
    flow = ps.Flow("small")
    events = flow.source("events", ps.files("none", "k string, at timestamp, v long"), time="at")
    events.key_by("k").stateful_map(lambda k, e, s: ((k, e.v, (s or 0) + 1), (s or 0) + 1), "k string, v long, n long").sink(
        out("rows"), name="rows"
    )
    return flow


def row(i, k="a"):
    import datetime as dt

    return {"k": k, "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=i), "v": i}


# ---------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("lmdb", [False, True], ids=["memory", "lmdb"])
def test_rows_when_a_flow_goes_back_again_and_again_are_those_of_one_that_never_does(calm, lmdb):
    data, wanted = calm
    commands = {
        2: [snapshot("early")],
        3: [scale(5)],
        4: [snapshot("moving")],  # in the middle of a rescale, of keys on hold too
        6: [load("moving")],
        8: [scale(3)],
        9: [load("moving")],
        12: [snapshot("late"), scale(7, "first")],
        13: [scale(2, "joined")],
        14: [load("late")],  # during a rescale
        17: [load("early")],  # at another number of workers
        20: [load("early"), scale(4)],
    }
    found, record = run(data, commands, lmdb=lmdb)
    assert found == wanted
    assert [b.snapshot for b in record.rolled_back] == ["moving", "moving", "late", "early", "early"]
    assert {n: r.workers for n, r in record.regions.items()} == {"first": 4, "second": 4, "joined": 4}


def test_record_when_a_flow_has_gone_back_is_the_snapshots_but_for_its_number(calm):
    data, _ = calm
    with Harness(flow_of(lambda n: ps.memory(f"moving.{n}")), workers=2, limits=STEPS) as harness:
        for i, rows in enumerate(data[:8]):
            feed(harness, rows)
            harness.epoch(*({2: [scale(4)], 3: [snapshot("s")], 4: [scale(1)]}.get(i, [])), *harness.copy())
        kept = Checkpoint(harness.checkpoint).read_snapshot("s")
        record = harness.load("s")
        assert (record.epoch, kept.epoch) == (9, 3)
        assert record.regions == kept.regions
        assert record.regions["first"].control.goal is not None
        assert {n: (s.frontier, s.rows) for n, s in record.sources.items()} == {
            n: (s.frontier, s.rows) for n, s in kept.sources.items()
        }
        assert record.rolled_back == [RolledBack("s", 3, 8)]


@pytest.mark.parametrize("lmdb", [False, True], ids=["memory", "lmdb"])
@pytest.mark.parametrize("forget", [False, True], ids=["local state kept", "local state lost"])
def test_rows_when_every_step_of_going_back_crashes_once_are_the_same(calm, lmdb, forget):
    data, wanted = calm
    left: list[str] = []
    hits: list[str] = []

    def before(step):
        if left and step == left[0]:
            hits.append(left.pop(0))
            raise Crash

    sinks = {}
    flow = flow_of(lambda n: sinks.setdefault(n, ps.memory(f"moving.{n}")))
    steps = ["commit", "committed", "rewrite_offset_log"]
    steps += [f"rewind {o.name}" for o in flow.plan().outputs] + ["commit going back", "gone back", "decide", "commit"]
    with Harness(flow, workers=2, limits=STEPS, lmdb=lmdb, on_step=before) as harness:
        for i, rows in enumerate(data):
            feed(harness, rows)
            if i == 10:
                left += steps
            commands = {2: [scale(5)], 3: [snapshot("s")], 10: [load("s")]}.get(i, [])
            try:
                harness.epoch(*commands, *harness.copy())
            except Crash:
                while True:
                    try:
                        harness.restart(forget_local_state=forget)
                        harness.resume()
                        break
                    except Crash:
                        continue
        while left:
            try:
                harness.epoch()
            except Crash:
                harness.restart(forget_local_state=forget)
        harness.settle()
        check_placement(harness)
        harness.finish()
        assert hits == steps
        assert {n: sorted(map(repr, s.rows())) for n, s in sinks.items()} == wanted


def test_files_when_a_flow_has_gone_back_and_are_tidied_are_those_that_it_and_its_snapshots_need(calm):
    data, wanted = calm
    sinks = {}
    with Harness(flow_of(lambda n: sinks.setdefault(n, ps.memory(f"moving.{n}"))), workers=2, limits=STEPS) as harness:
        for i, rows in enumerate(data):
            feed(harness, rows)
            harness.epoch(
                *({2: [snapshot("a")], 6: [snapshot("b")], 9: [load("a")], 14: [load("a")]}.get(i, [])), *harness.copy()
            )
            remove_unused(Checkpoint(harness.checkpoint), harness.record)
        kept = Checkpoint(harness.checkpoint).read_snapshot("b")  # of a future that was given up: still whole
        for name, region in kept.regions.items():
            assert region.files() <= {f"state/{name}/{f}" for f in Checkpoint(harness.checkpoint).state_files(name)}
        harness.finish()
        assert {n: sorted(map(repr, s.rows())) for n, s in sinks.items()} == wanted


def test_rows_when_the_code_has_changed_since_are_those_of_the_new_code_from_the_snapshot_on(tmp_path):
    """What going back is for: the rows of bad code are taken back."""
    out = ps.parquet(tmp_path / "out")

    def flow_with(factor):
        flow = ps.Flow("upgraded")
        files = ps.files("none", "k string, at timestamp, v long, p long")  # a harness counts offsets from 0, a column goes on
        events = flow.source("events", files, time="at", position=("p", "v"))
        keyed = events.key_by("k").stateful_map(lambda k, e, s: ((k, e.v * factor), None), "k string, v long")
        keyed.sink(out, name="rows")
        return flow

    import pyarrow.parquet as pq

    checkpoint = str(tmp_path / "c")
    with Harness(flow_with(1), checkpoint=checkpoint) as old:
        for i in range(3):
            old.push("events", [row(i) | {"p": 0}])
            old.epoch()
        old.snapshot("before-upgrade")
    with Harness(flow_with(-100), checkpoint=checkpoint) as bad:
        for i in range(3, 6):
            bad.push("events", [row(i) | {"p": 0}])
            bad.epoch()
    assert min(pq.read_table(tmp_path / "out").column("v").to_pylist()) == -400
    Commander(Checkpoint(checkpoint)).load("before-upgrade")
    mended = Harness(flow_with(1), checkpoint=checkpoint)  # goes back at once, before any epoch
    assert mended.record.rolled_back == [RolledBack("before-upgrade", 3, 7)]
    # This harness never saw what came since, so it is given again.
    mended.push("events", [row(i) | {"p": 0} for i in range(3, 6)])
    with mended:
        mended.finish()
    assert sorted(pq.read_table(tmp_path / "out").column("v").to_pylist()) == [0, 1, 2, 3, 4, 5]


# --------------------------------------------------------------------------------------------------------------- commands


def test_load_when_it_makes_no_sense_is_refused_and_changes_nothing(tmp_path):
    with Harness(small(tmp_path), checkpoint=str(tmp_path / "c")) as harness:
        harness.push("events", [row(0)])
        harness.epoch()
        commander = Commander(Checkpoint(harness.checkpoint), lambda: harness.record)
        with pytest.raises(DeclarationError, match=r"^There is no snapshot 'x'; there are none\.$"):
            commander.load("x")
        harness.snapshot("a")
        harness.snapshot("b")
        with pytest.raises(DeclarationError, match=r"^There is no snapshot 'x'; there are a, b\.$"):
            commander.load("x")
        before = harness.record
        record = harness.load("x")
        assert list(record.refused.values()) == ["There is no snapshot 'x'; there are a, b."]
        assert (record.epoch, record.rollback_pending, record.regions["k"].control) == (3, None, before.regions["k"].control)
        harness.load("a")
        with pytest.raises(
            DeclarationError, match=r"Snapshot 'b' is of epoch 2, which was given up when the flow went back to 'a'"
        ):
            commander.load("b")
        assert harness.load("b").rolled_back == [RolledBack("a", 1, 4)]
        assert commander.load("a").done is False


def test_load_when_a_sink_cannot_take_rows_back_is_refused_unless_its_output_is_kept(tmp_path):
    given = []
    flow = small(tmp_path, lambda _: ps.foreach_epoch(lambda table, _: given.extend(table.column("v").to_pylist())))
    with Harness(flow) as harness:
        for i in range(4):
            harness.push("events", [row(i)])
            harness.epoch(*([snapshot("s")] if i == 1 else []))
        record = harness.load("s")
        assert record.rolled_back == []
        assert list(record.refused.values()) == [
            (
                "Output 'rows' cannot go back to snapshot 's': foreach_epoch(<lambda>) cannot take back the rows that the function was given; "
                "with keep_output (--keep-output) its rows stay, and those since the snapshot will be there twice."
            )
        ]
        assert given == [0, 1, 2]
        record = harness.epoch(snapshot("now"), load("now"))  # as well if the snapshot is only being taken
        assert "Output 'rows' cannot go back to snapshot 'now'" in list(record.refused.values())[-1]
        assert record.rolled_back == []
        harness.load("s", keep_output=True)
        harness.finish()
        assert given == [0, 1, 2, 1, 2, 3]


def test_commands_when_they_come_with_a_load_are_obeyed_before_it_or_after_it(tmp_path):
    with Harness(small(tmp_path), workers=2) as harness:
        harness.push("events", [row(0)])
        record = harness.epoch(snapshot("now"), load("now"), scale(3))
        assert record.rolled_back == [RolledBack("now", 0, 0)]
        assert record.regions["k"].control.goal is None
        assert harness.epoch().regions["k"].control.goal.workers == 3
        harness.settle()
        assert harness.epoch(scale(5), load("now")).regions["k"].workers == 2


def test_finish_when_a_load_still_waits_reads_the_input_again_and_ends(tmp_path):
    out = ps.memory(f"ended {tmp_path}")
    with Harness(small(tmp_path, lambda _: out)) as harness:
        for i in range(3):
            harness.push("events", [row(i)])
            harness.epoch(*([snapshot("s")] if i == 0 else []))
        harness.epoch(load("s"), load("s"))  # the second waits, and the end behind it
        assert harness.finish().finished
        assert sorted(r["v"] for r in out.rows()) == [0, 1, 2]


def test_start_when_a_load_waits_in_the_log_goes_back_before_any_epoch(tmp_path):
    out = ps.memory("back.offline")
    with Harness(small(tmp_path, lambda _: out), checkpoint=str(tmp_path / "c"), workers=2) as harness:
        for i in range(5):
            harness.push("events", [row(i)])
            harness.epoch(*([snapshot("s")] if i == 1 else []))
        checkpoint = Checkpoint(str(tmp_path / "c"))
        commander = Commander(checkpoint)
        given = [commander.scale(None, 4), commander.load("s"), commander.scale(None, 3)]
        late = commander.snapshot("later")
        assert [a.done for a in given] == [False, False, False]
        with pytest.raises(
            CheckpointError, match=r"^The flow is on its way back to snapshot 's'; remove it when it is there\.$"
        ):
            checkpoint.remove_snapshot("s")
        harness.restart()
        record = harness.record
        assert record.rolled_back == [RolledBack("s", 1, 5)]
        assert [r["v"] for r in out.rows()] == [0]
        assert given[1].done
        with pytest.raises(DeclarationError, match="given before the flow went back to snapshot 's' and was not carried out"):
            assert given[0].done
        assert not given[2].done
        assert not late.done
        harness.restart()
        assert harness.record == record
        harness.finish()
        assert [r["v"] for r in out.rows()] == [0, 1, 2, 3, 4]


def test_start_when_the_epoch_before_stored_its_rows_and_crashed_takes_them_back_too(tmp_path):
    crash: list[str] = []

    def before(step):
        if step in crash:
            crash.clear()
            raise Crash

    out = ps.memory("back.stored")
    with Harness(small(tmp_path, lambda _: out), checkpoint=str(tmp_path / "c"), on_step=before) as harness:
        for i in range(4):
            harness.push("events", [row(i)])
            harness.epoch(*([snapshot("s")] if i == 1 else []))
        harness.push("events", [row(4)])
        crash.append("commit")
        with pytest.raises(Crash):
            harness.epoch(snapshot("never"))
        assert [r["v"] for r in out.rows()] == [0, 1, 2, 3]  # the sink is one epoch ahead of the checkpoint
        Commander(Checkpoint(str(tmp_path / "c"))).load("s")
        harness.restart()
        assert [r["v"] for r in out.rows()] == [0]
        harness.finish()
        assert [r["v"] for r in out.rows()] == [0, 1, 2, 3, 4]


def test_finished_flow_when_a_load_waits_goes_back_and_on(tmp_path):
    out = ps.memory("back.finished")
    with Harness(small(tmp_path, lambda _: out), checkpoint=str(tmp_path / "c")) as harness:
        for i in range(3):
            harness.push("events", [row(i)])
            harness.epoch(*([snapshot("s")] if i == 1 else []))
        assert harness.finish().finished
        Commander(Checkpoint(harness.checkpoint)).load("s")
        harness.restart()
        assert not harness.record.finished
        harness.push("events", [row(9)])
        harness.finish()
        assert [r["v"] for r in out.rows()] == [0, 1, 2, 9]


def test_driver_when_the_flow_is_on_its_way_back_runs_no_epoch(tmp_path):
    crash = []

    def before(step):
        if step in crash:
            raise Crash

    with Harness(small(tmp_path), on_step=before) as harness:
        harness.push("events", [row(0)])
        harness.snapshot("s")
        crash.append("rewrite_offset_log")
        with pytest.raises(Crash):
            harness.load("s")
        with pytest.raises(PenstockError, match=r"^Epoch 2 cannot run: the flow is on its way back to snapshot 's'\.$"):
            harness.epoch()


def test_snapshot_when_it_is_of_an_older_version_or_damaged_or_lacks_a_file_cannot_be_gone_back_to(tmp_path):
    with Harness(small(tmp_path), checkpoint=str(tmp_path / "c")) as harness:
        harness.push("events", [row(0), row(1)])
        harness.snapshot("s")
        checkpoint, last = Checkpoint(harness.checkpoint), harness.record
        assert rollback_refusal(checkpoint, last, Load("s")) is None
        kept = checkpoint.read_snapshot("s")
        path = next(iter(kept.regions["k"].files()))
        whole = (tmp_path / "c" / path).read_bytes()
        (tmp_path / "c" / path).unlink()
        assert (
            rollback_refusal(checkpoint, last, Load("s")).sentence
            == f"The state file {path} of snapshot 's' is missing; restore it from a copy."
        )
        (tmp_path / "c" / path).write_bytes(whole)
        kept.input = ""
        checkpoint.snapshot("old", kept)
        assert "because an older version took it" in rollback_refusal(checkpoint, last, Load("old")).sentence
        kept.input, kept.finished = "0", True
        checkpoint.snapshot("end", kept)
        assert "is of the end of the input" in rollback_refusal(checkpoint, last, Load("end")).sentence
        (tmp_path / "c" / "snapshots" / "s.json").write_text(json.dumps({}))
        assert "is damaged" in rollback_refusal(checkpoint, last, Load("s")).sentence


def test_snapshot_when_it_is_removed_is_gone_with_the_files_that_only_it_needs(tmp_path):
    with Harness(small(tmp_path), checkpoint=str(tmp_path / "c")) as harness:
        harness.push("events", [row(0), row(1)])
        harness.snapshot("s")
        checkpoint = Checkpoint(harness.checkpoint)
        with pytest.raises(CheckpointError, match=r"^There is no snapshot 'x'; there are s\.$"):
            checkpoint.remove_snapshot("x")
        checkpoint.remove_snapshot("s")
        assert checkpoint.snapshot_names() == []
