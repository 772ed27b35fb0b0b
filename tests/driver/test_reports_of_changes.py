"""What a start and ``penstock diff`` say of a changed flow: one verdict per part, and everything that stands in the way."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from changing import SCHEMA, Changing, Reader, count, counted, row

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.compile import compile_flow
from penstock.driver.takeover import compare
from penstock.errors import ChangedFlowError
from penstock.operators.zones import Zone

MINUTE = ps.tumbling("1 minute")


@pytest.fixture
def changing(tmp_path):
    return Changing(tmp_path)


def verdicts(changing, declare, forget=(), **options):
    """What a flow that is only compared finds: the report, and the verdicts by part."""
    flow = ps.Flow("changing")
    made = declare(flow.source("s", Reader(SCHEMA), **({"time": "at", "lateness": "10 seconds"} | options)))
    for i, stream in enumerate(made if isinstance(made, tuple) else (made,)):
        stream.sink(ps.memory(f"verdicts {i}"))
    compiled = compile_flow(flow.plan(), lambda node, _: node.schema, lambda *_: None)
    found = compare(compiled, Checkpoint(changing.folder).last(), "there", forget)[1]
    return found, {(v.kind, v.name): v for v in found.verdicts if v.kind != "output"}


def totals(key="k", window=MINUTE, **aggregates):
    return lambda s: s.key_by(key, name="r").window(window).aggregate(**(aggregates or {"n": ps.count()}))


def test_report_when_nothing_has_changed_says_so_of_every_part(changing):
    changing.run(lambda s: (counted(s.key_by("k")), totals("x")(s)), [row(1)])
    found, by_name = verdicts(changing, lambda s: (counted(s.key_by("k")), totals("x")(s)))
    assert list(by_name) == [
        ("source", "s"),
        ("region", "k"),
        ("step", "k/stateful_map"),
        ("region", "r"),
        ("step", "r/aggregate"),
    ]
    assert {v.outcome for v in by_name.values()} == {"unchanged"}
    assert (found.kept, found.recomputed, found.refusal(), found.changes) == (("k", "r"), (), None, ())


LOADS = {
    "an aggregate more": (totals(n=ps.count(), m=ps.max("v")), "r/aggregate", "'m' is new and starts empty"),
    "an aggregate less": (totals(m=ps.max("v")), "r/aggregate", "'n' is dropped"),
    "a condition before": (lambda s: totals()(s.where("x > 1")), "r/aggregate", "by other steps than before"),
    "other lateness": (totals(), "s", "lateness was 10 s and is now 20 s"),
}  # fmt: skip


@pytest.mark.parametrize("change", LOADS)
def test_report_when_state_goes_on_although_something_differs_says_what(change, changing):
    changing.run(totals(), [row(1)])
    declare, part, says = LOADS[change]
    found, by_name = verdicts(changing, declare, **({"lateness": "20 seconds"} if part == "s" else {}))
    verdict = next(v for (_, name), v in by_name.items() if name == part)
    assert verdict.outcome == "loads"
    assert says in verdict.reason
    assert (found.kept, found.recomputed, found.refusal()) == (("r",), (), None)
    if part != "s":
        assert by_name["region", "r"].outcome == "loads"


RECOMPUTED = {
    "another window": (totals(window=ps.tumbling("2 minutes")), ("step", "r/aggregate"), "Its window was of 60 s and is now of 120 s."),
    "another function": (totals(n=ps.max("v")), ("step", "r/aggregate"), "'n' was count() and is now max(v) of int64."),
    "another key": (totals("x"), ("region", "r"), "It was keyed by k string and is now keyed by x int32."),
    "no event time": (lambda s: s.key_by("k", name="r").aggregate(n=ps.count()), ("region", "r"), "Its rows had an event time"),
}  # fmt: skip


@pytest.mark.parametrize("change", RECOMPUTED)
def test_report_when_state_means_something_else_says_that_the_region_must_be_recomputed_and_how(change, changing):
    changing.run(totals(), [row(1)])
    declare, part, says = RECOMPUTED[change]
    found, by_name = verdicts(changing, declare, **({"time": None, "lateness": "0 seconds"} if "no event" in change else {}))
    assert by_name[part].outcome == by_name["region", "r"].outcome == "must be recomputed"
    assert says in by_name[part].reason
    assert (found.kept, found.recomputed) == ((), ("r",))
    assert "or start with recover='recompute' to rebuild it from the log" in str(found.refusal())
    begins = found.shape.regions["r"]
    assert [(s.slot, len(s.layouts)) for s in begins.steps] == [(0, 1)]


@pytest.mark.parametrize("step", ["aggregate", "stateful_map"])
def test_report_when_the_rules_of_a_zone_are_others_says_that_the_step_must_be_recomputed(step, changing):
    """As after an update of tzdata: a flow of the same text has other windows."""

    def daily(offset_s):
        zone = Zone("Here", (0, 9_000_000_000), (0, offset_s * 1_000_000, 0))
        window = replace(ps.tumbling("1 day", zone="Europe/Berlin"), zone=zone)
        if step == "aggregate":
            return totals(window=window)
        return lambda s: s.key_by("k", name="r").window(window).stateful_map(count, "k string, n long")

    changing.run(daily(3600), [row(1)])
    found, by_name = verdicts(changing, daily(3600))
    assert found.kept == ("r",)
    found, by_name = verdicts(changing, daily(7200))
    assert found.recomputed == ("r",)
    assert re.search(
        r"Its zone was Here by rules (\w{8}) and is now Here by rules (?!\1)\w{8}\.", by_name["step", f"r/{step}"].reason
    )


def test_report_when_a_region_must_be_recomputed_so_must_those_that_read_it_and_no_others(changing):
    def chained(window):
        return lambda s: (
            totals(window=window)(s).key_by("n", name="second").window(MINUTE).aggregate(m=ps.count()),
            counted(s.key_by("x")),
        )

    changing.run(chained(MINUTE), [row(1)])
    found, by_name = verdicts(changing, chained(ps.tumbling("30 seconds")))
    assert (found.recomputed, found.kept) == (("r", "second"), ("x",))
    assert by_name["region", "second"].reason == "It reads region 'r', which must be recomputed."
    assert len([sentence for v in found.verdicts for sentence in v.refusals]) == 1


def test_report_when_a_step_has_another_function_says_which_and_that_its_state_loads(changing):
    def other(key, event, state):
        return count(key, event, state)

    changing.run(lambda s: counted(s.key_by("k")), [row(1)])
    found, by_name = verdicts(changing, lambda s: s.key_by("k").stateful_map(other, "x int, n long", "n long"))
    assert by_name["step", "k/stateful_map"].outcome == "loads"
    assert "It was stateful_map(count) and is now stateful_map(other)." in by_name["step", "k/stateful_map"].reason
    assert found.kept == ("k",)


def test_start_when_several_things_stand_in_the_way_names_all_of_them(changing):
    both = lambda s: (totals()(s), counted(s.key_by("x")), counted(s.key_by("v")).select("n"))  # noqa: E731
    changing.run(both, [row(1)])

    def changed(s):
        return totals(window=ps.tumbling("2 minutes"))(s), s.key_by("x").stateful_map(count, "x int, n long", "n string")

    with pytest.raises(ChangedFlowError) as refused:
        changing.run(changed)
    said = str(refused.value)
    assert said.count("cannot be taken over") == 3
    assert "its window was of 60 s" in said
    assert "its state was (n int64)" in said
    assert "State of region 'v'" in said
    assert "forget=['v']." in said, "there is nothing to recompute"


def test_report_when_a_source_reads_something_else_says_that_it_cannot_and_offers_no_recomputation(changing):
    changing.run(totals(), [row(1)])
    found, by_name = verdicts(changing, totals(), position=("x", "v"))
    assert by_name["source", "s"].outcome == "cannot"
    assert "recompute" not in str(found.refusal())
    assert (found.kept, found.recomputed) == (("r",), ())
