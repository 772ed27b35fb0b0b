"""Rows to Python and back as Arrow, in a tenth of the calls to Java that PySpark makes for it in each epoch.

| call | for | without it |
|---|---|---|
| `SimplePythonFunction`, `UserDefinedPythonFunction`, `mapInArrow` of Java | ``mapInArrow`` in four calls | PySpark's, in over thirty, half of which look for a class |
| `DataFrame._collect_as_arrow` | batches as Spark gives them | PySpark's ``toArrow``, which asks for settings and types as well |

The constructors differ between versions: whichever takes its arguments is kept, and PySpark's own way otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from penstock.spark.internals.java_columns import columns_of
from penstock.spark.internals.plans import is_missing
from penstock.sql_text.schema import quoted

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_BROADCAST_BYTES: Final = 1 << 20
"""A function that is larger when pickled PySpark sends to each executor only once."""
_NAME: Final = "run"
_FUNCTION: Final = "org.apache.spark.api.python.SimplePythonFunction"
_UDF: Final = "org.apache.spark.sql.execution.python.UserDefinedPythonFunction"


@dataclass
class Java:
    """What is made once in an application.

    Attributes:
        function: The class of functions written in Python.
        udf: The class of those that SQL knows; None: PySpark's own way is taken.
        none: An empty list.
        rest: What the constructor of `udf` takes besides in this version.
        types: Types by their JSON.
        started: What the process of a function is started with.
    """

    function: Any
    udf: Any
    none: Any
    rest: Sequence[Any] = ()
    types: dict[str, Any] = field(default_factory=dict)
    started: dict[Any, tuple[Any, Any]] = field(default_factory=dict)


_java: WeakKeyDictionary[SparkContext, Java] = WeakKeyDictionary()


def map_in_arrow(
    frame: DataFrame, function: BatchFunction, schema: StructType, names: Sequence[str] | None = None
) -> DataFrame:
    """``frame.mapInArrow(function, schema)``.

    Args:
        frame: The rows.
        function: As PySpark takes it.
        schema: The columns of its result.
        names: The columns of `frame`, where they are known: to ask for them takes two calls.
    """
    context: Any = frame.sparkSession.sparkContext
    java = java_of(context)
    try:
        udf = None if java.udf is None else _udf(java, frame, function, schema)
        if udf is not None:
            of, jdf = columns_of(context, [quoted(name) for name in (frame.columns if names is None else names)]), frame._jdf
            return DataFrame(jdf.mapInArrow(udf.apply(of), False, None), frame.sparkSession)
    except Py4JError as error:
        if not is_missing(error):
            raise
        java.udf = None
    return frame.mapInArrow(function, schema)


def java_of(context: Any) -> Java:
    """What is kept of an application."""
    if context not in _java:
        _java[context] = begun(context)
    return _java[context]


def begun(context: Any) -> Java:
    """What an application begins with; where it measures functions written in Python, PySpark adds to what it makes of them."""
    jvm = context._jvm
    udf = getattr(jvm, _UDF) if context.profiler_collector is None else None
    return Java(getattr(jvm, _FUNCTION), udf, jvm.java.util.ArrayList())


def _udf(java: Java, frame: DataFrame, function: BatchFunction, schema: StructType) -> Any | None:
    """The function as Java's; None: it is large."""
    session: Any = frame.sparkSession
    context: Any = session.sparkContext
    pickler: Any = CloudPickleSerializer  # PySpark does not say of what type it is
    command = pickler().dumps((function, schema))
    sent = [broadcast._jbroadcast for broadcast in context._pickled_broadcast_vars]
    context._pickled_broadcast_vars.clear()
    if len(command) > _BROADCAST_BYTES:
        return None
    told = schema.json()
    if told not in java.types:
        java.types[told] = session._jsparkSession.parseDataType(told)
    env, includes = _started(java, context)
    ours = java.function(
        bytearray(command),
        env,
        includes,
        context.pythonExec,
        context.pythonVer,
        sent or java.none,
        context._javaAccumulator,
    )
    return _constructed(java, _NAME, ours, java.types[told], PythonEvalType.SQL_MAP_ARROW_ITER_UDF, True)


def _constructed(java: Java, *given: Any) -> Any:
    try:
        return java.udf(*given, *java.rest)
    except Py4JError as error:
        if java.rest or not is_missing(error):
            raise
        java.rest = [java.none, java.none]  # from 4.3 on: what it becomes in SQL, and of which types; nothing here
        return java.udf(*given, *java.rest)


def _started(java: Java, context: Any) -> tuple[Any, Any]:
    """Environment and files of the process that runs a function, as Java's; files may be added at any time."""
    env, includes = dict(context.environment), list(context._python_includes)
    key = (tuple(sorted(env.items())), tuple(includes))
    if key not in java.started:
        jvm = context._jvm
        theirs, files = jvm.java.util.HashMap(), jvm.java.util.ArrayList()
        for name, value in env.items():
            theirs.put(name, value)
        for name in includes:
            files.add(name)
        java.started.clear()
        java.started[key] = theirs, files
    return java.started[key]


def collected(frame: DataFrame) -> list[pa.RecordBatch]:
    """The rows of a DataFrame, in the types that Spark gives them in."""
    theirs: Any = frame
    if hasattr(theirs, "_collect_as_arrow"):
        batches: list[pa.RecordBatch] = theirs._collect_as_arrow()
        return batches
    return frame.toArrow().to_batches()


__all__ = ["Java", "begun", "collected", "java_of", "map_in_arrow"]
