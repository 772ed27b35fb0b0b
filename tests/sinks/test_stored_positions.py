"""``.sink(…, positions=True)``: every sink stores with each row where it comes from, the same in every run."""

from __future__ import annotations

import datetime as dt
import random
import sqlite3
from collections import Counter

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_sink_from_outside import BEGIN, Positions, count, records, run

import penstock as ps
from penstock.errors import DeclarationError, SinkError
from penstock.testing import Harness
from penstock.types import OFFSET, PART, PARTITION, SUB, TIME

OUTPUTS = ("source", "where", "late", "input", "counted", "windows", "twice")
STORED = [TIME, PART, OFFSET, SUB, PARTITION]


def flow_of(sinks):
    """`OUTPUTS`, of all kinds of steps; `sinks` makes the sink of each."""
    flow = ps.Flow("positions")
    events = flow.source("events", ps.files("none", "k string, at timestamp, v long"), time="at", lateness="2 seconds")
    by_key = events.key_by("k", name="by k")
    counted = by_key.stateful_map(count, "k string, n long, v long")
    outputs = {
        "source": events,
        "where": events.where("v % 3 = 0").select("v"),
        "late": events.late,
        "input": by_key,
        "counted": counted,
        "windows": by_key.window(ps.sliding("4 seconds", "2 seconds")).aggregate(n=ps.count(), name="sums"),
        "twice": counted.key_by("n", name="second").stateful_map(count, "k long, n long, v long"),
    }
    for name, stream in outputs.items():
        stream.sink(sinks(name), name=name, positions=True)
    return flow


def made(system, place):
    """What makes the sink of an output, and what reads some columns of what it holds."""

    def sink(name):
        if system == "memory":
            return ps.memory(f"{place}/{name}")
        return ps.parquet(place / name) if system == "parquet" else ps.sql(f"{system}:///{place}/r.db", f"t_{name}")

    def read(name, own):
        timed = [TIME] * (name != "late")
        columns = [own, *timed, *STORED[1:]]
        if system == "memory":
            rows = ps.memory(f"{place}/{name}").rows()
            assert (TIME in rows[0]) is bool(timed)
            return rows
        if system == "parquet":
            assert pq.read_schema(next((place / name).glob("*.parquet"))).names[-len(columns) + 1 :] == columns[1:]
            return pq.read_table(place / name).to_pylist()
        connection = {"sqlite": sqlite3, "duckdb": duckdb}[system].connect(place / "r.db")
        found = connection.execute(f"SELECT {', '.join(columns)} FROM t_{name}").fetchall()
        connection.close()
        return [dict(zip(columns, row, strict=True)) for row in found]

    return sink, read


def told(rows, *columns):
    return Counter(tuple(row[c] for c in columns) for row in rows)


def fed(flow, seed, *, epochs, workers, scale=()):
    dice = random.Random(seed)
    rows = {p: records(p) for p in (0, 1)}
    cuts = {p: sorted(dice.choices(range(1, len(rows[p]) + 1), k=epochs - 1)) for p in rows}  # none joins late
    with Harness(flow, workers=workers) as harness:
        for epoch in range(epochs):
            for p, whole in rows.items():
                begin, end = ([0, *cuts[p]][epoch], [*cuts[p], len(whole)][epoch])
                harness.push("events", whole[begin:end], partition=p)
            harness.epoch(*([{"command": "scale", "workers": scale[epoch]}] if epoch < len(scale) else []))
        harness.finish()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("system", ["memory", "parquet", "sqlite", "duckdb"])
def test_stored_positions_are_those_that_a_sink_from_outside_gets_whatever_the_epochs_and_workers(system, seed, tmp_path):
    wanted = run(0, epochs=1, workers=1)
    make, read = made(system, tmp_path)
    dice = random.Random(seed)
    scale = [dice.randint(1, 5) for _ in range(dice.randint(0, 3))]
    fed(flow_of(make), seed, epochs=dice.randint(1, 9), workers=dice.randint(1, 4), scale=scale)
    for name in OUTPUTS:
        own = "n" if name == "windows" else "v"
        timed = [TIME] * (name != "late")
        at = wanted[name].schema.names.index(own)
        rows = read(name, own)
        given = Counter((row[at], *row[-3 - len(timed) :]) for row in wanted[name].rows.elements())
        assert told(rows, own, *timed, PART, OFFSET, SUB) == given, name
        assert set(told(rows, *timed, PART, OFFSET, SUB).values()) == {1}, name
        if name == "windows":
            assert {row[PARTITION] for row in rows} == {"frontier of by k/sums"}
        else:
            assert told(rows, PART, PARTITION) == told([{**r, PARTITION: f"events/{r[PART]}"} for r in rows], PART, PARTITION)


def test_stored_columns_are_the_last_ones_of_these_types(tmp_path):
    sink = Kept()
    flow = ps.Flow("f")
    flow.source("s", ps.files("none", "k string, at timestamp"), time="at").sink(sink, positions=True)
    assert sink.declared.names == ["k", "at", *STORED]
    assert [sink.declared.field(n).type for n in STORED] == [pa.int64()] * 4 + [pa.string()]


class Kept(Positions):
    wants_positions = False


