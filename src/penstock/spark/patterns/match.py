"""``penstock.match``: a pattern over a batch DataFrame.

The JVM evaluates the tests and brings the events of a key to one worker, which sorts them (``penstock.patterns.sorting``, in
less than half of Spark's time) and recognises all its keys in one pass (``penstock.patterns.batch``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.arrow.columns import values_of
from penstock.arrow.pages import PAGES, decode_pages
from penstock.errors import DeclarationError, OperatorError, raised
from penstock.patterns.algebra import Query
from penstock.patterns.batch import PLACE, Spread, enumerated, matches_of, spread_schema
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.enumeration.maximal import ID, Maximal, MaximalDisjoint, labelled, load_share
from penstock.patterns.enumeration.work import LIGHT_JUDGED, CountedSplit, load_work
from penstock.patterns.plan import (
    KEY,
    MAX_MATCHES_PER_EVENT,
    WHEN,
    Pattern,
    check_source_of_types,
    ready,
    words_sql,
)
from penstock.patterns.predicates import check_query, check_time, expressions_of, text_sql, whole_text
from penstock.patterns.result_columns import shape_of
from penstock.patterns.sorting import Sorting, is_sortable, is_whole
from penstock.patterns.source_locations import error_in
from penstock.patterns.streams import streams_read
from penstock.routing.hashing import is_hashable
from penstock.spark.exchange import by_key, can_be_paged
from penstock.spark.internals.arrow_types import to_arrow, to_spark
from penstock.spark.internals.connect import is_connect
from penstock.spark.internals.expressions import regex_refusal
from penstock.spark.internals.plans import taken_over
from penstock.spark.internals.shuffle import to_partitions
from penstock.spark.memory import begin_task
from penstock.spark.session.connected import check_server
from penstock.spark.session.own import results_session
from penstock.spark.session.pythons import check_python
from penstock.sql_text.given import as_spelled, as_texts, flat
from penstock.sql_text.schema import as_function, as_text, check_condition, quoted, unknown_column
from penstock.types import HASH, HIDDEN, MASK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

STREAM = "__ps_stream"


def match(
    df: DataFrame | Mapping[str, DataFrame],
    query: str,
    *,
    order_by: str | Column | Sequence[str | Column],
    type: str | Column | None = None,  # noqa: A002  (the public name)
    define: Mapping[str, str | Column] | None = None,
    strategy_scope: str = "end",
    events_window: str = "global",
    enumerate_with: CountedSplit | MaximalDisjoint | Maximal | None = None,
    where: str | Callable[[Any], bool] | None = None,
    max_matches_per_event: int = MAX_MATCHES_PER_EVENT,
) -> DataFrame:
    """Find the matches of a CEQL query in a batch DataFrame.

    Args:
        df: The events. Or several streams of events by their names, for ``FROM`` and ``stream>type`` to tell apart; they are merged
            in order, and a column that a stream lacks is null in its events.
        query: The query, for example ``SELECT * WHERE A ; B+ ; C PARTITION BY [user] WITHIN 10 MINUTES``.
        order_by: The column, or columns, that order the events. Two events of a key must not have the same place; nor any two
            where keys are seen together: with ``CONSUME BY ANY``, or ``WITHIN n EVENTS`` of the whole DataFrame.
        type: The column that holds each event's type name. Or:
        define: For each type name the condition, SQL or a Column, for an event to be of it; an event may be of several types, or of none.
        strategy_scope: What a selection strategy compares: ``"end"``, all matches of a key that end with the same event; ``"interval"``,
            those that also begin with the same.
        events_window: What ``WITHIN n EVENTS`` counts: ``"global"``, the events of the whole DataFrame (which costs a sort of it all in
            one task when the query is partitioned); ``"key"``, those of the key.
        enumerate_with: How the enumeration of many matches is spread over the cluster; if not given, ``CountedSplit()``, or not at all
            where the query bounds how many can end with one event.
            ``MaximalDisjoint()`` and ``Maximal()`` give the same matches, of sequences of different types only.
        where: A condition on whole matches: SQL over the output columns, or a Python function of an output row, whose events are
                dicts.
        max_matches_per_event: More matches of one closing event fail the query instead of filling the disk.

    Returns:
        One row per match: the key columns of ``PARTITION BY``, ``match_start`` and ``match_end`` (values of the first order column), and
        arrays of events: for ``SELECT *`` the column ``events`` and one for each AS-name, for ``SELECT a, b[x]`` one for each variable.
        ``SELECT NONE`` gives the interval only, ``SELECT COUNT(*)`` the columns ``match_end`` and ``matches`` (decimal(38,0)). Events
        without a key are left out.

    Raises:
        QueryError: The query is wrong, or does not fit the columns.
        DeclarationError: Another argument is wrong.

    Example:
        >>> events = spark.createDataFrame([(1, "ann", "start"), (5, "ann", "stop")], "at int, car string, kind string")
        >>> trips = ps.match(events, "SELECT * WHERE start ; stop PARTITION BY [car]", order_by="at", type="kind")
        >>> trips.select("car", "match_start", "match_end").collect()
        [Row(car='ann', match_start=1, match_end=5)]
    """
    parsed = parse(query)
    defined: Any = as_texts(define)
    df, theirs = _taken_over(df)
    events, schema, streams = _events(df, parsed)
    columns = schema.names
    if taken := [name for name in columns if name.lower().startswith(HIDDEN)]:
        raise DeclarationError(f"Column {taken[0]!r} has a name that is penstock's own; rename what begins with {HIDDEN}.")
    order = _order(order_by, schema)
    of_type: Any = as_spelled(type, columns, "type")
    check_source_of_types(schema, of_type, defined)
    for stream in streams:
        for name in (*order, of_type):
            if name is not None and name not in df[stream].columns:
                raise DeclarationError(f"Stream {stream!r} has no column {name!r}, which every stream must have.")
    check_query(parsed, schema, types=None if defined is None else dict(defined))
    check_time(parsed, order[0], schema.field(order[0]).type)
    check_expressions(expressions_of(parsed), events.sparkSession, parsed.text)
    keys = tuple("_".join(group) for group in parsed.partition_by)
    by = CountedSplit() if enumerate_with is None else enumerate_with
    if not isinstance(by, (CountedSplit, MaximalDisjoint, Maximal)):
        raise DeclarationError(f"enumerate_with must be CountedSplit(), MaximalDisjoint() or Maximal(), not {by!r}.")
    if callable(where) and by == CountedSplit():
        by = CountedSplit(LIGHT_JUDGED)
    from_maximal = not isinstance(by, CountedSplit)
    pattern = ready(
        labelled(parsed, by.__class__.__name__) if from_maximal else parsed,
        tuple(columns),
        order=order,
        keys=keys,
        scope=strategy_scope,
        events_window=events_window,
        max_matches_per_event=max_matches_per_event,
    )
    if from_maximal:  # the names that distinguish the parts are not shown
        pattern = replace(pattern, shape=shape_of(parsed, tuple(columns), pattern.automaton.kinds, keys))
    prepared, sorting, paged = _prepared(events, parsed, pattern, words_sql(pattern.automaton.tests, defined, of_type, streams))
    here = enumerate_with is None and pattern.enumerates_locally and not callable(where)
    found = _found(prepared, sorting, paged, pattern, None if here else by)
    return taken_over(found if where is None else _where(found, where), theirs or found.sparkSession)


def tasks_at_a_time(spark: SparkSession) -> int:
    """How many tasks of a session run at a time."""
    return check_server(spark) if is_connect(spark) else spark.sparkContext.defaultParallelism


def _taken_over(df: Any) -> tuple[Any, SparkSession | None]:
    """The input in a session with the settings of `penstock.spark.session.own.RESULTS`, and the user's session."""
    from pyspark.sql import DataFrame

    frames = list(df.values()) if isinstance(df, Mapping) else [df]
    if not frames or not all(isinstance(frame, DataFrame) for frame in frames):
        return df, None  # refused later
    theirs = frames[0].sparkSession
    if is_connect(theirs):
        check_server(theirs)
    else:
        check_python(theirs)
    session = results_session(theirs)
    if isinstance(df, Mapping):
        return {name: taken_over(frame, session) for name, frame in df.items()}, theirs
    return taken_over(df, session), theirs


