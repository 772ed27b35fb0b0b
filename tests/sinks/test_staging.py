"""Rows that tasks stage and the driver commits: the contract of `penstock.sinks.Staging`, the same for all sinks that offer it."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace

import cloudpickle
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import FencedError, SinkError
from penstock.sinks import Staging, parts
from penstock.testing import Crash, Harness


@pytest.fixture(params=["few rows", "many rows"])
def rows_are(request, monkeypatch):
    """Whether a task's rows are few, so that they are its token, or enough for a file, as all rows are here."""
    if request.param == "many rows":
        monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    return request.param


@pytest.fixture
def opened(staging_rig, make):
    def give(run=1, epoch=-1):
        sink = staging_rig.sink()
        sink.open(make.mark(epoch, run=run), make.schema)
        return sink

    return give


def stage(sink, mark, *tasks, first_attempt=7):
    """What the tasks of an epoch give; the stager crosses to each as it does in Spark."""
    sent = cloudpickle.dumps(sink.stager(mark))
    return [t for n, task in enumerate(tasks, first_attempt) for t in cloudpickle.loads(sent)(iter(task), n)]


def test_commit_when_tasks_staged_then_rows_are_in_their_order_in_one_file_with_the_mark(
    rows_are, opened, staging_rig, make, tmp_path
):
    sink = opened()
    assert isinstance(sink, Staging)
    tokens = stage(sink, make.mark(0), [make.batch((1, "a"), (2, "b")), make.batch((3, "c"))], [], [make.batch((4, "d"))])
    assert not staging_rig.has_rows()
    assert len(staging_rig.staged()) == (2 if rows_are == "many rows" else 0)
    assert sink.commit(iter(tokens), make.mark(0)) == 4
    assert staging_rig.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    if staging_rig.system == "parquet":
        assert [f.name for f in (tmp_path / "results").glob("*.parquet")] == ["epoch-000000000-out-000.parquet"]
    assert staging_rig.stored_epoch() == 0
    assert staging_rig.staged() == []


def test_commit_when_some_tasks_have_many_rows_and_some_few_then_all_are_in_their_order(opened, staging_rig, make, monkeypatch):
    sink = opened()
    few = [stage(sink, make.mark(0), [make.batch((n, "few"))]) for n in (1, 2, 4)]
    monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    many = [stage(sink, make.mark(0), [make.batch((n, "many"))], first_attempt=n) for n in (3, 5)]
    tokens = [*few[0], *few[1], *many[0], *few[2], *many[1]]
    assert sink.commit(tokens, make.mark(0)) == 5
    assert [n for n, _ in staging_rig.rows()] == [1, 2, 3, 4, 5]


def test_commit_when_no_task_has_rows_then_mark_advances(opened, staging_rig, make):
    sink = opened()
    assert sink.commit(stage(sink, make.mark(0), [], [make.batch()]), make.mark(0)) == 0
    assert not staging_rig.has_rows()
    assert staging_rig.stored_epoch() == 0


def test_commit_when_a_task_ran_twice_then_one_attempt_counts_and_the_other_is_swept(rows_are, opened, staging_rig, make):
    sink = opened()
    task = [make.batch((1, "a"))]
    stage(sink, make.mark(0), task, first_attempt=3)
    assert sink.commit(stage(sink, make.mark(0), task, first_attempt=4), make.mark(0)) == 1
    assert staging_rig.rows() == [(1, "a")]
    assert staging_rig.staged() == []


def test_stage_when_an_attempt_fails_half_way_then_it_gives_no_token_and_is_swept(opened, staging_rig, make, monkeypatch):
    monkeypatch.setattr(parts, "GROUP_BYTES", 1)
    monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    sink, tokens = opened(), []

    def failing():
        yield make.batch((1, "half"))
        yield make.batch((2, "half"))
        raise ValueError

    with pytest.raises(ValueError):
        tokens.extend(sink.stager(make.mark(0))(failing(), 3))
    assert tokens == []
    assert len(staging_rig.staged()) == (1 if staging_rig.system == "parquet" else 0)  # in a database it is rolled back
    assert sink.commit(stage(sink, make.mark(0), [make.batch((1, "a"), (2, "b"))]), make.mark(0)) == 2
    assert staging_rig.rows() == [(1, "a"), (2, "b")]
    assert staging_rig.staged() == []


