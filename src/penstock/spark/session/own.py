"""Sessions of penstock's own, in which flows and patterns are computed whatever the session says that they were started with.

Results must not depend on who starts a flow, nor where: the zone of a machine, an old way to parse times, integers that wrap. So a flow's
query runs in a copy of the user's session (its catalog, views and functions, its settings) with those settings replaced that change results
or the number of tasks. The user's session is never changed, so flows that are started at the same time do not disturb each other.

Read next: `penstock.spark.run`, decision 30.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.errors import DeclarationError, PenstockError
from penstock.spark.internals.connect import is_connect
from penstock.spark.internals.queries import share_listeners
from penstock.spark.internals.sessions import activate, active, copy_of, is_stopped
from penstock.spark.internals.zones import zoned_step
from penstock.spark.session.connected import check_settings
from penstock.spark.session.local import HANDING, OURS, ZONES_OF_UTC
from penstock.spark.session.pythons import check_python
from penstock.spark.session.settings import ADAPTIVE, SHUFFLE, TIME_ZONE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULTS: Final = {
    TIME_ZONE: "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}
"""Settings that change what SQL text means or what is read, as every computation of penstock has them."""

_QUERY: Final = {
    **RESULTS,
    ADAPTIVE: "false",  # an epoch's partitions are penstock's to choose
    # The plan of an epoch is run piecewise as batch plans; Spark would refuse because its leaves are streams.
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    # One partition of the scan per file: a row's number in it is then its place. Spark plans the scan of a stream's files with the settings
    # that the session which declared the stream has at that moment.
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
    "spark.sql.files.maxPartitionNum": str((1 << 31) - 1),
}


def query_session(spark: SparkSession) -> SparkSession:
    """A session for a flow's query: a copy of the user's, with penstock's settings. See `fit_shuffles` for the number of tasks.

    Args:
        spark: The user's session; its settings are not changed. Those who listen to its queries hear of this one, too.

    Raises:
        DeclarationError: The session's workers cannot run penstock. Nothing was started.
    """
    if is_stopped(spark):
        raise DeclarationError("The Spark session that was given has been stopped; give another one, or none.")
    check_python(spark)
    ours = _copy(spark, _QUERY)
    share_listeners(spark, ours)
    return ours


def offer(ours: SparkSession, offered: Mapping[str, str]) -> None:
    """Settings for a session of penstock's own of which the user's says nothing, or what sessions say that penstock has started."""
    for name, value in offered.items():
        if ours.conf.get(name, None) in (None, HANDING.get(name)):
            ours.conf.set(name, value)


def fit_shuffles(ours: SparkSession, workers: int) -> str:
    """Have Spark's own shuffles in a flow (partial aggregates, joins of `transform`) make no more tasks than can run at a time.

    Args:
        ours: The session of the query.
        workers: How many workers the flow has; there may be as many tasks at least.

    Returns:
        The number; the one that the session says, if it is less.
    """
    said = str(ours.conf.get(SHUFFLE))
    fitting = str(min(int(said), max(ours.sparkContext.defaultParallelism, workers)))
    ours.conf.set(SHUFFLE, fitting)
    return fitting


def results_session(spark: SparkSession) -> SparkSession:
    """A session in which a batch is computed as `RESULTS` say: the one given if it says the same, else a copy.

    Raises:
        DeclarationError: The session is one of Spark Connect, of which there are no such copies, and says otherwise.
    """
    if is_connect(spark):
        check_settings(spark, RESULTS, ZONES_OF_UTC)
        return spark
    zone, *others = RESULTS.items()
    if str(spark.conf.get(zone[0])).lower() in ZONES_OF_UTC and all(
        str(spark.conf.get(name)).lower() == value.lower() for name, value in others
    ):
        return spark
    return _copy(spark, RESULTS)


def give_back(theirs: SparkSession) -> None:
    """Make the user's session the active one of this process again, if one of penstock's own is.

    ``createDataFrame`` makes its session the active one, for all threads of Python; a user's function may call it in an epoch.
    """
    now = active()
    if now is not None and now is not theirs and now.conf.get(OURS, None) is not None:
        activate(theirs)


def stopped(session: SparkSession, flow: str) -> PenstockError | None:
    """What to tell of a flow whose session was stopped under it; None: it was not."""
    if not is_stopped(session):
        return None
    return PenstockError(
        f"The Spark session was stopped while flow {flow!r} ran; the epoch that it was in was not committed, so start the flow again in another session."
    )


def check_zone(name: str, frame: DataFrame) -> None:
    """A source whose own steps go by another zone than UTC is refused: where the flow is started next, its records could be others.

    Raises:
        DeclarationError: There is such a step.
    """
    zone = str(frame.sparkSession.conf.get(TIME_ZONE))
    if zone.lower() not in ZONES_OF_UTC and (step := zoned_step(frame, ZONES_OF_UTC)):
        raise DeclarationError(
            f"Source {name!r} is a DataFrame whose step {step} goes by the zone of its session, {zone}, but a flow is computed in UTC; "
            f"set {TIME_ZONE}=UTC before the DataFrame is declared."
        )


def _copy(spark: SparkSession, forced: Mapping[str, str]) -> SparkSession:
    """A copy of a session with other settings, marked as penstock's own."""
    ours = copy_of(spark)
    for name, value in {**forced, OURS: "true"}.items():
        ours.conf.set(name, value)
    return ours


__all__ = [
    "RESULTS",
    "SHUFFLE",
    "check_zone",
    "fit_shuffles",
    "give_back",
    "offer",
    "query_session",
    "results_session",
]