def _events(df: Any, query: Query) -> tuple[DataFrame, pa.Schema, dict[str, str]]:
    """The events that a query reads, their columns, and the condition for an event to come from each of several streams."""
    if not isinstance(df, Mapping):
        streams_read(query, (), "the DataFrame is one stream; give a dict of DataFrames by name")
        return df, _events_schema(df), {}
    for name in df:
        as_text(name, "The name of a stream")
    for frame in df.values():
        _events_schema(frame)
    if not df:
        raise DeclarationError("match needs at least one stream, but the dict of DataFrames is empty.")
    read = streams_read(query, tuple(df), "match was given others")
    streams = {name: df[name] for name in read}
    _check_alike(streams)
    merged = _merged(streams)
    return merged, _events_schema(merged.drop(STREAM)), {name: f"{STREAM} = {text_sql(name)}" for name in read}


def _check_alike(streams: Mapping[str, DataFrame]) -> None:
    """Check that a column has one spelling and one type in all streams that have it."""
    from penstock.spark.columns import case_counts

    seen: dict[str, tuple[str, str, str]] = {}
    for stream, frame in streams.items():
        sensitive = case_counts(frame.sparkSession)
        for name, kind in frame.dtypes:
            first, spelled, other = seen.setdefault(name if sensitive else name.lower(), (stream, name, kind))
            if spelled != name:
                raise DeclarationError(
                    f"Stream {stream!r} has column {name!r}, which stream {first!r} spells {spelled!r}; rename one."
                )
            if other != kind:
                raise DeclarationError(
                    f"Column {name!r} is {other} in stream {first!r} and {kind} in stream {stream!r}; cast one of them."
                )


