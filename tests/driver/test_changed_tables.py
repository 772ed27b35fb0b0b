"""A table of `lookup` that is another one in the next run: said, not refused, and met by the records that are read from then on."""

from __future__ import annotations

import pyarrow as pa
import pytest
from changing import SCHEMA, Changing, Reader, row

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.compile import compile_flow
from penstock.driver.takeover import compare
from penstock.errors import ChangedFlowError
from penstock.testing import Crash

OLD = pa.table({"k": ["a", "b"], "city": ["Aberdeen", "Bari"]})
NEW = OLD.set_column(1, "city", [["Aachen", "Bari"]])
LONGER = pa.table({"k": ["a", "b", "c"], "city": ["Aachen", "Bari", "Calais"]})


@pytest.fixture
def changing(tmp_path):
    return Changing(tmp_path)


def looking(table):
    return lambda s: s.lookup(table, "k")


def test_start_with_another_table_says_so_and_records_read_before_met_the_old_one(changing):
    changing.run(looking(OLD), [row(1)])
    assert changing.run(looking(OLD), [row(2)]) == []
    said = "The table of lookup(k) has changed ({}): records read from now on meet the rows of today."
    assert changing.run(looking(NEW), [row(3)]) == [said.format("it has 2 rows, as before")]
    notices = changing.run(looking(LONGER), [row(4), row(5, k="c")])
    assert notices == [said.format("it had 2 rows and has 3 rows")]
    assert [(r["x"], r["city"]) for r in changing.rows()] == [
        (1, "Aberdeen"),
        (2, "Aberdeen"),
        (3, "Aachen"),
        (4, "Aachen"),
        (5, "Calais"),
    ]


def test_report_has_a_verdict_for_each_table(changing):
    changing.run(looking(OLD), [row(1)])
    flow = ps.Flow("changing")
    stream = flow.source("s", Reader(SCHEMA), time="at", lateness="10 seconds")
    stream.lookup(NEW, "k").lookup(pa.table({"x": pa.array([1], pa.int32())}), "x").sink(ps.memory("verdicts of tables"))
    compiled = compile_flow(flow.plan(), lambda node, _: node.schema, lambda *_: None)
    found = compare(compiled, Checkpoint(changing.folder).last(), "there", ())[1]
    assert {v.name: v.outcome.value for v in found.verdicts if v.kind == "table"} == {"lookup(k)": "loads"}
    assert found.refusal() is None


def test_two_tables_of_one_column_are_told_apart(changing):
    second = pa.table({"k": ["a"], "more": [1]})
    changing.run(lambda s: s.lookup(OLD, "k").lookup(second, "k"), [row(1)])
    notices = changing.run(lambda s: s.lookup(OLD, "k").lookup(second.slice(1), "k"), [row(2)])
    assert notices == [
        "The table of lookup(k)-2 has changed (it had 1 rows and has 0 rows): records read from now on meet the rows of today."
    ]


@pytest.mark.parametrize("before_region", [True, False])
def test_table_that_changes_while_a_sink_holds_an_uncommitted_epoch_must_not_feed_its_state(changing, before_region):
    """Rows that the sink holds met the old table; state made with the new one would not belong to them."""

    def crash(step):
        if step.startswith("commit"):
            raise Crash

    def looking_up(table):
        def declare(stream):
            if before_region:
                return stream.lookup(table, "k").key_by("k").deduplicate("x")
            return stream.key_by("k").deduplicate("x").lookup(table, "k")

        return declare

    with changing.harness(looking_up(OLD), on_step=crash) as harness:
        harness.push("s", [row(1), row(60)])
        with pytest.raises(Crash):
            harness.epoch()
    if before_region:
        with pytest.raises(ChangedFlowError, match="start the flow as it was until that epoch is committed, then change it"):
            changing.harness(looking_up(NEW)).restart()
    with changing.harness(looking_up(OLD if before_region else NEW)) as harness:
        harness.push("s", [row(1), row(60)])
        harness.epoch()
        harness.push("s", [row(61), row(120)])
        harness.epoch()
        harness.finish()
    later = "Aberdeen" if before_region else "Aachen"
    assert [(r["x"], r["city"]) for r in changing.rows()] == [(1, "Aberdeen"), (60, later), (61, later), (120, later)]
