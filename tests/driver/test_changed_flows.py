"""A flow whose code changed between two runs on one checkpoint: goes on right, or is refused before anything is read or stored."""

from __future__ import annotations

import pytest
from changing import Changing, Last, counted, row

import penstock as ps
from penstock.errors import ChangedFlowError
from penstock.protocol.rescale import Limits


@pytest.fixture
def changing(tmp_path):
    return Changing(tmp_path)


# ------------------------------------------------------------------------------------------------- rows that wait (A.1)

STATELESS = {
    "a column is added": lambda s: s.with_columns(z="x + 1"),
    "columns are put into another order": lambda s: s.select("at", "id", "u", "v", "x", "k"),
    "columns are dropped": lambda s: s.select("k", "x", "at"),
    "a column is added and others dropped": lambda s: s.select("x", "k", y="v + 1"),
    "a filter is added": lambda s: s.where("x < 100"),
    "nothing": lambda s: s,
}


@pytest.mark.parametrize("before", STATELESS)
@pytest.mark.parametrize("after", STATELESS)
def test_waiting_rows_when_columns_change_before_the_region_are_all_processed(before, after, changing):
    changing.run(lambda s: counted(STATELESS[before](s).key_by("k")), [row(1), row(2), row(3)])
    changing.run(lambda s: counted(STATELESS[after](s).key_by("k")), [row(5)], drain=True)
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (2, 2), (3, 3), (5, 4)]


def test_waiting_rows_when_a_column_is_new_have_null_there(changing):
    def seen(key, event, state):
        return (event.x, getattr(event, "z", -1)), None

    changing.run(lambda s: s.key_by("k").stateful_map(seen, "x int, z int"), [row(1)])
    changing.run(lambda s: s.with_columns(z="x + 1").key_by("k").stateful_map(seen, "x int, z int"), [row(5)], drain=True)
    assert changing.rows() == [{"x": 1, "z": None}, {"x": 5, "z": 6}]


def test_waiting_rows_when_a_column_changes_its_type_are_refused(changing):
    changing.run(lambda s: counted(s.key_by("k")), [row(1)])
    sentence = r"Rows waiting at the start of region 'k' .*column 'v' was int64 and is now string; give the changed column another name"
    with pytest.raises(ChangedFlowError, match=sentence):
        changing.run(lambda s: counted(s.with_columns(v="cast(v as string)").key_by("k")))
    assert changing.rows() == []


def test_waiting_rows_when_a_column_goes_and_comes_back_with_another_type_are_refused(changing):
    changing.run(lambda s: counted(s.key_by("k")), [row(1)])
    changing.run(lambda s: counted(s.select("k", "x").key_by("k")), [row(2)])
    with pytest.raises(ChangedFlowError, match="column 'v' was int64 and is now string"):
        changing.run(lambda s: counted(s.select("k", "x", v="cast(v as string)").key_by("k")))
    changing.run(lambda s: counted(s.key_by("k")), drain=True)
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (2, 2)]


def test_waiting_rows_when_their_only_reader_no_longer_waits_are_given_to_it(changing):
    window = ps.tumbling("1 minute")
    changing.run(lambda s: s.key_by("k").window(window).aggregate(n=ps.count(), last=Last("v")), [row(1)])
    changing.run(lambda s: s.key_by("k").window(window).aggregate(n=ps.count()), [row(2)], drain=True)
    assert [r["n"] for r in changing.rows()] == [2]


def test_waiting_rows_when_a_new_step_reads_a_column_that_they_lack_are_refused(changing):
    changing.run(lambda s: counted(s.key_by("k")), [row(1), row(2)])
    with pytest.raises(ChangedFlowError, match="step 'deduplicate' reads the column 'z', which they lack"):
        changing.run(lambda s: counted(s.with_columns(z="x + 1").key_by("k").deduplicate("z")))


def test_waiting_rows_when_a_pattern_comes_before_their_reader_are_refused(changing):
    query = "SELECT * WHERE small AS a ; large AS b WITHIN 10 SECONDS"
    define = {"small": "v < 3", "large": "v > 2"}
    changing.run(lambda s: counted(s.key_by("k")), [row(1)])

    def after(key, event, state):
        return (1, 1), None

    with pytest.raises(ChangedFlowError, match="they came before the pattern"):
        changing.run(
            lambda s: (
                s.key_by("k").match(query, define, name="m").stateful_map(after, "x int, n long", "n long", name="stateful_map")
            )
        )


