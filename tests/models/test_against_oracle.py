"""Any flow, on any data, cut into any epochs, on any number of workers, with any crashes: what one sequential pass gives.

Also what must follow from it where the order of rows is not documented: the same results whatever happens.

Read next: `oracle`, `recipes`, `drawing`; `test_mutants` shows that these tests can fail.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import Counter
from pathlib import Path

import drawing
import duckdb
import oracle
import psycopg
import pyarrow.parquet as pq
import pytest
import recipes as r
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.sinks import parts
from penstock.sinks.parquet import ParquetSink

HELD = {
    "k": ("VARCHAR", "held"), "j": ("BIGINT", -77_777), "v": ("BIGINT", -7), "x": ("DOUBLE PRECISION", 0.5), "s": ("VARCHAR", ""),
}  # fmt: skip
"""Of columns of tables that are there before a flow: type and value."""


def examples(n: int) -> settings:
    """So many examples for each hundred of the profile. A failure is made smaller, but not explained."""
    return settings(
        max_examples=max(1, n * settings.default.max_examples // 100),
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    )


def always_the_same(n: int) -> settings:
    """So many fixed examples, for a search that must find what is broken."""
    return settings(
        max_examples=n,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def check(recipe: r.Recipe, data: oracle.Records, course: drawing.Course) -> None:
    """Run the flow and compare every sink with the oracle."""
    ran = drawing.run(recipe, data, course)
    expected = oracle.Oracle(recipe, data, ran.markers, trail=ran.trail)
    for node, found in ran.contents.items():
        compare(f"{type(node).__name__} {node}", found, expected.content(node))


def compare(what: str, found: Counter, wanted: Counter) -> None:
    missing, more = (dict(list(c.items())[:20]) for c in (wanted - found, found - wanted))
    assert not missing, f"{what}: missing {missing}, too many {more}"
    assert not more, f"{what}: too many {more}"


# ------------------------------------------------------------------------------------------------------------- properties


@pytest.mark.slow
@examples(100)
@given(data=st.data())
def test_results_when_anything_happens_equal_one_sequential_pass(data):
    recipe = data.draw(drawing.recipes(changing=True))
    check(recipe, data.draw(drawing.records(recipe, edges=True)), data.draw(drawing.courses))


@examples(40)
@given(data=st.data())
def test_results_without_event_time_equal_one_pass_in_offset_order_per_epoch(data):
    recipe = data.draw(drawing.recipes(timed=False, changing=True))
    check(recipe, data.draw(drawing.records(recipe, edges=True)), data.draw(drawing.courses))


@examples(40)
@given(data=st.data())
def test_results_where_rows_share_a_place_are_the_same_whatever_happens(data):
    recipe = data.draw(drawing.recipes(ties=True))
    records = data.draw(drawing.records(recipe, edges=True))
    at_once = {name: [(0, record) for _, record in rows] for name, rows in records.items()}
    calm = drawing.run(recipe, at_once, drawing.CALM).contents
    wild = drawing.run(recipe, records, data.draw(drawing.courses)).contents
    for node, found in wild.items():
        compare(f"{type(node).__name__} {node}", found, calm[node])


@pytest.mark.parametrize("derived_first", [True, False])
@pytest.mark.parametrize("drained", [True, False])
def test_rows_of_one_record_that_come_by_several_streams_are_in_the_order_of_the_streams(derived_first, drained):
    """What a region makes of the last record comes when the frontier passes it, its source's own row has waited since before."""
    nodes = [r.Source("a", lateness_us=0, partitions=(0,))]

    def then(kind, *of, **about):
        nodes.append(kind(*of, **about))
        return nodes[-1]

    plain = then(r.Standard, nodes[0])
    first = then(r.KeyBy, then(r.Columns, plain, ("k", "substr(s, 1, 2)")), ("k",), "first")
    derived = then(r.Standard, then(r.Local, first))
    united = then(r.Union, (derived, plain) if derived_first else (plain, derived))
    counted = then(r.Map, then(r.KeyBy, united, ("j",), "second"), "count")
    records = [
        (0, {"p": 0, "o": i, "k": None, "j": 0, "v": 0, "x": 0.1, "s": "a", "at": r.moment(r.SECOND * i)}) for i in range(4)
    ]
    ran = drawing.run(r.Recipe(nodes, [counted]), {"a": records}, drawing.Course(drain_last=drained))
    found = sorted((row["v"], row["k"]) for row in map(dict, ran.contents[counted].elements()))
    assert found == [(i + 1, "a" if (i % 2 == 0) == derived_first else None) for i in range(8)]


