"""What users of PySpark, Bytewax, Quix Streams and Flink type, and how penstock spells it: an attribute that is not there says so.

The error is an AttributeError, so that ``hasattr`` and whatever looks for methods work as usual.

Read next: `penstock.flow.stream`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.errors import SpellingError

_MAP: Final = "with_columns(name='SQL') for expressions, map_batches(fn, schema) for Python over Arrow batches, or after key_by stateful_map(fn, schema)"
_KEY: Final = "key_by('column')"
_WINDOW: Final = "key_by('column').window(penstock.tumbling('1 hour')).aggregate(n=penstock.count())"
_SINK: Final = "sink(penstock.parquet('folder')), or sql, redis_stream, console, memory, foreach_epoch"
_ROWS: Final = "a flow's rows are in its sinks: sink(penstock.console()) shows them, penstock.memory('name').rows() gives them"
_UNORDERED: Final = (
    "rows of a stream have no end to be ordered or cut by; aggregate them in a window, or do it where the sink's rows are read"
)
_STATE: Final = "key_by('column').stateful_map(fn, schema), with fn(key, event, state) -> (outputs, state)"
_LATE: Final = "flow.source(…, time='at', lateness='10 minutes')"
_PARTS: Final = "key_by(…, workers=4), or distribute(penstock.Shuffle(), workers=4) for steps without state"

STREAM: Final[Mapping[str, str]] = {
    word: hint
    for words, hint in {
        "groupBy groupby group_by groupByKey key_on keyBy keyed_by partition_by partitionBy": _KEY,
        "withColumn withColumns assign apply_columns": "with_columns(name='SQL', …)",
        "withColumnRenamed withColumnsRenamed rename toDF": "select('old AS new', …), or with_columns(new='old').drop('old')",
        "selectExpr project": "select('SQL AS name', …)",
        "map flatMap flat_map filter_map map_value flat_map_value mapValues mapInArrow mapInPandas mapPartitions foreachPartition update": _MAP,
        "query": "where('SQL')",
        "writeStream write writeTo to_topic toTable addSink add_sink sinkTo sink_to output to to_sink insertInto": _SINK,
        "foreach foreachBatch foreach_batch": "sink(penstock.foreach_epoch(fn))",
        "show toPandas toArrow collect take head tail first toLocalIterator print inspect peek display": _ROWS,
        "start awaitTermination": "flow.start(checkpoint='folder'), which starts all that hangs on the flow",
        "withWatermark set_timestamp assign_timestamps_and_watermarks assignTimestampsAndWatermarks": _LATE,
        "dropDuplicates drop_duplicates dropDuplicatesWithinWatermark distinct": "key_by('column').deduplicate('other', within='1 hour')",
        "agg count sum mean avg max min reduce fold fold_window collect_window count_window reduce_window fold_final count_final reduce_final": _WINDOW,
        "tumbling_window hopping_window sliding_window session_window timeWindow windowBy groupByWindow": _WINDOW,
        "transformWithState transformWithStateInPandas applyInPandasWithState applyInPandas mapGroupsWithState flatMapGroupsWithState cogroup "
        "stateful_flat_map stateful": _STATE,
        "unionAll unionByName merge concat": "union(other), of the same columns in the same order",
        "orderBy sort limit offset sample sortWithinPartitions": _UNORDERED,
        "repartition coalesce rebalance redistribute shuffle repartitionByRange setParallelism": _PARTS,
        "crossJoin": "key_by('column').join(other, within='10 minutes')",
        "cache persist checkpoint localCheckpoint unpersist": "nothing: a flow keeps what it needs in the folder that start(checkpoint=…) names",
        "fillna na dropna replace": "with_columns(name=\"coalesce(name, 0)\"), where('name IS NOT NULL')",
        "explode": "map_batches(fn, schema), whose column _row has the input row of each output row",
        "printSchema dtypes": "print(stream.schema), or stream.columns",
        "branch": "split(name='SQL', …)",
        "alias": "nothing: a stream is a Python variable",
        "createOrReplaceTempView createTempView": "nothing: a stream is a Python variable; SQL goes into where, select and with_columns",
        "pivot rollup cube": "penstock has no pivot; aggregate each column by itself, such as n=penstock.sum('CASE WHEN kind = \"a\" THEN 1 END')",
    }.items()
    for word in words.split()
}
"""By the word that a user types on a stream: penstock's spelling."""

