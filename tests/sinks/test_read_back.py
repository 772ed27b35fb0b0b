"""`penstock.read_back`: a region behind rows that were stored with their positions gives what it gives behind the stream itself."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import DeclarationError, SinkError
from penstock.protocol.rescale import Limits
from penstock.rows.stored_positions import stored_columns
from penstock.sources.read_back import READ_NUMBER, READ_PLACE, READ_TIME
from penstock.testing import Harness
from penstock.types import MAX_TIME, Mark

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
SCHEMA = "p string, o long, k string, at timestamp, v long"


def twice(key, event, state):
    n = (state or 0) + 1
    return [(event.v, event.at, n), (-event.v, event.at, n)][: 1 + event.v % 2], n


FIRST = {
    "source": lambda rows: rows,
    "where": lambda rows: rows.where("v % 3 > 0"),
    "map": lambda rows: rows.key_by("k", name="one").stateful_map(twice, "v long, at timestamp, n long"),
    "windows": lambda rows: rows.key_by("k", name="one").window(ps.sliding("4 seconds", "2 seconds")).aggregate(v=ps.sum("v")),
    "sessions": lambda rows: rows.key_by("k", name="one").window(ps.session("2 seconds")).aggregate(v=ps.max("v")),
    "both": lambda rows: rows.key_by("k", name="one").deduplicate("v").key_by("v", name="and").stateful_map(twice, "v long, at timestamp, n long"),
}  # fmt: skip


def listed(key, event, state):
    state = [*(state or []), event.v]
    return (str(state),), state


SECOND = {
    "map": lambda rows: rows.stateful_map(listed, "seen string"),
    "collected": lambda rows: rows.window(ps.tumbling("6 seconds")).aggregate(vs=ps.collect("v"), a=ps.first("v"), z=ps.last("v")),
    "sessions": lambda rows: rows.window(ps.session("3 seconds")).aggregate(n=ps.count(), z=ps.last("v")),
    "distinct": lambda rows: rows.deduplicate("v", within="3 seconds"),
    "pattern": lambda rows: rows.match("SELECT * WHERE (a; b) WITHIN 3 SECONDS", define={"a": "v % 2 = 0", "b": "v % 2 = 1"}),
}  # fmt: skip


def records(seed, n=50):
    """Records of several partitions, many of one time, some late."""
    dice, now, out = random.Random(seed), 0, []
    for v in range(n):
        now += dice.choice([0, 0, 0, 1])
        at = BEGIN + dt.timedelta(seconds=now - dice.choice([0, 0, 1, 2]))
        out.append({"p": dice.choice(["x", "y", "z"]), "o": v, "k": dice.choice(["a", "b", "c", None]), "at": at, "v": v % 17})
    return out


def sources(flow):
    """Two sources, whose records have the same times."""
    made = [
        flow.source(name, ps.files("none", SCHEMA), time="at", lateness="1 second", position=("p", "o"), partitions=["x", "y", "z"])
        for name in ("s", "t")
    ]  # fmt: skip
    return made[0].union(made[1])


def second(rows, kinds, out):
    rows = rows.with_columns(half="v % 3")
    for kind in kinds:
        SECOND[kind](rows.key_by("half", name=f"two {kind}")).sink(out(kind), name=kind)


def feed(harness, seed, dice, epochs):
    rows = {"s": records(seed), "t": records(seed + 1)}
    for epoch in range(epochs):
        for name, whole in rows.items():
            harness.push(name, whole[len(whole) * epoch // epochs : len(whole) * (epoch + 1) // epochs])
        harness.epoch(*([{"command": "scale", "workers": dice.randint(1, 4)}] if dice.random() < 0.4 else []))


def seen(place, kinds):
    return {kind: sorted(str(sorted(row.items())) for row in ps.memory(f"{place} {kind}").rows()) for kind in kinds}


def kinds_after(first):
    return [kind for kind in SECOND if kind != "pattern" or first in ("source", "where", "map", "both")]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
@pytest.mark.parametrize("first", FIRST)
def test_region_behind_stored_rows_gives_what_it_gives_behind_the_stream(table_rig, first, seed, tmp_path):
    if seed and table_rig.system.startswith("postgresql"):
        pytest.skip("one is enough of a server")
    check(table_rig, first, seed, tmp_path)


def check(rig, first, seed, place):
    dice = random.Random(f"{rig.system} {first} {seed}")
    kinds = dice.sample(kinds_after(first), 2)
    flow = ps.Flow("whole")
    second(FIRST[first](sources(flow)), kinds, lambda kind: ps.memory(f"{place} whole {kind}"))
    with Harness(flow, workers=dice.randint(1, 3)) as harness:
        feed(harness, seed, dice, dice.randint(1, 5))
        harness.finish()
    wanted = seen(f"{place} whole", kinds)
    assert all(wanted.values())

    sink = rig.sink()
    storing = ps.Flow("storing")
    FIRST[first](sources(storing)).sink(sink, name="out", positions=True)
    again = ps.Flow("again")
    most = dice.choice([None, 13, 50])
    back = again.source("back", ps.read_back(sink, max_rows_per_epoch=most))
    second(back, [kind for kind in kinds if kind != "pattern"], lambda kind: ps.memory(f"{place} again {kind}"))
    if "pattern" in kinds:  # which shows times
        second(
            again.source("shown", ps.read_back(sink), time="at"), ["pattern"], lambda kind: ps.memory(f"{place} again {kind}")
        )
    follow = dice.random() < 0.5
    with Harness(storing, workers=dice.randint(1, 3)) as writer, Harness(again, workers=dice.randint(1, 3)) as reader:
        rows = {"s": records(seed), "t": records(seed + 1)}
        epochs = dice.randint(1, 5)
        for epoch in range(epochs):
            for name, whole in rows.items():
                writer.push(name, whole[len(whole) * epoch // epochs : len(whole) * (epoch + 1) // epochs])
            writer.epoch(*([{"command": "scale", "workers": dice.randint(1, 4)}] if dice.random() < 0.4 else []))
            if follow:
                reader.epoch()
            if dice.random() < 0.2:
                reader.restart()
        writer.finish()
        while (before := reader.record.sources.get("back")) is None or reader.epoch().sources[
            "back"
        ].partitions != before.partitions:
            reader.epoch()
        reader.finish()
        assert reader.record.sources["back"].late == 0
    assert seen(f"{place} again", kinds) == wanted


HOLDS = Limits(first_bytes=40, least_bytes=40, most_bytes=80, hold_bytes=60)
"""Every key that moves is put on hold, and waits for its copy."""


def heavy(key, event, state):
    return [(event.v, event.at)], [*(state or range(1000, 1030)), event.v]


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_keys_on_hold_give_out_late_are_read_in_their_place(sqlite_rig, seed, tmp_path):
    def stored_from(flow):
        return sources(flow).key_by("k", name="one").stateful_map(heavy, "v long, at timestamp")

    dice, kinds = random.Random(seed), ["map", "collected"]
    flow, rows = ps.Flow("whole"), {"s": records(seed), "t": records(seed + 1)}
    second(stored_from(flow), kinds, lambda kind: ps.memory(f"{tmp_path} whole {kind}"))
    with Harness(flow) as harness:
        feed(harness, seed, random.Random(2), 1)
        harness.finish()
    storing, again, sink = ps.Flow("storing"), ps.Flow("again"), sqlite_rig.sink()
    stored_from(storing).sink(sink, name="out", positions=True)
    second(again.source("back", ps.read_back(sink)), kinds, lambda kind: ps.memory(f"{tmp_path} again {kind}"))
    held = 0
    with Harness(storing, limits=HOLDS) as writer, Harness(again) as reader:
        for epoch in range(10):
            for name, whole in rows.items():
                writer.push(name, whole[len(whole) * epoch // 10 : len(whole) * (epoch + 1) // 10])
            commands = [{"command": "scale", "workers": 1 + (epoch + dice.randint(0, 1)) % 4}] if epoch % 3 == 1 else []
            writer.epoch(*commands, *(writer.copy() if dice.random() < 0.3 else []))
            held += sum(len(region.control.held) for region in writer.record.regions.values())
            reader.epoch()
        writer.finish()
        reader.epoch()
        reader.finish()
        assert reader.record.sources["back"].late == 0
    assert held
    assert seen(f"{tmp_path} again", kinds) == seen(f"{tmp_path} whole", kinds)


# -- what is read, and what is refused


VALUES = pa.schema(
    [
        ("i", pa.int32()), ("f", pa.float64()), ("g", pa.float32()), ("b", pa.bool_()), ("s", pa.string()), ("x", pa.binary()), ("d", pa.date32()),
        ("at", pa.timestamp("us", "UTC")), ("wall", pa.timestamp("us")), ("money", pa.decimal128(30, 8)),
    ]
)  # fmt: skip
NESTED = pa.schema([("l", pa.list_(pa.float64())), ("r", pa.struct([("x", pa.int64()), ("t", pa.timestamp("us", "UTC"))])), ("m", pa.map_(pa.string(), pa.int64()))])  # fmt: skip


def stored(sink, table, positions=None, output="out", frontier=MAX_TIME, epoch=0, flow="flow-a"):
    """Store rows with positions as an engine would."""
    n = table.num_rows
    given = positions or [(i, 0, i, 0) for i in range(n)]
    columns = [pa.array([p[i] for p in given], pa.int64()) for i in range(4)]
    schema = stored_columns(table.schema, timed=True)
    whole = pa.table([*table.columns, *columns, pa.array(["s/0"] * n, pa.string())], schema=schema)
    sink.validate(schema, updates=False, key=())
    sink.open(Mark(flow, output, 1, epoch - 1), schema)
    sink.write(whole.to_batches(), Mark(flow, output, 1, epoch, frontier))


def read(source, after=-1):
    found = source.records({"0": after} if after >= 0 else {})
    return [] if found is None else found.select(source.schema.names).to_pylist()


def alike(rows):
    """NaN compares with itself."""
    return [tuple("NaN" if v != v else v for v in row.values()) for row in rows]  # noqa: PLR0124


@given(st.lists(st.tuples(*(st.one_of(st.none(), s) for s in (
    st.integers(-(2**31), 2**31 - 1), st.floats(), st.floats(width=32), st.booleans(), st.text(st.characters(exclude_characters="\0", codec="utf-8")),
    st.binary(), st.dates(), st.datetimes(timezones=st.just(dt.UTC)), st.datetimes(), st.decimals(-10**20, 10**20, places=8),
))), min_size=1, max_size=12))  # fmt: skip
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_values_of_every_type_come_back_as_they_were(table_rig, rows):
    name = f"t{next(NUMBERS)}"
    table = pa.table(
        [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True) if rows else ((),) * len(VALUES), VALUES, strict=True)],
        schema=VALUES,
    )
    sink = table_rig.sink(name)
    stored(sink, table)
    wanted = alike(table.to_pylist())
    if table_rig.system == "sqlite":  # which has no NaN
        wanted = [(row[0], *(None if v == "NaN" else v for v in row[1:3]), *row[3:]) for row in wanted]
    for source in (ps.read_back(sink), ps.read_back(table_rig.sink(name), VALUES)):
        assert source.schema == VALUES
        found = source.records({})
        assert alike(read(source)) == wanted
        assert found is None or found.schema.names[-5:] == [READ_TIME, *READ_PLACE, READ_NUMBER]


def test_nested_values_come_back_from_parquet_and_are_refused_of_a_table(table_rig):
    rows = [{"l": [1.5, math.inf, None], "r": {"x": None, "t": BEGIN}, "m": [("a", 1), ("b", None)]}, {"l": None, "r": None, "m": None}, {"l": [], "r": {"x": 1, "t": None}, "m": []}]  # fmt: skip
    sink = table_rig.sink()
    stored(sink, pa.Table.from_pylist(rows, NESTED))
    if table_rig.system.startswith("parquet"):
        assert read(ps.read_back(sink)) == read(ps.read_back(table_rig.sink())) == rows
    else:
        with pytest.raises(
            DeclarationError, match=r"keeps column 'l' as JSON, which does not tell its type: read it back from parquet"
        ):
            ps.read_back(sink)


NUMBERS = itertools.count()
N = pa.schema([("n", pa.int64())])


def numbers(*values):
    return pa.table([pa.array(values, pa.int64())], schema=N)


def test_rows_come_in_the_order_of_their_positions_in_pages_from_where_the_last_ended(table_rig):
    dice = random.Random(7)
    positions = [(t, p, o, s) for t in (-(2**62), -1, 0, 5) for p in (-(2**60), -1, 0, 3 << 48) for o in (-(2**63), 7, 2**63 - 1) for s in (0, 1)]  # fmt: skip
    order = list(range(len(positions)))
    dice.shuffle(order)
    sink = table_rig.sink()
    stored(sink, numbers(*order), [positions[i] for i in order])
    source = replace(ps.read_back(sink), page_rows=7)
    assert [row["n"] for row in read(source)] == sorted(order)
    for after in (0, 6, 50, len(order) - 2):
        assert [row["n"] for row in read(source, after)] == list(range(after + 1, len(order)))
    few = replace(source, max_rows_per_epoch=10)
    assert [row["n"] for row in read(few, 20)] == list(range(21, 31))
    assert read(source, len(order) - 1) == []
    found = few.records({"0": 20})
    assert found.column(READ_TIME).to_pylist() == [positions[i][0] for i in range(21, 31)]
    assert found.column(READ_NUMBER).to_pylist() == list(range(21, 31))


def test_only_rows_that_the_mark_and_its_frontier_have_passed_are_read(table_rig):
    sink = table_rig.sink()
    stored(sink, numbers(), frontier=-(2**63))
    source = ps.read_back(sink)
    assert read(source) == []
    stored(sink, numbers(1, 2, 3), [(10, 0, 0, 0), (20, 0, 1, 0), (15, 1, 0, 0)], frontier=20, epoch=1)
    assert read(source) == [{"n": 1}, {"n": 3}]
    stored(sink, numbers(4), [(20, -5, 1, 0)], frontier=MAX_TIME, epoch=2)
    assert read(source, 1) == [{"n": 4}, {"n": 2}]

    def rows():
        yield from numbers(5).to_batches()
        raise ZeroDivisionError

    with pytest.raises((ZeroDivisionError, SinkError)):
        sink.write(rows(), Mark("flow-a", "out", 1, 3, MAX_TIME))
    assert read(source, 3) == []


def test_files_of_an_epoch_that_was_not_committed_are_not_read(parquet_rig):
    sink = parquet_rig.sink()
    stored(sink, numbers(1))
    files = list(Path(parquet_rig.url, "results").glob("epoch-*.parquet"))
    shutil.copy(files[0], str(files[0]).replace("epoch-000000000", "epoch-000000001"))
    assert read(ps.read_back(sink)) == [{"n": 1}]


def test_rows_that_were_taken_back_after_they_were_read_are_missed(table_rig):
    sink = table_rig.sink()
    stored(sink, numbers(1), [(1, 0, 0, 0)], frontier=2)
    stored(sink, numbers(2), [(2, 0, 1, 0)], frontier=3, epoch=1)
    source = ps.read_back(sink)
    assert read(source) == [{"n": 1}, {"n": 2}]
    if table_rig.system.startswith("parquet"):
        sink.rewind(0, Mark("flow-a", "out", 1, 2, 2))
    else:
        table_rig.query("DELETE FROM results WHERE n = 2")
    with pytest.raises(
        SinkError,
        match=r"has taken back rows that were read: 2 were, and 1 are there now; its flow has gone back .* Start this flow anew",
    ):
        read(source, 1)


def test_rows_of_one_position_are_refused(table_rig):
    sink = table_rig.sink()
    stored(sink, numbers(1, 2), [(1, 0, 3, 0), (1, 0, 3, 0)])
    with pytest.raises(SinkError, match=r"two rows of one position \(__ps_time 1, __ps_part 0, __ps_offset 3, __ps_sub 0\)"):
        read(ps.read_back(sink))


def test_rows_without_event_time_are_read_once_their_flow_has_finished(table_rig, tmp_path):
    flow, sink = ps.Flow("f"), table_rig.sink()
    flow.source("s", ps.files("none", "n long")).sink(sink, name="out", positions=True)
    source = ps.read_back(sink)
    assert source.time is None
    with Harness(flow) as harness:
        harness.push("s", [{"n": n} for n in (3, 1, 2)])
        harness.epoch()
        with pytest.raises(
            SinkError,
            match=r"rows without event time, which have an order only when their flow .* has finished: drain it first",
        ):
            read(source)
        harness.finish()
    assert read(source) == read(ps.read_back(table_rig.sink())) == [{"n": 3}, {"n": 1}, {"n": 2}]


def test_places_that_cannot_be_read_back_are_refused(table_rig, make):
    with pytest.raises(DeclarationError, match=r"holds nothing, so the columns of its rows are not known; declare the flow"):
        ps.read_back(table_rig.sink())
    plain = table_rig.sink("plain")
    plain.open(make.mark(-1), make.schema)
    plain.write([make.batch((1, "a"))], make.mark(0))
    with pytest.raises(SinkError, match=r"holds rows without positions; store them with"):
        ps.read_back(table_rig.sink("plain"))
    stored(table_rig.sink(), numbers(1))
    with pytest.raises(DeclarationError, match=r"has no column 'other'; there are n"):
        ps.read_back(table_rig.sink(), "other long")
    if table_rig.system.startswith("parquet"):
        with pytest.raises(DeclarationError, match="holds nothing"):
            ps.read_back(table_rig.sink(), output="elsewhere")
    else:
        assert read(ps.read_back(table_rig.sink(), output="elsewhere")) == []
    for sink in (ps.memory("x"), ps.console(), ps.noop()):
        with pytest.raises(DeclarationError, match=r"cannot be read back; use penstock.parquet"):
            ps.read_back(sink)
    with pytest.raises(DeclarationError, match="has mode 'upsert', so rows go"):
        ps.read_back(ps.sql("sqlite:///none.db", "t", mode="upsert", key="n"))


def test_place_of_several_outputs_is_read_only_where_they_can_be_told_apart(table_rig):
    for output, n in (("one", 1), ("two", 2)):
        stored(table_rig.sink(), numbers(n), [(1, n, 1, 0)], output=output)
    if table_rig.system.startswith("parquet"):
        with pytest.raises(SinkError, match=r"holds outputs 'one' and 'two': say which"):
            ps.read_back(table_rig.sink())
        assert read(ps.read_back(table_rig.sink(), output="two")) == [{"n": 2}]
    else:
        with pytest.raises(SinkError, match=r"holds rows of outputs 'one' and 'two', and none of its columns tells them apart"):
            read(ps.read_back(table_rig.sink(), output="two"))


def test_source_of_stored_rows_does_not_show_the_password():
    sink = ps.sql("postgresql://me:secret@127.0.0.1:1/d", "t")
    sink.validate(stored_columns(N, timed=True), updates=False, key=())
    source = ps.read_back(sink)
    assert "secret" not in repr(source) + str(source.meaning()) + source.describe()
