"""Event times that the driver reads from Parquet files itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.spark.file_times import FileTimes

MOMENTS = [1_700_000_000_000_000, 1_600_000_000_001_000]


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
    column = pa.field("at", pa.timestamp("us", "UTC"))
    found = FileTimes.read({path.as_uri(): 3}, column)
    assert (found is None) == (wanted is None)
    if wanted is not None:
        chunks = found.chunks(5)
        at = found.rows([(c.part, c.number) for c in chunks])[2].tolist() if chunks else []
        assert at == wanted
        assert [(c.least, c.greatest, c.rows) for c in chunks] == ([(min(at), max(at), len(at))] if at else [])
    assert FileTimes.read({path.as_uri(): 3}, column.with_type(pa.timestamp("us"))) is None
    assert FileTimes.read({f"{path.as_uri()}.gone": 3}, column) is None


def test_chunks_of_files_are_whole_pieces_of_4096_rows_with_the_offsets_that_spark_computes(tmp_path):
    rng = np.random.default_rng(3)
    at = {4: rng.integers(1 << 40, 1 << 50, 10_000), 5: rng.integers(1 << 40, 1 << 50, 4_096)}
    for number, times in at.items():
        pq.write_table(pa.table({"at": pa.array(times).cast(pa.timestamp("us", "UTC"))}), tmp_path / f"{number}.parquet")
    found = FileTimes.read({(tmp_path / f"{n}.parquet").as_uri(): n for n in at}, pa.field("at", pa.timestamp("us", "UTC")))
    chunks = found.chunks(7)
    assert [c.rows for c in chunks] == [4_096, 4_096, 1_808, 4_096]
    part, offset, time = found.rows([(c.part, c.number) for c in chunks[1:]])
    assert set(part.tolist()) == {7}
    assert (offset == np.concatenate(((4 << 33) + np.arange(4_096, 10_000), (5 << 33) + np.arange(4_096)))).all()
    assert (time == np.concatenate((at[4][4_096:], at[5]))).all()
    for chunk in chunks:
        part, offset, time = found.rows([(chunk.part, chunk.number)])
        assert (chunk.least, chunk.greatest, chunk.last_offset) == (time.min(), time.max(), offset[-1])
        assert set((offset >> 12).tolist()) == {chunk.number}