# ---------------------------------------------------------------------------------------------- what state means (A.2)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("n int", "n float"),
        ("x double", "x long"),
        ("n long", "n int"),
        ("n int", "n double"),
        ("n decimal(8)", "n decimal(6)"),
        ("n long, m long", "n long"),
        ("n long", None),
        (None, "n long"),
        ("n long", "m long"),
    ],
)
def test_declared_state_when_it_is_another_is_refused(before, after, changing):
    def keep(key, event, state):
        return (event.x,), (1, 2)[: len((before or "n long").split(","))]

    changing.run(lambda s: s.key_by("k").stateful_map(keep, "x int", before), [row(1)], [row(100)])
    kept = changing.rows()
    with pytest.raises(ChangedFlowError, match=r"State of step 'stateful_map' of region 'k' .* its state was .* and is now "):
        changing.run(lambda s: s.key_by("k").stateful_map(keep, "x int", after), [row(200)])
    assert changing.rows() == kept


def test_function_when_its_body_and_its_name_change_goes_on_with_its_state(changing):
    def other(key, event, state):
        n = (100 if state is None else state[0]) + 10
        return (event.x, n), (n,)

    changing.run(lambda s: counted(s.key_by("k")), [row(1)], [row(100)])
    changing.run(lambda s: s.key_by("k").stateful_map(other, "x int, n long", "n long"), drain=True)
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (100, 11)]


# ----------------------------------------------------------------------------------------- steps that come and go (A.3)


def test_step_when_another_is_put_before_it_keeps_its_state(changing):
    plain = lambda s: counted(s.key_by("k"))  # noqa: E731
    first = lambda s: counted(s.key_by("k").deduplicate("id"))  # noqa: E731
    changing.run(plain, [row(1), row(2)], [row(50)])
    notices = changing.run(first, [row(60)], [row(61, id=60)])
    assert notices == ["Step 'deduplicate' of region 'k' is new and starts empty."]
    assert changing.run(plain, [row(70)], drain=True) == ["Step 'deduplicate' of region 'k' is forgotten."]
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (2, 2), (50, 3), (60, 4), (61, 5), (70, 6)]


def test_step_when_another_of_its_kind_is_put_before_or_behind_keeps_its_state(changing):
    def through(key, event, state):
        return (*event,), (1, 2)

    everything = "k string, x int, v long, u long, id int, at timestamp"
    changing.run(lambda s: counted(s.key_by("k")), [row(1)], [row(50)])
    changing.run(lambda s: counted(s.key_by("k").stateful_map(through, everything, "a long, b long")), [row(60)], [row(99)])
    changing.run(lambda s: counted(s.key_by("k").stateful_map(through, everything, "a long, b long")), drain=True)
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (50, 2), (60, 3), (99, 4)]


def test_steps_of_one_kind_that_cannot_be_told_apart_are_refused_until_they_have_names(changing):
    same = lambda key, event, state: ((event.x, (state or (0,))[0] + 1), ((state or (0,))[0] + 1,))  # noqa: E731
    mapped = lambda s, **o: s.stateful_map(same, "x int, n long", "n long", **o)  # noqa: E731
    changing.run(lambda s: mapped(s.key_by("k")), [row(1)], [row(50)])
    with pytest.raises(
        ChangedFlowError, match=r"had 1 step of the kind 'stateful_map' \('stateful_map'\) and now has 2, and nothing says"
    ):
        changing.run(lambda s: mapped(mapped(s.key_by("k"))))
    changing.run(lambda s: mapped(mapped(s.key_by("k"), name="first"), name="stateful_map"), drain=True)
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (50, 2)]


def test_step_when_it_is_taken_away_is_refused_unless_it_may_be_forgotten(changing):
    shorter = lambda s: s.key_by("k").window(ps.tumbling("1 minute")).aggregate(x=ps.max("x"))  # noqa: E731
    more = lambda s: counted(shorter(s))  # noqa: E731
    changing.run(more, [row(1)])
    with pytest.raises(
        ChangedFlowError, match=r"State of step 'stateful_map' .* the flow no longer has that step.*forget=\['k/stateful_map'\]"
    ):
        changing.run(shorter)
    assert changing.run(shorter, forget=["k/stateful_map"]) == ["Step 'stateful_map' of region 'k' is forgotten."]


