"""Event times that the driver reads from Parquet files itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.progress.lateness import Base
from penstock.spark.sources.file_times import FileTimes, Inexact
from penstock.spark.sources.footers import read_footers

COLUMN = pa.field("at", pa.timestamp("us", "UTC"))
MOMENTS = [1_700_000_000_000_000, 1_600_000_000_001_000]


def times_of(files, column=COLUMN):
    """The times of files, by URI their numbers."""
    return FileTimes.of(files, read_footers(files, column.name), column)


def read(files):
    """The times themselves, of all files one after the other."""
    bases = files.bases((), Base(0, 0))
    return [at for file, _ in bases.values() for piece in file.times() for at in piece.tolist()]


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
    groups = None if files is None else files.groups(5)
    assert (groups is None) == (wanted is None)
    if wanted is not None:
        assert read(files) == wanted
        assert [(c.least, c.greatest, c.rows) for c in groups] == ([(min(wanted), max(wanted), len(wanted))] if wanted else [])
    assert times_of({path.as_uri(): 3}, COLUMN.with_type(pa.timestamp("us"))) is None
    assert times_of({f"{path.as_uri()}.gone": 3}) is None


@pytest.mark.parametrize("odd", [None, -2_200_000_000_000_000])
@pytest.mark.parametrize("place", [0, 699, 700, 4_999])
def test_one_time_that_spark_may_read_otherwise_is_enough_wherever_it_stands(tmp_path, odd, place):
    path, values = tmp_path / "1.parquet", MOMENTS * 2_500
    values[place] = odd
    pq.write_table(pa.table({"at": of_type("us", values=values)}), path, row_group_size=700)
    assert times_of({path.as_uri(): 3}).groups(5) is None


def test_footers_without_least_and_greatest_times_say_nothing(tmp_path):
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"at": of_type("us")}), path, write_statistics=False)
    assert times_of({path.as_uri(): 3}).groups(5) is None


def test_times_of_a_file_that_is_gone_or_has_a_null_now_are_not_there(tmp_path):
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"at": of_type("us")}), path)
    files = times_of({path.as_uri(): 3})
    bases = files.bases(files.groups(5), Base(0, 0))
    pq.write_table(pa.table({"at": of_type("us", values=[MOMENTS[0], None])}), path)
    with pytest.raises(Inexact):
        files.late(bases, 5, 0)
    path.unlink()
    with pytest.raises(Inexact):
        files.late(bases, 5, 0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_groups_of_files_have_the_offsets_that_spark_computes(tmp_path, data):
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 4_095, 4_096, 4_097, 9_000]), min_size=1, max_size=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    at = {number: rng.integers(1 << 40, 1 << 50, size) for number, size in enumerate(sizes, 4)}
    group = data.draw(st.sampled_from([1_000, 4_096, 5_000, 1 << 20]))
    for number, times in at.items():
        table = pa.table({"v": times, "at": pa.array(times).cast(pa.timestamp("us", "UTC"))})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=group)
    files = times_of({(tmp_path / f"{n}.parquet").as_uri(): n for n in at})

    def seen(of, begin):
        times = at[of][begin : begin + group]
        return (int(times.min()), int(times.max()), (of << 33) + begin + len(times) - 1, len(times))

    groups = files.groups(7)
    wanted = [seen(n, begin) for n, times in at.items() for begin in range(0, len(times), group)]
    assert [(c.least, c.greatest, c.last_offset, c.rows) for c in groups] == wanted
    assert all(c.part == 7 for c in groups)
    assert read(files) == [t for times in at.values() for t in times.tolist()]
