"""Hidden columns that are not sent to workers, as these know them; that they are known right is for `tests/models` to see."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.driver.compile import compile_flow
from penstock.types import PART, SUB, TIME

FILES = ps.files("none", "k string, at timestamp, v long")
BOTH = {TIME: "at", SUB: 0}


def known(declare, *, time: str | None = "at") -> list[dict]:
    """What is known of each port of the last region."""
    flow = ps.Flow("known")
    keyed = declare(flow, flow.source("a", FILES, time=time))
    keyed.sink(ps.memory("known"))
    plan = flow.plan()
    regions = compile_flow(plan, lambda node, _: node.schema, lambda *_: None).regions
    return [dict(port.known) for port in regions[plan.regions[-1].name].spec.ports]


def previous(keyed):
    return keyed.stateful_map(lambda key, event, state: ((key, 1), None), "k string, n long")


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (lambda s: s, BOTH),
        (lambda s: s.where("v > 1"), BOTH),
        (lambda s: s.with_columns(w="v + 1").select("k", "w", "at"), BOTH),
        (lambda s: s.select("k", "at AS moment", "at"), BOTH),
        (lambda s: s.with_columns(at="at + INTERVAL 1 HOUR"), {SUB: 0}),
        (lambda s: s.with_columns(at="at + INTERVAL 1 HOUR").where("v > 1").select("k", "at"), {SUB: 0}),
        (lambda s: s.with_columns(moment="at").select("k", "moment AS at"), {SUB: 0}),
        (lambda s: s.select("k", "v"), {SUB: 0}),
        (lambda s: s.map_batches(lambda b: b, "k string, at timestamp"), {}),
    ],
)
def test_time_is_that_of_its_column_until_it_is_replaced_and_rows_are_single_until_they_are_multiplied(steps, wanted):
    assert known(lambda _, source: previous(steps(source).key_by("k"))) == [wanted]


def test_rows_without_event_time_have_the_time_0():
    assert known(lambda _, source: previous(source.key_by("k")), time=None) == [{TIME: 0, SUB: 0}]


def test_aggregate_without_the_column_is_sent_the_time():
    assert known(lambda _, s: s.key_by("k").window(ps.tumbling("1 hour")).aggregate(n=ps.sum("v"))) == [{SUB: 0}]


@pytest.mark.parametrize(("other", "wanted"), [("at", BOTH), ("moment", {SUB: 0})])
def test_streams_that_come_together_have_what_is_known_of_all(other, wanted):
    def declare(flow, source):
        files = ps.files("others", f"k string, {other} timestamp, v long")
        columns = ["k", f"{other} AS at" if other != "at" else "at", "v"]
        return previous(source.union(flow.source("b", files, time=other).select(*columns)).key_by("k"))

    assert known(declare) == [wanted]


def test_streams_of_one_source_that_come_together_are_numbered():
    assert known(lambda _, source: previous(source.union(source.where("v > 0")).key_by("k"))) == [{TIME: BOTH[TIME]}]


def test_nothing_is_known_of_rows_that_a_region_gives():
    assert known(lambda _, source: previous(previous(source.key_by("k")).local().key_by("n"))) == [{}]


def test_number_of_the_partition_is_known_where_there_is_one():
    flow = ps.Flow("known")
    sources = [flow.source(name, ps.files(name, "k string, at timestamp"), time="at") for name in "ab"]
    previous(sources[0].key_by("k")).sink(ps.memory("known"))
    previous(sources[0].union(sources[1]).key_by("k", name="both")).sink(ps.memory("both known"))
    plan = flow.plan()
    regions = compile_flow(plan, lambda node, _: node.schema, lambda *_: None, lambda source: 7 + (source.name == "b")).regions
    assert [dict(r.spec.ports[0].known) for r in regions.values()] == [{**BOTH, PART: 7}, BOTH]
