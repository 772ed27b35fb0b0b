"""Every aggregate of values of every type, in every window: divided over many workers it gives what one worker gives of whole keys."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import math
import random
import tempfile
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pytest

import penstock as ps
from penstock.testing import Crash, Harness

NUMBERS = itertools.count()
DIVIDING = [
    ps.Histogram(), ps.PartialKeyGrouping(), ps.DChoices(), ps.WChoices(), ps.ConsistentGrouping(),
]  # fmt: skip
VALUES = {
    "i": (pa.int64(), [None, 0, 1, -1, 2**40, -(2**50)]),
    "b": (pa.int8(), [None, -128, 127, 0]),
    "d": (pa.decimal128(38, 2), [None, Decimal("0.01"), Decimal("-0.01"), Decimal(10**33), Decimal(-(10**33))]),
    "e": (pa.decimal128(10, 4), [None, Decimal("0.0001"), Decimal("999999.9999"), Decimal("-3.1")]),
    "x": (pa.float64(), [None, 0.1, -0.0, 0.0, math.nan, math.inf, 1e16, -1e16, 0.3]),
    "f": (pa.float32(), [None, 0.25, -0.0, 0.0, 3.5]),
    "s": (pa.string(), [None, "", "a", "é", "x" * 50]),
    "y": (pa.binary(), [None, b"", b"\0", b"\xff\0"]),
    "t": (pa.timestamp("us", "UTC"), [None, dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 0, 0, 0, 7, tzinfo=dt.UTC)]),
    "a": (pa.date32(), [None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "o": (pa.bool_(), [None, True, False]),
    "l": (pa.list_(pa.int64()), [None, [], [1, None], [2]]),
}  # fmt: skip
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), *((n, kind) for n, (kind, _) in VALUES.items())])
SUMMED, MEASURED, ORDERED = "ibde", "ibdexf", "ibdexfsytao"
AGGREGATES = {
    **{f"sum_{c}": ps.sum(c) for c in SUMMED},
    **{f"sum_{c}": ps.sum(c, exact=True) for c in "xf"},
    **{f"mean_{c}": ps.mean(c) for c in SUMMED},
    **{f"mean_{c}": ps.mean(c, exact=True) for c in "xf"},
    **{f"stddev_{c}": ps.stddev(c) for c in "be"},
    **{f"quantile_{c}": ps.quantile(c, 0.3) for c in MEASURED},
    **{f"min_{c}": ps.min(c) for c in ORDERED},
    **{f"max_{c}": ps.max(c) for c in ORDERED},
    **{f"approx_{c}": ps.approx_count_distinct(c) for c in VALUES if c != "l"},
    **{f"{f.__name__}_{c}": f(c) for f in (ps.first, ps.last, ps.collect, ps.count, ps.count_distinct) for c in VALUES},
}
NEW = {"new_sum": ps.sum("d"), "new_last": ps.last("s"), "new_distinct": ps.count_distinct("t")}
WINDOWS = {
    "running": lambda keyed: keyed,
    "tumbling": lambda keyed: keyed.window(ps.tumbling("7 seconds")),
    "sliding": lambda keyed: keyed.window(ps.sliding("9 seconds", "4 seconds")),
    "session": lambda keyed: keyed.window(ps.session("2 seconds")),
}


@dataclass
class Reader:
    schema: pa.Schema = SCHEMA


def some_rows(dice, n):
    """Mostly of one key, out of order."""
    for i in range(n):
        at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=i / 2 - dice.choice([0, 0, 1.5, 3]))
        yield {
            "k": dice.choice(["hot", "hot", "hot", "a", None]), "at": at,
            **{name: dice.choice(values) for name, (_, values) in VALUES.items()},
        }  # fmt: skip


def run(window, epochs, versions, *, crashes=(), workers=(1,)):
    """By version of the flow, which has a strategy and aggregates, and by key and window: the results."""
    name, seen = f"aggregates{next(NUMBERS)}", itertools.count()

    def on_step(_):
        if next(seen) in crashes:
            raise Crash

    with tempfile.TemporaryDirectory(prefix="penstock-aggregates-") as folder:
        for number, (strategy, aggregates) in enumerate(versions):
            flow = ps.Flow("aggregates")
            keyed = flow.source("s", Reader(), time="at", lateness="2 seconds").key_by("k", distribute=strategy)
            WINDOWS[window](keyed).aggregate(**aggregates).sink(ps.memory(f"{name} {number}"), name=f"out{number}")
            harness = None
            while harness is None:
                with contextlib.suppress(Crash):
                    harness = Harness(flow, workers=workers[0], checkpoint=folder, on_step=on_step)
            with harness:
                last = number == len(versions) - 1
                for epoch in range(number, len(epochs) if last else number + 1):
                    harness.push("s", epochs[epoch])
                    scale = [{"command": "scale", "region": "k", "workers": workers[epoch % len(workers)]}]
                    _survive(harness, [*scale, *(["end"] if last and epoch == len(epochs) - 1 else [])])
                harness.settle()
    return [{(r["k"], r.get("window_start")): r for r in ps.memory(f"{name} {n}").rows()} for n in range(len(versions))]


def _survive(harness, commands):
    before = harness.record.epoch
    with contextlib.suppress(Crash):
        harness.epoch(*commands)
    while harness.record.epoch == before:
        with contextlib.suppress(Crash):
            harness.restart(forget_local_state=True)
            harness.resume()


def same(name, found, wanted):
    if name.startswith("stddev") and found is not None and wanted is not None:
        return math.isclose(found, wanted, rel_tol=1e-9)
    return as_sql(found) == as_sql(wanted)


def as_sql(value):
    """A value that is equal to what is held equal; zeros are one in results, too."""
    if isinstance(value, list):
        return [as_sql(v) for v in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def compare(found, wanted):
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.keys() == theirs.keys()
        for key, row in theirs.items():
            assert not [(n, mine[key][n], v) for n, v in row.items() if not same(n, mine[key][n], v)]


@pytest.mark.parametrize(("seed", "window"), [*enumerate(WINDOWS)])
def test_aggregates_of_values_of_every_type_are_the_same_whether_keys_are_divided_or_whole(window, seed):
    dice = random.Random(seed)
    rows = [*some_rows(dice, 80)]
    epochs = [rows[:30], rows[30:31], rows[31:60], [], rows[60:]]
    strategies = [DIVIDING[seed], dice.choice([*DIVIDING, None])]
    crashes = {dice.randrange(60) for _ in range(3)}
    found = run(
        window,
        epochs,
        [(s, AGGREGATES) for s in strategies],
        crashes=crashes,
        workers=dice.choice([(2, 5), (50, 49, 50), (1, 3)]),
    )
    compare(found, run(window, epochs, [(None, AGGREGATES)] * 2))


@pytest.mark.parametrize(("window", "strategy"), [*zip(WINDOWS, DIVIDING[:2] * 2, strict=True)])
def test_aggregates_that_come_and_go_between_runs_are_the_same_whether_keys_are_divided_or_whole(window, strategy):
    dice = random.Random(9)
    rows = [*some_rows(dice, 60)]
    epochs = [rows[:20], rows[20:40], rows[40:], []]
    some = {n: AGGREGATES[n] for n in dice.sample([*AGGREGATES], 12)}
    fewer = dict([*some.items()][:7])
    versions = [(None, some), (strategy, {**NEW, **some}), (strategy, {**fewer, **NEW})]
    compare(
        run(window, epochs, versions, crashes={5, 33}, workers=(7, 3)), run(window, epochs, [(None, a) for _, a in versions])
    )


@pytest.mark.parametrize("strategy", DIVIDING, ids=lambda s: type(s).__name__)
def test_sums_of_parts_that_fit_no_type_are_exact_where_the_sum_of_all_fits(strategy):
    greatest, most = 2**63 - 1, Decimal(10**35)
    sums = {"i": ps.sum("i"), "d": ps.sum("d"), "mean": ps.mean("i")}
    rows = [{"k": "hot", "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "i": greatest, "d": most} for _ in range(30)]
    less = [row | {"i": -greatest - 1, "d": Decimal(-(10**35) - 1)} for row in rows]
    for window in ("running", "tumbling"):
        (found,) = run(window, [rows, less], [(strategy, sums)], workers=(6, 6))
        (row,) = found.values()
        assert (row["i"], row["d"], row["mean"]) == (-30, Decimal(-30), -0.5)
