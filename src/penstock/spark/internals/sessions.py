"""Sessions and their application, as neither PySpark's public names show them.

| call | for | without it |
|---|---|---|
| `cloneSession` of Java | a copy of a session with its views and functions | a new session with its settings; temporary views and functions are left behind |
| `SparkSession._activeSession` | the user's session is the active one again after an epoch | no public way: nothing is set back |
| `SparkSession.setActiveSession` of Java | the session of an epoch is the active one in its thread, as in a query's | none is |
| `SparkContext._active_spark_context` | whether there is a session already | asking would start one |
| `SparkContext._ensure_initialized` | what was submitted, before there is a session | settings of `spark-submit` could not be told from penstock's |
| `_jsc.sc().isStopped` | whether a session was stopped under a flow | the flow fails with Spark's words |
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.spark.internals.plans import is_missing


def has_begun() -> bool:
    """Whether this process has a session, or an application, already; asking starts nothing."""
    return SparkContext._active_spark_context is not None


def meet_submitted() -> None:
    """Connect to the Java that spark-submit has started: SparkConf reads what was submitted only from a known one."""
    SparkContext._ensure_initialized()


def copy_of(spark: SparkSession) -> SparkSession:
    """A copy of a session: its catalog, views and functions, its settings."""
    theirs: Any = spark
    try:
        return SparkSession(spark.sparkContext, theirs._jsparkSession.cloneSession())
    except Py4JError as error:
        if not is_missing(error):
            raise
        return with_settings_of(spark)


def with_settings_of(spark: SparkSession) -> SparkSession:
    """A new session with the settings of another that can be set; temporary views and functions are left behind."""
    ours = spark.newSession()
    there = ours.conf.getAll
    for name, value in spark.conf.getAll.items():
        if there.get(name) != value and ours.conf.isModifiable(name):
            ours.conf.set(name, value)
    return ours


def active() -> SparkSession | None:
    """The session that this process counts as the active one, in all threads."""
    return SparkSession._activeSession


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this process; Java is not told."""
    SparkSession._activeSession = spark


def activate_in_java(spark: SparkSession) -> None:
    """Make a session the active one of this thread, as Java counts it."""
    ours: Any = spark
    ours._jvm.SparkSession.setActiveSession(ours._jsparkSession)


def is_stopped(spark: SparkSession) -> bool:
    """Whether the application of a session has ended, or Java itself is gone."""
    context: Any = spark.sparkContext
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError):
        return True


__all__ = ["activate", "activate_in_java", "active", "copy_of", "has_begun", "is_stopped", "meet_submitted", "with_settings_of"]
