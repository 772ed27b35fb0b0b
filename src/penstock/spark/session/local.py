"""Starts a quiet local Spark session for users who have none, and checks the session of those who do.

`session` never changes a session that it did not start. Under ``spark-submit`` it adds only what was not set there.

Read next: `penstock.spark.session.java`.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import DeclarationError
from penstock.spark.session.archive import archive_options
from penstock.spark.session.complaining import complain
from penstock.spark.session.java import cache_directory, ensure_java
from penstock.spark.session.pythons import trust
from penstock.spark.session.settings import ADAPTIVE, BATCH_ROWS, DRIVER_MEMORY, PROGRESS, SHUFFLE, TIME_ZONE, UI

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REUSE: Final = "spark.python.worker.reuse"

HANDING: Final = {
    BATCH_ROWS: "2048",
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
}
"""How Spark hands rows to Python, where a session does not say.

With any limit of bytes Spark adds up the sizes of all buffers after every row, which costs more than all the rest: 0.8 s instead of 2.2
for five million rows of three numbers on two cores (Spark 4.3). This is the number that turns it off. The rows of a batch are
few, so that even large ones do not exhaust the memory. See `penstock.spark.options.query_settings` for rows that are known to be small.
"""

ZONES_OF_UTC: Final = frozenset({"utc", "etc/utc", "z", "gmt", "+00:00"})
OURS: Final = "spark.penstock.session"
"""A setting by which sessions of penstock's own are told from the user's, see `penstock.spark.session.own`."""
_GIB: Final = 1 << 30
_LOG_SETTING: Final = "log4j2.configurationFile"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


def session(master: str | None = None, app_name: str = "penstock", **conf: object) -> SparkSession:
    """The active Spark session, or else a new, quiet, local one.

    Args:
        master: Spark master of a new session, such as ``"local[4]"``; None takes all cores of this machine.
        app_name: Name of a new session.
        **conf: Further settings of a new session by their Spark names; they win over those of penstock.

    Returns:
        The session. One that was already active is returned unchanged, with a `UserWarning` for each of `complaints`.

    Raises:
        DeclarationError: A setting's name does not start with ``spark.``, or the process speaks Spark Connect. Nothing was started.
        MissingToolError: There is no Java to start Spark with. Nothing was started.

    Example:
        >>> spark = session("local[2]", **{"spark.driver.memory": "2g"})  # doctest: +SKIP
    """
    wanted = {name: _text(value) for name, value in conf.items()}
    if strange := [name for name in wanted if not name.startswith("spark.")]:
        raise DeclarationError(
            f"{strange[0]!r} is no Spark setting; pass settings to session() by their full names, as in "
            f"session(**{{'spark.driver.memory': '2g'}})."
        )

    from pyspark.sql import SparkSession

    from penstock.spark.internals.local_files import write_quickly
    from penstock.spark.internals.sessions import has_begun, meet_submitted
    from penstock.spark.session.connected import refuse_connected_process

    refuse_connected_process()
    if has_begun():
        active = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        if active.conf.get(OURS, None) is not None:  # a step of a flow is at work
            active = SparkSession.builder.getOrCreate()
        for complaint in complaints(active, wanted if master is None else {"spark.master": master, **wanted}):
            complain(complaint)
        return active

    builder, local = SparkSession.builder, False
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM, and says where to run
        from pyspark import SparkConf

        meet_submitted()
        submitted = SparkConf()
        settings = {name: value for name, value in _anywhere().items() if not submitted.contains(name)}
        if master is not None:
            settings["spark.master"] = master
        if not submitted.contains("spark.app.name"):
            settings["spark.app.name"] = app_name
    else:
        ensure_java()
        place = master or wanted.get("spark.master", "local[*]")
        settings = {"spark.master": place, "spark.app.name": app_name, **_anywhere(), **_quiet(wanted.get(_JAVA_OPTIONS, ""))}
        settings[DRIVER_MEMORY] = f"{_driver_mib()}m"
        local = place.startswith("local")
        if local:
            settings |= _local(place)
    if _JAVA_OPTIONS in wanted and _JAVA_OPTIONS in settings and _LOG_SETTING not in wanted[_JAVA_OPTIONS]:
        wanted[_JAVA_OPTIONS] = f"{settings[_JAVA_OPTIONS]} {wanted[_JAVA_OPTIONS]}"
    for name, value in (settings | wanted).items():
        builder = builder.config(name, value)
    with _uninterrupted():
        spark = builder.getOrCreate()
    if local:
        write_quickly(spark)
        trust(spark.sparkContext)
    return spark


def complaints(spark: SparkSession, wanted: dict[str, str] | None = None) -> list[str]:
    """Problems of a session that penstock did not start, one sentence each; empty if there are none.

    Args:
        spark: The session; it is not changed.
        wanted: Settings asked for, by name, which an active session may or may not have.
    """
    found: list[str] = []
    reused = str(spark.conf.get(_REUSE, "true")).lower()
    if reused != "true" and _REUSE not in (wanted or {}):
        found.append(
            f"The active Spark session has {_REUSE}={reused}, so every epoch would start its Python workers anew; start it with {_REUSE}=true."
        )
    for name, value in (wanted or {}).items():
        if (actual := spark.conf.get(name, None)) != value:
            found.append(
                f"The active Spark session has {name}={actual or 'nothing'}, not {value} as asked; stop it first, or leave that out."
            )
    return found


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C while Java starts: PySpark would forget the process, which then waits for ever."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:  # None: it is not Python's to handle
        yield
        return
    pressed: list[int] = []

    def note(number: int, _: object) -> None:
        pressed.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # otherwise a new session has put its own there
            signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)


def _anywhere() -> dict[str, str]:
    """Settings for any master."""
    return {
        _REUSE: "true",
        ADAPTIVE: "false",  # an epoch's partitions are penstock's to choose
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        TIME_ZONE: "UTC",
        **HANDING,
    }


def _quiet(given: str) -> dict[str, str]:
    """Settings that silence a new driver and let it start soon; `given` are the user's options for its Java."""
    import pyspark

    log = Path(__file__).with_name("log4j2.properties")
    spark_home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    archive = archive_options(cache_directory(), os.environ["JAVA_HOME"], spark_home, os.environ, given)
    return {
        _JAVA_OPTIONS: " ".join((f"-D{_LOG_SETTING}={log.as_uri()}", *archive)),
        UI: "false",
        PROGRESS: "false",
    }


def _local(master: str) -> dict[str, str]:
    """Settings for a master on this machine; sets the environment that the JVM and its Python workers inherit."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warehouse = tempfile.mkdtemp(prefix="penstock-warehouse-")
    atexit.register(shutil.rmtree, warehouse, ignore_errors=True)
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        SHUFFLE: str(_cores(master)),
        "spark.sql.warehouse.dir": Path(warehouse).as_uri(),
    }


def _cores(master: str) -> int:
    """How many tasks a local master runs at a time."""
    if master == "local":
        return 1
    found = re.match(r"local(?:-cluster)?\[\s*([0-9]+)", master)
    if found:
        return max(1, int(found[1]))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _driver_mib() -> int:
    """A quarter of the memory that this process may have, in MiB: at least 1 GiB, at most 8."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # what a container may have
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        memory_bytes = min(memory_bytes, int(text))
    return min(max(memory_bytes // 4, _GIB), 8 * _GIB) >> 20


def _text(value: object) -> str:
    """A setting's value as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
