"""What a user types to declare a flow: `Flow`, `Stream`, `KeyedStream`.

Every method returns a new stream and checks what it was given at once; nothing runs before `Flow.start`. The conveniences of a
`KeyedStream` are all sugar over `KeyedStream.process`.
"""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.flow import plan as p
from penstock.operators.aggregate import AggregateStep
from penstock.operators.aggregates.base import Kernel
from penstock.operators.base import Operator
from penstock.operators.deduplicate import Deduplicate
from penstock.operators.join import IntervalJoin
from penstock.operators.session import SessionStep
from penstock.operators.stateful_map import StatefulMap
from penstock.operators.windows import Session, Window
from penstock.schema import as_schema, check_expression, parse_schema, unknown_column
from penstock.types import duration_us

if TYPE_CHECKING:
    from penstock.spark.run import Run

ERRORS = pa.schema([(n, pa.string()) for n in ("operator", "key", "position", "error", "record")])
MALFORMED = pa.schema([(n, pa.string()) for n in ("source", "position", "error", "record")])


class Flow:
    """A dataflow: sources, streams, regions, sinks.

    Args:
        name: The flow's name; it stands in messages and in the sinks' marks.

    Example:
        >>> flow = Flow("example")
    """

    def __init__(self, name: str) -> None:
        if not name or not isinstance(name, str):
            raise DeclarationError("A flow needs a name, for example Flow('flights').")
        self.name = name
        self._sources: list[p.SourceNode] = []
        self._regions: list[p.Region] = []
        self._outputs: list[p.Output] = []

    def source(
        self,
        name: str,
        source: Any,
        *,
        time: str | None = None,
        lateness: str | dt.timedelta = "0 seconds",
        idle_after: str | dt.timedelta | None = None,
        position: tuple[str, str] | None = None,
        partitions: tuple[Any, ...] | list[Any] = (),
        on_error: Any = "fail",
    ) -> Stream:
        """Declare where records come from.

        Args:
            name: Unique in the flow.
            source: `penstock.files`, `penstock.rate`, or any ``spark.readStream`` DataFrame.
            time: Column with the event time (timestamp). Without it records are processed as they come, per epoch in
                (partition, offset) order, and windows and joins are not possible.
            lateness: A record this far behind the greatest time of its own source partition is late.
            idle_after: A partition without records for so long stops holding the frontier back. Never, unless given.
            position: The columns (partition, offset) of a DataFrame; connectors know theirs. Without it positions are
                local to an epoch: ties in time may then depend on how records were cut into epochs.
            partitions: With `position`, the partitions that must be heard from before the frontier moves. A partition not
                named here is admitted when its first record comes, and judged against the frontier of that moment.
            on_error: Malformed records, and records without event time: ``"fail"`` stops the flow, ``"skip"`` counts them and
                leaves them out, a sink keeps them.

        Raises:
            DeclarationError: A name is taken, a column is missing or of a wrong type.
        """
        if any(s.name == name for s in self._sources):
            raise DeclarationError(f"Flow {self.name!r} has two sources named {name!r}; give each its own name.")
        schema = _connector_schema(source, name)
        what = f"Source {name!r}"
        if time is not None:
            if time not in schema.names:
                raise unknown_column(time, schema.names, f"{what} takes its event time from a column it does not have: time=")
            kind = schema.field(time).type
            if not pa.types.is_timestamp(kind) and not pa.types.is_null(kind):
                raise DeclarationError(
                    f"{what} takes its event time from column {time!r} of type {kind}; cast it to timestamp."
                )
        for column in position or ():
            if column not in schema.names:
                raise unknown_column(
                    column, schema.names, f"{what} takes its positions from a column it does not have: position="
                )
        keep = on_error if not isinstance(on_error, str) else None
        if keep is None and on_error not in ("fail", "skip"):
            raise DeclarationError(f"{what} has on_error={on_error!r}; use 'fail', 'skip' or a sink.")
        node = p.SourceNode(
            schema=schema,
            timed=time is not None,
            name=name,
            connector=source,
            time=time,
            lateness_us=duration_us(lateness, f"the lateness of source {name!r}"),
            idle_after_us=None if idle_after is None else duration_us(idle_after, f"idle_after of source {name!r}"),
            position=position,
            partitions=tuple(partitions),
            on_error="fail" if on_error == "fail" else "skip",
        )
        self._sources.append(node)
        if keep is not None:
            Stream(self, p.MalformedNode(MALFORMED, timed=False, source=node)).sink(keep, name=f"{name}.malformed")
        return Stream(self, node)

    def plan(self) -> p.Plan:
        """The checked plan.

        Raises:
            DeclarationError: The flow has no source or no sink.
        """
        return p.freeze(self.name, self._sources, self._regions, self._outputs)

    def start(self, spark: Any = None, **options: Any) -> Run:
        """Start the flow; see `penstock.spark.run.start` for all options.

        Args:
            spark: A SparkSession; None: a local one with the right settings is made.
            **options: ``checkpoint``, ``workers``, ``trigger``, …

        Returns:
            A handle of the running flow.
        """
        from penstock.spark.run import start  # noqa: PLC0415  (Spark loads when a flow starts, not when it is declared)

        return start(self, spark, **options)

    def _add_region(self, region: p.Region) -> None:
        if any(r.name == region.name for r in self._regions):
            raise DeclarationError(
                f"Flow {self.name!r} has two regions named {region.name!r}; give one of them a name: key_by(..., name='…')."
            )
        if region.name.startswith(("_", ".")) or "/" in region.name:
            raise DeclarationError(
                f"A region cannot be named {region.name!r}, because its state is kept in a folder of that name."
            )
        self._regions.append(region)


