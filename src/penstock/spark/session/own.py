"""Sessions of penstock's own, in which flows and patterns are computed whatever the session says that they were started with.

Results must not depend on who starts a flow, nor where: the zone of a machine, an old way to parse times, integers that wrap. So a flow's
query runs in a copy of the user's session (its catalog, views and functions, its settings) with those settings replaced that change results
or the number of tasks. The user's session is never changed, so flows that are started at the same time do not disturb each other.

Read next: `penstock.spark.run`, decision 30.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.errors import DeclarationError, PenstockError
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
_TEXT: Final = ("csv", "json", "xml")
_T = TypeVar("_T")
_AWARE: Final = "org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression"


def query_session(spark: SparkSession) -> SparkSession:
    """A session for a flow's query: a copy of the user's, with penstock's settings. See `fit_shuffles` for the number of tasks.

    Args:
        spark: The user's session; its settings are not changed. Those who listen to its queries hear of this one, too.

    Raises:
        DeclarationError: The session's workers cannot run penstock. Nothing was started.
    """
    check_python(spark)
    ours = _copy(spark, _QUERY)
    theirs: Any = spark._jsparkSession
    for listener in theirs.streams().listListeners():
        ours._jsparkSession.streams().addListener(listener)
    return ours


def refuse_connect(given: _T, where: str) -> _T:
    """Give back what is no session or DataFrame of Spark Connect; of those the plans are not at hand.

    Raises:
        DeclarationError: It is one.
    """
    if type(given).__module__.startswith("pyspark.sql.connect."):
        raise DeclarationError(
            f"{where[0].upper()}{where[1:]} was given a {type(given).__name__} of Spark Connect, which penstock does not support; take one of a "
            "session that was started without a remote."
        )
    return given


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
    """A session in which a batch is computed as `RESULTS` say: the one given if it says the same, else a copy."""
    zone, *others = RESULTS.items()
    if str(spark.conf.get(zone[0])).lower() in ZONES_OF_UTC and all(
        str(spark.conf.get(name)).lower() == value.lower() for name, value in others
    ):
        return spark
    return _copy(spark, RESULTS)


def taken_over(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same DataFrame as one of another session of the same application: what is computed of it goes by that one's settings.

    What it was computed of goes by its own: a DataFrame's expressions are resolved when it is declared.
    """
    from pyspark.sql import DataFrame

    if frame.sparkSession is session:
        return frame
    jdf: Any = frame._jdf
    jvm: Any = session._jvm
    plan = jdf.queryExecution().analyzed()
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def give_back(theirs: SparkSession) -> None:
    """Make the user's session the active one of this process again, if one of penstock's own is.

    ``createDataFrame`` makes its session the active one, for all threads of Python; a user's function may call it in an epoch.
    """
    from pyspark.sql import SparkSession

    active = SparkSession._activeSession
    if active is not None and active is not theirs and active.conf.get(OURS, None) is not None:
        SparkSession._activeSession = theirs


def stopped(session: SparkSession, flow: str) -> PenstockError | None:
    """What to tell of a flow whose session was stopped under it; None: it was not."""
    from py4j.protocol import Py4JError

    context: Any = session.sparkContext
    try:
        if context._jsc is not None and not context._jsc.sc().isStopped():
            return None
    except (Py4JError, OSError):  # Java itself is gone
        pass
    return PenstockError(
        f"The Spark session was stopped while flow {flow!r} ran; the epoch that it was in was not committed, so start the flow again in another session."
    )


def check_zone(name: str, frame: DataFrame) -> None:
    """A source whose own steps go by another zone than UTC is refused: where the flow is started next, its records could be others.

    Raises:
        DeclarationError: There is such a step.
    """
    zone = str(frame.sparkSession.conf.get(TIME_ZONE))
    jdf: Any = frame._jdf
    if zone.lower() not in ZONES_OF_UTC and (step := _zoned(frame, jdf.queryExecution().analyzed())):
        raise DeclarationError(
            f"Source {name!r} is a DataFrame whose step {step} goes by the zone of its session, {zone}, but a flow is computed in UTC; "
            f"set {TIME_ZONE}=UTC before the DataFrame is declared."
        )


def _zoned(frame: DataFrame, plan: Any) -> str:
    """What in a plan, or below it, goes by the session's zone; empty: nothing."""
    if plan.nodeName() == "StreamingRelation":
        kind, options = str(plan.dataSource().className()).lower(), plan.dataSource().options()
        times = any(name in str(plan.schema().simpleString()) for name in ("timestamp", "date"))
        if kind in _TEXT and times and not any(options.contains(name) for name in ("timeZone", "timezone")):
            return f"that reads times from {kind}"
    for expression in _all(plan.expressions()):
        if step := _zoned_expression(frame, expression):
            return step
    return next((step for child in _all(plan.children()) if (step := _zoned(frame, child))), "")


def _zoned_expression(frame: DataFrame, expression: Any) -> str:
    from py4j.java_gateway import is_instance_of

    gateway: Any = frame.sparkSession.sparkContext._gateway
    if is_instance_of(gateway, expression, _AWARE):
        kind = str(expression.getClass().getSimpleName())
        zone = expression.timeZoneId()
        if (
            zone.isDefined()
            and str(zone.get()).lower() not in ZONES_OF_UTC
            and (kind != "Cast" or bool(expression.needsTimeZone()))
        ):
            return str(expression.sql())
    return next((step for child in _all(expression.children()) if (step := _zoned_expression(frame, child))), "")


def _all(found: Any) -> list[Any]:
    """A sequence of Scala's."""
    return [found.apply(i) for i in range(int(found.size()))]


def _copy(spark: SparkSession, forced: Mapping[str, str]) -> SparkSession:
    """A copy of a session with other settings, marked as penstock's own."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    theirs: Any = spark._jsparkSession
    try:
        ours = SparkSession(spark.sparkContext, theirs.cloneSession())
    except Py4JError:  # not for the public; without it, what can be set is set, and views and functions are left behind
        ours = spark.newSession()
        there = ours.conf.getAll
        for name, value in spark.conf.getAll.items():
            if there.get(name) != value and ours.conf.isModifiable(name):
                ours.conf.set(name, value)
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
    "taken_over",
]
