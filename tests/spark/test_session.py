from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pyarrow as pa
import pytest

from penstock.arrow.columns import coalesce_batches
from penstock.errors import DeclarationError
from penstock.spark.session import local as module
from penstock.spark.session.local import complaints, session

pytestmark = pytest.mark.spark


def run_python(code: str, cwd, **environment) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, where no session is active."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | environment,
    )


def test_new_session_is_silent_and_leaves_nothing_in_the_directory(tmp_path):
    answer = run_python(
        """
        from pyspark.sql import Window, functions as F
        from penstock.spark.session.local import session

        spark = session("local[3]", "quiet", **{"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-Dmine=1"})
        rows = spark.range(10).mapInArrow(lambda batches: batches, "id long")
        numbered = rows.withColumn("row", F.row_number().over(Window.orderBy("id")))
        numbered.write.saveAsTable("numbered")
        print(len(spark.table("numbered").toPandas()), spark.sparkContext.appName)
        print(spark.conf.get("spark.sql.shuffle.partitions"), spark.conf.get("spark.sql.session.timeZone"))
        print(spark.sparkContext.uiWebUrl, spark.sparkContext._jvm.System.getProperty("mine"))
        spark.stop()
        """,
        tmp_path,
    )
    assert answer.stdout == "10 quiet\n3 UTC\nNone 1\n", answer.stderr
    assert answer.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_errors_of_spark_are_still_logged(tmp_path):
    answer = run_python(
        """
        from penstock.spark.session.local import session

        spark = session("local[1]", **{"spark.driver.memory": "1g"})
        logger = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager.getLogger("flow")
        logger.warn("unheard")
        logger.error("heard")
        """,
        tmp_path,
    )
    assert answer.stderr.rstrip().endswith("spark ERROR flow: heard")
    assert "unheard" not in answer.stderr


def test_submitted_script_keeps_what_was_submitted(tmp_path):
    (tmp_path / "job.py").write_text(
        textwrap.dedent("""\
        from penstock.spark.session.local import session

        spark = session(**{"spark.sql.shuffle.partitions": 7})
        print(spark.sparkContext.master, spark.sparkContext.appName, spark.conf.get("spark.sql.session.timeZone"))
        print(spark.conf.get("spark.sql.adaptive.enabled"), spark.conf.get("spark.sql.shuffle.partitions"))
        spark.stop()
        """)
    )
    answer = run_python(
        """
        import subprocess, sys
        from pathlib import Path
        import pyspark
        from penstock.spark.session.java import ensure_java

        ensure_java()
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        conf = ["--conf", "spark.sql.session.timeZone=Asia/Tokyo", "--conf", "spark.ui.enabled=false"]
        sys.exit(subprocess.run([submit, "--master", "local[1]", "--name", "mine", *conf, "job.py"]).returncode)
        """,
        tmp_path,
        PYSPARK_PYTHON=sys.executable,
        SPARK_HOME="",
    )
    assert answer.stdout == "local[1] mine Asia/Tokyo\nfalse 7\n", answer.stderr


def test_active_session_is_returned_as_it_is_without_warnings(spark, recwarn):
    assert session() is spark
    assert session(**{"spark.python.worker.reuse": True}) is spark
    assert not recwarn.list


def test_active_session_when_it_differs_from_what_is_asked_is_returned_with_a_warning(spark):
    expected = r"The active Spark session has spark\.master=local\[2\], not local\[9\] as asked; stop it first"
    with pytest.warns(UserWarning, match=expected):
        assert session("local[9]") is spark


def test_active_session_of_another_zone_is_not_complained_of_as_nothing_goes_by_it(spark):
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    assert complaints(other) == complaints(spark) == []


def test_active_session_whose_workers_are_not_kept_is_complained_of(spark):
    other = spark.newSession()
    # Spark lets nobody set it once a Python worker has run, so it is set behind its back.
    other._jsparkSession.sessionState().conf().setConfString("spark.python.worker.reuse", "false")
    (complaint,) = complaints(other)
    assert complaint == (
        "The active Spark session has spark.python.worker.reuse=false, so every epoch would start its Python workers anew; start it "
        "with spark.python.worker.reuse=true."
    )