@examples(8)
@given(data=st.data())
def test_results_with_state_on_disk_equal_one_sequential_pass(data):
    recipe = data.draw(drawing.recipes(steps=4, changing=True))
    course = data.draw(drawing.courses)
    course.lmdb, course.workers = True, min(course.workers, 2)
    check(recipe, data.draw(drawing.records(recipe, edges=True)), course)


@examples(15)
@given(data=st.data())
def test_sketches_when_anything_happens_are_the_same_and_near_the_truth(data):
    source = r.Source("a", lateness_us=2 * r.SECOND, partitions=(0, 1, 2))
    keyed = r.KeyBy(source, ("j",), "region")
    sketches = (("distinct", "approx_count_distinct", "x"), ("middle", "quantile", "x"), ("exact", "count_distinct", "x"))
    windows = [r.Totals(keyed, sketches, w) for w in drawing.WINDOWS]
    recipe = r.Recipe([source, keyed, *windows], windows)
    records = data.draw(drawing.records(recipe, most=60))
    at_once = {name: [(0, record) for _, record in rows] for name, rows in records.items()}
    calm = drawing.run(recipe, at_once, drawing.CALM)
    wild = drawing.run(recipe, records, data.draw(drawing.courses))
    expected = oracle.Oracle(recipe, records, wild.markers)
    for node in windows:
        compare(node.window.kind, wild.contents[node], calm.contents[node])
        found = {tuple(row[n] for n in ("j", "window_start")): row for row in map(dict, wild.contents[node])}
        for truth in (row.data for row in expected.rows(node)):
            row = found.pop((truth["j"], truth["window_start"]))
            assert row["distinct"] == truth["distinct"] == row["exact"]  # so few values are told apart with certainty
            assert (row["middle"] is None) == (truth["middle"] is None)
            assert row["middle"] is None or abs(row["middle"] - truth["middle"]) <= 0.01 * abs(truth["middle"]) * (1 + 1e-12)
        assert not found


def with_totals_that_are_updated(recipe: r.Recipe) -> r.Recipe:
    """The flow with one output more, behind its first region: few drawn ones have such an output."""
    keyed = next((n for n in recipe.nodes if isinstance(n, r.KeyBy)), None)
    if keyed is None:
        return recipe
    totals = r.Totals(keyed, tuple((n, "max", n) for n in r.STANDARD if n not in keyed.keys), None, "update")
    return r.Recipe([*recipe.nodes, totals], [*recipe.sinks, totals], recipe.tied)


