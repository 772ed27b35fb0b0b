"""``sql(evolve=True)``: columns that a table lacks come with the first epoch that is stored, or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import FencedError, SinkError
from penstock.testing import Crash, Harness

WIDER = pa.schema(
    [
        ("n", pa.int64()), ("word", pa.string()), ("select", pa.float64()), ('a "b"', pa.timestamp("us", "UTC")),
        ("many", pa.list_(pa.int64())), ("exact", pa.decimal128(10, 3)), ("raw", pa.binary()),
    ]
)  # fmt: skip
NEW = '"select", "a ""b""", many, exact, raw'


def columns(rig, table="results"):
    if rig.system == "sqlite":
        return [name for (name,) in rig.query(f"SELECT name FROM pragma_table_info('{table}')")]
    return [
        name
        for (name,) in rig.query(
            f"SELECT column_name FROM information_schema.columns WHERE table_name = '{table}' ORDER BY ordinal_position"
        )
    ]


def held(rig, make, **options):
    """A table with a row, and a sink of the next run."""
    sink = rig.sink(**options)
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "a"))], make.mark(0))
    sink.close()
    return rig.sink(evolve=True, **options)


def wide(make, n, word="b"):
    return make.batch((n, word, 0.5, None, [1, 2], None, b"\0"), schema=WIDER)


@pytest.mark.parametrize(
    "options", [{}, {"mode": "upsert", "key": ["n"]}, {"mode": "replace"}], ids=["append", "upsert", "replace"]
)
def test_new_columns_when_an_epoch_is_stored_are_added_with_its_rows_and_older_rows_have_null(sql_rig, make, options):
    sink = held(sql_rig, make, **options)
    sink.open(make.mark(-1, run=2), WIDER)
    assert columns(sql_rig) == ["n", "word"]  # a flow that stores nothing changes no table
    assert sink.write([wide(make, 2)], make.mark(1, run=2)) == 1
    assert sink.write([wide(make, 3), wide(make, 4)], make.mark(2, run=2)) == 2
    assert columns(sql_rig) == WIDER.names
    rows = sql_rig.rows(columns='n, "select"', order="n")
    assert rows == ([(3, 0.5), (4, 0.5)] if options.get("mode") == "replace" else [(1, None), (2, 0.5), (3, 0.5), (4, 0.5)])
    if options.get("mode") == "upsert":
        sink.write([wide(make, 1)], make.mark(3, run=2))
        assert sql_rig.rows(columns='n, "select"', order="n")[0] == (1, 0.5)


def test_epoch_without_rows_adds_the_columns_too(sql_rig, make):
    sink = held(sql_rig, make)
    sink.open(make.mark(-1, run=2), WIDER)
    assert sink.write([], make.mark(1, run=2)) == 0
    assert columns(sql_rig) == WIDER.names
    assert sql_rig.rows(columns=f"n, {NEW}") == [(1, None, None, None, None, None)]


def test_epoch_that_fails_or_is_fenced_adds_nothing(sql_rig, make):
    sink = held(sql_rig, make)
    sink.open(make.mark(-1, run=2), WIDER)

    def failing():
        yield wide(make, 2)
        raise ValueError("no more")

    if not sql_rig.staged_writes:
        with pytest.raises(ValueError, match="no more"):
            sink.write(failing(), make.mark(1, run=2))
        assert columns(sql_rig) == ["n", "word"]
    other = sql_rig.sink()
    other.open(make.mark(-1, run=3), make.schema)
    with pytest.raises(FencedError):
        sink.write([wide(make, 2)], make.mark(1, run=2))
    assert columns(sql_rig) == ["n", "word"]
    assert sql_rig.rows() == [(1, "a")]


def test_epoch_that_is_stored_already_changes_nothing(sql_rig, make):
    sink = held(sql_rig, make)
    sink.open(make.mark(-1, run=2), WIDER)
    sink.write([wide(make, 2)], make.mark(1, run=2))
    again = sql_rig.sink(evolve=True)
    again.open(make.mark(0, run=3), WIDER)
    assert again.write([wide(make, 2)], make.mark(1, run=3)) == 0
    assert again.write([wide(make, 3)], make.mark(2, run=3)) == 1
    assert sql_rig.rows(columns="n", order="n") == [(1,), (2,), (3,)]


