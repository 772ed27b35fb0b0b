"""Any flow whose sources put records aside that are too far ahead, whatever happens: what one sequential pass gives."""

from __future__ import annotations

from collections import Counter

import drawing
import oracle
import pytest
import recipes as r
from hypothesis import given
from hypothesis import strategies as st
from recomputing import Store
from test_against_oracle import always_the_same, compare, examples
from test_silent_sources import CLOSING, courses
from trails import clocks

from penstock.errors import PenstockError, RecoveryError
from penstock.progress import ahead
from penstock.testing import engine

SEEN: Counter[str] = Counter()
AHEAD = {"ahead_us": [None, 0, r.SECOND, 3 * r.SECOND, 9 * r.SECOND]}


def check(recipe: r.Recipe, data: oracle.Records, course: drawing.Course) -> None:
    with clocks() as clock:
        ran = drawing.run(recipe, data, course)
    expected = oracle.Oracle(recipe, ran.trail.records(data), ran.markers, ran.trail.clock(clock), ran.trail)
    for node, found in ran.contents.items():
        compare(f"{type(node).__name__} {node}", found, expected.content(node))
        SEEN[type(node).__name__] += found.total()


@pytest.mark.slow
@examples(60)
@given(data=st.data())
def test_results_when_records_are_ahead_and_anything_happens_equal_one_sequential_pass(data):
    recipe = data.draw(drawing.recipes(options=AHEAD, changing=True))
    check(recipe, data.draw(drawing.records(recipe, edges=True)), data.draw(drawing.courses))


@pytest.mark.slow
@examples(30)
@given(data=st.data())
def test_results_when_records_are_ahead_and_sources_close_equal_one_sequential_pass_that_knows_the_clock(data):
    recipe = data.draw(drawing.recipes(options={**AHEAD, **CLOSING}, changing=True))
    check(recipe, data.draw(drawing.records(recipe, edges=True)), data.draw(courses()))


def a_flow() -> r.Recipe:
    """A source of two partitions, windows, late records and records ahead."""
    source = r.Source("a", lateness_us=2 * r.SECOND, partitions=(0, 1), ahead_us=3 * r.SECOND)
    first = r.KeyBy(source, ("k",), "first")
    told = r.Map(first, "history")
    windows = r.Totals(first, (("v", "sum", "v"), ("s", "concat", "s")), r.Window("tumbling", 5 * r.SECOND))
    late, far = r.Late(source), r.Ahead(source)
    return r.Recipe([source, first, told, windows, late, far], [source, told, windows, late, far])


def search() -> None:
    @always_the_same(40)
    @given(st.data())
    def differ(data):
        recipe = a_flow()
        check(recipe, data.draw(drawing.records(recipe, most=45)), data.draw(drawing.courses))

    differ()


@pytest.mark.parametrize("seconds", [3, 1])
def test_recomputation_with_another_ahead_that_changes_how_far_a_partition_was_is_refused_before_anything_is_stored(
    tmp_path, seconds
):
    sinks = [Store(f"{tmp_path} {name}") for name in ("near", "far")]

    def begun(ahead_us, folder):
        source = r.Source("a", partitions=(0,), lateness_us=9 * r.SECOND, ahead_us=ahead_us)
        keyed, far = r.KeyBy(source, ("k",), "first"), r.Ahead(source)
        recipe = r.Recipe([source, keyed, told := r.Map(keyed, "count"), far], [told, far])
        built = r.build(recipe, "recomputed ahead", lambda _, node: sinks[node is far])
        harness = drawing.Harness(built.flow, checkpoint=str(tmp_path / folder), recover="recompute")
        rows = [
            {"p": 0, "o": o, "k": "k", "j": 0, "v": t, "x": 0.5, "s": "", "at": r.moment(t * r.SECOND)}
            for o, t in enumerate([0, 3, 6, 1])
        ]
        harness.push("a", r.table(source, rows))
        return harness

    begun(r.SECOND, "first").epoch()
    before = [sink.rows() for sink in sinks]
    assert [len(rows) for rows in before] == [0, 2]  # the frontier has not passed those on time
    again = begun(seconds * r.SECOND, "second")
    if seconds == 1:
        again.epoch()
    else:
        with pytest.raises(
            RecoveryError,
            match=r"\(as many, with other positions or times\); another ahead= would do that too\. No sink was given anything",
        ):
            again.epoch()
    assert [sink.rows() for sink in sinks] == before


# ------------------------------------------------------------------------------------------------------------- broken variants


def time_of_a_record_ahead_counts(patch):
    whole = ahead.put_aside
    patch.setattr(engine, "put_aside", lambda before, chunks, *rest: (chunks, *whole(before, chunks, *rest)[1:]))


def record_ahead_stays_in_the_flow(patch):
    patch.setattr(engine, "is_aside", lambda *given: ahead.is_aside((), *given[1:]))


def record_ahead_is_lost(patch):
    patch.setattr(engine, "SourceFrames", lambda *given, **_: whole(*given[:4]))
    whole = engine_frames


def judged_by_what_came_before_the_epoch(patch):
    patch.setattr(ahead, "runs_ahead", _by_the_first)


def whole_chunks_are_never_ahead(patch):
    whole = ahead.in_question
    patch.setattr(engine, "in_question", lambda *given: (found := whole(*given)[0], bool(found)))


engine_frames = engine.SourceFrames


def _by_the_first(time, top, ahead_us):
    top = int(time[0]) if top == ahead.MIN_TIME else top
    return [(i, i + 1, top + ahead_us) for i, at in enumerate(time.tolist()) if at > top + ahead_us]


MUTANTS = [
    time_of_a_record_ahead_counts,
    record_ahead_stays_in_the_flow,
    record_ahead_is_lost,
    judged_by_what_came_before_the_epoch,
    whole_chunks_are_never_ahead,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_when_putting_aside_is_broken_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        search()


@pytest.mark.slow
def test_search_when_putting_aside_is_whole_finds_none_and_has_seen_records_ahead():
    SEEN.clear()
    search()
    assert SEEN["Ahead"] > 50
    assert SEEN["Late"] > 20
