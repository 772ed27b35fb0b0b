"""Event times that the driver reads from Parquet files itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.spark.sources.file_times import HELD_ROWS, FileTimes
from penstock.spark.sources.footers import read_footers

COLUMN = pa.field("at", pa.timestamp("us", "UTC"))
MOMENTS = [1_700_000_000_000_000, 1_600_000_000_001_000]


def times_of(files, column=COLUMN, held_rows=HELD_ROWS):
    """The times of files, by URI their numbers."""
    return FileTimes.of(files, read_footers(files, column.name), column, held_rows)


def of_type(unit, zone="UTC", values=MOMENTS):
    """Times as a file may have them."""
    return pa.array(values, pa.int64()).cast(pa.timestamp("us", zone)).cast(pa.timestamp(unit, zone), safe=False)


@pytest.mark.parametrize(
    ("name", "folder", "columns", "wanted"),
    [
        ("µs", ".", {"at": of_type("us")}, MOMENTS),
        ("ms", ".", {"at": of_type("ms")}, MOMENTS),
        ("in another zone", ".", {"at": of_type("us", "Asia/Kolkata")}, MOMENTS),
        ("no rows", ".", {"at": of_type("us", values=[])}, []),
        ("ns", ".", {"at": of_type("ns")}, None),
        ("without zone", ".", {"at": of_type("us", None)}, None),
        ("null", ".", {"at": of_type("us", values=[MOMENTS[0], None])}, None),
        ("before 1901", ".", {"at": of_type("us", values=[MOMENTS[0], -2_200_000_000_000_000])}, None),
        ("day", ".", {"at": pa.array([3, 4], pa.date32())}, None),
        ("lacking", ".", {"v": pa.array([3, 4])}, None),
        ("other case", ".", {"AT": of_type("us")}, None),
        ("two names", ".", {"at": of_type("us"), "At": of_type("us")}, None),
        ("the folder's", "At=2024", {"at": of_type("us")}, None),
        ("the escaped folder's", "a%20b/at=2024", {"at": of_type("us")}, None),
    ],
)
def test_times_of_a_file_are_read_by_the_driver_only_if_spark_is_sure_to_read_the_same(tmp_path, name, folder, columns, wanted):
    path = tmp_path / folder / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    files = times_of({path.as_uri(): 3})
    chunks = None if files is None else files.chunks(5)
    assert (chunks is None) == (wanted is None)
    if wanted is not None:
        at = files.rows([(c.part, c.number) for c in chunks])[2].tolist() if chunks else []
        assert at == wanted
        assert [(c.least, c.greatest, c.rows) for c in chunks] == ([(min(at), max(at), len(at))] if at else [])
        assert files.groups(5) == chunks
    elif files is not None:
        assert files.groups(5) is None
    assert times_of({path.as_uri(): 3}, COLUMN.with_type(pa.timestamp("us"))) is None
    assert times_of({f"{path.as_uri()}.gone": 3}) is None


@pytest.mark.parametrize("odd", [None, -2_200_000_000_000_000])
@pytest.mark.parametrize("place", [0, 699, 700, 4_999])
def test_one_time_that_spark_may_read_otherwise_is_enough_wherever_it_stands(tmp_path, monkeypatch, odd, place):
    monkeypatch.setattr("penstock.spark.sources.file_times._READ_ROWS", 700)
    path, values = tmp_path / "1.parquet", MOMENTS * 2_500
    values[place] = odd
    pq.write_table(pa.table({"at": of_type("us", values=values)}), path)
    assert times_of({path.as_uri(): 3}).chunks(5) is None


def test_footers_without_least_and_greatest_times_say_nothing(tmp_path):
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"at": of_type("us")}), path, write_statistics=False)
    files = times_of({path.as_uri(): 3})
    assert files.groups(5) is None
    assert [(c.least, c.greatest) for c in files.chunks(5)] == [(min(MOMENTS), max(MOMENTS))]


def test_times_of_a_file_that_is_gone_are_there_only_if_they_are_held(tmp_path):
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"at": of_type("us")}), path)
    held, other, late = (times_of({path.as_uri(): 3}, COLUMN, rows) for rows in (2, 1, 1))
    chunks = held.chunks(5)
    assert other.chunks(5) == chunks
    path.unlink()
    assert held.rows([(5, chunks[0].number)])[2].tolist() == MOMENTS
    assert other.rows([(5, chunks[0].number)]) is None
    assert late.chunks(5) is None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_chunks_of_files_are_whole_pieces_of_4096_rows_with_the_offsets_that_spark_computes(tmp_path, monkeypatch, data):
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 4_095, 4_096, 4_097, 9_000, 12_288]), min_size=1, max_size=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    at = {number: rng.integers(1 << 40, 1 << 50, size) for number, size in enumerate(sizes, 4)}
    group = data.draw(st.sampled_from([1_000, 4_096, 5_000, 1 << 20]))
    for number, times in at.items():
        table = pa.table({"v": times, "at": pa.array(times).cast(pa.timestamp("us", "UTC"))})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=group)
    held = data.draw(st.sampled_from([0, 1 << 23]))
    monkeypatch.setattr(
        "penstock.spark.sources.file_times._READ_ROWS", data.draw(st.sampled_from([700, 4_096, 5_000, 1 << 20]))
    )
    files = times_of({(tmp_path / f"{n}.parquet").as_uri(): n for n in at}, COLUMN, held)

    def seen(of, begin, rows):
        times = at[of][begin : begin + rows]
        return (int(times.min()), int(times.max()), (of << 33) + begin + len(times) - 1, len(times))

    def pieces(rows):
        return [seen(n, begin, rows) for n, times in at.items() for begin in range(0, len(times), rows)]

    chunks = files.chunks(7)
    assert [(c.least, c.greatest, c.last_offset, c.rows) for c in chunks] == pieces(4_096)
    assert [(c.least, c.greatest, c.last_offset, c.rows) for c in files.groups(7)] == pieces(group)
    assert all(c.part == 7 and c.number == c.last_offset >> 12 for c in chunks)
    chosen = [c for c in chunks if rng.random() < 0.6] or list(chunks[:1])
    if not chosen:
        return
    part, offset, time = files.rows([(c.part, c.number) for c in chosen])
    assert set(part.tolist()) == {7}
    wanted = np.concatenate([np.arange(c.last_offset - c.rows + 1, c.last_offset + 1) for c in chosen])
    assert (offset == wanted).all()
    assert time.tolist() == [at[o >> 33][o & ((1 << 33) - 1)] for o in wanted.tolist()]