REFUSED = {
    "not asked for": ({"evolve": False}, WIDER, "has no column 'select': let it be added with evolve=True, add it as"),
    "another type": (
        {},
        pa.schema([("n", pa.float64()), ("new", pa.int64())]),
        "exactly: evolve=True adds columns and changes none: make it",
    ),
    "a key": (
        {"mode": "upsert", "key": ["n", "more"]},
        pa.schema([("n", pa.int64()), ("more", pa.int64())]),
        "has no column 'more', which is in the key, and evolve=True adds no key: rows that are there would have none. Choose another table.",
    ),
    "positions": (
        {},
        pa.schema([("n", pa.int64()), ("__ps_partition", pa.int64())]),
        "has rows without positions, and evolve=True adds none: leave out positions=True, or choose another table.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_added_is_refused_when_the_flow_starts(sql_rig, make, case):
    options, schema, message = REFUSED[case]
    sql_rig.query("CREATE TABLE results (n BIGINT, word VARCHAR)")
    sink = sql_rig.sink(**{"evolve": True, **options})
    with pytest.raises(SinkError) as caught:
        sink.open(make.mark(-1), schema)
    assert message in str(caught.value)
    assert columns(sql_rig) == ["n", "word"]


def test_name_in_another_case_is_the_column_that_is_there_or_in_postgresql_refused(sql_rig, make):
    sql_rig.query('CREATE TABLE results (n BIGINT, "Word" VARCHAR)')
    sink = sql_rig.sink(evolve=True)
    if sql_rig.system == "postgresql":
        with pytest.raises(
            SinkError, match="has column 'Word', and PostgreSQL would keep 'word' beside it, which differs in case only"
        ):
            sink.open(make.mark(-1), make.schema)
        return
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "a"))], make.mark(0))
    assert columns(sql_rig) == ["n", "Word"]


def test_two_flows_that_grow_one_table_at_a_time_both_store_their_rows(sql_rig, make):
    sql_rig.query("CREATE TABLE results (n BIGINT, word VARCHAR)")
    common = [("n", pa.int64()), ("at_all", pa.int64())]
    schemas = [pa.schema([*common, (f"own{i}", pa.string())]) for i in range(3)]
    rigs, barrier, failed = [sql_rig.sink(evolve=True) for _ in schemas], threading.Barrier(3), []
    for i, (sink, schema) in enumerate(zip(rigs, schemas, strict=True)):
        sink.open(make.mark(-1, flow=f"flow {i}", output=f"out {i}"), schema)

    def store(i):
        barrier.wait()
        try:
            for epoch in range(3):
                rows = [make.batch((i, epoch, str(i)), schema=schemas[i])]
                rigs[i].write(rows, make.mark(epoch, flow=f"flow {i}", output=f"out {i}"))
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=store, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert sorted(columns(sql_rig)) == ["at_all", "n", "own0", "own1", "own2", "word"]
    wanted = [(i, epoch, *(str(i) if i == own else None for own in range(3))) for i in range(3) for epoch in range(3)]
    assert sql_rig.rows(columns="n, at_all, own0, own1, own2", order="n, at_all") == wanted


def test_other_flow_that_adds_the_column_in_another_type_is_said_when_the_epoch_is_stored(sql_rig, make):
    sink = held(sql_rig, make)
    sink.open(make.mark(-1, run=2), WIDER)
    sql_rig.query('ALTER TABLE results ADD COLUMN "select" DATE')
    with pytest.raises(
        SinkError, match=r"has column 'select' of type .*, which does not hold double exactly: evolve=True adds"
    ):
        sink.write([wide(make, 2)], make.mark(1, run=2))
    assert sql_rig.rows(columns="n") == [(1,)]


@pytest.mark.parametrize("crash", ["compute", "store", "commit"])
def test_flow_that_gives_a_column_more_goes_on_in_its_table_with_every_row_once(tmp_path, crash):
    url = f"sqlite:///{tmp_path}/out.db"

    def declared(*more, **options):
        flow = ps.Flow("growing")
        rows = flow.source("s", ps.files("none", "k string, v long"))
        rows.with_columns(**dict(more)).sink(ps.sql(url, "rows", **options), name="out")
        return flow

    def failing(step):
        if step.startswith(crash):
            raise Crash

    folder = str(tmp_path / "checkpoint")
    with Harness(declared(), checkpoint=folder) as harness:
        harness.push("s", [{"k": "a", "v": 1}])
        harness.epoch()
    with (
        pytest.raises(SinkError, match="let it be added with evolve=True"),
        Harness(declared(("w", "v * 2")), checkpoint=folder),
    ):
        pass
    with Harness(declared(("w", "v * 2"), evolve=True), checkpoint=folder, on_step=failing) as harness:
        harness.push("s", [{"k": "b", "v": 2}])
        with pytest.raises(Crash):
            harness.epoch()
    with Harness(declared(("w", "v * 2"), evolve=True), checkpoint=folder) as harness:
        harness.push("s", [{"k": "b", "v": 2}])
        harness.epoch()
        harness.push("s", [{"k": "c", "v": 3}])
        harness.epoch()
    with Harness(declared(), checkpoint=folder) as harness:  # back to the code before: the column stays, and is null
        harness.push("s", [{"k": "d", "v": 4}])
        harness.epoch()
    import sqlite3

    found = sqlite3.connect(Path(tmp_path, "out.db")).execute("SELECT k, v, w FROM rows ORDER BY k").fetchall()
    assert found == [("a", 1, None), ("b", 2, 4), ("c", 3, 6), ("d", 4, None)]
