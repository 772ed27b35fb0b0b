"""Any flow, whose checkpoint or sinks are lost in any way and again: what one sequential pass gives, or a refusal that changes nothing.

Read next: `recomputing`.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import Counter
from typing import Any

import drawing
import oracle
import pytest
import recipes as r
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recomputing import Life
from spelled import micros
from test_against_oracle import always_the_same, compare, examples

from penstock.driver import recompute
from penstock.errors import PenstockError

COUNTED: Counter[str] = Counter()


def upstream(*nodes: Any) -> list[Any]:
    """Nodes and all that their rows come through."""
    found = list(nodes)
    for node in found:
        of = getattr(node, "of", None)
        found += [n for n in (*(of if isinstance(of, tuple) else (of,)), getattr(node, "other", None)) if n and n not in found]
    return found


def check(
    recipe: r.Recipe, records: oracle.Records, seed: int, *, by_epoch: bool = False, since: int | None = None, trimmed: int = 0
) -> None:
    """Live a life, and compare every sink with the oracle.

    Args:
        recipe: The flow.
        records: Its log.
        seed: What happens.
        by_epoch: Results depend on epochs, so no start may compute them anew.
        since: See `Life`.
        trimmed: So many of the first records are gone after the first run, if all sinks hold them.
    """
    life = Life(recipe, records, random.Random(seed), since=since)
    life.edit = life.trim(trimmed) if trimmed else life.edit
    lived = life.run()
    COUNTED["cases"] += 1
    COUNTED["since"] += lived.since
    COUNTED["recomputed"] += lived.recomputed
    COUNTED["crashed"] += lived.crashed
    if lived.refusal:
        COUNTED[re.sub(r"'[^']*'|[0-9]+", "…", lived.refusal)] += 1
        assert trimmed or by_epoch or "other records" not in lived.refusal
        if "let it give more" in lived.refusal:  # after the first mark, whose sink has been given rows
            return
        for node, found in lived.contents.items():
            compare(f"refused ({lived.refusal}), {type(node).__name__} {node}", found, lived.before.get(node, Counter()))
        return
    if by_epoch:
        assert not lived.recomputed
        return
    expected = life.expected(records)
    for node, found in lived.contents.items():
        compare(f"{type(node).__name__} {node}", found, expected[node])


@pytest.mark.slow
@examples(60)
@given(data=st.data())
def test_flow_that_is_computed_anew_gives_what_one_sequential_pass_gives(data):
    recipe = data.draw(drawing.recipes(steps=5))
    check(recipe, data.draw(drawing.records(recipe, most=30)), data.draw(st.integers(0, 1 << 32)))


def check_refreshed(data: Any) -> None:
    """Live the life of a flow that looks in tables which become other ones; of some lives it is told since when records matter."""
    recipe = data.draw(drawing.recipes(steps=4, changing=True).filter(r.Recipe.refreshed))
    if data.draw(st.booleans()):
        check_since(data, recipe)
    else:
        check(recipe, data.draw(drawing.records(recipe, most=30)), data.draw(st.integers(0, 1 << 32)))


@pytest.mark.slow
@examples(15)
@given(data=st.data())
def test_flow_with_a_table_that_changes_that_is_computed_anew_meets_that_of_its_start_behind_the_marks(data):
    check_refreshed(data)


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=5_000)
@given(data=st.data())
def test_five_thousand_flows_with_a_table_that_changes_that_are_computed_anew_meet_that_of_their_start_behind_the_marks(data):
    check_refreshed(data)


@pytest.mark.slow
@examples(25)
@given(data=st.data())
def test_flow_without_event_time_that_is_computed_anew_goes_by_offsets_or_is_refused(data):
    """Without event time the order of rows from several partitions is that of the epochs they came in, which a replay does not know."""
    recipe = data.draw(drawing.recipes(timed=False, steps=4))
    records = data.draw(drawing.records(recipe, most=20))
    at_once = {name: [(0, x) for _, x in rows] for name, rows in records.items()}
    ordered = [n for n in upstream(*recipe.sinks) if isinstance(n, r.Map | r.Distinct | r.Process)]
    mixed = [n for n in ordered if sum(len(s.partitions) for s in upstream(n) if isinstance(s, r.Source)) > 1]
    check(recipe, at_once, data.draw(st.integers(0, 1 << 32)), by_epoch=bool(mixed))


NEW_AT = 3_600 * r.SECOND
"""How much later than the records before them those come whose keys are new."""


def with_new_keys(records: oracle.Records, share: float) -> tuple[oracle.Records, int]:
    """The records, of which those of the last epochs come an hour later with keys that were not there before; and a time in that hour (µs)."""
    last = max((epoch for rows in records.values() for epoch, _ in rows), default=0)
    out: dict[str, list[tuple[int, Any]]] = {}
    for name, rows in records.items():
        out[name] = []
        for epoch, x in rows:
            new = x
            if epoch >= share * last:
                at = x.get("at") and x["at"] + dt.timedelta(microseconds=NEW_AT)
                new = {
                    **x,
                    "at": at,
                    "k": f"n{x['k']}"[:392],
                    "j": (x["j"] or 0) % 5 + 10,
                    "x": (x["x"] or 0) % 7 + 1e9,
                    "s": f"é{x['s']}",
                }
            out[name].append((epoch, new))
    first = min((micros(x["at"]) for rows in out.values() for e, x in rows if e >= share * last and x["at"]), default=0)
    return out, first - NEW_AT // 2


def matters(recipe: r.Recipe, records: oracle.Records, since: int) -> bool:
    """Whether a record from before a time matters to what any step gives at or after it."""
    after = {name: [(e, x) for e, x in rows if x["at"] and micros(x["at"]) >= since] for name, rows in records.items()}
    whole, part = oracle.Oracle(recipe, records, {}), oracle.Oracle(recipe, after, {})
    for node in recipe.nodes:
        if isinstance(node, r.Totals) and node.window is None:
            keys: list[set[Any]] = [set(), set()]
            for row in whole.rows(node.of):
                keys[row.time >= since].add(row.key)
            if keys[0] & keys[1]:
                return True
        elif not isinstance(node, r.Late | r.Ahead):
            new = [[(x.time, x.data) for x in one.rows(node) if x.time >= since] for one in (whole, part)]
            if Counter(map(repr, new[0])) != Counter(map(repr, new[1])):
                return True
    return False


def check_since(data: Any, recipe: r.Recipe | None = None) -> None:
    """Live the life of a flow that is told since when records matter."""
    recipe = recipe or data.draw(drawing.recipes(steps=5))
    records, since = with_new_keys(data.draw(drawing.records(recipe, most=30)), data.draw(st.sampled_from([0.2, 0.5])))
    if any(
        isinstance(n, r.Map | r.Process) and n.ttl_us is None and set(vars(n).values()) & {*r.TIMED_FUNCTIONS}
        for n in recipe.nodes
    ):
        COUNTED["timers without end"] += 1
    elif matters(recipe, records, since):
        COUNTED["older records matter"] += 1
    else:
        check(recipe, records, data.draw(st.integers(0, 1 << 32)), since=since)


def check_trimmed(data: Any) -> None:
    """Live the life of a flow whose log loses its first records."""
    recipe = data.draw(drawing.recipes(steps=5))
    check(
        recipe,
        data.draw(drawing.records(recipe, most=30)),
        data.draw(st.integers(0, 1 << 32)),
        trimmed=data.draw(st.integers(1, 30)),
    )


@pytest.mark.slow
@examples(12)
@given(data=st.data())
def test_flow_that_is_computed_anew_since_a_time_before_which_nothing_matters_gives_what_one_sequential_pass_gives(data):
    check_since(data)


@pytest.mark.slow
@examples(12)
@given(data=st.data())
def test_flow_whose_log_is_trimmed_is_computed_anew_from_what_is_left_or_refused(data):
    check_trimmed(data)


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=2_000)
@given(data=st.data())
def test_two_thousand_flows_whose_log_is_trimmed_are_computed_anew_from_what_is_left_or_refused(data):
    check_trimmed(data)


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=20_000)
@given(data=st.data())
def test_twenty_thousand_flows_that_are_computed_anew_give_what_one_sequential_pass_gives(data):
    recipe = data.draw(drawing.recipes(steps=5))
    check(recipe, data.draw(drawing.records(recipe, most=30)), data.draw(st.integers(0, 1 << 32)))


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=2_000)
@given(data=st.data())
def test_two_thousand_flows_that_are_computed_anew_since_a_time_give_what_one_sequential_pass_gives(data):
    check_since(data)


@pytest.mark.soak  # the broken variants of test_recompute_mutants are found in the suite
def test_search_when_a_replay_begins_after_the_time_that_it_is_told_finds_a_difference(monkeypatch):
    whole = recompute.recovery_of

    def later(*args: Any, since: int | None = None, **about: Any) -> Any:
        return whole(*args, since=None if since is None else since + NEW_AT, **about)

    monkeypatch.setattr(recompute, "recovery_of", later)

    @always_the_same(200)
    @given(st.data())
    def differ(data):
        check_since(data)

    with pytest.raises((AssertionError, PenstockError)):
        differ()