class Stream:
    """Rows without a key: stateless steps only."""

    def __init__(self, flow: Flow, node: p.Node) -> None:
        self._flow = flow
        self._node = node

    @property
    def schema(self) -> pa.Schema:
        """Columns; a type that is not known before start is ``pa.null()``."""
        return self._node.schema

    def _stateless(self) -> p.Node:
        """The node that stateless steps read."""
        return self._node

    def _before(self, step: Callable[[p.Node], p.Node]) -> Any:
        """This stream with one more stateless step."""
        return Stream(self._flow, step(self._stateless()))

    def where(self, condition: str) -> Stream:
        """Rows for which a Spark SQL condition is true."""
        kind = check_expression(condition, self.schema, "where").type
        if not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
            raise DeclarationError(f"where needs a condition, but {condition!r} is of type {kind}.")
        stream: Stream = self._before(lambda node: p.Where(self.schema, node.timed, node, condition))
        return stream

    def select(self, *expressions: str, **named: str) -> Stream:
        """The given columns only: names, or SQL expressions such as ``"delay / 60 AS hours"`` or ``hours="delay / 60"``."""
        columns: list[tuple[str, str]] = []
        fields = []
        for sql in expressions:
            found = check_expression(sql, self.schema, "select")
            if not found.name:
                raise DeclarationError(f"select needs a name for {sql!r}; write {sql!r} AS name.")
            columns.append((found.name, _without_alias(sql)))
            fields.append(found)
        for name, sql in named.items():
            columns.append((name, sql))
            fields.append(pa.field(name, check_expression(sql, self.schema, f"select {name}").type))
        return self._selected(columns, fields)

    def with_columns(self, **expressions: str) -> Stream:
        """All columns, and those given as SQL expressions; a name that exists is replaced."""
        new = {n: check_expression(sql, self.schema, f"with_columns {n}").type for n, sql in expressions.items()}
        kept = [f for f in self.schema if f.name not in new]
        columns = [(f.name, _quoted(f.name)) for f in kept] + list(expressions.items())
        return self._selected(columns, [*kept, *(pa.field(n, t) for n, t in new.items())])

    def _selected(self, columns: list[tuple[str, str]], fields: list[pa.Field[Any]]) -> Stream:
        names = [n for n, _ in columns]
        for name in names:
            if names.count(name) > 1:
                raise DeclarationError(f"select gives two columns the name {name!r}; rename one.")
        stream: Stream = self._before(lambda node: p.Select(pa.schema(fields), node.timed, node, tuple(columns)))
        return stream

    def transform(self, fn: Callable[[Any], Any], schema: str | pa.Schema | None = None) -> Stream:
        """Any function from DataFrame to DataFrame, row by row: it must keep the columns whose names start with ``__ps_``.

        Args:
            fn: The function; called once per epoch when the plan is built.
            schema: Columns of the result; None: those of the input.
        """
        after = self.schema if schema is None else as_schema(schema, "the schema of transform")
        stream: Stream = self._before(lambda node: p.Transform(after, node.timed, node, fn))
        return stream

    def map_batches(self, fn: Callable[[pa.RecordBatch], pa.RecordBatch], schema: str | pa.Schema) -> Stream:
        """A Python function over Arrow record batches.

        Args:
            fn: Gets and gives a ``pyarrow.RecordBatch``; how rows are cut into batches must not matter. It gives as many
                rows as it gets, or a further column ``_row`` that says for each row which input row (0, 1, …) it came from.
            schema: Columns of the result.
        """
        after = as_schema(schema, "the schema of map_batches")
        stream: Stream = self._before(lambda node: p.MapBatches(after, node.timed, node, fn))
        return stream

    def union(self, *others: Stream) -> Stream:
        """Rows of this stream and of others with the same columns.

        Raises:
            DeclarationError: The columns differ, or only some of the streams have an event time.
        """
        nodes = [self._stateless(), *(o._stateless() for o in others)]
        for other in nodes[1:]:
            if other.schema.names != nodes[0].schema.names:
                raise DeclarationError(
                    f"union needs the same columns in the same order: {nodes[0].schema.names} and {other.schema.names}."
                )
            for a, b in zip(nodes[0].schema, other.schema, strict=True):
                if a.type != b.type and not pa.types.is_null(a.type) and not pa.types.is_null(b.type):
                    raise DeclarationError(f"union needs the same types: column {a.name!r} is {a.type} and {b.type}.")
            if other.timed != nodes[0].timed:
                raise DeclarationError("union needs an event time on all of its streams, or on none.")
        return Stream(self._flow, p.Union(self.schema, nodes[0].timed, tuple(nodes)))

    def split(self, **conditions: str) -> dict[str, Stream]:
        """One stream per condition, by name. A row goes to every stream whose condition it satisfies."""
        return {name: self.where(condition) for name, condition in conditions.items()}

    def key_by(self, *columns: str, distribute: Any = None, workers: int | None = None, name: str | None = None) -> KeyedStream:
        """Open a region: what follows keeps its state per value of these columns.

        Args:
            *columns: Key columns, or named SQL expressions. Null is a key like any other.
            distribute: Distribution strategy; `KeyGrouping()` if not given.
            workers: Number of workers of this region; None: as given to `start`.
            name: The region's name; the key columns joined by ``_`` if not given.

        Raises:
            DeclarationError: No column, an unknown column, a type that cannot be a key, or a name that is taken.
        """
        if not columns:
            raise DeclarationError("key_by needs at least one column.")
        stream: Stream = Stream(self._flow, self._stateless())
        fields = []
        for column in columns:
            found = check_expression(column, stream.schema, "key_by")
            if found.name not in stream.schema.names:
                if not found.name:
                    raise DeclarationError(f"key_by needs a name for {column!r}; write {column!r} AS name.")
                stream = stream.with_columns(**{found.name: _without_alias(column)})
            if pa.types.is_nested(found.type):
                raise DeclarationError(
                    f"key_by cannot use column {found.name!r} of type {found.type}; key by numbers, strings, times."
                )
            fields.append(found)
        if distribute is not None and type(distribute).__name__ != "KeyGrouping":
            raise DeclarationError(f"key_by(distribute={distribute!r}) is not available; only KeyGrouping() is.")
        if workers is not None and (not isinstance(workers, int) or workers < 1):
            raise DeclarationError(f"key_by(workers={workers!r}) must be a whole number from 1.")
        region = p.Region(
            name or "_".join(f.name for f in fields), pa.schema(fields), [stream._node], workers=workers, distribute=distribute
        )
        self._flow._add_region(region)
        return KeyedStream(self._flow, p.RegionOutput(stream.schema, stream._node.timed, region, -1))

    @property
    def late(self) -> Stream:
        """The records of this source that came too late, as they came.

        Raises:
            DeclarationError: This is not a source with an event time.
        """
        node = self._node
        if not isinstance(node, p.SourceNode) or node.time is None:
            raise DeclarationError("Only a source with an event time has late records; use flow.source(..., time=...).late.")
        return Stream(self._flow, p.LateNode(node.schema, timed=False, source=node))

    def sink(self, sink: Any, *, name: str | None = None) -> Stream:
        """Store the rows of this stream.

        Args:
            sink: `penstock.sql`, `penstock.parquet`, …
            name: Name of the output, unique in the flow; made from the stream if not given.

        Raises:
            DeclarationError: The sink's mode cannot work with this stream, or one sink is used twice.
        """
        for method in ("open", "write", "validate"):
            if not hasattr(sink, method):
                raise DeclarationError(
                    f"{sink!r} is not a sink; use penstock.sql(...), penstock.parquet(...) or another of its sinks."
                )
        if any(o.sink is sink for o in self._flow._outputs):
            raise DeclarationError("One sink object serves one output; make another for this one.")
        updates, key = _updating(self._node)
        sink.validate(self.schema, updates=updates, key=key)
        taken = {o.name for o in self._flow._outputs}
        base = name or _output_name(self._node)
        chosen, n = base, 2
        while chosen in taken:
            if name:
                raise DeclarationError(f"Flow {self._flow.name!r} has two outputs named {name!r}; give each its own name.")
            chosen, n = f"{base}-{n}", n + 1
        self._flow._outputs.append(p.Output(chosen, self._node, sink, updates, key))
        return self

    def __getattr__(self, attribute: str) -> Any:
        if attribute in ("stateful_map", "aggregate", "window", "join", "deduplicate", "process", "match"):
            raise DeclarationError(
                f".{attribute}(...) keeps state and so needs a key; open a region first: .key_by('column').{attribute}(...)."
            )
        raise AttributeError(attribute)


