"""A column that becomes wider between two runs: every step's state loads, and the rows are those of a flow that had the wider column from the start."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ChangedFlowError
from penstock.testing import Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NUMBERS = itertools.count()
CHAINS = {
    "whole": ("tinyint", "smallint", "int", "bigint"),
    "float": ("float", "double"),
    "decimal": ("decimal(4,1)", "decimal(6,1)", "decimal(9,3)", "decimal(20,4)"),
}
SMALL = {
    "whole": st.integers(-3, 3),
    "float": st.sampled_from([-1.5, 0.0, 0.25, 2.0]),
    "decimal": st.integers(-30, 30).map(lambda n: decimal.Decimal(n) / 10),
}
LARGE = {
    "whole": {"tinyint": 127, "smallint": -(2**15), "int": -(2**31), "bigint": -(2**63)},
    "float": {"float": 0.5, "double": 1e300},
    "decimal": {"decimal(4,1)": decimal.Decimal("999.9"), "decimal(6,1)": decimal.Decimal("-99999.9"),
                "decimal(9,3)": decimal.Decimal("-1.001"), "decimal(20,4)": decimal.Decimal("-0.0001")},
}  # fmt: skip


def remember(key, event, state):
    """The last value, and how many there were."""
    last, n = (state[0], state.n) if state else (None, 0)
    return (event.at, event.a, last, n), {"last": event.a, "n": n + 1}


def remember_more(key, event, state):
    outputs, after = remember(key, event, state)
    return outputs, after | {"b": None if state is None else state.last}


def own(key, event, state):
    state = [*(state or ()), event.a]
    return (event.at, str(len(state)), None, len(state)), state


def steps(kind: str, also: bool):
    """By name, a step; `also`: with a further column."""
    out = f"at timestamp, a {kind}, last {kind}, n bigint"
    keep = f"last {kind}, n bigint" + f", b {kind}" * also
    window = ps.tumbling("8 seconds")
    every = {"n": ps.count("a"), "least": ps.min("a"), "most": ps.max("a"), "first": ps.first("a"), "last": ps.last("a"), "all": ps.collect("a"),
             "kinds": ps.count_distinct("a"), "sum": ps.sum("a"), "mean": ps.mean("a"), "spread": ps.stddev("a"), "half": ps.quantile("a", 0.5)}  # fmt: skip
    return {
        "state": lambda s: s.key_by("k").stateful_map(remember_more if also else remember, out, keep),
        "mixed state": lambda s: s.key_by("k").stateful_map(
            lambda key, event, state: ((event.at, event.a, state and state.last, len(state.t) if state else 0), (event.a, (state.t if state else "") + "x")),
            out, f"last {kind}, t string",
        ),
        "windowed state": lambda s: s.key_by("k").window(window).stateful_map(remember_more if also else remember, out, keep),
        "any state": lambda s: s.key_by("k").stateful_map(own, f"at timestamp, a string, last {kind}, n bigint"),
        "window": lambda s: s.key_by("k").window(window).aggregate(**every),
        "session": lambda s: s.key_by("k").window(ps.session("3 seconds")).aggregate(**every),
        "join": lambda s: s.where("i % 2 = 0").select("k", "at", "a").key_by("k").join(
            s.where("i % 2 = 1").select("k", other="a", at2="at"), within="6 seconds", how="full"
        ),
        "duplicates": lambda s: s.key_by("k").deduplicate("a", within="6 seconds"),
        "match": lambda s: s.select("k", "at", "a", "i", *(["b"] if also else [])).key_by("k").match("SELECT * WHERE x AS first ; x+ AS more ; y AS last WITHIN 9 SECONDS", {"x": "i % 3 < 2", "y": "i % 3 = 2"}),
        "timeouts": lambda s: s.select("k", "at", "a", "i").key_by("k").match("SELECT * WHERE x AS first ; y AS last WITHIN 4 SECONDS", {"x": "i % 3 < 2", "y": "i % 3 = 2"}, on_timeout="first").timeouts,
    }  # fmt: skip


NAMES = tuple(steps("int", False))


def flow(kind: str, names, sink: str, also: bool = False) -> ps.Flow:
    made = ps.Flow("widened")
    columns = f"k string, i int, a {kind}, b {kind}, at timestamp"
    s = made.source("s", ps.files("nowhere", columns), time="at", lateness="5 seconds")
    for n, name in enumerate(names):
        stream = steps(kind, also)[name](s if n == 0 else s.select("k", "i", "a", "b", "at"))
        stream.sink(ps.memory(f"{sink} {n} {stream.schema}"))
        SINKS.setdefault(sink, {})[f"{sink} {n} {stream.schema}"] = n
    return made


SINKS: dict[str, dict[str, int]] = {}


def rows_of(sink: str) -> list[str]:
    """All rows, equal as numbers are."""
    return sorted(f"{n} {plain(row)}" for table, n in SINKS[sink].items() for row in ps.memory(table).rows())


def plain(value):
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items() if name != "b"}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return str(value.normalize()) if isinstance(value, decimal.Decimal) else value


@st.composite
def cases(draw):
    family = draw(st.sampled_from(list(CHAINS)))
    chain = CHAINS[family]
    kinds = [chain[i] for i in sorted(draw(st.sets(st.integers(0, len(chain) - 1), min_size=2, max_size=3)))]
    names = [draw(st.sampled_from([n for n in NAMES if n != "duplicates" or family != "decimal"]))]
    epochs = []
    for kind in kinds:
        values = st.one_of(SMALL[family], st.just(LARGE[family][kind]))
        row = st.tuples(st.sampled_from("ab"), st.integers(0, 8), values)
        epochs.append([draw(st.lists(row, max_size=5)) for _ in range(draw(st.integers(1, 2)))])
    scales = draw(st.lists(st.tuples(st.integers(0, len(kinds) - 1), st.integers(1, 3)), max_size=2))
    return kinds, names, epochs, dict(scales), draw(st.booleans())


def run(sink: str, kinds, names, epochs, scales=None, *, wide: str = "", also: bool = False) -> None:
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        for turn, (kind, batches) in enumerate(zip(kinds, epochs, strict=True)):
            declared = flow(wide or kind, names, sink, also and (bool(wide) or turn > 0))
            with Harness(declared, checkpoint=folder, workers=2) as harness:
                if scales and turn in scales and turn % 2:
                    harness.scale(None, scales[turn])
                for n, rows in enumerate(batches):
                    base = 4 * (turn * 2 + n)
                    harness.push(
                        "s",
                        [
                            {"k": k, "i": next(numbers), "a": a, "b": a, "at": BEGIN + dt.timedelta(seconds=base + s)}
                            for k, s, a in rows
                        ],
                    )
                    harness.epoch()
                    if scales and turn in scales and n == 0:
                        harness.scale(None, scales[turn])
                if turn == len(kinds) - 1:
                    harness.finish()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_column_that_becomes_wider_gives_what_it_gives_if_it_was_so_from_the_start(case):
    check(case)


def check(case) -> None:
    kinds, names, epochs, scales, also = case
    changed, always = f"changed {next(NUMBERS)}", f"always {next(NUMBERS)}"
    run(changed, kinds, names, epochs, scales, also=also)
    run(always, kinds, names, epochs, wide=kinds[-1], also=also)
    assert rows_of(changed) == rows_of(always)


@pytest.mark.soak
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_thousands_of_columns_that_become_wider_give_what_they_give_if_they_were_so_from_the_start(case):
    check(case)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("was", "now"),
    [("bigint", "int"), ("double", "float"), ("decimal(9,3)", "decimal(9,1)"), ("int", "double"), ("int", "string")],
)
def test_column_that_becomes_narrower_or_another_is_refused(name, was, now):
    if name == "any state" or (now == "string" and name in ("window", "session")):
        pytest.skip("what it waits for says so" if name == "any state" else "it may not sum text")
    sink = f"narrowed {next(NUMBERS)}"
    with tempfile.TemporaryDirectory() as folder:
        with Harness(flow(was, [name], sink), checkpoint=folder, workers=2) as harness:
            harness.push("s", [{"k": "a", "i": 1, "a": None, "b": None, "at": BEGIN}])
            harness.epoch()
        with (
            pytest.raises(ChangedFlowError, match=r"and is now .*recover='recompute'"),
            Harness(flow(now, [name], sink), checkpoint=folder, workers=2),
        ):
            pass


def test_approximate_count_when_its_column_becomes_wider_is_refused_because_hashes_differ():
    def declared(kind):
        made = ps.Flow("widened")
        s = made.source("s", ps.files("nowhere", f"k string, a {kind}, at timestamp"), time="at")
        s.key_by("k").window(ps.tumbling("1 hour")).aggregate(n=ps.approx_count_distinct("a")).sink(
            ps.memory(f"approximate {next(NUMBERS)}"), name="o"
        )
        return made

    with tempfile.TemporaryDirectory() as folder:
        with Harness(declared("int"), checkpoint=folder) as harness:
            harness.push("s", [{"k": "a", "a": 1, "at": BEGIN}])
            harness.epoch()
        with (
            pytest.raises(ChangedFlowError, match=r"'n' was ApproxCountDistinct.* of int32 and is now"),
            Harness(declared("bigint"), checkpoint=folder),
        ):
            pass


def test_decimals_that_become_wider_are_refused_by_deduplicate_because_their_stored_form_differs():
    sink = f"narrowed {next(NUMBERS)}"
    with tempfile.TemporaryDirectory() as folder:
        with Harness(flow("decimal(4,1)", ["duplicates"], sink), checkpoint=folder) as harness:
            harness.epoch()
        with (
            pytest.raises(
                ChangedFlowError, match=r"its columns was \(a decimal128\(4, 1\)\) and is now \(a decimal128\(6, 1\)\)"
            ),
            Harness(flow("decimal(6,1)", ["duplicates"], sink), checkpoint=folder),
        ):
            pass


def test_open_runs_of_keys_of_which_some_were_stored_since_the_change_keep_each_its_events():
    keys, numbers = "abdefghi", itertools.count()

    def events(last: bool, whose: str, second: int) -> list:
        """An event per key, the last of a match or not, with others between: every third one is a last."""
        out = []
        for key in whose:
            while ((number := next(numbers)) % 3 == 2) is not last:
                out.append(("c", second, number % 100))
            out.append((key, second, number % 100))
        return out

    turns = [
        [events(False, keys * 2, 3), events(False, "c", 5)],
        [events(False, keys[::2], -3) + events(False, "c", 3), events(True, keys, -3) + events(False, "c", 3)],
    ]
    kinds, sink = ["int", "bigint"], f"open {next(NUMBERS)}"
    check((kinds, ["match"], turns, {}, False))
    run(sink, kinds, ["match"], turns)
    assert len({row["k"] for table in SINKS[sink] for row in ps.memory(table).rows()} & set(keys)) == len(keys)
