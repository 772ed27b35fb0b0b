"""Stateless steps that penstock does not know: their classes and what these say of themselves are all that is added."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.driver.compile import compile_flow
from penstock.errors import DeclarationError, OperatorError, RecordError
from penstock.flow.naming import steps_calling, steps_with
from penstock.flow.steps import Sql, StatelessStep
from penstock.testing import Harness
from penstock.types import PART, SUB, TIME

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
FILES = ps.files("none", "k string, at timestamp, v long")


@dataclass(frozen=True)
class Above(StatelessStep):
    """Rows above a bound, with how far they are above it as a further column."""

    column: str
    bound: str
    kind = "above"

    def output_schema(self, before):
        return before.append(pa.field("over", pa.int64()))

    def sql(self, before):
        over = f"{self.column} - {self.bound}"
        return Sql(f"{over} > 0", (*((n, f"`{n}`") for n in before.names), ("over", over)))

    def describe(self, column=None):
        return f"above({self.column}, {self.bound})"


@dataclass(frozen=True)
class Repeated(StatelessStep):
    """Each row so many times."""

    times: int
    kind = "repeated"

    def batch_function(self):
        return self.repeat

    def repeat(self, batch):
        rows = [i for i in range(batch.num_rows) for _ in range(self.times)]
        return batch.take(pa.array(rows)).append_column("_row", pa.array(rows))


class OverSpark(StatelessStep):
    kind = "over_spark"

    def frame_function(self):
        return lambda frame: frame


def row(k, minute, v):
    return {"k": k, "at": BEGIN + dt.timedelta(minutes=minute), "v": v}


ROWS = [row("a", 0, 1), row("a", 1, 7), row("b", 2, 9), row("b", 3, 3)]


def flow_of(declare, sink):
    flow = ps.Flow("outside")
    declare(flow.source("s", FILES, time="at")).sink(sink)
    return flow


def run(declare, name, rows=ROWS):
    out = ps.memory(f"outside.{name}")
    with Harness(flow_of(declare, out), workers=2) as harness:
        harness.push("s", rows)
        harness.finish()
    return out.rows()


def test_step_in_sql_when_run_in_process_gives_its_columns_of_the_rows_that_it_keeps():
    found = run(lambda s: s.apply(Above("v", "3")), "above")
    assert [(r["k"], r["v"], r["over"]) for r in found] == [("a", 7, 4), ("b", 9, 6)]


def test_step_over_batches_when_run_in_process_keeps_its_rows_in_the_order_of_their_records():
    def declare(stream):
        return stream.apply(Repeated(2)).key_by("k").stateful_map(lambda _, e, n: ({"n": n or 0}, (n or 0) + e.v), "n long")

    assert [r["n"] for r in run(declare, "repeated", ROWS[:2])] == [0, 1, 2, 9]


def test_step_when_applied_after_key_by_stays_in_the_region():
    def declare(stream):
        keyed = stream.key_by("k").apply(Above("v", "0")).apply(Repeated(3))
        return keyed.aggregate(n=ps.count(), over=ps.sum("over"))

    found = run(declare, "keyed")
    assert {r["k"]: (r["n"], r["over"]) for r in found} == {"a": (6, 24), "b": (6, 36)}


def test_steps_when_put_together_from_one_source_have_places_of_their_own():
    def declare(stream):
        both = stream.apply(Repeated(1)).union(stream.apply(Repeated(2)))
        return both.key_by("k").stateful_map(lambda _, e, n: ({"n": (n or 0) + 1, "v": e.v}, (n or 0) + 1), "n long, v long")

    found = run(declare, "union")
    assert sorted((r["v"], r["n"]) for r in found if r["v"] in (1, 7)) == [(1, 1), (1, 2), (1, 3), (7, 4), (7, 5), (7, 6)]


@pytest.mark.parametrize(("step", "known"), [(Above("v", "3"), {TIME: "at", PART: 7, SUB: 0}), (Repeated(1), {})])
def test_compiler_knows_what_a_step_leaves_of_the_positions(step, known):
    plan = flow_of(lambda s: s.apply(step).key_by("k").process(ps.Operator()), ps.noop()).plan()
    [region] = compile_flow(plan, lambda node, _: node.schema, lambda *_: None, lambda _: 7).regions.values()
    assert dict(region.spec.ports[0].known) == known


def test_messages_about_sql_name_the_step_that_it_stands_in():
    plan = flow_of(lambda s: s.apply(Above("v", "abs(3)")), ps.noop()).plan()
    assert [text for _, text in steps_with(plan, "V -  abs(3)")] == ["above(v, abs(3))"]
    assert [text for _, text in steps_calling(plan, "abs")] == ["above(v, abs(3))"]
    assert not steps_calling(plan, "sqrt")


def test_step_when_its_sql_fails_on_a_record_is_named_with_it():
    with pytest.raises(
        RecordError, match=r"above\(v, 10 % \(v - 1\)\) failed on the record \{'k': 'a'.*'v': 1\} of source 's'"
    ):
        run(lambda s: s.apply(Above("v", "10 % (v - 1)")), "failing")


def test_step_when_its_function_fails_is_named():
    @dataclass(frozen=True)
    class Failing(StatelessStep):
        kind = "failing"

        def batch_function(self):
            return lambda batch: pc.divide(batch.column("v"), 0)

    with pytest.raises(OperatorError, match=r"failing failed on a batch of 4 rows: .*divide by zero"):
        run(lambda s: s.apply(Failing()), "broken")


def test_step_over_frames_when_run_in_process_is_refused():
    with pytest.raises(DeclarationError, match=r"over_spark needs Spark; test this flow over Spark"):
        run(lambda s: s.apply(OverSpark()), "spark")


@pytest.mark.parametrize("wrong", [StatelessStep(), Above, ps.Operator(), "v > 1"])
def test_apply_when_given_no_step_with_a_form_is_refused(wrong):
    with pytest.raises(DeclarationError, match=r"apply needs a penstock.flow.steps.StatelessStep with one of its three forms"):
        flow_of(lambda s: s.apply(wrong), ps.noop())