@pytest.mark.parametrize("system", ["sqlite", "duckdb", "postgresql", "parquet"])
@examples(10)
@given(data=st.data())
def test_a_durable_sink_when_anything_happens_holds_what_one_sequential_pass_gives(
    data, tmp_path_factory, request, monkeypatch, system
):
    """Where a sink can have that, tasks store the rows where they are.

    Some tables are there before, with fewer columns: their rows then hold null. Those that are updated have at least their key, by which none of the
    flow's rows is.
    """
    monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    recipe = with_totals_that_are_updated(data.draw(drawing.recipes(steps=5, changing=True)))
    records, course = data.draw(drawing.records(recipe, most=12)), data.draw(drawing.courses)
    folder = tmp_path_factory.mktemp("sink")
    file = folder / "out.db"
    kind = "duckdb" if system == "duckdb" else "sqlite"
    url = request.getfixturevalue("postgres_database") if system == "postgresql" else f"{kind}:///{file}"
    columns = ", ".join(r.STANDARD)
    fewer = data.draw(st.lists(st.sampled_from([(), (), ("v",), ("s", "k"), ("x", "j", "k")]), min_size=3, max_size=3))
    tables, held = {}, {}

    def connected():
        connect = {"postgresql": lambda: psycopg.connect(url), "duckdb": lambda: duckdb.connect(str(file))}
        return contextlib.closing(connect.get(system, lambda: sqlite3.connect(file))())

    def hold(name: str, node: r.Node, some: tuple[str, ...]) -> None:
        """Make the table with a row, and with few of the columns."""
        held[node] = tuple(HELD[n][1] if n in some else None for n in r.STANDARD)
        with connected() as base:
            base.execute(f"CREATE TABLE {name} ({', '.join(f'{n} {HELD[n][0]}' for n in some)})")
            values = ", ".join(f"'{HELD[n][1]}'" if isinstance(HELD[n][1], str) else f"{HELD[n][1]}" for n in some)
            base.execute(f"INSERT INTO {name} VALUES ({values})")
            base.commit()

    def sink(name: str, node: r.Node):
        tables[node] = name
        updating = isinstance(node, r.Totals) and node.emit == "update"
        keys = [*oracle.region_of(node).keys, *(["window_start"] if node.window else [])] if updating else None
        if system == "parquet" and not updating:
            return ps.parquet(folder / name)
        mode = {"mode": "upsert", "key": keys} if updating else {}
        some = fewer[len(tables) % len(fewer)]
        if some and not (updating and node.window):  # whose key has a time
            hold(name, node, tuple(dict.fromkeys([*(keys or []), *some])))
            return ps.sql(url, table=name, evolve=True, **mode)
        return ps.sql(url, table=name, **mode)

    def content(node: r.Node, made) -> Counter:
        if isinstance(made, ParquetSink):
            rows = [row for file in Path(made.identity).glob("*.parquet") for row in pq.read_table(file).to_pylist()]
            return Counter(tuple(row[n] for n in r.STANDARD) for row in rows)
        with connected() as base:
            return Counter(base.execute(f"SELECT {columns} FROM {tables[node]}").fetchall())

    ran = drawing.run(recipe, records, course, sink=sink, content=content)
    expected = oracle.Oracle(recipe, records, ran.markers, trail=ran.trail)
    for node, found in ran.contents.items():
        before = [held[node]] if node in held else []
        compare(str(node), found, Counter([*before, *(tuple(row.data[n] for n in r.STANDARD) for row in expected.rows(node))]))


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_results_of_large_flows_when_anything_happens_equal_one_sequential_pass(data):
    recipe = data.draw(drawing.recipes(steps=14, changing=True))
    check(recipe, data.draw(drawing.records(recipe, most=80, edges=True)), data.draw(drawing.courses))


