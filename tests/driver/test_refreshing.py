"""Tables that are read again while a flow runs: when, what becomes of a table that cannot be read, and of versions that are gone."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import sqlite3
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changing import Changing, row

import penstock as ps
from penstock.checkpoint.record import progress_of
from penstock.driver.shown import stale_lines
from penstock.errors import CheckpointError, DeclarationError, FencedError
from penstock.testing import Crash, Harness


@pytest.fixture
def changing(tmp_path):
    return Changing(tmp_path)


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "cities.parquet", a="Aberdeen")
    return tmp_path / "cities.parquet"


def write(path, **cities):
    pq.write_table(pa.table({"k": [*cities], "city": [*cities.values()]}), path)


def looking(path, refresh="2 seconds"):
    return lambda s: s.lookup(path, "k", refresh=refresh).select("x", "city")


def cities(changing):
    return [(r["x"], r["city"]) for r in changing.rows()]


def epoch(harness, *xs):
    harness.push("s", [row(x) for x in xs])
    return harness.epoch()


def test_file_is_read_again_at_most_so_often_and_in_each_run(changing, path):
    with changing.harness(looking(path)) as harness:
        for x, city in enumerate(["Aachen", "Bari", "Calais", "Dover"]):
            write(path, a=city)
            epoch(harness, x)  # a second each
    assert cities(changing) == [(0, "Aachen"), (1, "Aachen"), (2, "Calais"), (3, "Calais")]
    with changing.harness(looking(path)) as harness:
        assert harness.notices == []
        epoch(harness, 4)
    assert cities(changing)[-1] == (4, "Dover")
    assert len([*Path(changing.folder, "tables").iterdir()]) == 1


def test_versions_that_no_epoch_needs_are_removed(changing, path):
    with changing.harness(looking(path, 0)) as harness:
        for x in range(5):
            write(path, a=str(x))
            epoch(harness, x)
            assert len([*Path(changing.folder, "tables").iterdir()]) == 1
        epoch(harness, 5)
    assert [city for _, city in cities(changing)] == ["0", "1", "2", "3", "4", "4"]


@pytest.mark.parametrize(
    ("broken", "said"),
    {
        "gone": (None, "lookup finds no file"),
        "no Parquet": (b"PAR1", "as Parquet"),
        "another type": (
            pa.table({"k": ["a"], "city": [1]}),
            "has column 'city' as int64, which was string when the flow began",
        ),
        "no such column": (pa.table({"k": ["a"]}), "lacks column 'city', which it had when the flow began"),
        "no key": (pa.table({"city": ["a"]}), "lacks column 'k', which it had when the flow began"),
        "two rows": (pa.table({"k": ["a", "a"], "city": ["x", "y"]}), "has several rows for k='a'"),
    }.values(),
    ids=["gone", "no Parquet", "another type", "no such column", "no key", "two rows"],
)
def test_table_that_cannot_be_read_again_keeps_its_rows_and_every_attempt_is_said(changing, path, broken, said):
    with changing.harness(looking(path)) as harness:
        before = epoch(harness, 0)
        if broken is None:
            path.unlink()
        elif isinstance(broken, bytes):
            path.write_bytes(broken)
        else:
            pq.write_table(broken, path)
        lines = []
        for x in range(1, 6):
            record = epoch(harness, x)
            lines.append(stale_lines(before, record))
            before = record
        assert [len(told) for told in lines] == [0, 1, 0, 1, 0]
        assert lines[1][0].startswith("the table of lookup(k) was not refreshed, and records keep meeting its rows of before: ")
        assert said in lines[1][0]
        progress = progress_of(record)
        assert said in progress["tables"]["lookup(k)"]["failed"]
        write(path, a="Bari")
        assert not epoch(harness, 6).tables["lookup(k)"].failed
    assert [city for _, city in cities(changing)] == [*["Aberdeen"] * 6, "Bari"]


AGAIN = {
    "a further column of no type of Spark": (
        lambda: pa.table({"due": pa.array([dt.time(1)]), "city": ["Bari"], "k": ["a"]}),
        "Bari",
    ),
    "further columns of one name": (lambda: pa.table([["a"], ["Bari"], [1], [2]], names=["k", "city", "n", "n"]), "Bari"),
    "nothing but nulls, of no type": (lambda: pd.DataFrame({"k": ["a"], "city": [None]}), None),
    "no rows, of no type": (lambda: pd.DataFrame({"k": [], "city": []}, dtype=object), None),
    "two kinds of values": (lambda: pd.DataFrame({"k": ["a"], "city": [1j]}), "Aberdeen"),
    "a column twice": (lambda: pa.table([["a"], ["Bari"], ["Calais"]], names=["k", "city", "city"]), "Aberdeen"),
}


@pytest.mark.parametrize("case", AGAIN)
def test_table_that_is_read_again_is_judged_by_the_columns_that_the_flow_knows(changing, case):
    given, met = AGAIN[case]
    tables = [lambda: pa.table({"k": ["a"], "city": ["Aberdeen"]})]

    def now():
        return tables[-1]()

    with changing.harness(looking(now, 0)) as harness:
        epoch(harness, 0)
        tables.append(given)
        failed = epoch(harness, 1).tables["lookup(k)"].failed
        assert bool(failed) == (met == "Aberdeen"), failed
    assert cities(changing) == [(0, "Aberdeen"), (1, met)]


def crash_at(wanted):
    def step(name):
        if name == wanted:
            raise Crash

    return step


@pytest.mark.parametrize("gone", [True, False])
def test_epoch_begun_with_rows_that_are_gone_or_damaged_is_refused(changing, path, gone):
    with changing.harness(looking(path), on_step=crash_at("commit")) as harness:
        harness.push("s", [row(0)])
        with pytest.raises(Crash):
            harness.epoch()
    [version] = Path(changing.folder, "tables").iterdir()
    if gone:
        version.unlink()
    else:
        version.write_bytes(version.read_bytes()[:-9])
    write(path, a="Bari")
    said = (
        f"Epoch 0 was begun with rows of lookup(k) that are gone, the file {version}; restore it from a copy"
        if gone
        else f"The file {version} is damaged ("
    )
    with changing.harness(looking(path)) as harness:
        harness.push("s", [row(0)])
        with pytest.raises(CheckpointError, match=re.escape(said)):
            harness.epoch()


def test_run_that_was_replaced_is_fenced_though_its_successor_has_removed_what_the_epoch_was_begun_with(changing, path):
    with changing.harness(looking(path, 0)) as first:
        epoch(first, 0)
        with changing.harness(looking(path, 0)) as second:
            for x, city in enumerate(("Bari", "Cork", "Derby"), 1):
                write(path, a=city)
                epoch(second, x)
            first.push("s", [row(1)])
            with pytest.raises(FencedError, match="was replaced by run 2"):
                first.epoch()


def test_step_that_is_new_when_an_epoch_is_run_again_meets_one_version_from_then_on(changing, path, tmp_path):
    """The epoch has noted no version of its table; that of the first run with the step counts."""
    numbers = tmp_path / "numbers.parquet"

    def more(s):
        return s.lookup(path, "k", refresh=0).lookup(numbers, "x", refresh=0).select("x", "city", "n")

    def read(harness):
        harness.push("s", [row(0)])
        harness.epoch()

    with changing.harness(looking(path, 0), on_step=crash_at("decide")) as harness, pytest.raises(Crash):
        read(harness)
    with changing.harness(looking(path, 0), on_step=crash_at("compute s")) as harness, pytest.raises(Crash):
        read(harness)
    pq.write_table(pa.table({"x": pa.array([0, 1], pa.int32()), "n": [1, 1]}), numbers)
    with changing.harness(more, on_step=crash_at("commit")) as harness, pytest.raises(Crash):
        read(harness)
    pq.write_table(pa.table({"x": pa.array([0, 1], pa.int32()), "n": [2, 2]}), numbers)
    write(path, a="Bari")
    with changing.harness(more) as harness:
        read(harness)
        first = harness.record.tables
        assert {name: version.version[-2:] for name, version in first.items()} == {"lookup(k)": "r2", "lookup(x)": "r3"}
        epoch(harness, 1)
        assert all(harness.record.tables[name].version != first[name].version for name in first)
    assert {"x": 1, "city": "Bari", "n": 2} in changing.rows()


@pytest.mark.parametrize("again", [False, True], ids=["in the same run", "in another run"])
def test_records_that_are_read_again_after_going_back_to_a_snapshot_meet_the_rows_of_today(changing, path, again):
    """The versions of then are gone; the state is that of the snapshot."""

    def declare(s):
        return s.lookup(path, "k", refresh=0).key_by("k").stateful_map(seen, "x int, cities string", "cities string")

    crashes = []

    def step(name):
        if name in crashes:
            raise Crash

    with changing.harness(declare, on_step=step) as harness:
        for x, city in enumerate("ABC"):
            write(path, a=city)
            harness.push("s", [row(x)])
            harness.snapshot("early") if x == 0 else harness.epoch()
        assert harness.load("early").rolled_back
        write(path, a="D")
        if again:
            harness.restart()
        crashes.append("commit")
        harness.push("s", [row(12)])
        with pytest.raises(Crash):
            harness.epoch()  # reads again what came after the snapshot, and what is new
        crashes.clear()
        write(path, a="E")
        harness.restart()
        harness.resume()
        epoch(harness, 13)
        harness.finish()
    assert {r["x"]: r["cities"] for r in changing.rows()} == {0: "A", 1: "AD", 2: "ADD", 12: "ADDD", 13: "ADDDE"}


def storing(path, folder, **options):
    """A flow that stores in `folder` which cities each key has met."""
    made = ps.Flow("storing")
    looked = made.source("s", ps.files("none", "k string, x int, at timestamp"), time="at", **options).lookup(
        path, "k", refresh=0
    )
    out = ps.sql(f"sqlite:///{folder}/out.db", "out")
    looked.key_by("k").stateful_map(seen, "x int, cities string", "cities string").sink(out, name="out")
    return made


def stored(folder):
    with sqlite3.connect(folder / "out.db") as connection:
        return dict(connection.execute("SELECT x, cities FROM out").fetchall())


def test_recomputation_meets_the_rows_of_its_start_until_it_is_over(changing, path, tmp_path):
    records = [{"k": "a", "x": x, "at": row(x)["at"]} for x in range(6)]
    with Harness(storing(path, tmp_path), checkpoint=tmp_path / "first") as harness:
        for city in ("A", "B"):
            write(path, a=city)
            harness.push("s", [records.pop(0), records.pop(0)])
            harness.epoch()
    write(path, a="C")
    records = [{"k": "a", "x": x, "at": row(x)["at"]} for x in range(6)]
    with Harness(storing(path, tmp_path), checkpoint=tmp_path / "second", recover="recompute", most=1) as harness:
        assert "Records that are read again meet the rows that the table of lookup(k) has at this start." in harness.notices
        for n in range(6):
            harness.push("s", [records[n]])
            harness.epoch()
            write(path, a="D")
        harness.finish()
    # The sink held x = 0 to 2; the frontier of the last record before the crash had not passed x = 3.
    assert stored(tmp_path) == {0: "A", 1: "AA", 2: "AAB", 3: "CCCC", 4: "CCCCD", 5: "CCCCDD"}


def test_recomputation_that_begins_with_older_state_meets_the_rows_of_its_start_too(changing, path, tmp_path):
    """A checkpoint restored from a copy has the rows of the copy's time."""
    records = [{"k": "a", "x": x, "at": row(x)["at"]} for x in range(6)]
    with Harness(storing(path, tmp_path), checkpoint=tmp_path / "checkpoint") as harness:
        for n, city in enumerate("ABB"):
            write(path, a=city)
            harness.push("s", [records[n]])
            harness.epoch()
            if n == 0:
                shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    write(path, a="C")
    with Harness(storing(path, tmp_path), checkpoint=tmp_path / "copy", recover="recompute", most=1) as harness:
        for record in records:
            harness.push("s", [record])
            harness.epoch()
        harness.finish()
    # The sink held x = 0 and 1; the record that waited in the copy has met A.
    assert stored(tmp_path) == {0: "A", 1: "AB", 2: "ACC", 3: "ACCC", 4: "ACCCC", 5: "ACCCCC"}