def test_open_when_a_crash_came_between_stage_and_commit_then_what_was_staged_is_swept_and_stored_once(
    rows_are, opened, staging_rig, make
):
    stage(opened(), make.mark(0), [make.batch((1, "a"))], [make.batch((2, "b"))])  # and the driver dies
    again = opened(run=2)
    assert staging_rig.staged() == []
    tokens = stage(again, make.mark(0, run=2), [make.batch((1, "a"))], [make.batch((2, "b"))])
    assert again.commit(tokens, make.mark(0, run=2)) == 2
    assert staging_rig.rows() == [(1, "a"), (2, "b")]


def test_commit_when_epoch_is_held_then_nothing_is_stored_and_tokens_are_not_read(rows_are, opened, staging_rig, make):
    sink = opened()
    sink.write([make.batch((1, "a"))], make.mark(0))
    tokens = iter(stage(sink, make.mark(0), [make.batch((1, "a"))]))
    assert sink.commit(tokens, make.mark(0)) == 0
    assert len([*tokens]) == 1
    assert staging_rig.rows() == [(1, "a")]
    assert staging_rig.staged() == []


def test_commit_when_a_newer_run_has_opened_then_it_is_fenced_and_nothing_is_stored(rows_are, opened, staging_rig, make):
    old = opened()
    tokens = stage(old, make.mark(0), [make.batch((1, "old"))], [make.batch((2, "old"))])
    new = opened(run=2)
    with pytest.raises(FencedError, match=r"run 2 .*stop this run"):
        old.commit(tokens, make.mark(0))
    assert not staging_rig.has_rows()
    if staging_rig.system == "postgresql":  # where the run that owns the mark removes what others have left
        new.commit([], make.mark(0, run=2))
    assert staging_rig.staged() == []


def test_commit_when_a_token_names_a_part_that_is_gone_then_the_epoch_is_refused(opened, staging_rig, make, monkeypatch):
    monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    sink = opened()
    tokens = stage(sink, make.mark(0), [make.batch((1, "a"))], [make.batch((2, "b"))])
    staging_rig.remove_staged(staging_rig.staged()[1])
    with pytest.raises(SinkError, match=r"(could not|refused to) store epoch 0 .*correct that and start again"):
        sink.commit(tokens, make.mark(0))
    assert not staging_rig.has_rows()
    assert sink.commit(stage(sink, make.mark(0), [make.batch((1, "a"))]), make.mark(0)) == 1


def test_commit_when_a_part_has_lost_rows_then_the_epoch_is_refused(staging_rig, opened, make, monkeypatch):
    """Tables of parts are not logged: a server that crashed has them empty."""
    monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    if staging_rig.system == "parquet":
        pytest.skip("files are not emptied")
    sink = opened()
    tokens = stage(sink, make.mark(0), [make.batch((1, "a"))], [make.batch((2, "b"), (3, "c"))])
    staging_rig.query(f'DELETE FROM "{staging_rig.staged()[1]}" WHERE n = 2')
    with pytest.raises(SinkError, match=r"has lost rows that a task had stored for it \(1 of 2 are left\).*start again"):
        sink.commit(tokens, make.mark(0))
    assert not staging_rig.has_rows()
    assert staging_rig.stored_epoch() == -1


def test_commit_when_somebody_looks_at_a_part_then_it_does_not_wait_and_removes_it_the_next_time(
    staging_rig, opened, make, monkeypatch
):
    monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    if staging_rig.system == "parquet":
        pytest.skip("a file can be removed while it is read")
    sink = opened()
    tokens = stage(sink, make.mark(0), [make.batch((1, "a"))], [make.batch((2, "b"))])
    looked_at = staging_rig.staged()[0]
    with psycopg.connect(staging_rig.url) as backup:
        backup.execute(f'SELECT * FROM "{looked_at}"')
        assert sink.commit(tokens, make.mark(0)) == 2
        assert staging_rig.staged() == [looked_at]
    sink.commit([], make.mark(1))
    assert staging_rig.staged() == []
    assert staging_rig.rows() == [(1, "a"), (2, "b")]