@examples(1)
@given(workers=st.integers(3, 8), seed=st.integers(0, 1000), lmdb=st.booleans())
def test_epoch_with_a_giant_key_of_a_hundred_thousand_rows_equals_one_sequential_pass(workers, seed, lmdb):
    dice = random.Random(seed)
    source = r.Source("a", lateness_us=r.SECOND, partitions=(0,))
    keyed = r.KeyBy(source, ("k",), "region")
    mapped = r.Map(keyed, "history", None, compact=True)
    columns = (("v", "sum", "v"), ("j", "max", "j"))
    windows = [(None, "update"), (r.Window("sliding", 6 * r.SECOND, 2 * r.SECOND), "final")]
    totals = [r.Totals(keyed, columns, window, emit) for window, emit in windows]
    rows = [
        row(
            o,
            max(0, o / 5_000 - dice.choice([0, 0, 0.3, 2])),
            k="a" if o % 50 else f"k{o % 7}",
            v=dice.randrange(-9, 9),
            j=o % 5,
        )
        for o in range(104_100)
    ]
    first = [(0, x) for x in rows[:-2_000]]  # one epoch has the hundred thousand, two more come after it
    check(
        r.Recipe([source, keyed, mapped, *totals], [mapped, *totals]),
        {"a": [*first, *((1 + i // 1_000, x) for i, x in enumerate(rows[-2_000:]))]},
        drawing.Course(workers=workers, lmdb=lmdb),
    )


# ---------------------------------------------------------------------------------------------------- found by the above


def row(o: int, seconds: float, *, p: int = 0, k: str | None = "a", v: int | None = 1, s: str = "a", j: int = 0) -> dict:
    return {"p": p, "o": o, "k": k, "j": j, "v": v, "x": 0.5, "s": s, "at": r.moment(int(seconds * r.SECOND))}


def one_by_one(*rows: dict) -> oracle.Records:
    return {"a": list(enumerate(rows))}


SOURCE = r.Source("a", lateness_us=0, partitions=(0,))
KEYED = r.KeyBy(SOURCE, ("k",), "first")
SLIDING = r.Window("sliding", 6 * r.SECOND, 2 * r.SECOND)


def keyed_flow(*steps: r.Node, sinks: tuple[r.Node, ...] = ()) -> r.Recipe:
    return r.Recipe([SOURCE, KEYED, *steps], [*(sinks or steps[-1:])])


def test_outputs_of_one_record_in_several_windows_are_numbered_together():
    inner = r.Map(KEYED, "history", SLIDING)
    check(keyed_flow(inner, r.Map(inner, "history")), one_by_one(row(0, 0.5, v=3), row(1, 1, v=2), row(2, 9)), drawing.CALM)


@pytest.mark.parametrize("window", [SLIDING, None])
def test_two_results_of_one_key_at_one_frontier_meet_the_same_state(window):
    columns = (("j", "max", "j"), ("v", "sum", "v"), ("x", "max", "x"), ("s", "max", "s"))
    inner = r.Totals(KEYED, columns, SLIDING)
    outer = r.Map(inner, "count") if window is None else r.Totals(inner, columns, window)
    check(keyed_flow(inner, outer), one_by_one(row(0, 0), row(1, 1)), drawing.CALM)


def test_aggregate_that_is_not_commutative_gets_rows_in_order_of_event_time():
    source = r.Source("a", lateness_us=9 * r.SECOND, partitions=(0,))
    keyed = r.KeyBy(source, ("k",), "first")
    windows = [(SLIDING, "final"), (r.Window("session", 3 * r.SECOND), "final"), (None, "update"), (SLIDING, "update")]
    steps = [r.Totals(keyed, (("s", "concat", "s"),), window, emit) for window, emit in windows]
    recipe = r.Recipe([source, keyed, *steps], [*steps])
    check(recipe, one_by_one(row(0, 4, s="c"), row(1, 1, s="a"), row(2, 5, s="d"), row(3, 2, s="b")), drawing.CALM)


@pytest.mark.parametrize(
    "after", [r.Standard, r.Repeat, lambda of: r.Columns(of, ("v", "v * 2 + 1")), lambda of: r.Where(of, "v > 2")]
)
def test_stateless_step_after_a_region_needs_no_further_region(after):
    inner = r.Map(KEYED, "history")
    check(keyed_flow(inner, after(inner)), one_by_one(row(0, 0, v=3), row(1, 1, v=2)), drawing.CALM)


def test_region_without_a_step_gives_its_rows():
    check(keyed_flow(sinks=(KEYED,)), one_by_one(row(0, 0), row(1, 1)), drawing.CALM)


def test_region_that_nobody_reads_does_nothing():
    check(keyed_flow(sinks=(SOURCE,)), one_by_one(row(0, 0), row(1, 1)), drawing.CALM)


def test_keyed_stream_with_a_sink_may_go_on_to_an_aggregate():
    totals = r.Totals(KEYED, (("v", "sum", "v"),), SLIDING)
    check(keyed_flow(totals, sinks=(KEYED, totals)), one_by_one(row(0, 0), row(1, 1)), drawing.CALM)


def test_state_with_a_declared_text_column_survives():
    check(keyed_flow(r.Map(KEYED, "history", None, compact=True)), one_by_one(row(0, 0), row(1, 1), row(2, 2)), drawing.CALM)


def test_aggregate_that_changes_its_state_in_place_does_so_in_one_window_only():
    totals = r.Totals(KEYED, (("v", "fold", "v"),), SLIDING)
    rows = [row(i, i, v=i) for i in range(12)]
    check(keyed_flow(totals), {"a": [(i // 4, x) for i, x in enumerate(rows)]}, drawing.CALM)


def test_aggregates_of_a_key_that_was_on_hold_go_by_the_place_of_its_records():
    source = r.Source("a", timed=False, lateness_us=0, partitions=(0, 1))
    keyed = r.KeyBy(source, ("k",), "first")
    totals = r.Totals(keyed, (("j", "first", "j"), ("v", "last", "v"), ("extra", "collect", "v")), None, "update")
    rows = [(0, row(0, 0, p=0, k="x" * 300, v=1, j=1)), (5, row(0, 0, p=1, k="x" * 300, v=2, j=2))]
    course = drawing.Course(workers=3, steering={3: [("scale", None, 1)]}, limits=(40, 60))
    check(r.Recipe([source, keyed, totals], [totals]), {"a": rows}, course)


def test_keyed_stream_when_filtered_for_one_reader_stays_whole_for_others():
    flow = ps.Flow("branches")
    keyed = flow.source("a", r.Reader(r.TIMED), time="at", position=("p", "o"), partitions=[0]).key_by("k")
    large = keyed.where("v > 2")
    sinks = {name: ps.memory(f"branches {name}") for name in ("large", "all", "input", "input of large", "shifted")}
    large.stateful_map(r.FUNCTIONS["count"], r.STANDARD_SCHEMA).sink(sinks["large"])
    keyed.stateful_map(r.FUNCTIONS["count"], r.STANDARD_SCHEMA).sink(sinks["all"])
    keyed.with_columns(v="v + 1").aggregate(n=ps.sum("v")).sink(sinks["shifted"])
    keyed.sink(sinks["input"])
    large.sink(sinks["input of large"])
    with drawing.Harness(flow, workers=3) as harness:
        harness.push("a", r.table(SOURCE, [row(i, i, v=i) for i in range(5)]))
        harness.finish()
    assert {name: len(sink.rows()) for name, sink in sinks.items()} == {
        "large": 2, "all": 5, "input": 5, "input of large": 2, "shifted": 1,
    }  # fmt: skip
    assert sinks["shifted"].rows() == [{"k": "a", "n": 15}]


def test_join_with_a_stream_keyed_by_another_column_keeps_a_column_named_like_the_key():
    flow = ps.Flow("keys of two names")
    source = flow.source("a", r.Reader(r.TIMED), time="at", position=("p", "o"), partitions=[0]).select(*r.STANDARD)
    sink = ps.memory("keys of two names")
    source.key_by("k").join(source.select("k", "s").key_by("s", name="other"), "1 second").sink(sink)
    with drawing.Harness(flow) as harness:
        harness.push("a", r.table(SOURCE, [row(0, 0, k="a", s="b"), row(1, 0, k="b", s="c")]))
        harness.finish()
    assert [(found["k"], found["s"], found["k_right"]) for found in sink.rows()] == [("b", "c", "a")]