def test_step_that_was_forgotten_and_comes_back_starts_empty(changing):
    plain = lambda s: s.key_by("k").window(ps.tumbling("1 second")).aggregate(x=ps.max("x"))  # noqa: E731
    more = lambda s: counted(plain(s))  # noqa: E731
    changing.run(more, [row(1)], [row(50)])
    changing.run(plain, [row(60)], [row(80)], forget=["k/stateful_map"])
    changing.run(more, [row(90)], drain=True)
    assert [r["n"] for r in changing.rows() if "n" in r and r["n"] is not None] == [1, 1, 2]


def test_region_when_it_is_gone_or_has_another_name_is_refused_unless_it_may_be_forgotten(changing):
    changing.run(lambda s: counted(s.key_by("k")), [row(1)], [row(50)])
    renamed = lambda s: counted(s.key_by("k", name="other"))  # noqa: E731
    with pytest.raises(
        ChangedFlowError,
        match=r"State of region 'k' .* the flow no longer has that region; declare it as before .*forget=\['k'\]",
    ):
        changing.run(renamed)
    notices = changing.run(renamed, [row(60)], drain=True, forget=["k"])
    assert notices == ["Region 'other' is new and starts empty.", "Region 'k' is forgotten."]
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (60, 1)]


def test_forget_when_it_names_what_the_flow_has_is_refused_and_may_be_said_again_of_what_is_gone(changing):
    plain = lambda s: counted(s.key_by("k"))  # noqa: E731
    changing.run(plain, [row(1)], [row(50)])
    anew = lambda s: counted(s.key_by("k"), name="anew")  # noqa: E731
    for names in (["k"], ["k/stateful_map"]):
        with pytest.raises(
            ChangedFlowError, match=f"forget names '{names[0]}', which the flow has: its state would be forgotten"
        ):
            changing.run(plain, forget=names)
    changing.run(anew, [row(60)], [row(90)], forget=["k/stateful_map"])
    assert changing.run(anew, drain=True, forget=["k/stateful_map", "gone", "k/gone"]) == []
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (50, 1), (60, 2), (90, 3)]


def test_inputs_that_change_while_a_key_is_on_hold_are_refused_until_its_rescale_has_ended(changing):
    limits = Limits(first_bytes=40, least_bytes=40, most_bytes=80, hold_bytes=60)
    plain = lambda s: counted(s.key_by("k"))  # noqa: E731
    wider = lambda s: counted(s.with_columns(z="x + 1").key_by("k"))  # noqa: E731
    rows = [row(i, k=f"{i}{'k' * 90}") for i in range(8)]
    with changing.harness(plain, limits=limits) as harness:
        harness.push("s", rows)
        harness.epoch()
        harness.push("s", [row(40)])
        harness.scale(None, 5)
        for _ in range(20):
            if harness.record.regions["k"].control.held:
                break
            harness.epoch()
        harness.push("s", [{**r, "x": r["x"] + 40, "at": row(r["x"] + 40)["at"]} for r in rows])
        harness.epoch()
        assert harness.record.regions["k"].control.held
    with pytest.raises(
        ChangedFlowError, match=r"The inputs of region 'k' .* a key is on hold while it moves to another worker"
    ):
        changing.harness(wider, limits=limits)
    with changing.harness(plain, limits=limits) as harness:
        harness.settle()
    with changing.harness(wider, limits=limits) as harness:
        harness.finish()
    assert sorted((r["x"], r["n"]) for r in changing.rows()) == sorted(
        [(i, 1) for i in range(8)] + [(40, 1)] + [(i + 40, 2) for i in range(8)]
    )


def test_flow_of_which_many_ways_lead_to_each_step_is_compared_in_no_time(changing):
    """Thirty times two ways are a thousand million in all."""

    def halves(stream):
        for x in range(30):
            stream = stream.where(f"x > {x}").union(stream.where(f"x <= {x}"))
        return counted(stream.key_by("k"))

    changing.run(halves, [row(1), row(2)])
    changing.run(halves, [row(9)], drain=True)
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (2, 2), (9, 3)]