class KeyedStream(Stream):
    """Rows inside a region: stateful steps, all keyed by the region's key."""

    _node: p.RegionOutput

    @property
    def _region(self) -> p.Region:
        return self._node.region

    @property
    def _input(self) -> tuple[str, int]:
        at = self._node.operator
        return ("port", -1 - at) if at < 0 else ("operator", at)

    def _stateless(self) -> p.Node:
        updates, _ = _updating(self._node)
        if updates:
            raise DeclarationError(
                "The running values of an aggregate replace one another, so nothing but a sink can follow them; "
                "use a window, or do it in a further stateful step of the same region."
            )
        return self._node

    def _before(self, step: Callable[[p.Node], p.Node]) -> Any:
        """A stateless step right after ``key_by`` is done before the shuffle and stays keyed; a later one leaves the region."""
        region = self._region
        if self._node.operator >= 0:
            return super()._before(step)
        node = step(region.inputs[self._input[1]])
        missing = [n for n in region.keys.names if n not in node.schema.names]
        if missing:
            return Stream(self._flow, step(self._node))
        region.inputs.append(node)  # an input of its own: other streams may read this one
        return KeyedStream(self._flow, p.RegionOutput(node.schema, node.timed, region, -len(region.inputs)))

    def local(self) -> Stream:
        """Leave the region: what follows has no key."""
        return Stream(self._flow, self._stateless())

    def process(self, operator: Operator, *, on_error: Any = "fail") -> KeyedStream:
        """A step of one's own; see `penstock.Operator`.

        Args:
            operator: The step.
            on_error: What to do with a record that the user's function fails on: ``"fail"``, ``"skip"``, or a sink.
        """
        if not isinstance(operator, Operator):
            raise DeclarationError(f"process needs a penstock.Operator, not {type(operator).__name__}.")
        return self._step(operator, [self._input], [self.schema], on_error)

    def _step(
        self, operator: Operator, inputs: list[tuple[str, int]], schemas: list[pa.Schema], on_error: Any = "fail"
    ) -> KeyedStream:
        self._stateless()  # refuses what would follow running values
        keep = on_error if not isinstance(on_error, str) else None
        if keep is None and on_error not in ("fail", "skip"):
            raise DeclarationError(f"{operator.describe()} has on_error={on_error!r}; use 'fail', 'skip' or a sink.")
        region = self._region
        schema = operator.output_schema(schemas, region.keys)
        region.steps.append(p.RegionStep(operator, tuple(inputs), schema, "fail" if on_error == "fail" else "skip"))
        at = len(region.steps) - 1
        if at > 200:
            raise DeclarationError(f"Region {region.name!r} has more than 200 steps; split it with another key_by.")
        if keep is not None:
            Stream(self._flow, p.RegionOutput(ERRORS, False, region, at, errors=True)).sink(
                keep, name=f"{region.name}.{at}.errors"
            )
        return KeyedStream(self._flow, p.RegionOutput(schema, self._node.timed, region, at))

    def stateful_map(
        self,
        fn: Callable[[Any, Any, Any], tuple[Any, Any]],
        schema: str | pa.Schema,
        state: str | pa.Schema | None = None,
        *,
        on_error: Any = "fail",
    ) -> KeyedStream:
        """A Python function per event with a state per key: ``fn(key, event, state) -> (outputs, state)``.

        Args:
            fn: `key` is a value (a tuple for several key columns), `event` a named tuple of the columns, `state` what the last
                call for the key returned (None at first). `outputs` is None, one row (tuple or dict) or an iterable of rows; a
                returned state of None forgets the key.
            schema: Columns of the output.
            state: Schema of the state (compact, checked), or None: any picklable value.
            on_error: What to do with a record that `fn` raises on: ``"fail"``, ``"skip"``, or a sink.
        """
        return self._mapped(fn, schema, state, None, on_error)

    def _mapped(self, fn: Any, schema: Any, state: Any, window: Any, on_error: Any) -> KeyedStream:
        _check_callable(fn, 3, "stateful_map", "fn(key, event, state)")
        out = as_schema(schema, "the schema of stateful_map")
        kept = None if state is None else as_schema(state, "the state of stateful_map")
        return self.process(StatefulMap(fn, out, kept, window, "fail" if on_error == "fail" else "skip"), on_error=on_error)

    def aggregate(self, emit: Literal["update"] = "update", **aggregates: Kernel) -> KeyedStream:
        """A running value per key.

        Args:
            emit: ``"update"``: after each epoch the new value of every key that changed. Earlier values are replaced, so the
                sink must be able to (``mode="upsert"``).
            **aggregates: Output column = aggregate.
        """
        return self._aggregated(None, emit, aggregates)

    def _aggregated(self, window: Window | None, emit: str, aggregates: Mapping[str, Any]) -> KeyedStream:
        if not aggregates:
            raise DeclarationError("aggregate needs at least one aggregate, for example n=penstock.count().")
        for name, kernel in aggregates.items():
            if not isinstance(kernel, Kernel):
                raise DeclarationError(
                    f"Aggregate {name!r} is {kernel!r}; use penstock.count(), penstock.sum('column') and so on."
                )
        wanted = ("update",) if window is None else ("final",) if isinstance(window, Session) else ("final", "update")
        if emit not in wanted:
            raise DeclarationError(f"aggregate(emit={emit!r}) is not possible here; use {' or '.join(map(repr, wanted))}.")
        items = tuple(aggregates.items())
        step: Operator = SessionStep(items, window) if isinstance(window, Session) else AggregateStep(items, window, emit)
        return self.process(step)

    def window(self, window: Window) -> WindowedStream:
        """Divide each key's rows by event time; `aggregate` or `stateful_map` must follow.

        Raises:
            DeclarationError: The stream has no event time.
        """
        if not isinstance(window, Window):
            raise DeclarationError(f"window needs penstock.tumbling(...), sliding(...) or session(...), not {window!r}.")
        if not self._node.timed:
            raise DeclarationError("A window needs an event time; declare it: flow.source(..., time='column').")
        return WindowedStream(self, window)

    def deduplicate(self, *columns: str, within: str | dt.timedelta | None = None) -> KeyedStream:
        """Keep the first of records that are equal in `columns` (none: in the key alone).

        Args:
            *columns: What makes two records equal.
            within: A record is dropped if an equal one that was kept lies at most so far before it; None: for ever.
        """
        if within is not None and not self._node.timed:
            raise DeclarationError("deduplicate(within=...) needs an event time; declare it: flow.source(..., time='column').")
        return self.process(Deduplicate(columns, None if within is None else duration_us(within, "deduplicate's within")))

    def join(self, other: Stream, within: str | dt.timedelta, how: Literal["inner", "left", "full"] = "inner") -> KeyedStream:
        """Pairs of rows of one key whose event times are at most `within` apart.

        Args:
            other: A stream keyed by as many columns of the same types, or one that has this region's key columns.
            within: How far apart, inclusive.
            how: ``"inner"``; ``"left"``: rows of this side without partner too; ``"full"``: of both sides.

        Returns:
            Columns of this side, then those of the other without its key columns; a name that both have gets ``_right``.
        """
        if how not in ("inner", "left", "full"):
            raise DeclarationError(f"join(how={how!r}) is not known; use 'inner', 'left' or 'full'.")
        if not isinstance(other, Stream) or other._flow is not self._flow:
            raise DeclarationError("join needs a stream of the same flow.")
        node, keys = self._joined_input(other)
        if not self._node.timed or not node.timed:
            raise DeclarationError("join needs an event time on both sides; declare it: flow.source(..., time='column').")
        for mine, theirs in zip(self._region.keys, keys, strict=True):
            if mine.type != theirs.type and not pa.types.is_null(mine.type) and not pa.types.is_null(theirs.type):
                raise DeclarationError(
                    f"join needs keys of the same type: {mine.name!r} is {mine.type}, {theirs.name!r} is {theirs.type}."
                )
        renamed = Stream(self._flow, node)
        if keys.names != self._region.keys.names:
            mapping = dict(zip(keys.names, self._region.keys.names, strict=True))
            renamed = renamed.select(**{mapping.get(n, n): _quoted(n) for n in node.schema.names})
        self._region.inputs.append(renamed._node)
        port = ("port", len(self._region.inputs) - 1)
        return self._step(
            IntervalJoin(duration_us(within, "join's within"), how), [self._input, port], [self.schema, renamed.schema]
        )

    def _joined_input(self, other: Stream) -> tuple[p.Node, pa.Schema]:
        mine = self._region.keys
        if isinstance(other, KeyedStream) and other._region is self._region:
            raise DeclarationError("A region cannot be joined with itself; key the stream again under another name.")
        if isinstance(other, KeyedStream) and other._node.operator < 0 and not other._region.steps:
            theirs = other._region
            if len(theirs.keys) != len(mine):
                raise DeclarationError(f"join needs as many key columns on both sides: {mine.names} and {theirs.keys.names}.")
            self._flow._regions.remove(theirs)  # it becomes a second input of this region
            return theirs.inputs[other._input[1]], theirs.keys
        node = other._stateless()
        for name in mine.names:
            if name not in node.schema.names:
                raise unknown_column(name, node.schema.names, "join needs this region's key on the other side, and")
        return node, pa.schema([node.schema.field(n) for n in mine.names])

    def match(self, *args: Any, **kwargs: Any) -> KeyedStream:
        """Patterns (CEQL) are not available in this version."""
        del args, kwargs
        raise DeclarationError(".match(...) is not available in this version of penstock.")


