"""Files by their names: when they were written, what their folders say, however the names are spelled."""

from __future__ import annotations

import flow_runs as fr
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import RecordError
from penstock.spark.sources.footers import look_at, number_files

pytestmark = pytest.mark.spark


def test_files_are_numbered_by_when_they_were_written_whatever_letters_their_names_have(tmp_path):
    uris = []
    for i, name in enumerate(["größe", "a b", "ä%20", "plain"]):
        path = tmp_path / name
        path.touch()
        fr.stamp(path, 9 - i)
        uris.append(f"file://{tmp_path}/" + name.replace("%", "%25").replace(" ", "%20"))  # as Spark writes them
    assert list(number_files(look_at(uris).values(), 5)) == uris[::-1]


def write(path, seconds, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    fr.stamp(path, seconds)


def collected(spark, tmp_path, flow, stream):
    out = ps.memory(f"names {tmp_path}")
    stream.sink(out)
    flow.start(spark, checkpoint=tmp_path / "c", workers=1, trigger="available_now").await_termination(600)
    return out.rows()


@pytest.mark.parametrize("most", [None, 1])
def test_order_of_files_does_not_depend_on_epochs_in_a_folder_with_any_name(spark, tmp_path, most):
    for seconds, name in enumerate("cba"):
        write(tmp_path / "größe und %" / f"{name}.parquet", seconds, {"f": [name]})
    flow = ps.Flow("names")
    events = flow.source("s", ps.files(str(tmp_path / "größe und %"), "f string", max_files_per_epoch=most))
    numbers = events.key_by("1 AS k").stateful_map(lambda _, e, n: ((e.f, n or 0), (n or 0) + 1), "f string, n long")
    assert sorted((r["n"], r["f"]) for r in collected(spark, tmp_path, flow, numbers)) == [(0, "c"), (1, "b"), (2, "a")]


@pytest.mark.parametrize("name", ["b[1].parquet", "{b}.parquet"])
def test_files_beside_one_whose_name_is_like_a_pattern_are_read_once(spark, tmp_path, name):
    """Spark's stream lists the others of an epoch twice."""
    for seconds, one in enumerate(["a.parquet", name, "c.parquet"]):
        write(tmp_path / "in" / one, seconds, {"v": [2 * seconds, 2 * seconds + 1]})
    flow = ps.Flow("names")
    events = flow.source("s", ps.files(str(tmp_path / "in"), "v long"))
    numbers = events.key_by("1 AS k").stateful_map(lambda _, e, n: ((e.v, n or 0), (n or 0) + 1), "v long, n long")
    assert sorted((r["v"], r["n"]) for r in collected(spark, tmp_path, flow, numbers)) == [(i, i) for i in range(6)]


@pytest.mark.parametrize("files", [16, 17], ids=["compared", "joined"])
def test_records_of_many_files_in_one_epoch_are_in_order(spark, tmp_path, files):
    for i in range(files):
        write(tmp_path / "in" / f"{files - i:02d}'s.parquet", i, {"v": [2 * i, 2 * i + 1]})
    flow = ps.Flow("names")
    events = flow.source("s", ps.files(str(tmp_path / "in"), "v long"))
    numbers = events.key_by("1 AS k").stateful_map(lambda _, e, n: ((e.v, n or 0), (n or 0) + 1), "v long, n long")
    rows = collected(spark, tmp_path, flow, numbers)
    assert sorted((r["v"], r["n"]) for r in rows) == [(i, i) for i in range(2 * files)]


def test_sources_whose_folders_begin_alike_keep_their_files_apart(spark, tmp_path):
    write(tmp_path / "trips" / "a.parquet", 0, {"id": [1, 2]})
    write(tmp_path / "trips_late" / "b.parquet", 1, {"code": ["x"]})
    flow = ps.Flow("names")
    trips = flow.source("trips", ps.files(str(tmp_path / "trips"), "id long"))
    late = flow.source("late", ps.files(str(tmp_path / "trips_late"), "code string"))
    both = trips.select("cast(id AS string) AS v").union(late.select("code AS v"))
    assert sorted(r["v"] for r in collected(spark, tmp_path, flow, both)) == ["1", "2", "x"]


@pytest.mark.parametrize("folder", ["größe", "x/../dots", "two words"])
def test_missing_column_is_seen_in_a_folder_however_it_is_written(spark, tmp_path, folder):
    (tmp_path / "x").mkdir()
    write(tmp_path / folder / "a.parquet", 0, {"id": [1]})
    flow = ps.Flow("names")
    events = flow.source("s", ps.files(f"{tmp_path}/{folder}", "id long, gone string"))
    with pytest.raises(RecordError, match="of source 's' has no column 'gone'"):
        collected(spark, tmp_path, flow, events)


@pytest.mark.parametrize(("folder", "column"), [("my col=1", "my col"), ("a%3Ab=1", "a:b")], ids=["space", "escaped by Spark"])
def test_column_that_folders_are_named_after_may_have_any_name(spark, tmp_path, folder, column):
    write(tmp_path / "part" / folder / "a.parquet", 0, {"id": [1]})
    flow = ps.Flow("names")
    events = flow.source("s", ps.files(str(tmp_path / "part"), f"id long, `{column}` int"))
    assert [tuple(r.values()) for r in collected(spark, tmp_path, flow, events)] == [(1, 1)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("most", [None, 1])
def test_files_beside_folders_that_columns_are_named_after_are_read_too(spark, tmp_path, kind, most):
    folder = tmp_path / "at=home" / "in"
    for i, name in enumerate(["plain", "day=1/a", "day=2/a", "other"]):
        write(folder / f"{name}.parquet", i, {"v": [i]})
        if kind == "csv":
            (folder / f"{name}.parquet").rename(folder / f"{name}.csv").write_text(f"v\n{i}\n")
            fr.stamp(folder / f"{name}.csv", i)
    flow = ps.Flow("names")
    events = flow.source("s", ps.files(str(folder), "v long", kind, max_files_per_epoch=most))
    numbers = events.key_by("1 AS k").stateful_map(lambda _, e, n: ((e.v, n or 0), (n or 0) + 1), "v long, n long")
    rows = collected(spark, tmp_path, flow, numbers)
    assert sorted((r["v"], r["n"]) for r in rows) == [(i, i) for i in range(4)]


def test_malformed_files_beside_folders_that_columns_are_named_after_are_all_counted(spark, tmp_path):
    for i, name in enumerate(["plain", "day=1/a"]):
        path = tmp_path / "in" / f"{name}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"w\n{i}\n")
    flow, bad = ps.Flow("names"), ps.memory(f"bad {tmp_path}")
    events = flow.source("s", ps.files(str(tmp_path / "in"), "v long", "csv"), on_error=bad)
    assert collected(spark, tmp_path, flow, events) == []
    assert sorted(r["record"] for r in bad.rows()) == ["0", "1"]