def test_recomputation_that_is_killed_in_its_first_epoch_goes_on_with_the_rows_of_that(changing, path, tmp_path):
    records = [{"k": "a", "x": x, "at": row(x)["at"]} for x in range(3)]
    with Harness(storing(path, tmp_path, lateness="1 hour"), checkpoint=tmp_path / "first") as harness:
        harness.push("s", records[:2])
        harness.epoch()
    write(path, a="B")
    crash = [""]

    def step(name):
        if name == crash[0]:
            crash[0] = ""
            raise Crash

    again = storing(path, tmp_path, lateness="1 hour")
    with Harness(again, checkpoint=tmp_path / "second", recover="recompute", most=1, on_step=step) as harness:
        crash[0] = "commit"
        for record in records:
            harness.push("s", [record])
        with pytest.raises(Crash):
            harness.epoch()
        write(path, a="C")
        harness.restart()
        harness.resume()
        harness.epoch()
        assert harness.record.recovery is None or not harness.record.recovery.active
        write(path, a="D")
        harness.finish()
    assert stored(tmp_path) == {0: "B", 1: "BB", 2: "BBD"}


def seen(key, event, state):
    cities = ("" if state is None else state[0]) + event.city
    return (event.x, cities), (cities,)


def test_what_cannot_become_another_table_is_not_refreshed():
    source = ps.Flow("refused").source("s", ps.files("none", "k string"))
    table = pa.table({"k": ["a"], "city": ["A"]})
    with pytest.raises(DeclarationError, match=r"^lookup\(refresh=\.\.\.\) needs what can be read again, the path of files"):
        source.lookup(table, "k", refresh="1 minute")
    with pytest.raises(DeclarationError, match=r"^lookup's refresh"):
        source.lookup(lambda: table, "k", refresh="soon")
    with pytest.raises(DeclarationError, match=r"^The function of lookup failed \(ValueError: no \(test_refreshing\.py"):
        source.lookup(failing, "k", refresh=1)
    with pytest.raises(DeclarationError, match=r"^The function of lookup gave a function; let it give a table\.$"):
        source.lookup(lambda: failing, "k", refresh=1)


def failing():
    raise ValueError("no")