class WindowedStream:
    """A keyed stream divided by windows."""

    def __init__(self, stream: KeyedStream, window: Window) -> None:
        self._stream = stream
        self._window = window

    def aggregate(self, emit: Literal["final", "update"] = "final", **aggregates: Kernel) -> KeyedStream:
        """Aggregates per key and window, with the columns ``window_start`` and ``window_end``.

        Args:
            emit: ``"final"``: once, when the window is complete. ``"update"``: after each epoch that changed it; the sink must
                be able to replace (``mode="upsert"``).
            **aggregates: Output column = aggregate.
        """
        return self._stream._aggregated(self._window, emit, aggregates)

    def stateful_map(
        self,
        fn: Callable[[Any, Any, Any], tuple[Any, Any]],
        schema: str | pa.Schema,
        state: str | pa.Schema | None = None,
        *,
        on_error: Any = "fail",
    ) -> KeyedStream:
        """As `KeyedStream.stateful_map`, with a state per key and window; events also have ``window_start`` and ``window_end``.

        Raises:
            DeclarationError: The window is a session, whose extent is not known while events come.
        """
        if isinstance(self._window, Session):
            raise DeclarationError(
                "stateful_map cannot follow a session window, whose extent is not known while events come; use aggregate."
            )
        return self._stream._mapped(fn, schema, state, self._window, on_error)


