"""Files that a flow would pass over without a word: it says so when it is started."""

from __future__ import annotations

import os

import pytest

import penstock as ps
from penstock.errors import DeclarationError, RecordError
from penstock.spark.sources.overlooked import overlooked

pytestmark = pytest.mark.spark


def values(spark, tmp_path, folder):
    """What is read of CSV files; all in `tmp_path`."""
    flow, out = ps.Flow("overlooked"), ps.memory(f"overlooked {folder} {tmp_path}")
    flow.source("events", ps.files(folder, "v long", "csv")).sink(out)
    flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now", drain=False).await_termination(600)
    return sorted(r["v"] for r in out.rows())


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"v\n{value}\n")


def test_files_in_folders_within_the_folder_are_complained_of_by_name(spark, tmp_path):
    write(tmp_path / "in" / "1.csv", 1)
    write(tmp_path / "in" / "deep" / "er" / "2.csv", 2)
    write(tmp_path / "in" / "_hidden" / "3.csv", 3)
    (tmp_path / "in" / "empty").mkdir()
    with pytest.warns(
        UserWarning, match=r"^Source 'events' does not read 'deep/er/2\.csv' and other files .*recursiveFileLookup=True"
    ):
        assert values(spark, tmp_path, tmp_path / "in") == [1]


def test_folders_that_are_read_are_not_complained_of(tmp_path):
    write(tmp_path / "in" / "1.csv", 1)
    write(tmp_path / "in" / "day=1" / "2.csv", 2)
    write(tmp_path / "in" / "_hidden" / "3.csv", 3)
    (tmp_path / "in" / "empty" / "too").mkdir(parents=True)
    assert overlooked("s", ps.files(tmp_path / "in", "v long", "csv"), "UTF-8") == []
    write(tmp_path / "in" / "deep" / "4.csv", 4)
    assert overlooked("s", ps.files(tmp_path / "in", "v long", "csv", RecursiveFileLookup=True), "UTF-8") == []
    assert overlooked("s", ps.files(tmp_path / "*" / "*.csv", "v long", "csv"), "UTF-8") == []
    assert overlooked("s", ps.files("s3a://bucket/in", "v long", "csv"), "ANSI_X3.4-1968") == []
    assert len(overlooked("s", ps.files(f"file://{tmp_path}/in", "v long", "csv"), "utf8")) == 1


def test_java_that_does_not_see_all_names_of_files_is_complained_of(tmp_path):
    [told] = overlooked("s", ps.files(tmp_path / "in", "v long", "csv"), "ANSI_X3.4-1968")
    assert told.startswith("Spark's Java has the encoding ANSI_X3.4-1968 for names of files, so source 's' does not see ")
    assert told.endswith("set LC_ALL=C.UTF-8 before Spark is started.")


def test_file_whose_name_is_not_in_utf_8_is_complained_of(spark, tmp_path):
    write(tmp_path / "in" / "größe.csv", 1)
    try:
        write(tmp_path / "in" / os.fsdecode(b"gr\xf6\xdfe.csv"), 2)
    except OSError:
        pytest.skip("this file system takes no such name")
    with pytest.warns(
        UserWarning, match=r"^Source 'events' does not see the file b'gr\\xf6\\xdfe\.csv', whose name is not in UTF-8"
    ):
        assert values(spark, tmp_path, tmp_path / "in") == [1]


def test_folder_whose_name_is_taken_for_a_pattern_is_refused_and_read_as_the_message_says(spark, tmp_path):
    write(tmp_path / "in[1]" / "1.csv", 1)
    with pytest.raises(
        DeclarationError, match=r"in\[1\]', which is a folder, but is taken for a pattern of names; put a backslash"
    ):
        values(spark, tmp_path, tmp_path / "in[1]")
    assert values(spark, tmp_path, tmp_path / "in\\[1\\]") == [1]


def test_path_that_is_a_file_is_refused_and_read_as_the_message_says(spark, tmp_path):
    write(tmp_path / "in" / "1.csv", 1)
    with pytest.raises(
        DeclarationError, match=r"Source 'events' reads '.*/in/1\.csv', which is a file; give the .*/in/\*\.csv'\.$"
    ):
        values(spark, tmp_path, tmp_path / "in" / "1.csv")
    assert values(spark, tmp_path, tmp_path / "in" / "*.csv") == [1]


@pytest.mark.parametrize(
    ("others", "shown"), [("at=1", "in/(day|at)=1, /.*/in/(day|at)=1"), ("deep", "in(/deep)?, /.*/in(/deep)?")]
)
def test_folders_that_give_different_columns_are_told_by_name(spark, tmp_path, others, shown):
    for name in ("day=1/1", "2", f"{others}/3"):
        write(tmp_path / "in" / f"{name}.csv", 1)
    with pytest.raises(
        RecordError, match=rf"^The folder of a source has folders .* together: /.*/{shown}\. Move some of them elsew"
    ):
        values(spark, tmp_path, tmp_path / "in")


def test_folders_named_after_a_column_when_they_come_while_the_flow_runs_are_read_after_a_restart(spark, tmp_path):
    write(tmp_path / "in" / "1.csv", 1)
    flow, out = ps.Flow("overlooked"), ps.memory(f"overlooked {tmp_path}")
    flow.source("events", ps.files(tmp_path / "in", "v long", "csv")).sink(out)
    run = flow.start(spark, checkpoint=tmp_path / "c", trigger="100 milliseconds")
    while run.progress["epoch"] < 0:
        run.await_termination(0.1)
    write(tmp_path / "new" / "2.csv", 2)
    (tmp_path / "new").rename(tmp_path / "in" / "day=1")
    with pytest.raises(
        RecordError, match=r"^Folders that are named after columns, as in day=1, have come .*; start the flow again"
    ):
        run.await_termination(600)
    write(tmp_path / "in" / "3.csv", 3)
    flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now").await_termination(600)
    assert sorted(r["v"] for r in out.rows()) == [1, 2, 3]