def test_setting_when_it_is_not_sparks_is_refused():
    with pytest.raises(DeclarationError) as raised:
        session(shuffle_partitions=4)
    assert str(raised.value) == (
        "'shuffle_partitions' is no Spark setting; pass settings to session() by their full names, as in "
        "session(**{'spark.driver.memory': '2g'})."
    )


def test_cores_when_master_names_them_are_taken_from_it():
    assert [module._cores(master) for master in ("local", "local[3]", "local[4,2]")] == [1, 3, 4]
    assert module._cores("local[*]") >= 1


def test_driver_memory_is_between_one_and_eight_gibibytes():
    assert 1024 <= module._driver_mib() <= 8192


def test_batches_to_python_are_small_and_put_together_again(spark):
    def sizes(batches):
        seen = [batch.num_rows for batch in batches]
        parts = [pa.RecordBatch.from_arrays([pa.array([0] * n)], names=["n"]) for n in seen]
        together = [batch.num_rows for batch in coalesce_batches(parts)]
        yield pa.RecordBatch.from_arrays([pa.array([max(seen), max(together)])], names=["n"])

    found = spark.range(0, 200_000, 1, 1).mapInArrow(sizes, "n long").collect()
    assert [row.n for row in found] == [2048, 65_536]


def test_log_of_epochs_in_a_local_folder_starts_no_processes_unless_the_session_says_how_to_write_it(tmp_path):
    """Pages that Java's children have touched tell how many there were in an epoch."""
    answer = run_python(
        """
        from pathlib import Path
        import penstock as ps
        from penstock.spark.session.local import session

        spark = session("local[1]")
        spark.range(0, 12, 1, 12).write.parquet("in")
        manager, theirs = "spark.sql.streaming.checkpointFileManagerClass", "FileContextBasedCheckpointFileManager"
        java = spark.sparkContext._gateway.proc.pid

        def pages(checkpoint):
            found = []

            def look(table, epoch):
                found.append(int(Path(f"/proc/{java}/stat").read_text().rpartition(") ")[2].split()[8]))

            flow = ps.Flow("noted")
            flow.source("numbers", ps.files("in", "id long", max_files_per_epoch=1)).sink(ps.foreach_epoch(look))
            flow.start(checkpoint=checkpoint, trigger="available_now").await_termination(300)
            assert len(found) == 12
            return found[-1] - found[4]

        print(pages("ours"))
        sums = [path for path in Path().rglob(".*.crc") if path.parts[-3:-1] != ("sources", "0")]  # that of commands is Spark's
        print(manager in spark.conf.getAll, sums)
        spark.conf.set(manager, "org.apache.spark.sql.execution.streaming.checkpointing." + theirs)
        print(pages("theirs") > 0, spark.conf.get(manager).endswith(theirs))
        """,
        tmp_path,
    )
    assert answer.stdout == "0\nFalse []\nTrue True\n", answer.stderr


def test_local_files_that_spark_writes_have_the_permissions_that_hadoop_gives(tmp_path):
    answer = run_python(
        """
        import os
        os.umask(0o027)
        from penstock.spark.session.local import session

        spark = session("local[1]", **{"spark.hadoop.fs.permissions.umask-mode": "027"})
        jvm, conf = spark.sparkContext._jvm, spark.sparkContext._jsc.hadoopConfiguration()
        path = jvm.org.apache.hadoop.fs.Path
        local = path("file:///").getFileSystem(conf)
        local.create(path(os.path.abspath("file"))).close()
        local.mkdirs(path(os.path.abspath("folder")))
        print(*(oct(os.stat(name).st_mode) for name in ("file", "folder")))
        permission = jvm.org.apache.hadoop.fs.permission.FsPermission
        for mode in ("0451", "1777"):
            local.setPermission(path(os.path.abspath("folder")), permission(mode))
            print(oct(os.stat("folder").st_mode))
        """,
        tmp_path,
    )
    assert answer.stdout == "0o100640 0o40750\n0o40451\n0o41777\n", answer.stderr
