"""How Spark writes local files in a session of penstock: as Hadoop does, without a process or two for each.

Hadoop without its native library, as in PySpark, starts ``chmod`` for every new file (5 ms), and again for its checksum. An
epoch of Spark's log is three files, so an epoch without rows took half of its time for that.

Without these private calls (Hadoop's `FilterFileSystem.fs`, Janino, Spark's class for its log) nothing but that time is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyspark
from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG_CLASS: Final = "org.apache.spark.sql.execution.streaming.{}FileSystemBasedCheckpointFileManager"
LOCAL_LOG: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": _LOG_CLASS.format(
        "" if pyspark.__version__.startswith("4.0.") else "checkpointing."  # the package came with 4.1
    )
}
"""How Spark writes its own log of epochs into a local folder, where a session does not say.

An epoch writes three files of it, and Spark's usual way starts about ten processes for each (``readlink``, ``chmod``): an empty epoch of
one source takes 0.14 to 0.2 s, and 0.06 to 0.09 s this way (Spark 4.3). Both write a temporary file, look whether the final one is there,
and rename.
"""
_CLASS: Final = "penstock.LocalFiles"
# Compiled by Janino, with which Spark compiles its own queries.
_SOURCE: Final = """
package penstock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/** Local files whose permissions are set by this process. */
public class LocalFiles extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
        if (permission.getStickyBit()) {
            super.setPermission(path, permission);
        } else {
            Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(permission.toString()));
        }
    }
}
"""


def encoding_of_names(spark: SparkSession) -> str:
    """How Java spells names of files: it does not see those that it cannot spell."""
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.java.lang.System.getProperty("sun.jnu.encoding"))


def write_quickly(spark: SparkSession) -> None:
    """Make this session's JVM write local files without checksums, and set their permissions itself.

    Args:
        spark: A session that penstock has started. If its Hadoop differs, permissions are set as before.
    """
    jvm: Any = spark.sparkContext._jvm
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    local = jvm.org.apache.hadoop.fs.Path("file:///").getFileSystem(conf)
    local.setWriteChecksum(False)
    try:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(_SOURCE)
        files = compiler.getClassLoader().loadClass(_CLASS).newInstance()
        files.initialize(local.getUri(), conf)
        # Not by a setting: tasks would look for the class where only Java's own loader looks.
        under = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FilterFileSystem").getDeclaredField("fs")
        under.setAccessible(True)
        under.set(local, files)
    except Py4JError:
        return


__all__ = ["LOCAL_LOG", "write_quickly"]
