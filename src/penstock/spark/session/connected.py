"""Sessions of Spark Connect: what of penstock they can compute, and what must be so for the results to be those of any other session.

A query is resolved again whenever it is run, by the settings that the session has then, and a session of penstock's own cannot take over a
DataFrame as it is resolved in the user's. So where a setting that changes results differs, penstock refuses and names it.

Read next: `penstock.spark.session.own`.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from penstock.errors import DeclarationError
from penstock.spark.internals.connect import is_connect, speaks_connect
from penstock.spark.session.pythons import first_cause, look
from penstock.spark.session.settings import TIME_ZONE
from penstock.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ALL: Final = 4096
"""More partitions than tasks run at a time: so many rows show how many that are."""
_ways_out: Final = "run the script where Spark is (spark-submit, or a session of SparkSession.builder.master(...)), or leave out spark, and penstock starts one"
_known: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()


def refuse_connect(given: object, where: str) -> None:
    """Refuse a session or DataFrame of Spark Connect for what needs the plans of queries.

    Args:
        given: What was given.
        where: To what, as the sentence begins.

    Raises:
        DeclarationError: It is one. Nothing was started.
    """
    if is_connect(given):
        raise DeclarationError(
            f"{where[0].upper()}{where[1:]} was given a {type(given).__name__} of Spark Connect, over which flows do not run (penstock.match and "
            f"penstock.skew do); {_ways_out}."
        )


def refuse_connected_process() -> None:
    """Refuse to start a session in a process that speaks Spark Connect: it would be one of Connect.

    Raises:
        DeclarationError: It does. Nothing was started.
    """
    if speaks_connect():
        raise DeclarationError(
            "This process speaks Spark Connect (SPARK_REMOTE, spark.api.mode or a remote session), over which flows do not run "
            "(penstock.match and penstock.skew do); start it without."
        )


def check_settings(spark: SparkSession, wanted: Mapping[str, str], zones: frozenset[str]) -> None:
    """Check that a session computes as penstock does.

    Args:
        spark: The session, of Spark Connect.
        wanted: Settings that change results, as they must be.
        zones: Names of the wanted zone, in lower case.

    Raises:
        DeclarationError: A setting differs.
    """
    for name, value in wanted.items():
        told = str(spark.conf.get(name))
        found = told.lower()
        if found != value.lower() and not (name == TIME_ZONE and found in zones):
            raise DeclarationError(
                f"The session of Spark Connect has {name}={told}, and results would depend on it; a DataFrame of Spark Connect is computed in its own "
                f"session, so call spark.conf.set({name!r}, {value!r}) before."
            )


def check_server(spark: SparkSession) -> int:
    """Check that the workers of a Spark Connect server can run penstock; one of them is asked, once per session.

    Returns:
        How many tasks run at a time there.

    Raises:
        DeclarationError: They cannot. Nothing was started.
    """
    if spark in _known:
        return _known[spark]
    # By value: otherwise a missing module could not be reported.
    ask = types.FunctionType(_ask.__code__, {"__builtins__": builtins, "__name__": "__main__", "look": _by_value()})
    try:
        (row,) = spark.range(0, 1, 1, 1).mapInArrow(ask, "worker string, version string, wrong string").collect()
        worker, version, wrong = row
    except Exception as error:  # noqa: BLE001  (reported in a sentence)
        worker, version, wrong = "the server's Python", "", first_cause(error)
    if not wrong and version != __version__:
        wrong = f"it has penstock {version}, this process {__version__}"
    if wrong:
        raise DeclarationError(
            f"The tasks of this Spark Connect server are run by {worker}, which cannot run penstock ({wrong}); install penstock {__version__} there."
        )
    ((tasks,),) = spark.range(_ALL).selectExpr("spark_partition_id() as task").selectExpr("max(task) + 1").collect()
    _known[spark] = int(tasks)
    return _known[spark]


def _by_value() -> types.FunctionType:
    return types.FunctionType(look.__code__, {"__builtins__": builtins, "__name__": "__main__"})


def _ask(batches):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  (runs by value, where no annotation is known)
    import pyarrow as pa

    for _ in batches:
        pass
    yield pa.RecordBatch.from_pylist([dict(zip(("worker", "version", "wrong"), look(0), strict=True))])


__all__ = ["check_server", "check_settings", "refuse_connect", "refuse_connected_process"]
