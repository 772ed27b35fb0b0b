"""How the tests start Java, and the archive of Spark's classes that halves the time it takes; run as a script, it makes the archive.

The archive counts for the very Java and Spark it was made with; any other, or none, starts as it would without. The script also adds bytecode to
PySpark's zip file, from which Spark's Python workers import: without it each of them compiles half a second of source.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib.util
import py_compile
import re
import shutil
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix, "spark.jsa")
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
JAVA_OPTIONS = (
    f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.is_file() and ARCHIVE.stat().st_size else QUICK
)


def make():
    """Run a small flow under a Java that writes down, when it ends, which classes it has loaded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import penstock as ps
    from penstock.spark.session.local import session

    options = f"{QUICK} -XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:disable"
    spark = session("local[2]", "archive", **{"spark.driver.extraJavaOptions": options})
    with tempfile.TemporaryDirectory() as folder:
        files, out = Path(folder, "in"), ps.memory("out")
        files.mkdir()
        pq.write_table(pa.table({"k": [1, 2], "at": pa.array([0, 1], pa.timestamp("us", "UTC"))}), files / "0.parquet")
        flow = ps.Flow("archive")
        events = flow.source("events", ps.files(str(files), "k long, at timestamp"), time="at")
        events.key_by("k").window(ps.tumbling("1 second")).aggregate(n=ps.count()).sink(out)
        flow.start(spark, checkpoint=f"{folder}/checkpoint", workers=2, trigger="available_now").await_termination(600)
        assert out.rows()
    java = spark.sparkContext._gateway.proc
    spark.stop()
    with contextlib.suppress(OSError):
        java.stdin.close()  # Java ends with it
    java.wait(600)


def compile_zips():
    """Add bytecode to what Spark puts first in the path of its Python workers; another Python passes over it."""
    for path in Path(importlib.util.find_spec("pyspark").origin).parent.glob("python/lib/*.zip"):
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            source = Path(folder, "source")
            shutil.unpack_archive(path, source)
            compileall.compile_dir(
                source,
                maxlevels=99,
                quiet=2,
                legacy=True,
                stripdir=str(source),
                prependdir=str(path),
                rx=re.compile("/tests/"),
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,  # in a zip file times are rounded
            )
            Path(shutil.make_archive(f"{folder}/compiled", "zip", source)).replace(path)


if __name__ == "__main__":
    compile_zips()
    make()
