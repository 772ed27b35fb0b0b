"""What state means may not change between two runs on one checkpoint: windows, aggregates, keys, joins, patterns, sources."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest
from changing import SCHEMA, Changing, Reader, counted, row

import penstock as ps
from penstock.errors import ChangedFlowError, OperatorError
from penstock.patterns import memory
from penstock.testing import Harness


@pytest.fixture
def changing(tmp_path):
    return Changing(tmp_path)


# --------------------------------------------------------------------------------------- windows and aggregates (A.4, A.5)

MINUTE = ps.tumbling("1 minute")
WINDOWED = {
    "of another size": lambda s: s.window(ps.tumbling("30 seconds")).aggregate(n=ps.count()),
    "of another slide": lambda s: s.window(ps.sliding("1 minute", "30 seconds")).aggregate(n=ps.count()),
    "given out at each change": lambda s: s.window(MINUTE).aggregate(emit="update", n=ps.count()),
    "of a column": lambda s: s.window(MINUTE).aggregate(n=ps.count("v")),
    "of another function": lambda s: s.window(MINUTE).aggregate(n=ps.max("v")),
    "of sessions": lambda s: s.window(ps.session("1 minute")).aggregate(n=ps.count()),
}


@pytest.mark.parametrize("after", WINDOWED)
def test_open_window_when_the_window_or_the_aggregate_changes_is_refused(after, changing):
    changing.run(lambda s: s.key_by("k").window(MINUTE).aggregate(n=ps.count()), [row(1, 40), row(2, 50)])
    with pytest.raises(ChangedFlowError, match=r"State of step 'aggregate' .*of region 'k' of checkpoint"):
        changing.run(lambda s: WINDOWED[after](s.key_by("k")))
    assert changing.rows() == []


AGGREGATES = {
    "max then min": ({"a": ps.max("v")}, {"a": ps.min("v")}),
    "last then first": ({"a": ps.last("v")}, {"a": ps.first("v")}),
    "another column": ({"a": ps.sum("v")}, {"a": ps.sum("u")}),
    "another type": ({"a": ps.max("v")}, {"a": ps.max("x")}),
    "exact": ({"a": ps.sum("f")}, {"a": ps.sum("f", exact=True)}),
    "other error": ({"a": ps.quantile("v", 0.5)}, {"a": ps.quantile("v", 0.9)}),
    "two exchanged": ({"a": ps.max("v"), "b": ps.min("v")}, {"a": ps.min("v"), "b": ps.max("v")}),
}


@pytest.mark.parametrize("which", AGGREGATES)
@pytest.mark.parametrize("window", [MINUTE, ps.session("10 seconds"), None])
def test_aggregate_when_its_function_or_column_changes_is_refused(which, window, changing):
    before, after = AGGREGATES[which]

    def declared(aggregates):
        return lambda s: _aggregated(s.with_columns(f="cast(v as double)").key_by("k"), window, aggregates)

    changing.run(declared(before), [row(1), row(2)])
    kept = changing.rows()
    with pytest.raises(ChangedFlowError, match=r"'a' was .* and is now "):
        changing.run(declared(after))
    assert changing.rows() == kept


def _aggregated(keyed, window, aggregates):
    return keyed.aggregate(**aggregates) if window is None else keyed.window(window).aggregate(**aggregates)


@pytest.mark.parametrize("window", [MINUTE, ps.session("30 seconds")])
def test_aggregates_under_new_names_start_empty_and_say_so_and_others_go_on(window, changing):
    every = {
        "n": ps.count(), "nv": ps.count("v"), "total": ps.sum("v"), "exact": ps.sum("f", exact=True), "mean": ps.mean("d"), "least": ps.min("v"),
        "text": ps.max("t"), "first": ps.first("v"), "last": ps.last("t"), "all": ps.collect("v"), "kinds": ps.count_distinct("v"),
        "texts": ps.count_distinct("t"), "about": ps.approx_count_distinct("v"), "half": ps.quantile("v", 0.5), "spread": ps.stddev("v"),
    }  # fmt: skip

    def flow(**aggregates):
        columns = {"f": "cast(v as double)", "d": "cast(v as decimal(10,2))", "t": "cast(v as string)"}
        return lambda s: _aggregated(s.with_columns(**columns).key_by("k"), window, aggregates)

    hour = {"lateness": "1 hour"}
    changing.run(flow(m=ps.max("v"), gone=ps.min("v")), [row(1, 1), row(9, 2), row(4, 30, k="b")], **hour)
    notices = changing.run(flow(**every, m=ps.max("v")), [row(3, 3), row(5, 4)], [], drain=True, **hour)
    assert len(notices) == 1
    assert notices[0].startswith("In step 'aggregate" if window is MINUTE else "In step 'session aggregate")
    assert notices[0].endswith("'texts', 'about', 'half', 'spread' is new and starts empty.")
    found = {r["k"]: r for r in changing.rows()}
    one, none = found["a"], found["b"]  # of b there was no record since
    assert one["m"] == 9
    assert (one["n"], one["nv"], one["total"], one["exact"], one["least"], one["text"]) == (2, 2, 8, 8.0, 3, "5")
    assert (one["first"], one["last"], one["all"], one["kinds"], one["texts"], one["about"]) == (3, "5", [3, 5], 2, 2, 2)
    assert float(one["mean"]) == 4.0
    assert one["half"] == pytest.approx(3, rel=0.02)
    assert one["spread"] == pytest.approx(2**0.5)
    assert (none["n"], none["nv"], none["total"], none["least"], none["all"], none["kinds"], none["about"]) == (
        0,
        0,
        None,
        None,
        [],
        0,
        0,
    )
    assert none["m"] == 4
    assert all(none[n] is None for n in ("exact", "mean", "text", "first", "last", "half", "spread"))


def test_aggregate_that_went_and_came_back_starts_empty(changing):
    both = lambda s: s.key_by("k").window(MINUTE).aggregate(n=ps.count(), m=ps.max("v"))  # noqa: E731
    changing.run(both, [row(7, 1), row(8, 2, k="b")])
    changing.run(lambda s: s.key_by("k").window(MINUTE).aggregate(n=ps.count()), [row(3, 3)])
    changing.run(both, [row(5, 4)], drain=True)
    assert sorted((r["k"], r["n"], r["m"]) for r in changing.rows()) == [("a", 3, 5), ("b", 1, None)]


def test_aggregates_that_change_places_keep_each_its_state(changing):
    def declared(exchanged):
        def declare(s):
            k = s.key_by("k").window(MINUTE)
            steps = [lambda: k.aggregate(x=ps.max("v")), lambda: k.aggregate(n=ps.count())]
            made = [step() for step in (reversed(steps) if exchanged else steps)]
            return made[0] if exchanged else made[1]  # of both the count

        return declare

    changing.run(declared(False), [row(1), row(2)])
    changing.run(declared(True), [row(3)], drain=True)
    assert [r["n"] for r in changing.rows()] == [3]


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ({"columns": ("v",)}, {"columns": ("u",)}, r"columns was \(v int64\) and is now \(u int64\)"),
        ({"columns": ("v",)}, {"columns": ("v", "u")}, "columns was"),
        ({"columns": ("v",), "within": "1 minute"}, {"columns": ("v",)}, "within was 60 s and is now for ever"),
    ],
)
def test_deduplication_when_it_is_another_is_refused(before, after, differs, changing):
    def declared(columns, within=None):
        return lambda s: s.key_by("k").deduplicate(*columns, within=within)

    changing.run(declared(**before), [row(1)])
    with pytest.raises(ChangedFlowError, match=differs):
        changing.run(declared(**after))


def _as_of(s, tolerance):
    return s.where("x < 10").key_by("k").join(s.where("x >= 10").select("k", y="x"), how="asof", tolerance=tolerance)


LASTING = {
    "window": lambda s, long: s.key_by("k").window(ps.tumbling(long)).aggregate(n=ps.count()),
    "offset": lambda s, long: s.key_by("k").window(ps.tumbling("60 days", offset=long)).aggregate(n=ps.count()),
    "slide": lambda s, long: s.key_by("k").window(ps.sliding("60 days", long)).aggregate(n=ps.count()),
    "window of a zone": lambda s, long: s.key_by("k").window(ps.tumbling(long, zone="Europe/Berlin")).aggregate(n=ps.count()),
    "offset of months": lambda s, long: s.key_by("k").window(ps.tumbling("1 year", offset=long)).aggregate(n=ps.count()),
    "session": lambda s, long: s.key_by("k").window(ps.session(long)).aggregate(n=ps.count()),
    "time to live": lambda s, long: counted(s.key_by("k"), ttl=long),
    "deduplicate": lambda s, long: s.key_by("k").deduplicate("v", within=long),
    "join": lambda s, long: _joined(long)(s),
    "as-of join": _as_of,
}


@pytest.mark.parametrize("what", LASTING)
@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ("20 days", "20 days 1 second", r"was .*1728000 s.* and is now .*1728001 s"),
        ("1 second", "1.000001 seconds", r"was .*\b1 s.* and is now .*\b1\.000001 s"),
    ],
)
def test_duration_when_it_is_another_by_little_is_refused(what, before, after, differs, changing):
    changing.run(lambda s: LASTING[what](s, before), [row(1), row(60)])
    with pytest.raises(ChangedFlowError, match=differs):
        changing.run(lambda s: LASTING[what](s, after))


def test_operator_of_another_kind_under_the_same_name_is_refused(changing):
    class First(ps.Operator):
        pass

    class Second(ps.Operator):
        pass

    class Renamed(First):
        kind = "First"

    changing.run(lambda s: s.key_by("k").process(First(), name="mine"), [row(1)])
    with pytest.raises(ChangedFlowError, match="was of the kind 'First' and is now of the kind 'Second'"):
        changing.run(lambda s: s.key_by("k").process(Second(), name="mine"))
    assert changing.run(lambda s: s.key_by("k").process(Renamed(), name="mine")) == []


@pytest.mark.parametrize(
    ("method", "gives", "sentence"),
    [
        ("meaning", {"window": 3}, "gave 3 in meaning, which is kept in the checkpoint; it must give text"),
        ("layout", {"n": ("long",)}, r"gave \('long',\) in layout"),
        ("layout", {1: "long"}, "gave 1 in layout"),
        ("meaning", None, "failed in meaning: TypeError"),
        ("reads", [pa.field("x", pa.int64())], "gave .* in reads"),
    ],
)
def test_operator_that_does_not_say_in_text_what_its_state_means_is_refused_in_a_sentence(method, gives, sentence, changing):
    odd = type("Odd", (ps.Operator,), {method: lambda *_: gives})
    with pytest.raises(OperatorError, match=f"Operator Odd of region 'k' {sentence}"):
        changing.run(lambda s: s.key_by("k").process(odd()), [row(1)])


# --------------------------------------------------------------------------------------------------- keys, joins, patterns


def test_region_when_it_has_another_key_is_refused(changing):
    changing.run(lambda s: counted(s.key_by("k", name="r")), [row(1)])
    for key, kind in (("x", "int32"), ("id", "int32")):
        with pytest.raises(
            ChangedFlowError, match=f"State of region 'r' .* was keyed by k string and is now keyed by {key} {kind}"
        ):
            changing.run(lambda s, key=key: counted(s.key_by(key, name="r")))


def _joined(within="10 seconds", how="left", left=None, right=None):
    def declare(s):
        a = s.where("x < 10").select("k", "x", **(left or {}))
        b = s.where("x >= 10").select("k", **({"y": "x"} | (right or {})))
        return a.key_by("k").join(b, within, how)

    return declare


@pytest.mark.parametrize("changed", [{"within": "9 seconds"}, {"how": "inner"}, {"right": {"y": "cast(v as string)"}}])
def test_join_when_it_is_another_is_refused(changed, changing):
    changing.run(_joined(), [row(1), row(60)])
    with pytest.raises(ChangedFlowError, match="of region 'k' of checkpoint"):
        changing.run(_joined(**changed))


def test_join_when_its_sides_get_and_lose_columns_keeps_what_it_remembers(changing):
    near = {"time": "at", "lateness": "0 seconds"}
    changing.run(_joined("1 hour", left={"p": "v"}), [row(1), row(2), row(10, 3)], [row(3, 4)], **near)
    changing.run(_joined("1 hour", left={"q": "u"}, right={"z": "v"}), [row(11, 5), row(4, 6)], **near, drain=True)
    found = [{n: v for n, v in r.items() if n != "k"} for r in changing.rows()]
    pairs = {(r["x"], r["y"]): r for r in found}
    assert set(pairs) == {(1, 10), (2, 10), (3, 10), (1, 11), (2, 11), (3, 11), (4, 10), (4, 11)}
    assert pairs[1, 10]["p"] == 1
    assert (pairs[1, 11]["q"], pairs[1, 11]["z"]) == (None, 11)
    assert (pairs[4, 10]["q"], pairs[4, 10]["z"]) == (40, None)


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        ("`a  b` AS a ; `a b` AS b", "`a b` AS a ; `a  b` AS b", False),
        ("`a  b` AS a ; `a b` AS b -- x\n; `a b`", "`a  b` AS a ; `a b` AS b -- x ; `a b`\n", False),
        ("`a  b` AS a ; `a b` AS b", "\n`a  b` AS a -- as it was\n  ; `a b` AS b", True),
    ],
)
def test_pattern_is_another_where_its_words_are(before, now, is_same, changing):
    def declared(text):
        return lambda s: s.key_by("k").match(f"SELECT * WHERE {text} WITHIN 20 SECONDS", {"a  b": "v < 3", "a b": "v > 4"})

    changing.run(declared(before), [row(1)], [row(20)])
    if is_same:
        changing.run(declared(now), drain=True)
    else:
        with pytest.raises(ChangedFlowError, match=r"(State of step 'match'|Rows waiting)"):
            changing.run(declared(now))


@pytest.mark.parametrize(
    ("now", "is_same"),
    [
        ("v > 4\n   and w <> 'a  b'", True),
        ("v > 4 and w <> 'a b'", False),
        ("v > 4 and W <> 'a  b'", False),
        ("v > 4 and w <>'a  b'", False),
        ("v > 4 -- and w <> 'a  b'\n and true", False),
    ],
)
def test_condition_of_a_pattern_is_another_where_its_words_are(now, is_same, changing):
    def declared(large):
        define = {"small": "v < 3", "large": large}
        words = lambda s: s.with_columns(w="cast(v as string)").key_by("k")  # noqa: E731
        return lambda s: words(s).match("SELECT * WHERE small AS a ; large AS b WITHIN 20 SECONDS", define)

    changing.run(declared("v > 4 and w <> 'a  b'"), [row(1)], [row(20)])
    if is_same:
        changing.run(declared(now), drain=True)
    else:
        with pytest.raises(ChangedFlowError, match=r"(State of step 'match'|Rows waiting)"):
            changing.run(declared(now))


def test_state_of_a_pattern_that_was_stored_when_white_space_counted_is_read(changing, monkeypatch):
    def declared(s):
        return s.key_by("k").match(
            "SELECT * WHERE small AS a ; large AS b WITHIN 20 SECONDS", {"small": "v <\n 3", "large": "v > 4"}
        )

    with monkeypatch.context() as before:
        before.setattr(memory, "checksum", partial(memory.checksum, as_written=True))
        changing.run(declared, [row(1, 1)], [row(4, 20)])
    changing.run(declared, [row(9, 18)], drain=True)
    assert len(changing.rows()) == 1


@pytest.mark.parametrize("changed", ["query", "define"])
def test_pattern_when_it_is_another_is_refused(changed, changing):
    define = {"small": "v < 3", "large": "v > 4"}
    query = "SELECT * WHERE small AS a ; large AS b WITHIN {} SECONDS"

    def declared(seconds=10, define=define):
        return lambda s: s.key_by("k").match(query.format(seconds), define)

    changing.run(declared(), [row(1)], [row(20)])
    options = {"query": {"seconds": 9}, "define": {"define": {**define, "large": "v > 5"}}}[changed]
    with pytest.raises(ChangedFlowError, match=r"(State of step 'match'|Rows waiting)"):
        changing.run(declared(**options))
    changing.run(declared(), drain=True)


# ------------------------------------------------------------------------------------------------------- sources (A.7)


def test_source_when_it_is_renamed_or_has_another_time_is_refused(changing):
    plain = lambda s: counted(s.key_by("k"))  # noqa: E731
    changing.run(plain, [row(1)], [row(30)])
    kept = changing.rows()
    with pytest.raises(ChangedFlowError, match="had the sources s, in this order, and now has t"):
        changing.run(plain, source="t")
    with pytest.raises(ChangedFlowError, match=r"Source 's' of checkpoint .* had the event time 'at' and now has 'none'"):
        changing.run(plain, time=None)
    with pytest.raises(ChangedFlowError, match=r"Source 's' of checkpoint .* had the position 'its own' and now has 'x and v'"):
        changing.run(plain, position=("x", "v"))
    assert changing.rows() == kept


def test_region_when_it_reads_a_further_source_is_refused(tmp_path):
    def flow(both):
        made = ps.Flow("two")
        a, b = (made.source(n, Reader(), time="at", lateness="10 seconds") for n in ("a", "b"))
        counted((a.union(b) if both else a).key_by("k")).sink(ps.memory(f"two {tmp_path}"))
        b.sink(ps.memory(f"other {tmp_path}"))
        return made

    with Harness(flow(both=False), checkpoint=str(tmp_path / "c")) as harness:
        harness.push("a", [row(1)])
        harness.epoch()
    with pytest.raises(ChangedFlowError, match="source 'b' is new to it, and its records may lie before the frontier"):
        Harness(flow(both=True), checkpoint=str(tmp_path / "c"))


def test_lateness_when_it_grows_does_not_let_in_what_the_frontier_has_passed(changing):
    def flow(s):
        return s.key_by("k").window(ps.tumbling("10 seconds")).aggregate(n=ps.count())

    changing.run(flow, [row(1), row(25)], lateness="5 seconds")  # the frontier is at 20, and the first window is out
    changing.run(flow, [row(2, 8), row(3, 15), row(4, 21)], lateness="1 hour", drain=True)
    starts = [(r["window_start"].second, r["n"]) for r in changing.rows()]
    assert starts == [(0, 1), (20, 2)]


def test_new_column_of_a_source_goes_on(changing):
    wider = SCHEMA.append(pa.field("new", pa.int64()))
    changing.run(lambda s: counted(s.key_by("k")), [row(1), row(2)])
    changing.run(lambda s: counted(s.key_by("k")), [row(5, new=1)], schema=wider, drain=True)
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (2, 2), (5, 3)]


# -------------------------------------------------------------------------------------------------- sinks and snapshots


def test_output_when_its_step_gets_another_name_keeps_its_mark(changing):
    changing.run(lambda s: counted(s.key_by("k")), [row(1)], [row(30)])
    with changing.harness(lambda s: counted(s.key_by("k").deduplicate("id"), name="stateful_map")) as harness:
        harness.push("s", [row(40)])
        assert harness.epoch().outputs == {"k.stateful_map": harness.record.epoch}
    with pytest.raises(ChangedFlowError, match=r"was named 'k.stateful_map' in checkpoint .* and is now named 'other'"):
        changing.run(lambda s: counted(s.key_by("k")), name="other")


def test_load_of_a_snapshot_of_another_flow_is_refused_or_takes_its_state(changing):
    plain = lambda s: counted(s.key_by("k"))  # noqa: E731
    with changing.harness(plain) as harness:
        harness.push("s", [row(1)])
        harness.epoch()
        harness.push("s", [row(20)])
        harness.snapshot("old")
    with changing.harness(lambda s: counted(s.key_by("k").deduplicate("id"))) as harness:
        harness.push("s", [row(40), row(41, id=40)])
        harness.epoch()
        harness.load("old")
        harness.finish()
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (20, 2), (40, 3)]


def test_load_of_a_snapshot_whose_state_means_something_else_is_refused(changing):
    with changing.harness(lambda s: counted(s.key_by("k"))) as harness:
        harness.push("s", [row(1)])
        harness.epoch()
        harness.snapshot("old")

    def other(key, event, state):
        return (event.x, 1), (1.5,)

    def changed(s):
        return s.key_by("k").stateful_map(other, "x int, n long", "f double", name="anew")

    with changing.harness(changed, forget=["k/stateful_map"]) as harness:
        harness.epoch()
    with changing.harness(changed) as harness:
        record = harness.load("old")
        assert "State of step 'stateful_map' (stateful_map(count)) of region 'k' of checkpoint" in next(
            iter(record.refused.values())
        )


def test_flow_when_started_again_as_it_was_has_the_same_shape(changing):
    declare = lambda s: counted(s.key_by("k").deduplicate("id"))  # noqa: E731
    shapes = []
    for x in range(4):
        with changing.harness(declare) as harness:
            harness.push("s", [row(x)])
            shapes.append(harness.epoch().shape)
            assert harness.notices == []
    assert shapes == [shapes[0]] * 4
