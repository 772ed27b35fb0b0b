"""As-of join: as pandas has it, whatever the order of arrival; ties, tolerance, nulls, and what is kept."""

from __future__ import annotations

import datetime as dt
import random
import re

import pandas as pd
import pytest

import penstock as ps
from penstock.driver.inspect import view_region
from penstock.errors import ChangedFlowError, DeclarationError
from penstock.testing import Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
TRADES, QUOTES = "k string, at timestamp, n long, v long", "k string, at timestamp, bid double, v long"


def at(second):
    return BEGIN + dt.timedelta(seconds=second)


def declared(name, tolerance=None, quotes=QUOTES, lateness="1000 s", **more):
    flow, out = ps.Flow("asof"), ps.memory(name)
    trades = flow.source("trades", ps.files("none", TRADES), time="at", lateness=lateness)
    bids = flow.source("quotes", ps.files("none", quotes), time="at", lateness=lateness)
    trades.key_by("k").join(bids, how="asof", tolerance=tolerance, **more).sink(out)
    return flow, out


def trade(n, second, k="a"):
    return {"k": k, "at": at(second), "n": n, "v": n}


def quote(bid, second, k="a"):
    return {"k": k, "at": at(second), "bid": bid, "v": 0}


def joined(name, trades, quotes, *, cuts=((1, 1),), workers=1, **options):
    """The bid of each trade; `cuts`: for each epoch, which parts of both come in it."""
    flow, out = declared(name, **options)
    with Harness(flow, workers=workers) as harness:
        done = [0, 0]
        for upto in cuts:
            for i, (source, rows) in enumerate((("trades", trades), ("quotes", quotes))):
                end = round(upto[i] * len(rows))
                if end > done[i]:
                    harness.push(source, rows[done[i] : end])
                done[i] = end
            harness.epoch()
        harness.finish()
    return {r["n"]: r["bid"] for r in out.rows()}


def test_row_gets_the_latest_row_of_its_key_that_is_not_after_it():
    trades = [trade(1, 5), trade(2, 4.9), trade(3, 100), trade(4, 7, "b"), trade(5, 0), trade(6, 8, None)]
    quotes = [quote(1.0, 1), quote(5.0, 5), quote(8.0, 8), quote(9.0, 7.1, "b"), quote(0.5, 0, None)]
    assert joined("latest", trades, quotes) == {1: 5.0, 2: 1.0, 3: 8.0, 4: None, 5: None, 6: None}


def test_tolerance_is_inclusive_and_counts_from_the_latest_row_alone():
    trades = [trade(1, 5), trade(2, 7), trade(3, 7.000001), trade(4, 5)]
    assert joined("tolerance", trades, [quote(1.0, 1), quote(5.0, 5)], tolerance="2 s") == {1: 5.0, 2: 5.0, 3: None, 4: 5.0}
    assert joined("zero", trades, [quote(5.0, 5), quote(7.0, 6)], tolerance=0) == {1: 5.0, 2: None, 3: None, 4: 5.0}


def test_of_rows_of_one_time_the_last_in_the_order_of_the_log_counts():
    quotes = [quote(1.0, 5), quote(2.0, 5), quote(3.0, 4)]
    assert joined("ties", [trade(1, 5), trade(2, 6)], quotes) == {1: 2.0, 2: 2.0}
    assert joined("ties later", [trade(1, 5), trade(2, 6)], quotes, cuts=((0, 0.4), (1, 1))) == {1: 2.0, 2: 2.0}


@pytest.mark.parametrize("tolerance", [None, 0, 3, 20])
@pytest.mark.parametrize("seed", range(4))
def test_results_equal_pandas_however_the_rows_come(seed, tolerance):
    random_ = random.Random(seed)
    trades = [trade(n, random_.randint(0, 60), random_.choice("abc")) for n in range(120)]
    quotes = [quote(float(n), second, random_.choice("abcd")) for n, second in enumerate(random_.sample(range(90), 60))]
    cuts = ((0.1, 0), (0.1, 0.7), (0.5, 0.7), (0.5, 0.8), (1, 0.9), (1, 1))
    found = joined(f"pandas {seed} {tolerance}", trades, quotes, cuts=cuts, tolerance=tolerance, workers=1 + seed % 3)
    left = pd.DataFrame(trades).sort_values("at", kind="stable")
    right = pd.DataFrame(quotes).sort_values("at", kind="stable")[["k", "at", "bid"]]
    within = None if tolerance is None else pd.Timedelta(seconds=tolerance)
    wanted = pd.merge_asof(left, right, on="at", by="k", tolerance=within)
    assert found == {row.n: (None if pd.isna(row.bid) else row.bid) for row in wanted.itertuples()}


def kept(harness):
    """What is kept of each key, rows that wait for the frontier left out."""
    view = view_region(harness.checkpoint, "k")
    rows = [row for w in range(len(view.versions)) for batch in view.rows(w) for row in batch.to_pylist()]
    return sorted(row["k"] for row in rows if row["operator"] == "asof join")


@pytest.mark.parametrize("tolerance", ["10 s", None])
def test_state_has_the_latest_row_of_each_key_until_it_is_too_old(tolerance):
    flow, out = declared(f"state {tolerance}", tolerance=tolerance, lateness="0 s")
    with Harness(flow) as harness:
        rows = [*(quote(float(n), n) for n in range(100)), quote(1.0, 95, "b"), quote(7.0, 90, None)]
        harness.push("quotes", sorted(rows, key=lambda row: row["at"]))
        harness.push("quotes", [quote(2.0, 105)])
        harness.push("trades", [trade(1, 105)])
        harness.epoch()
        assert len(kept(harness)) == 2  # the frontier is at 105
        harness.push("quotes", [quote(3.0, 106, "c")])
        harness.push("trades", [trade(2, 105, "b"), trade(3, 106, "c")])
        harness.epoch()
        assert len(kept(harness)) == (2 if tolerance is None else 1)
        harness.finish()
    assert {r["n"]: r["bid"] for r in out.rows()} == {1: 2.0, 2: 1.0, 3: 3.0}