FLOW: Final[Mapping[str, str]] = {
    word: hint
    for words, hint in {
        "readStream read stream input add_source addSource from_source dataframe fromSource topic": "flow.source('name', penstock.files('folder', 'a string, b long'), time='at')",
        "run execute awaitTermination cluster_main run_main": "flow.start(checkpoint='folder').await_termination()",
        "writeStream sink output": "stream.sink(…) on a stream of the flow, which source(…) gives",
    }.items()
    for word in words.split()
}
"""The same for a flow."""

RUN: Final[Mapping[str, str]] = {
    word: hint
    for words, hint in {
        "awaitTermination join wait": "run.await_termination(timeout)",
        "stop cancel close terminate kill": "run.shutdown(drain=True)",
        "isActive is_active": "run.active",
        "lastProgress recentProgress status": "run.progress",
        "processAllAvailable": "flow.start(trigger='available_now'), which ends when all that is there is processed",
        "savepoint": "run.snapshot('name')",
        "rescale": "run.scale('region', workers)",
    }.items()
    for word in words.split()
}
"""The same for a run."""

MODULE: Final[Mapping[str, str]] = {
    word: hint
    for words, hint in {
        "col column expr lit when udf": "SQL as text where an expression goes, such as where('delay > 5'), or a Column of pyspark.sql.functions",
        "window Window TumblingWindow tumble": _WINDOW,
        "hopping hop SlidingWindow": _WINDOW.replace("tumbling('1 hour')", "sliding('1 hour', '10 minutes')"),
        "session_window SessionWindow": _WINDOW.replace("tumbling('1 hour')", "session('10 minutes')"),
        "Application Dataflow StreamExecutionEnvironment StreamingContext StreamingQuery Pipeline App Job Topology": "penstock.Flow('name')",
        "SparkSession": "flow.start(checkpoint='folder'), which makes a session, or from pyspark.sql import SparkSession",
        "read readStream from_files csv json read_csv read_parquet read_json input source": FLOW["readStream"],
        "run start run_main cli_main execute": FLOW["run"],
        "join groupBy group_by key_by stateful_map deduplicate union": "it on a stream: flow.source(…).key_by('column'), then join(other, within='10 minutes') or what else keeps state",
        "where filter select with_columns withColumn map flat_map": "it on a stream: flow.source(…).where('SQL')",
        "StatefulProcessor ValueState MapState ProcessFunction transformWithState": _STATE,
        "average": "mean('column')",
        "std stdev stddev_samp": "stddev('column')",
        "median percentile percentile_approx approx_percentile approx_quantile": "quantile('column', 0.5)",
        "countDistinct n_unique nunique": "count_distinct('column')",
        "collect_list array_agg collect_set": "collect('column')",
        "sqlite postgres postgresql duckdb jdbc": "sql('sqlite:///file.db', 'table')",
        "stdout show": "console()",
        "redis": "redis_streams(url, 'stream', 4, schema) to read, redis_stream(url, 'stream', 4) to write",
        "scale": "run.scale('region', workers) of the run that flow.start(…) gives",
        "Stateful Source Sink": "penstock.Operator for a step; a source extends penstock.sources.base.Source, a sink is penstock.sinks.Sink",
    }.items()
    for word in words.split()
}
"""The same for the module itself."""


def missing(what: str, attribute: str, words: Mapping[str, str], there: Iterable[str]) -> AttributeError:
    """The error for an attribute that does not exist: what penstock calls it, or the nearest that there is.

    Args:
        what: Of what, for people: ``"A stream"``.
        attribute: Its name.
        words: By what users type, penstock's spelling.
        there: The attributes that there are.
    """
    if attribute.startswith("_"):  # asked for by Python and by tools, not typed
        return AttributeError(attribute)
    if (hint := words.get(attribute)) is not None:
        return SpellingError(
            f"{what} has no .{attribute}; write {hint}."
            if not hint.startswith(_TELLING)
            else f"{what} has no .{attribute}: {hint}."
        )
    names = [n for n in there if not n.startswith("_")]
    near = next(iter(difflib.get_close_matches(attribute, names, 1)), None)
    return SpellingError(f"{what} has no attribute {attribute!r}{f'; did you mean {near!r}?' if near else '.'}")


_TELLING: Final = ("rows of", "a flow's", "nothing", "penstock has")

__all__ = ["FLOW", "MODULE", "RUN", "STREAM", "missing"]