def _connector_schema(source: Any, name: str) -> pa.Schema:
    if hasattr(source, "isStreaming") and hasattr(source, "schema"):
        if not source.isStreaming:
            raise DeclarationError(f"Source {name!r} is a batch DataFrame; use spark.readStream, or penstock.files(...).")
        return parse_schema(source.schema.simpleString(), f"the schema of source {name!r}")
    schema = getattr(source, "schema", None)
    if not isinstance(schema, pa.Schema):
        raise DeclarationError(
            f"Source {name!r} is {source!r}; use penstock.files(...), penstock.rate(...) or a spark.readStream DataFrame."
        )
    return schema


def _updating(node: p.Node) -> tuple[bool, tuple[str, ...]]:
    """Whether a node's rows replace earlier ones, and by which columns."""
    if not isinstance(node, p.RegionOutput) or node.operator < 0 or node.errors:
        return False, ()
    operator = node.region.steps[node.operator].operator
    window = ("window_start",) if isinstance(operator, AggregateStep) and operator.window is not None else ()
    return operator.updates, (*node.region.keys.names, *window) if operator.updates else ()


def _output_name(node: p.Node) -> str:
    if isinstance(node, p.LateNode):
        return f"{node.source.name}.late"
    if isinstance(node, p.RegionOutput):
        return f"{node.region.name}.{node.operator}"
    if isinstance(node, p.SourceNode):
        return node.name
    before = p.inputs_of(node)
    return _output_name(before[0]) if before else "output"


def _check_callable(fn: Any, count: int, what: str, form: str) -> None:
    if not callable(fn):
        raise DeclarationError(f"{what} needs a function {form}, not {fn!r}.")
    try:
        inspect.signature(fn).bind(*range(count))
    except TypeError as error:
        raise DeclarationError(
            f"{what} calls its function as {form}; {getattr(fn, '__name__', fn)!r} does not take these ({error})."
        ) from error
    except ValueError:
        return  # built in, no signature to look at


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _without_alias(sql: str) -> str:
    import sqlglot  # noqa: PLC0415
    from sqlglot import exp  # noqa: PLC0415

    parsed: Any = sqlglot.parse_one(f"SELECT {sql}", dialect="spark").expressions[0]
    return str(parsed.this.sql("spark")) if isinstance(parsed, exp.Alias) else sql