def test_key_columns_alone_on_the_other_side_are_joined_without_a_column():
    flow, out = ps.Flow("keys alone"), ps.memory("keys alone")
    trades = flow.source("trades", ps.files("none", TRADES), time="at")
    others = flow.source("quotes", ps.files("none", QUOTES), time="at")
    trades.key_by("k").join(others.select("k"), how="asof").sink(out)
    with Harness(flow) as harness:
        harness.push("trades", [trade(1, 3)])
        harness.push("quotes", [quote(1.0, 1)])
        harness.epoch()
        harness.push("trades", [trade(2, 9)])
        harness.finish()
    assert [r["n"] for r in out.rows()] == [1, 2]


def test_kept_row_when_the_other_side_has_other_columns_in_the_next_run_has_null_in_the_new_one(tmp_path):
    folder = str(tmp_path / "c")
    flow, _ = declared("columns before", lateness="0 s")
    with Harness(flow, checkpoint=folder) as harness:
        harness.push("quotes", [quote(1.0, 1), quote(2.0, 50, "b")])
        harness.push("trades", [trade(1, 40)])
        harness.epoch()
    flow, out = declared("columns after", quotes="k string, at timestamp, ask double, bid double", lateness="0 s")
    with Harness(flow, checkpoint=folder) as harness:
        harness.push("trades", [trade(2, 60)])
        harness.push("quotes", [{"k": "b", "at": at(60), "ask": 9.0, "bid": 8.0}])
        harness.epoch()
        harness.push("trades", [trade(3, 70, "b")])
        harness.finish()
    assert [(r["n"], r["ask"], r["bid"]) for r in sorted(out.rows(), key=lambda r: r["n"])] == [
        (1, None, 1.0),
        (2, None, 1.0),
        (3, 9.0, 8.0),
    ]


def test_column_that_was_gone_for_a_run_is_null_in_rows_kept_from_before(tmp_path):
    folder = str(tmp_path / "c")
    both, fewer = "k string, at timestamp, bid double, v long", "k string, at timestamp, v long"
    rows = [{"k": "a", "at": at(1), "bid": 1.0, "v": 5}], [], [{"k": "b", "at": at(60), "bid": 2.0, "v": 6}]
    for run, (quotes, more) in enumerate(zip((both, fewer, both), rows, strict=True)):
        flow, out = declared(f"column gone {run}", quotes=quotes, lateness="0 s")
        with Harness(flow, checkpoint=folder) as harness:
            last = {"k": "c", "at": at((45, 55, 75)[run]), "v": 0}
            harness.push("quotes", [*more, last if run == 1 else last | {"bid": 0.0}])
            harness.push("trades", [trade(run, (40, 50, 70)[run])])
            harness.epoch()
            if run == 2:
                harness.push("trades", [trade(3, 80), trade(4, 80, "b")])
                harness.finish()
    assert {r["n"]: (r["bid"], r["v_right"]) for r in out.rows()} == {1: (None, 5), 2: (None, 5), 3: (None, 5), 4: (2.0, 6)}


def test_another_tolerance_on_kept_state_is_refused(tmp_path):
    folder = str(tmp_path / "c")
    flow, _ = declared("tolerance before", tolerance="1 s")
    with Harness(flow, checkpoint=folder) as harness:
        harness.push("quotes", [quote(1.0, 1)])
        harness.epoch()
    with pytest.raises(ChangedFlowError, match=r"tolerance.*1 s.*2 s"):
        Harness(declared("tolerance after", tolerance="2 s")[0], checkpoint=folder)


WRONG = {
    "no bound": ({}, "join needs to know how far apart the rows of a pair may be: join(other, within='10 minutes')."),
    "a tolerance of pairs": (
        {"within": "1 s", "tolerance": "1 s"},
        "join(how='inner') has within=; tolerance= belongs to how='asof'.",
    ),
    "pairs as of": (
        {"within": "1 s", "how": "asof"},
        "join(how='asof') has tolerance=, how far before its row the other may be, in place of within=.",
    ),
    "another word": (
        {"within": 1, "how": "cross"},
        "join(how='cross') is not known; use 'inner', 'left', 'right' or 'full', or 'asof' for the latest row before.",
    ),
    "a negative tolerance": ({"how": "asof", "tolerance": -1}, "join's tolerance is "),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_join_is_refused_in_a_sentence(case):
    given, sentence = WRONG[case]
    flow = ps.Flow("refused")
    trades = flow.source("trades", ps.files("none", TRADES), time="at").key_by("k")
    with pytest.raises(DeclarationError, match="^" + re.escape(sentence)):
        trades.join(flow.source("quotes", ps.files("none", QUOTES), time="at"), **given)


def test_join_as_of_without_an_event_time_is_refused():
    flow = ps.Flow("untimed")
    trades = flow.source("trades", ps.files("none", TRADES)).key_by("k")
    with pytest.raises(DeclarationError, match="needs an event time on both sides"):
        trades.join(flow.source("quotes", ps.files("none", QUOTES), time="at"), how="asof")