@pytest.mark.parametrize(
    ("partition", "shown"), [("p string", {"s/#{}"}), ("p int", {"s/7", "s/-2", "s/None"})], ids=["text", "whole"]
)
def test_partition_of_a_source_without_event_time_is_named_as_far_as_it_is_known(partition, shown, tmp_path):
    flow = ps.Flow("f")
    source = ps.files("none", f"{partition}, o long")
    sink, handed = ps.memory(f"{tmp_path}"), []
    flow.source("s", source, position=("p", "o")).sink(sink, positions=True).sink(
        ps.foreach_epoch(lambda table, epoch: handed.append(table)), positions=True
    )
    values = ["a", "b"] if "string" in partition else [7, -2, None]
    with Harness(flow) as harness:
        harness.push("s", [{"p": value, "o": 3} for value in values])
        harness.finish()
    rows = sink.rows()
    assert len(rows) == len(values)
    assert [table.column_names for table in handed] == [["p", "o", *STORED[1:]]]
    assert {row[PARTITION] for row in rows} == {
        text.format(row[PART]) for row in rows for text in shown if "{" in text or text == row[PARTITION]
    }
    assert all(TIME not in row for row in rows)
    assert len({row[PARTITION] for row in rows}) == len(values)


def test_names_of_text_partitions_are_those_of_the_mark(tmp_path):
    flow = ps.Flow("f")
    sink = ps.memory(f"{tmp_path}")
    flow.source("s", ps.files("none", "p string, o long, at timestamp"), time="at", position=("p", "o")).sink(
        sink, positions=True
    )
    with Harness(flow) as harness:
        harness.push(
            "s", [{"p": "ö/1", "o": 3, "at": BEGIN}, {"p": None, "o": 4, "at": BEGIN}, {"p": "z", "o": 5, "at": BEGIN}]
        )
        harness.finish()
    assert {row[PARTITION]: row[OFFSET] for row in sink.rows()} == sink.held("s").positions


def test_frontier_positions_of_steps_that_change_places_keep_their_names(tmp_path):
    sinks = {name: ps.memory(f"{tmp_path}/{name}") for name in ("a", "b")}
    for step, names in enumerate(("ab", "ba")):
        flow = ps.Flow("f")
        windows = source(flow).key_by("k", name="r").window(ps.tumbling("1 second"))
        made = {name: windows.aggregate(n=ps.count(), name=name) for name in names}
        for name, stream in made.items():
            stream.sink(sinks[name], name=name, positions=True)
        with Harness(flow, checkpoint=f"{tmp_path}/c") as harness:
            harness.push("s", [{"k": "a", "at": BEGIN + dt.timedelta(seconds=10 * step + i), "v": 1} for i in (0, 2)])
            harness.epoch()
    for name, sink in sinks.items():
        assert len(sink.rows()) == 3
        assert {row[PARTITION] for row in sink.rows()} == {f"frontier of r/{name}"}


def source(flow):
    return flow.source("s", ps.files("none", "k string, at timestamp, v long"), time="at")


def test_positions_where_rows_do_not_stay_are_refused():
    flow = ps.Flow("f")
    rows = source(flow)
    with pytest.raises(
        DeclarationError, match=r"positions of a running aggregate, whose later rows .* close the aggregate with a window"
    ):
        rows.key_by("k").aggregate(n=ps.count()).sink(ps.memory("x"), positions=True)
    for mode, key in (("upsert", "k"), ("replace", None)):
        with pytest.raises(
            DeclarationError, match=f"has mode '{mode}', which takes rows away, and positions=True is for rows that stay"
        ):
            rows.sink(ps.sql("sqlite:///none.db", "t", mode=mode, key=key), positions=True)
    with pytest.raises(DeclarationError, match=r"is given each row's position as it is; leave out positions=True"):
        rows.sink(Positions(), positions=True)


def test_table_that_was_made_without_positions_is_refused(table_rig, tmp_path):
    for positions in (False, True):
        flow = ps.Flow("f")
        source(flow).sink(table_rig.sink(), name="out", positions=positions)
        if not positions:
            with Harness(flow, checkpoint=f"{tmp_path}/c") as harness:
                harness.push("s", [{"k": "a", "at": BEGIN, "v": 1}])
                harness.epoch()
        else:
            with pytest.raises(SinkError, match=r"column '__ps_time'"):
                Harness(flow, checkpoint=f"{tmp_path}/c")


def test_table_that_a_sink_makes_has_an_index_in_the_order_of_the_positions(sql_rig, tmp_path):
    flow = ps.Flow("f")
    source(flow).sink(sql_rig.sink(), positions=True)
    with Harness(flow):
        if sql_rig.system == "sqlite":
            ((name,),) = sql_rig.query("SELECT name FROM pragma_index_list('results')")
            assert [row[0] for row in sql_rig.query(f"SELECT name FROM pragma_index_info('{name}') ORDER BY seqno")] == STORED[
                :4
            ]
        elif sql_rig.system.startswith("postgresql"):
            ((made,),) = sql_rig.query("SELECT indexdef FROM pg_indexes WHERE tablename = 'results'")
            assert made.endswith(f"({', '.join(STORED[:4])})")