def _merged(streams: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of all streams, each with its stream's name."""
    from pyspark.sql import functions as F  # noqa: N812

    first, *others = (frame.withColumn(STREAM, F.lit(name)) for name, frame in streams.items())
    for other in others:
        first = first.unionByName(other, allowMissingColumns=True)
    return first


def _events_schema(df: Any) -> pa.Schema:
    """The columns of the input."""
    from pyspark.sql import DataFrame

    if not isinstance(df, DataFrame):
        raise DeclarationError(f"match reads a DataFrame of Spark, not {type(df).__module__}.{type(df).__name__}.")
    if df.isStreaming:
        raise DeclarationError(
            "match reads a batch DataFrame; a stream is matched in a flow: .key_by('column').match(query, ...)."
        )
    twice = sorted({name for name in df.columns if df.columns.count(name) > 1})
    if twice:
        raise DeclarationError(f"The DataFrame has two columns named {twice[0]!r}; rename one.")
    return arrow_schema(df)


def _order(order_by: Any, schema: pa.Schema) -> tuple[str, ...]:
    """The columns that order the events."""
    names = tuple(as_spelled(name, schema.names, "order_by") for name in flat([order_by]))
    if not names:
        raise DeclarationError("order_by needs a column that orders the events.")
    for name in names:
        if not isinstance(name, str):
            raise DeclarationError(f"order_by must be a column's name, or a list of them, not {order_by!r}.")
        if name not in schema.names:
            raise unknown_column(name, schema.names, "order_by")
        if pa.types.is_nested(schema.field(name).type):
            raise DeclarationError(
                f"order_by names column {name!r} of {schema.field(name).type}, which gives no order of events."
            )
    return names


def check_expressions(expressions: Iterable[str], spark: SparkSession, text: str) -> None:
    """Check a query's regular expressions with Java, whose they are. ``text``: the query's.

    Raises:
        QueryError: One is invalid.
    """
    for pattern in sorted(expressions):
        # By itself, and as it is run: a comment or a quotation that does not end would swallow what is put around it.
        for tried in (pattern, whole_text(pattern)):
            if (why := regex_refusal(spark, tried)) is not None:
                raise error_in(text, pattern, f"LIKE {pattern!r} is not a regular expression: {why}.")


def arrow_schema(df: DataFrame) -> pa.Schema:
    """The columns of a DataFrame as Arrow has them."""
    return to_arrow(df.schema)


def _prepared(
    df: DataFrame, query: Query, pattern: Pattern, words: list[str]
) -> tuple[DataFrame, Sorting | None, pa.Schema | None]:
    """The events with what workers need of them, brought together by key; how workers are to sort them (None: they are sorted); and how they come
    in pages (None: they come as rows).
    """
    from pyspark.sql import functions as F  # noqa: N812

    hidden: list[Column] = [F.expr(sql).alias(f"{MASK}{i}") for i, sql in enumerate(words)]
    groups = [F.coalesce(*(F.col(quoted(name)) for name in group)) for group in query.partition_by]
    hidden += [group.alias(name) for name, group in zip(pattern.key_columns, groups, strict=True) if name.startswith(KEY)]
    order = [quoted(name) for name in pattern.order]
    if query.window is not None and query.window.kind == "attribute":
        hidden.append(F.col(quoted(str(query.window.attribute))).alias(WHEN))
    elif query.window is not None and query.window.kind == "events" and pattern.events_window == "global":
        hidden.append(_number(pattern.order).alias(WHEN))
    prepared = df.select(*(quoted(name) for name in pattern.needed), *hidden)
    names = [quoted(name) for name in pattern.key_columns]
    for name in names:
        prepared = prepared.where(F.col(name).isNotNull())
    if pattern.row_filter is not None:  # the rest is not even shuffled
        prepared = prepared.where(pattern.row_filter)
    together = [] if pattern.needs_global_order else names
    shuffled = prepared.repartition(*together) if together else prepared.repartition(1)
    columns = arrow_schema(prepared)
    kinds = [columns.field(name).type for name in pattern.key_columns]
    if not all(is_sortable(columns.field(name).type) for name in pattern.order) or not all(map(is_hashable, kinds)):
        return shuffled.sortWithinPartitions(*together, *order), None, None
    if not together:
        return shuffled, Sorting(pattern.order), None
    if len(together) == 1 and is_whole(kinds[0]):
        sorting = Sorting((*pattern.key_columns, *pattern.order))
    else:
        sorting = Sorting((HASH, *pattern.order), pattern.key_columns)
    if can_be_paged(prepared.sparkSession, columns):
        return by_key(prepared, [columns.get_field_index(name) for name in pattern.key_columns]), sorting, columns
    return shuffled, sorting, None


def _number(order: Sequence[str]) -> Column:
    """An event's number among the events of all keys; an error if the order is ambiguous."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    from penstock.spark.failures import OURS

    names = [quoted(name) for name in order]
    everything = Window.orderBy(*names)
    number = F.row_number().over(everything)
    where = F.concat_ws(", ", *(F.coalesce(F.col(name).cast("string"), F.lit("NULL")) for name in names))
    complaint = F.concat(
        F.lit(f"{OURS}Two events at ("),
        where,
        F.lit(
            f") have the same position in the order by {', '.join(order)}, but WITHIN n EVENTS counts the events of all keys; name a "
            "further column in order_by that distinguishes them, or use events_window='key'."
        ),
    )
    return F.when(F.rank().over(everything) == number, number.cast("bigint")).otherwise(F.raise_error(complaint).cast("bigint"))


def _over_batches(
    df: DataFrame, run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], columns: pa.Schema, result: pa.Schema
) -> DataFrame:
    """``mapInArrow`` for columns of any name, with times as declared whatever the session's time zone."""

    def run_declared(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        return run(_declared(batch, columns) for batch in batches)

    if not _are_plain(df.columns):  # mapInArrow does not quote names; and to rename is to copy every row
        df = df.toDF(*(f"c{i}" for i in range(len(columns))))
    return df.mapInArrow(run_declared, to_spark(result))


def _are_plain(names: Sequence[str]) -> bool:
    """Whether the column names are distinct whatever the session's case sensitivity."""
    return all(name.isascii() and name.isidentifier() for name in names) and len({name.lower() for name in names}) == len(names)


def _declared(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """A batch as declared; there are many, so nothing is cast unnecessarily."""
    arrays = batch.columns
    if all(array.type == field.type for array, field in zip(arrays, columns, strict=True)):
        return pa.RecordBatch.from_arrays(arrays, schema=columns)
    return batch.rename_columns(columns.names).cast(columns)


def _found(
    prepared: DataFrame,
    sorting: Sorting | None,
    paged: pa.Schema | None,
    pattern: Pattern,
    split: CountedSplit | MaximalDisjoint | Maximal | None,
) -> DataFrame:
    """The matches; with ``split`` None all are enumerated where they are found."""
    from pyspark import TaskContext
    from pyspark.sql import functions as F  # noqa: N812

    columns = arrow_schema(prepared) if paged is None else paged
    came = columns if paged is None else PAGES
    fields = [pa.field(name, columns.field(own).type) for name, own in zip(pattern.keys, pattern.key_columns, strict=True)]
    result = pattern.result(pa.schema([columns.field(name) for name in pattern.needed]), fields)

    def in_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if paged is not None:
            batches = decode_pages(batches, paged)
        if sorting is None:
            return batches
        folders = os.environ.get("SPARK_LOCAL_DIRS", "")  # as in Spark's Python workers
        return sorting.sorted(batches, folders.split(",")[0] or None)

    if split is None or (not pattern.spreads and isinstance(split, CountedSplit)):

        def recognise(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return matches_of(pattern, columns, in_order(batches))

        return _over_batches(prepared, recognise, came, result)
    if isinstance(split, Maximal):
        result = result.append(pa.field(ID, pa.binary()))
    workers = tasks_at_a_time(prepared.sparkSession)

    def recognise_and_share(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        spread = Spread(split, workers, 0 if context is None else context.partitionId())
        return matches_of(pattern, columns, in_order(batches), spread)

    def enumerate_matches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return enumerated(pattern, result, batches, load_work if isinstance(split, CountedSplit) else load_share)

    needs_global_order = spread_schema(result)
    shared = _over_batches(prepared, recognise_and_share, came, needs_global_order)
    found = _over_batches(to_partitions(shared, workers, F.col(PLACE)), enumerate_matches, needs_global_order, result)
    return found.dropDuplicates([ID]).drop(ID) if isinstance(split, Maximal) else found


def _where(found: DataFrame, condition: str | Callable[[Any], bool]) -> DataFrame:
    if isinstance(condition, str):
        check_condition(condition, arrow_schema(found), "where")
        return found.where(condition)
    as_function(condition, "where", "fn(match)")
    from pyspark.sql import Row

    columns = arrow_schema(found)

    def holds(match: Row) -> bool:
        try:
            return bool(condition(match))
        except Exception as error:
            raise OperatorError(f"The function of where failed on {match}: {raised(error)}; fix it.") from error

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = zip(*map(values_of, batch.columns), strict=True)
            keep = [holds(Row(**dict(zip(columns.names, row, strict=True)))) for row in rows]
            yield batch.filter(pa.array(keep, pa.bool_()))

    return _over_batches(found, run, columns, columns)
