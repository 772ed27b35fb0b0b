"""What a user types to declare a flow: `Stream`, rows without a key.

Every method returns a new stream and checks what it was given at once; nothing runs before `Flow.start`.

Read next: `penstock.flow.keyed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from penstock.arrow.html_tables import escaped, html_table
from penstock.errors import DeclarationError, SpellingError
from penstock.flow import plan as p
from penstock.flow.explain import columns_shown, type_shown, way
from penstock.flow.lookup import looked_up
from penstock.flow.naming import output_name
from penstock.flow.spellings import STREAM, missing
from penstock.flow.steps import MapBatches, Select, StatelessStep, Transform, Where
from penstock.routing.key_grouping import KeyGrouping
from penstock.routing.strategy import STATELESS, Strategy
from penstock.sinks.base import Sharing, Sink
from penstock.sql_text.given import as_expression, as_expressions, as_name, flat, known_column, without_name
from penstock.sql_text.schema import (
    as_function,
    as_number,
    as_schema,
    as_sql,
    as_text,
    check_condition,
    check_expression,
    quoted,
)

if TYPE_CHECKING:
    from penstock.flow.distributed import DistributedStream
    from penstock.flow.flow import Flow
    from penstock.flow.keyed import KeyedStream
    from penstock.sql_text.given import Expression, Schema
    from penstock.types import Duration


class Stream:
    """Rows without a key: stateless steps only.

    Example:
        >>> flow = ps.Flow("delays")
        >>> trips = flow.source("trips", ps.files("trips", "tail string, at timestamp, delay double", "csv"), time="at")
        >>> trips.where("delay > 15").columns
        ['tail', 'at', 'delay']
        >>> trips.lookup(pa.table({"tail": ["N1"], "seats": [140]}), on="tail").columns
        ['tail', 'at', 'delay', 'seats']
    """

    _needing_a_key: ClassVar[frozenset[str]]  # set where these methods are, in `penstock.flow.keyed`

    def __init__(self, flow: Flow, node: p.Node) -> None:
        self._flow = flow
        self._node = node

    @property
    def schema(self) -> pa.Schema:
        """Columns; a type that is not known before start is ``pa.null()``.

        Example:
            >>> flights.schema.field("delay").type
            DataType(double)
        """
        return self._node.schema

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of flow {self._flow.name!r}: {way(self._node)}; columns {columns_shown(self.schema)}>"

    def _repr_html_(self) -> str:
        rows = ((f.name, "known when the flow starts" if pa.types.is_null(f.type) else type_shown(f.type)) for f in self.schema)
        about = f"{type(self).__name__} of flow {self._flow.name}: {way(self._node)}"
        return f"<div>{escaped(about)}</div>{html_table(('column', 'type'), rows)}"

    def _stateless(self) -> p.Node:
        """The node that stateless steps read."""
        return self._node

    def apply(self, step: StatelessStep) -> Stream:
        """This stream with one more stateless step; `where`, `select` and the like are short for it.

        Args:
            step: The step, see `penstock.flow.steps.StatelessStep`.

        Raises:
            DeclarationError: It is no step, or has no form that an engine runs.

        Example:
            >>> from penstock.flow.steps import Where
            >>> flights.apply(Where("delay > 15")).columns == flights.columns
            True
        """
        if not isinstance(step, StatelessStep) or not (step.sql(self.schema) or step.batch_function() or step.frame_function()):
            raise DeclarationError(
                f"apply needs a penstock.flow.steps.StatelessStep with one of its three forms, not {step!r}."
            )
        return self._after(step)

    def _after(self, step: StatelessStep) -> Stream:
        return Stream(self._flow, p.stepped(step, self._stateless()))

    @property
    def columns(self) -> list[str]:
        """The names of the columns.

        Example:
            >>> flights.columns
            ['tail', 'origin', 'at', 'delay']
        """
        return list(self.schema.names)

    def where(self, condition: Expression) -> Stream:
        """Rows for which a condition is true: Spark SQL, or a Spark Column such as ``F.col("delay") > 5``.

        Example:
            >>> late = flights.where("delay > 15 AND origin <> 'JFK'")
        """
        sql = as_expression(condition, "What where is given")
        check_condition(sql, self.schema, "where")
        return self.apply(Where(sql))

    def filter(self, condition: Expression) -> Stream:
        """As `where`.

        Example:
            >>> late = flights.filter("delay > 15")
        """
        return self.where(condition)

    def select(self, *expressions: Expression | Sequence[Expression], **named: Expression) -> Stream:
        """The given columns only: names, or SQL expressions such as ``"delay / 60 AS hours"`` or ``hours="delay / 60"``.

        Spark Columns and lists of either will do as well: ``select("tail", (F.col("delay") / 60).alias("hours"))``.

        Example:
            >>> flights.select("tail", "delay / 60 AS hours", day="date(at)").columns
            ['tail', 'hours', 'day']
        """
        if not expressions and not named:
            raise DeclarationError("select needs at least one column.")
        columns: list[tuple[str, str]] = []
        fields = []
        everything = [quoted(n) for n in self.schema.names]
        given = [as_expression(e, "What select is given") for e in flat(expressions)]
        for sql in (s for e in given for s in (everything if e.strip() == "*" else [as_sql(e, self.schema)])):
            found = check_expression(sql, self.schema, "select")
            if not found.name:
                raise DeclarationError(f"select needs a name for {sql!r}; write {sql!r} AS name.")
            columns.append((found.name, without_name(sql)[0]))
            fields.append(found)
        for name, sql in as_expressions(named, "select").items():
            columns.append((name, sql))
            fields.append(pa.field(name, check_expression(sql, self.schema, f"select {name}").type))
        return self._selected(columns, fields)

    def with_columns(self, new_columns: Mapping[str, Expression] | None = None, /, **expressions: Expression) -> Stream:
        """All columns, and those given as SQL expressions or Spark Columns, by name; a name that exists is replaced.

        Args:
            new_columns: As in Spark, names and expressions in a dict.
            **expressions: The same by keywords.

        Example:
            >>> flights.with_columns(hours="delay / 60").columns
            ['tail', 'origin', 'at', 'delay', 'hours']
        """
        if new_columns is not None and not isinstance(new_columns, Mapping):
            raise DeclarationError(
                f"with_columns needs a name for each column, not {new_columns!r}; write with_columns(hours='delay / 60')."
            )
        given = as_expressions({**(new_columns or {}), **expressions}, "with_columns")
        new = {
            as_text(n, "A name in with_columns"): check_expression(sql, self.schema, f"with_columns {n}").type
            for n, sql in given.items()
        }
        replaced = {n.lower() for n in new}
        kept = [f for f in self.schema if f.name.lower() not in replaced]
        columns = [(f.name, quoted(f.name)) for f in kept] + list(given.items())
        return self._selected(columns, [*kept, *(pa.field(n, t) for n, t in new.items())])

    def drop(self, *columns: Expression | Sequence[Expression]) -> Stream:
        """All columns but these.

        Example:
            >>> flights.drop("origin", "delay").columns
            ['tail', 'at']
        """
        names = [known_column(as_name(c, "What drop is given"), self.columns, "drop") for c in flat(columns)]
        kept = [f for f in self.schema if f.name not in names]
        if not kept:
            raise DeclarationError("drop would leave no column.")
        return self._selected([(f.name, quoted(f.name)) for f in kept], kept)

    def _selected(self, columns: list[tuple[str, str]], fields: list[pa.Field[Any]]) -> Stream:
        names = [n for n, _ in columns]
        folded = [n.lower() for n in names]
        for name in names:
            if folded.count(name.lower()) > 1:
                raise DeclarationError(f"select gives two columns the name {name!r}; rename one.")
        return self.apply(Select(tuple(columns), set(self.schema.names) <= set(names), pa.schema(fields)))

    def transform(self, fn: Callable[[Any], Any], schema: Schema | None = None) -> Stream:
        """Any function from DataFrame to DataFrame, row by row: it must keep the columns whose names start with ``__ps_``.

        Args:
            fn: The function; called once per epoch when the plan is built.
            schema: Columns of the result; None: those of the input.

        Example:
            >>> flights.transform(lambda df: df.withColumn("hours", df.delay / 60), "tail string, hours double").columns
            ['tail', 'hours']
        """
        as_function(fn, "transform", "fn(dataframe)")
        return self.apply(Transform(fn, None if schema is None else as_schema(schema, "the schema of transform")))

    def map_batches(self, fn: Callable[[pa.RecordBatch], pa.RecordBatch], schema: Schema) -> Stream:
        """A Python function over Arrow record batches.

        Args:
            fn: Gets and gives a ``pyarrow.RecordBatch``; how rows are cut into batches must not matter. It gives as many
                rows as it gets, or a further column ``_row`` that says for each row which input row (0, 1, …) it came from.
            schema: Columns of the result.

        Example:
            >>> def halved(batch):
            ...     return pa.record_batch({"half": pc.divide(batch["delay"], 2.0)})
            >>> flights.map_batches(halved, "half double").columns
            ['half']
        """
        as_function(fn, "map_batches", "fn(batch)")
        return self.apply(MapBatches(fn, as_schema(schema, "the schema of map_batches")))

    def lookup(
        self,
        table: Any,
        on: Expression | Sequence[Expression] | Mapping[str, str],
        how: Literal["left", "inner"] = "left",
        refresh: Duration | None = None,
    ) -> Stream:
        """Each row with the columns of a table's row of the same key. The table is read here and is a part of the flow, unless it is refreshed.

        Args:
            table: A Spark or pandas DataFrame, a ``pyarrow.Table``, the path of a Parquet file or folder, `files` of CSV or JSON, or a function
                that gives one of these. It has one row for each key, and 256 MiB at most: every task gets a copy.
            on: The column that both have, or several, or a dict from columns of the stream to those of the table. Keys are equal as in SQL:
                null equals nothing; numbers are compared by value, also decimals of other scales; −0.0 equals 0.0, and NaN itself.
            how: ``"left"``: rows whose key the table lacks get nulls; ``"inner"``: they are left out.
            refresh: A path or a function is read again at most so often, when an epoch begins; None: never.

        Returns:
            The columns of the stream, then those of the table without its keys; a name that both have gets ``_right``.

        Raises:
            DeclarationError: The table is a stream, too large or cannot be read, has several rows of a key, lacks a column, or a key has another type.
        """
        return self.apply(looked_up(self.schema, table, on, how, refresh))

    def union(self, *others: Stream) -> Stream:
        """Rows of this stream and of others with the same columns.

        A record may come by several of them: its rows are in the order of their numbers among the rows that `map_batches` made of the
        record, those of one number in the order of the streams, this one first.

        Raises:
            DeclarationError: The columns differ, or only some of the streams have an event time, or one is of another flow.

        Example:
            >>> early, late = flights.where("delay < 0"), flights.where("delay > 15")
            >>> early.union(late).columns == flights.columns
            True
        """
        if any(not isinstance(o, Stream) or o._flow is not self._flow for o in others):
            raise DeclarationError("union needs streams of the same flow.")
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
        return Stream(self._flow, p.united(nodes))

    def split(self, **conditions: Expression) -> dict[str, Stream]:
        """One stream per condition, by name. A row goes to every stream whose condition it satisfies.

        Example:
            >>> parts = flights.split(early="delay < 0", late="delay > 15")
            >>> sorted(parts)
            ['early', 'late']
        """
        return {name: self.where(condition) for name, condition in conditions.items()}

    def key_by(
        self,
        *columns: Expression | Sequence[Expression],
        distribute: Strategy | None = None,
        workers: int | None = None,
        name: str | None = None,
    ) -> KeyedStream:
        """Open a region: what follows keeps its state per value of these columns.

        Args:
            *columns: Key columns, or named SQL expressions or Spark Columns, or a list. Null is a key like any other.
            distribute: Distribution strategy; `KeyGrouping()` if not given. Those that divide the rows of a key are for aggregates.
            workers: Number of workers of this region; None: as given to `start`.
            name: The region's name; the key columns joined by ``_`` if not given.

        Raises:
            DeclarationError: No column, an unknown column, a type that cannot be a key, or a name that is taken.

        Example:
            >>> by_route = flights.key_by("origin", "date(at) AS day", workers=4, name="days")
        """
        if not columns:
            raise DeclarationError("key_by needs at least one column.")
        stream: Stream = Stream(self._flow, self._stateless())
        fields: list[pa.Field[Any]] = []
        for column in (as_sql(as_expression(c, "What key_by is given"), self.schema) for c in flat(columns)):
            found = check_expression(column, stream.schema, "key_by")
            if found.name in (f.name for f in fields):
                raise DeclarationError(f"key_by names column {found.name!r} twice.")
            if not found.name:
                raise DeclarationError(f"key_by needs a name for {column!r}; write {column!r} AS name.")
            expression, alias = without_name(column)
            if alias or found.name not in stream.schema.names:
                stream = stream.with_columns({found.name: expression})
            if pa.types.is_nested(found.type):
                raise DeclarationError(
                    f"key_by cannot use column {found.name!r} of type {found.type}; key by numbers, strings, times."
                )
            fields.append(found)
        distribute = KeyGrouping() if distribute is None else distribute
        if not isinstance(distribute, Strategy):
            raise DeclarationError(
                f"key_by(distribute={distribute!r}) needs a distribution strategy, such as penstock.Histogram()."
            )
        if distribute.fits == STATELESS:
            raise DeclarationError(
                f"key_by(distribute={distribute!r}): that is for steps without state, as rows of one key go anywhere; for stateful ones use "
                "Histogram(), or Isolate()."
            )
        if workers is not None:
            as_number(workers, "key_by's workers")
        if name is not None:
            as_text(name, "key_by's name")
        region = p.Region(
            name or "_".join(f.name for f in fields), pa.schema(fields), [stream._node], workers=workers, distribute=distribute
        )
        return self._flow._in_region(region)

    def distribute(self, strategy: Strategy, workers: int | None = None, *, name: str | None = None) -> DistributedStream:
        """Open a stage of workers for the stateless steps that follow, so that a slow `map_batches` is shared evenly.

        Without it such steps run in the tasks that read, however many there are and however uneven their parts. The stage ends with
        ``.local()``, ``key_by`` or a sink. `Run.scale` gives it another number of workers while data flows, by its name.

        Args:
            strategy: One that reads no keys: `Shuffle()`, `PowerOfTwoChoices()`, `ByPartition()`.
            workers: Number of workers; None: as given to `start`.
            name: The stage's name; ``stage``, ``stage-2`` … if not given.

        Raises:
            DeclarationError: A strategy that reads keys, or a name that is taken.

        Example:
            >>> shared = flights.distribute(ps.Shuffle(), workers=4).map_batches(lambda batch: batch, flights.schema)
        """
        if not isinstance(strategy, Strategy):
            raise DeclarationError(f"distribute({strategy!r}) needs a distribution strategy, such as penstock.Shuffle().")
        if strategy.reads_keys:
            raise DeclarationError(
                f"distribute({strategy!r}): these rows have no key; use Shuffle(), PowerOfTwoChoices() or ByPartition(), or "
                f"key_by(…, distribute={strategy!r})."
            )
        if workers is not None:
            as_number(workers, "distribute's workers")
        if name is not None:
            as_text(name, "distribute's name")
        taken = {r.name for r in self._flow._regions}
        found = name or next(n for i in range(1, len(taken) + 2) if (n := f"stage-{i}" if i > 1 else "stage") not in taken)
        return self._flow._in_stage(p.Region(found, pa.schema([]), [self._stateless()], workers=workers, distribute=strategy))

    @property
    def late(self) -> Stream:
        """The records of this source that came too late, as they came.

        Raises:
            DeclarationError: This is not a source with an event time.

        Example:
            >>> kept = flights.late.sink(ps.memory("late flights"))
        """
        node = self._node
        if not isinstance(node, p.SourceNode) or node.time is None:
            raise DeclarationError("Only a source with an event time has late records; use flow.source(..., time=...).late.")
        return Stream(self._flow, p.LateNode(node.schema, timed=False, source=node))

    @property
    def ahead(self) -> Stream:
        """The records of this source that lie too far ahead, as they came.

        Raises:
            DeclarationError: This is not a source with ``ahead=``.

        Example:
            >>> near = flow.source("near", ps.files("near", "at timestamp"), time="at", ahead="1 day")
            >>> kept = near.ahead.sink(ps.memory("far flights"))
        """
        node = self._node
        if not isinstance(node, p.SourceNode) or node.ahead_us is None:
            raise DeclarationError(
                "Only a source with ahead= has records that are ahead; use flow.source(..., time=..., ahead=...).ahead."
            )
        return Stream(self._flow, p.AheadNode(node.schema, timed=False, source=node))

    def sink(self, sink: Sink, *, name: str | None = None, positions: bool = False) -> Stream:
        """Store the rows of this stream.

        Args:
            sink: `penstock.sql`, `penstock.parquet`, …
            name: Name of the output, unique in the flow; made from the stream if not given.
            positions: Store with each row where it comes from, so that `penstock.read_back` can give the rows to another flow in their order: columns
                ``__ps_time`` (int64, event time in µs; only if rows have one), ``__ps_part`` (int64), ``__ps_offset`` (int64), ``__ps_sub`` (int64), which
                order the rows and are unique, and ``__ps_partition`` (text), what ``__ps_part`` stands for. They do not depend on epochs, workers or rescales.

        Raises:
            DeclarationError: The sink's mode cannot work with this stream, one sink is used twice, or two outputs would spoil one place.

        Example:
            >>> stored = flights.where("delay > 15").sink(ps.parquet("delayed"), name="delayed")
        """
        for method in ("open", "write", "validate"):
            if not hasattr(sink, method):
                raise DeclarationError(
                    f"{sink!r} is not a sink; use penstock.sql(...), penstock.parquet(...) or another of its sinks."
                )
        if any(o.sink is sink for o in self._flow._outputs):
            raise DeclarationError("One sink object serves one output; make another for this one.")
        updates, key = p.updating(self._node)
        output = p.Output(
            name or output_name(self._node), self._node, sink, updates, key, derived=name is None, stored_positions=positions
        )
        if output.positions and not self._node.positioned:
            raise DeclarationError(
                f"{sink!r} wants positions, which records that were left out have as text only; give them another sink."
            )
        if positions and updates:
            raise DeclarationError(
                f"{sink!r} cannot store positions of a running aggregate, whose later rows take the place of earlier ones; leave out "
                "positions=True, or close the aggregate with a window."
            )
        if positions and getattr(sink, "wants_positions", False):
            raise DeclarationError(f"{sink!r} is given each row's position as it is; leave out positions=True.")
        sink.validate(output.columns(self.schema), updates=updates, key=key)
        if name is not None:
            as_text(name, "The name of an output")
        taken = {o.name for o in self._flow._outputs}
        chosen, n = output.name, 2
        while chosen in taken:
            if name:
                raise DeclarationError(f"Flow {self._flow.name!r} has two outputs named {name!r}; give each its own name.")
            chosen, n = f"{output.name}-{n}", n + 1
        for other in self._flow._outputs:
            if isinstance(sink, Sharing) and (refused := sink.sharing_refusal(other.sink)):
                raise DeclarationError(
                    f"{refused.sentence} (outputs {other.name!r} and {chosen!r}): give one of them another place."
                )
        self._flow._outputs.append(replace(output, name=chosen))
        return self

    def _missing(self, attribute: str) -> Any:
        if attribute in self._needing_a_key:
            left = next((n.region for n in p.upstream_of(p.RegionOutput, self._node)), None)
            if left is not None:
                key = ", ".join(repr(n) for n in left.keys.names) or "'column'"
                raise SpellingError(
                    f".{attribute}(...) keeps state and so needs a key, but these rows have left region {left.name!r}; "
                    f"key them again: .key_by({key}, name='…').{attribute}(...)."
                )
            raise SpellingError(
                f".{attribute}(...) keeps state and so needs a key; open a region first: .key_by('column').{attribute}(...)."
            )
        raise missing("A stream", attribute, STREAM, dir(type(self)))

    if not TYPE_CHECKING:
        __getattr__ = _missing  # a checker that saw it would let every name pass