def test_upsert_of_staged_rows_when_a_key_comes_from_several_tasks_then_the_last_one_wins(postgres_rig, make, monkeypatch):
    sink = postgres_rig.sink(mode="upsert", key="n")
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "before"), (9, "kept"))], make.mark(0))
    tasks = [[make.batch((1, "a"), (2, "a")), make.batch((2, "b"))], [make.batch((2, "c"), (3, "c"))], [make.batch((3, "d"))]]
    for epoch, few in enumerate([(), (0,), (1,), (2,), (0, 1, 2)], 1):
        tokens = []
        for n, task in enumerate(tasks):
            monkeypatch.setattr(parts, "INLINE_BYTES", 1 << 20 if n in few else 0)
            tokens += stage(sink, make.mark(epoch), task, first_attempt=n)
        assert sink.commit(tokens, make.mark(epoch)) == 3
        assert sorted(postgres_rig.rows()) == [(1, "a"), (2, "c"), (3, "d"), (9, "kept")]


def test_replace_by_staged_rows_when_an_epoch_has_rows_then_those_before_are_gone(postgres_rig, make, monkeypatch):
    monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    sink = postgres_rig.sink(mode="replace")
    sink.open(make.mark(-1), make.schema)
    for epoch in range(2):
        tokens = stage(sink, make.mark(epoch), [make.batch((epoch, "a"))], [make.batch((epoch, "b"))])
        assert sink.commit(tokens, make.mark(epoch)) == 2
        assert postgres_rig.rows() == [(epoch, "a"), (epoch, "b")]
    assert sink.commit(stage(sink, make.mark(2), []), make.mark(2)) == 0
    assert postgres_rig.rows() == [(1, "a"), (1, "b")]


def test_stage_when_the_host_sees_another_place_then_tokens_hold_the_rows(opened, staging_rig, make, monkeypatch, tmp_path):
    """A local path of the driver, which is another disk on the hosts of the tasks; or a server there by the same address."""
    monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    sink = opened()
    there = sink.stager(make.mark(0))
    if staging_rig.system == "parquet":
        elsewhere = [replace(there.store, landmark=there.store.landmark + ".elsewhere")]
    else:
        empty = re.sub(r"/test_\w+", "/postgres", staging_rig.url)
        other_flow = {**there.store.owner, "flow": "flow-b"}
        nobody = f"postgresql://postgres@/nobody?host={tmp_path}"
        elsewhere = [replace(there.store, url=empty), replace(there.store, owner=other_flow), replace(there.store, url=nobody)]
    tokens = [t for n, store in enumerate(elsewhere) for t in replace(there, store=store)([make.batch((n, "a"))], n)]
    assert staging_rig.staged() == []
    assert sink.commit(tokens, make.mark(0)) == len(elsewhere)
    assert staging_rig.rows() == [(n, "a") for n in range(len(elsewhere))]


def test_stage_when_rows_have_other_columns_then_it_is_told_as_by_write(opened, make):
    with pytest.raises(SinkError, match="was opened with other columns than these rows have"):
        stage(opened(), make.mark(0), [make.batch((1,), schema=pa.schema([("n", pa.int64())]))])


# ------------------------------------------------------------------------------------------------------------- in a flow


def counted(key, event, state):
    n = (state or 0) + 1
    return (key, n), n


@pytest.mark.parametrize("step", ["during counted", "stored counted", "commit"])
def test_flow_when_it_crashes_around_the_commit_of_staged_rows_then_each_row_is_stored_once(rows_are, tmp_path, step):
    flow = ps.Flow("staged")
    events = flow.source("events", ps.files("none", "k long, at timestamp"), time="at")
    out = events.key_by("k").stateful_map(counted, "k long, n long")
    out.sink(ps.parquet(tmp_path / "out"), name="counted")
    left = []

    def before(name):
        if name == step and len(left) < 3:
            left.append(len([*(tmp_path / "out" / "_penstock" / "staging").iterdir()]))
            raise Crash

    with Harness(flow, workers=3, checkpoint=str(tmp_path / "c"), on_step=before) as harness:
        for second in range(4):  # rows come out when the next ones have come
            at = dt.datetime(2024, 1, 1, 0, 0, second, tzinfo=dt.UTC)
            harness.push("events", [{"k": k, "at": at} for k in range(30)])
            while True:
                try:
                    harness.epoch()
                    break
                except Crash:
                    harness.restart()
        harness.finish()
    assert left == [3 if step == "during counted" and rows_are == "many rows" else 0] * 3
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted((r["k"], r["n"]) for r in rows) == [(k, n) for k in range(30) for n in (1, 2, 3, 4)]
