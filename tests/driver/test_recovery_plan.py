"""Where a recomputation starts, by marks, flow and log: a pure function. The log of files is the one from which the rows came, or it is refused."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import penstock as ps
from penstock.driver.engine import Scan
from penstock.driver.input_files import InputFile
from penstock.driver.recovery import Known, Start, horizons, recovery_of
from penstock.driver.replay import extend_trail
from penstock.progress.lateness import Chunk, check_lateness
from penstock.progress.source_state import SourceState
from penstock.progress.trail import Trail
from penstock.types import MAX_TIME, MIN_TIME, ROW_BITS, Mark, Refusal

S = 1_000_000
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us")), ("v", pa.int64())])
FOREVER = "remembers without end"


class Reader:
    """In place of a connector."""

    schema = SCHEMA


def a_plan(*steps: str, sources: tuple[str, ...] = ("in",)):
    """A flow of a chain of regions, one for each step."""
    flow = ps.Flow("f")
    first, *others = [flow.source(name, Reader(), time="at", lateness="2 seconds") for name in sources]
    stream = first.union(*others) if others else first
    for i, step in enumerate(steps):
        keyed = stream.key_by("k", name=f"r{i}")
        kind, *args = step.split()
        if kind == "tumbling":
            stream = keyed.window(ps.tumbling(f"{args[0]} seconds")).aggregate(v=ps.sum("v"))
        elif kind == "sliding":
            stream = keyed.window(ps.sliding(f"{args[0]} seconds", f"{args[1]} seconds")).aggregate(v=ps.sum("v"))
        elif kind == "session":
            stream = keyed.window(ps.session(f"{args[0]} seconds")).aggregate(v=ps.sum("v"))
        elif kind == "join":
            stream = keyed.join(first.key_by("k", name=f"o{i}"), f"{args[0]} seconds", how=args[1]).select("k", "v")
        elif kind == "map":
            stream = keyed.stateful_map(lambda key, event, state: ((event.k, event.v), state), "k string, v long")
    stream.sink(ps.memory("a plan"), name="out")
    return flow.plan()


@pytest.mark.parametrize(
    ("steps", "back"),
    [
        ((), MAX_TIME),
        (("tumbling 60",), 60),
        (("tumbling 60", "tumbling 300"), 360),
        (("sliding 40 20", "tumbling 5", "sliding 30 10"), 75),
        (("join 7 inner",), 7),
        (("join 7 left",), 14),
        (("join 7 left", "tumbling 10"), 24),
        (("session 5",), None),
        (("tumbling 60", "map"), None),
        (("map", "tumbling 60"), None),
    ],
    ids=str,
)
def test_horizon_adds_up_what_the_steps_of_a_chain_look_back(steps, back):
    frontier = 1000 * S
    (found,) = horizons(a_plan(*steps), {"out": frontier}).values()
    if back is None:
        assert found.time == MIN_TIME
        assert FOREVER in found.why
    else:
        assert found.time == (MAX_TIME if back == MAX_TIME else frontier - back * S)


@pytest.mark.parametrize(
    ("steps", "back"),
    [
        (("session 5",), 20),
        (("tumbling 60", "session 5", "tumbling 10"), 90),
        (("session 5", "session 7"), 48),
        (("session 5", "map"), None),
    ],
    ids=str,
)
def test_horizon_where_chains_are_taken_to_have_four_links_is_as_far_back(steps, back):
    frontier, chains = 1000 * S, {}
    (found,) = horizons(a_plan(*steps), {"out": frontier}, reach=4, chains=chains).values()
    assert found.time == (MIN_TIME if back is None else frontier - back * S)
    assert len(chains) == (0 if back is None else sum(step.startswith("session") for step in steps))
    assert all(c.before < c.needed <= frontier for c in chains.values())


def test_horizon_when_an_output_holds_nothing_is_the_beginning():
    (found,) = horizons(a_plan("tumbling 60"), {"out": MIN_TIME}).values()
    assert found.time == MIN_TIME
    assert "holds nothing yet" in found.why


def test_horizon_of_one_that_rests_is_that_of_what_is_before_it():
    found = horizons(a_plan("tumbling 60"), {"out": 1000 * S}, resting=["r0"])
    assert found["in"].time == MAX_TIME


# -------------------------------------------------------------------------------------------------------------------- files


def read(state: SourceState, files: list[InputFile], second: int) -> SourceState:
    """A source after an epoch with files, each of ten records."""
    chunks = []
    for i, _ in enumerate(files):
        first = (state.files + i) << ROW_BITS
        chunks.append(Chunk("0", 0, first, (second + i) * S, (second + i) * S, first + 9, 10))
    judged = check_lateness(state, chunks, lateness_us=2 * S, idle_after_us=None, declared=(), now_us=0).state
    places, sizes = tuple(f.place for f in files), tuple(f.size for f in files)
    extend_trail(judged, state, Scan(tuple(chunks), files=len(files), places=places, sizes=sizes))
    judged.files += len(files)
    return judged


def a_file(n: int, at: int | None = None) -> InputFile:
    return InputFile(f"file:///d/{n:03d}", 100 + n, 1000 * (n if at is None else at))


FILES = [a_file(n) for n in range(60)]
PLAN = a_plan("tumbling 10")


def held(state: SourceState, *, epoch: int = 9, finished: bool = False) -> Mark:
    trail = Trail.of("f", {"in": state}, {}, ["out"], finished=finished)
    return Mark("id", "out", 1, epoch, state.frontier, {}, trail.to_text())


def after(files: list[InputFile]) -> SourceState:
    """A source that was read one file an epoch."""
    state = SourceState()
    for n, file in enumerate(files):
        state = read(state, [file], n)
    return state


END = after(FILES)


def plan(listed: list[InputFile], end: SourceState = END, **about) -> Start | Refusal:
    return recovery_of(PLAN, {"out": held(end)}, {"in": listed}, **about)


def test_start_is_the_last_waypoint_before_the_horizon_and_files_before_it_count_as_read():
    found = plan(FILES)
    horizon = END.frontier - 10 * S
    state = found.sources["in"]
    assert state.partitions["0"].latest < horizon
    assert 60 - 15 - 3 <= state.files <= 60 - 13  # a quarter more than it must at most
    assert found.read["in"] == tuple(FILES[: state.files])
    assert state.rows == 10 * state.files
    assert found.recovery.starts == {"in": state.files}
    assert found.recovery.ends == {"in": 60}
    assert [s.sources["in"].trail for s in found.recovery.stops] == [[]]


def test_files_that_came_since_are_not_looked_at():
    assert plan([*FILES, a_file(60), a_file(61)]) == plan(FILES)
    assert plan(FILES[::-1]) == plan(FILES)


@pytest.mark.parametrize("gone", [1, 20, "all before the start", "one more"])
def test_first_files_when_they_are_gone_are_missed_only_if_the_start_needs_them(gone):
    start = plan(FILES).sources["in"].files
    n = {"all before the start": start, "one more": start + 1}.get(gone, gone)
    found = plan(FILES[n:])
    if gone == "one more":
        assert f"needed from its file {start + 1} on" in found.sentence
        assert f"the first {n} are gone" in found.sentence
    else:
        assert found.recovery == plan(FILES).recovery
        assert found.read["in"] == tuple(FILES[n:start])


@pytest.mark.parametrize(
    "change",
    [
        lambda f: replace(f, size=f.size + 1),
        lambda f: replace(f, uri=f.uri + "x"),
        lambda f: replace(f, mtime_ms=f.mtime_ms + 1),
        lambda f: replace(f, mtime_ms=0),
        lambda f: replace(f, mtime_ms=999_999),
    ],
    ids=["size", "name", "time", "an old time", "a new time"],
)
@pytest.mark.parametrize("which", [50, 55, 59])
def test_file_that_is_needed_when_it_is_another_one_is_refused_near_where_it_is(which, change):
    listed = [*FILES]
    listed[which] = change(FILES[which])
    found = plan(listed)
    assert isinstance(found, Refusal)
    assert "are not those from which the sinks' rows came" in found.sentence or "are gone" in found.sentence


def test_file_that_was_replaced_is_named():
    assert "from file:///d/055 on" in plan([*FILES[:55], replace(FILES[55], size=1), *FILES[56:]]).sentence


def test_files_before_the_start_when_they_were_replaced_do_not_matter():
    listed = [replace(FILES[0], size=1), *FILES[1:]]
    assert plan(listed).recovery == plan(FILES).recovery


def test_one_more_file_of_an_old_time_is_refused():
    found = plan([*FILES, InputFile("file:///d/more", 5, 30_500)])
    assert "1 more than then have a time before that of the last one read" in found.sentence


def test_file_that_is_gone_from_the_middle_is_refused():
    assert isinstance(plan([*FILES[:55], *FILES[56:]]), Refusal)


@pytest.mark.parametrize("gone", [0, 5])
def test_strays_are_put_where_they_were_read(gone):
    stray = a_file(999, at=30)
    ordered = [*FILES[:52], stray, *FILES[52:]]
    end = after(ordered)
    found = plan([*FILES[gone:], stray], end)
    assert isinstance(found, Start)
    assert found.read["in"] == tuple(ordered[gone : found.sources["in"].files])
    assert isinstance(plan(FILES, end), Refusal)  # it is gone
    assert isinstance(plan([*FILES, replace(stray, size=1)], end), Refusal)


def test_stray_before_the_start_counts_as_read():
    stray = a_file(999, at=3)
    ordered = [*FILES[:30], stray, *FILES[30:]]
    found = plan([*FILES, stray], after(ordered))
    assert found.read["in"] == tuple(ordered[: found.sources["in"].files])
    assert found.sources["in"].strays == [[30, stray.uri]]


# -------------------------------------------------------------------------------------------------------------------- marks


def two(low: Mark | None, high: Mark | None, **about) -> Start | Refusal:
    flow = ps.Flow("f")
    source = flow.source("in", Reader(), time="at", lateness="2 seconds")
    source.sink(ps.memory("low"), name="low")
    source.key_by("k").window(ps.tumbling("10 seconds")).aggregate(v=ps.sum("v")).sink(ps.memory("high"), name="high")
    return recovery_of(flow.plan(), {"low": low, "high": high}, {"in": FILES}, **about)


def test_marks_of_two_epochs_are_two_stops_and_each_output_goes_on_behind_its_own():
    found = two(held(after(FILES[:40])), held(END)).recovery
    assert (found.passed, [s.sources["in"].files for s in found.stops]) == (1, [60])  # it begins at the first
    assert found.outputs == {"low": 1, "high": 2}
    found = two(held(END), held(after(FILES[:40]))).recovery
    assert found.outputs == {"low": 2, "high": 1}
    assert two(held(END), held(END, epoch=4)).recovery.outputs == {"low": 1, "high": 1}


def test_end_that_one_output_was_given_is_a_stop_of_its_own():
    found = two(held(END), held(END, finished=True)).recovery
    assert [s.finished for s in found.stops] == [False, True]
    assert found.outputs == {"low": 1, "high": 2}


def test_output_without_a_mark_is_given_everything_from_the_beginning():
    found = two(None, held(END))
    assert found.recovery.outputs == {"low": 0, "high": 1}
    assert found.sources["in"] == SourceState()
    assert found.read["in"] == ()


def test_marks_of_two_histories_are_refused():
    a = SourceState(partitions={"0": replace(END.partitions["0"], offset=5), "1": replace(END.partitions["0"], offset=9)})
    b = SourceState(partitions={"0": replace(END.partitions["0"], offset=6), "1": replace(END.partitions["0"], offset=7)})
    assert "not of one history" in two(held(a), held(b)).sentence


@pytest.mark.parametrize(
    ("trail", "words"),
    [
        ("", "kept no trail"),
        (Trail("g", sources={"in": END}).to_text(), "holds the rows of flow 'g', and this one is 'f'"),
        (Trail("f", sources={"other": END}).to_text(), "holds rows of the sources other, and the flow now has in"),
        (Trail("f", sources={"in": END}, held={"r0": [5]}).to_text(), "a key of region 'r0' was on hold"),
    ],
)
def test_mark_that_cannot_be_replayed_to_is_refused_by_name(trail, words):
    found = recovery_of(PLAN, {"out": replace(held(END), trail=trail)}, {"in": FILES})
    assert words in found.sentence
    assert "'out'" in found.sentence


def test_since_makes_it_begin_earlier():
    assert plan(FILES, since=10 * S).sources["in"].files in range(5, 11)
    assert plan(FILES, since=MIN_TIME).sources["in"].files == 0


def test_state_that_is_not_ahead_of_any_mark_is_begun_with_where_there_is_no_horizon():
    session = a_plan("session 5")
    known = [Known("old", {"in": after(FILES[:20])}), Known("new", {"in": after(FILES[:30])}), Known("ahead", {"in": END})]
    end = after(FILES[:40])
    found = recovery_of(session, {"out": held(end)}, {"in": FILES}, known=known)
    assert found.known.what == "new"
    assert found.sources["in"].files == 30
    assert "begins with the state of new" in found.recovery.why
    assert recovery_of(session, {"out": held(end)}, {"in": FILES}, known=known[2:]).known is None
    assert recovery_of(PLAN, {"out": held(end)}, {"in": FILES}, known=known).known is None  # its horizon is nearer


@pytest.mark.parametrize(("step", "refused"), [("map", True), ("aggregate", False)])
@pytest.mark.parametrize("partitions", [1, 2])
def test_step_that_depends_on_order_without_event_time_is_refused_if_several_partitions_feed_it(step, refused, partitions):
    flow = ps.Flow("f")
    keyed = flow.source("in", Reader()).key_by("k")
    if step == "map":
        keyed.stateful_map(lambda key, event, state: ((event.k,), state), "k string").sink(ps.memory("untimed"), name="out")
    else:
        keyed.aggregate(n=ps.count()).sink(ps.memory("untimed"), name="out")
    known = {str(n): replace(END.partitions["0"], trail=[]) for n in range(partitions)}
    mark = held(SourceState(partitions=known))
    found = recovery_of(flow.plan(), {"out": mark}, {"in": None})
    assert isinstance(found, Refusal) == (refused and partitions == 2)
    assert not isinstance(found, Refusal) or "that of 2 source partitions is how they came" in found.sentence
