"""Stateful steps: `KeyedStream` inside a region.

The conveniences are all sugar over `KeyedStream.process`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.flow import plan as p
from penstock.flow.aggregating import named_aggregates, with_operands
from penstock.flow.joining import join_of
from penstock.flow.mapping import Mapper, OnTimer, mapping
from penstock.flow.pattern_input import conditions_of_streams, time_column
from penstock.flow.steps import StatelessStep, Where
from penstock.flow.stream import Stream
from penstock.flow.windowed import WindowedStream
from penstock.operators.aggregate import AggregateStep
from penstock.operators.aggregates.base import Kernel
from penstock.operators.base import ERROR_SCHEMA, Operator
from penstock.operators.deduplicate import Deduplicate
from penstock.operators.migration import as_migrations
from penstock.operators.session import SessionStep
from penstock.operators.timed_process import in_turns
from penstock.operators.windows import Session, Window
from penstock.sinks.base import Sink
from penstock.sql_text.given import as_name, as_spelled, as_texts, flat, known_column
from penstock.sql_text.schema import as_text, quoted, unknown_column
from penstock.types import MASK, Duration, duration_us

if TYPE_CHECKING:
    from penstock.spark.column_text import Column
    from penstock.sql_text.given import Expression, Schema

_ONE = "these rows are one stream, those of a source or of a region; to read several, put sources together with union before key_by"
_SEVERAL = "these sources come together here"


class KeyedStream(Stream):
    """Rows inside a region: stateful steps, all keyed by the region's key.

    Example:
        >>> by_plane = flights.key_by("tail")
        >>> def since_last(tail, flight, last):
        ...     return (tail, flight.at, last), flight.at
        >>> chained = by_plane.stateful_map(since_last, "tail string, at timestamp, before timestamp", state="at timestamp")
        >>> by_plane.deduplicate("at", within="1 day").aggregate(flights=ps.count()).columns
        ['tail', 'flights']
        >>> by_plane.window(ps.tumbling("1 hour")).aggregate(mean_delay=ps.mean("delay")).columns
        ['tail', 'window_start', 'window_end', 'mean_delay']
        >>> by_plane.join(flights.select("tail", "at", "origin AS next"), within="1 hour", how="left").local().columns[-1]
        'next'
        >>> kinds = {"LATE": "delay > 15", "EARLY": "delay < 0"}
        >>> caught_up = by_plane.match("SELECT * WHERE LATE AS late ; EARLY WITHIN 3 HOURS", kinds, on_timeout="late")
        >>> caught_up.timeouts.columns == caught_up.columns
        True
        >>> by_plane.process(ps.Operator()).columns == flights.columns  # one that gives its rows on
        True
    """

    _node: p.RegionOutput
    _timeouts: KeyedStream | None = None

    @property
    def _region(self) -> p.Region:
        return self._node.region

    @property
    def _input(self) -> tuple[str, int]:
        at = self._node.operator
        return ("port", -1 - at) if at < 0 else ("operator", at)

    def _stateless(self) -> p.Node:
        updates, _ = p.updating(self._node)
        if updates:
            raise DeclarationError(
                "The running values of an aggregate replace one another, so nothing but a sink can follow them; "
                "use a window, or do it in a further stateful step of the same region."
            )
        return self._node

    def _after(self, step: StatelessStep) -> Stream:
        """A stateless step right after ``key_by`` is done before the shuffle and stays keyed; a later one leaves the region."""
        region = self._region
        if self._node.operator >= 0:
            return super()._after(step)
        node = p.stepped(step, region.inputs[-1 - self._node.operator])
        missing = [n for n in region.keys.names if n not in node.schema.names]
        if missing:
            return Stream(self._flow, p.stepped(step, self._node))
        region.inputs.append(node)  # an input of its own: other streams may read this one
        return KeyedStream(self._flow, p.RegionOutput(node.schema, node.timed, region, -len(region.inputs)))

    def _selected(self, columns: list[tuple[str, str]], fields: list[pa.Field[Any]]) -> Stream:
        keys = [n.lower() for n in self._region.keys.names] if self._node.operator < 0 else []
        for name, sql in columns if keys else ():
            if name.lower() in keys and sql.strip("`").lower() != name.lower():
                raise DeclarationError(
                    f"Column {name!r} is the key of region {self._region.name!r} and cannot be replaced after key_by; do that before."
                )
        return super()._selected(columns, fields)

    def local(self) -> Stream:
        """Leave the region: what follows has no key."""
        return Stream(self._flow, self._stateless())

    def process(
        self,
        operator: Operator,
        *,
        on_error: Literal["fail"] | Sink = "fail",
        name: str | None = None,
        migrate: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] = (),
        ttl: Duration | None = None,
    ) -> KeyedStream:
        """A step of one's own; see `penstock.Operator`.

        Args:
            operator: The step. What it raises ends the run; records that it appends to ``context.skipped`` are left out.
            on_error: A sink for the records that it leaves out.
            name: The step's name, unique in its region. Its state is found by it when the flow is changed and started again. If not
                given it is made from the step's kind, with its place among those of its kind: ``stateful_map``, ``stateful_map-2``.
            migrate: A function from the state of an earlier version of the flow to today's, or several, oldest first. Each value that was
                stored before a function was added goes through it once, when it is first read. Keep the functions that are there, and
                put new ones behind them. The operator must keep its state by `put_objects`.
            ttl: How long after a key's last row, by event time, all of its state is forgotten; None: never.

        Raises:
            DeclarationError: This is no operator, one whose state is not a user's own with ``migrate``, or ``on_error="skip"``: only the operator knows which of its records failed;
                or its rows and timers cannot come in the order of event time (`ttl`, `on_timer`).
        """
        if not isinstance(operator, Operator):
            raise DeclarationError(f"process needs a penstock.Operator, not {type(operator).__name__}.")
        if on_error == "skip":  # type: ignore[comparison-overlap]  # said to those whose checker did not
            raise DeclarationError(
                f"{operator.describe()} gets many records at once, so only it can tell which of them to skip: have it append "
                "(key, position, error, record) to self.context.skipped, and give a sink as on_error to keep them."
            )
        if functions := as_migrations(migrate):
            if operator.migrate is None:
                raise DeclarationError(f"{operator.describe()} takes no migrate=: its state is not made by functions of yours.")
            operator = copy.copy(operator)
            operator.migrate = functions
        operator = in_turns(operator, ttl, timed=self._node.timed)
        return self._step(operator, [self._input], [self.schema], on_error, name)

    def _step(
        self,
        operator: Operator,
        inputs: list[tuple[str, int]],
        schemas: list[pa.Schema],
        on_error: Literal["fail", "skip"] | Sink = "fail",
        name: str | None = None,
    ) -> KeyedStream:
        self._stateless()  # refuses what would follow running values
        keep = on_error if not isinstance(on_error, str) else None
        if keep is None and on_error not in ("fail", "skip"):
            raise DeclarationError(f"{operator.describe()} has on_error={on_error!r}; use 'fail', 'skip' or a sink.")
        region = self._region
        if region.distribute.of_partition() is None and (refused := p.undividable(operator, inputs, region)):
            raise refused  # otherwise it may be meant for a group, which `start` knows
        if name is not None and (
            not as_text(name, "The name of a step") or "/" in name or name in [s.name for s in region.steps]
        ):
            raise DeclarationError(
                f"A step of region {region.name!r} cannot be named {name!r}; give each step a name of its own, without a slash."
            )
        schema = operator.output_schema(schemas, region.keys)
        region.steps.append(p.RegionStep(operator, tuple(inputs), schema, "fail" if on_error == "fail" else "skip", name))
        at = len(region.steps) - 1
        if at > 200:
            raise DeclarationError(f"Region {region.name!r} has more than 200 steps; split it with another key_by.")
        if keep is not None:
            Stream(self._flow, p.RegionOutput(ERROR_SCHEMA, False, region, at, errors=True)).sink(keep)
        return KeyedStream(self._flow, p.RegionOutput(schema, self._node.timed, region, at))

    def stateful_map(
        self,
        fn: Mapper,
        schema: Schema,
        state: Schema | None = None,
        *,
        on_error: Literal["fail", "skip"] | Sink = "fail",
        name: str | None = None,
        migrate: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] = (),
        ttl: Duration | None = None,
        on_timer: OnTimer | None = None,
    ) -> KeyedStream:
        """A Python function per event with a state per key: ``fn(key, event, state) -> (outputs, state)``.

        Args:
            fn: `key` is a value (a tuple for several key columns), `event` a named tuple of the columns, `state` what the last
                call for the key returned (None at first). `outputs` is None, one row (tuple or dict) or an iterable of rows; a
                returned state of None forgets the key. Return a new state rather than changing the old one
                in place: with on_error="skip" a change made before the function raised would stay.
            schema: Columns of the output.
            state: Schema of the state (compact, checked), or None: any picklable value.
            on_error: What to do with a record or timer that a function raises on: ``"fail"``, ``"skip"``, or a sink.
            name: The step's name; see `process`.
            migrate: Functions from the state of an earlier version of the flow to that of the next one; see `process`. Each gets
                a state as `fn` of that version did, or what the function before it returned.
            ttl: How long after a key's last event, by event time, its state is forgotten, and None given instead; None: never.
            on_timer: ``on_timer(key, state, at) -> (outputs, state, timer)`` for each timer that fires; see "Timers" in the reference. A key has
                at most one: `fn` returns it as a third value, a datetime (without a zone: UTC), or None for none. Without a third value the
                key's timer stays. Its rows have the time `at`. None: there are no timers.

        Raises:
            DeclarationError: A function takes other arguments, a schema cannot be read, or `ttl` or a timer is without an event time.
        """
        given: dict[str, Any] = {
            "fn": fn,
            "schema": schema,
            "state": state,
            "migrate": migrate,
            "ttl": ttl,
            "on_timer": on_timer,
        }
        return self._mapped(None, on_error, name, **given)

    def _mapped(self, window: Any, on_error: Any, name: str | None, **given: Any) -> KeyedStream:
        step = mapping(window=window, skips=on_error != "fail", timed=self._node.timed, **given)
        return self._step(step, [self._input], [self.schema], on_error, name)

    def aggregate(
        self,
        emit: Literal["update"] | Column = "update",
        *unnamed: Column,
        name: str | Kernel | None = None,
        **aggregates: Kernel | Column,
    ) -> KeyedStream:
        """A running value per key.

        Args:
            emit: ``"update"``: after each epoch the new value of every key that changed. Earlier values are replaced, so the
                sink must be able to (``mode="upsert"``).
            *unnamed: Aggregates that have their name in them: ``F.count("*").alias("n")``.
            name: The step's name, see `process`; or an aggregate for a last column of that name.
            **aggregates: Output column = aggregate: `penstock.count` and the like, or in Spark's spelling ``F.avg("delay")``,
                ``"avg(delay)"``. What an aggregate reads is a column, or right after ``key_by`` an expression.
        """
        return self._aggregated(None, (emit, *unnamed), name, aggregates)

    def _aggregated(
        self, window: Window | None, unnamed: tuple[Any, ...], name: Any, aggregates: Mapping[str, Any]
    ) -> KeyedStream:
        named = name is None or isinstance(name, str)
        aggregates = aggregates if named else {**aggregates, "name": name}
        emit = next((e for e in unnamed[:1] if isinstance(e, str) and "(" not in e), "update" if window is None else "final")
        given = named_aggregates(unnamed[1:] if unnamed[0] is emit else unnamed, aggregates)
        if not given:
            raise DeclarationError("aggregate needs at least one aggregate, for example n=penstock.count().")
        wanted = ("update",) if window is None else ("final",) if isinstance(window, Session) else ("final", "update")
        if emit not in wanted:
            raise DeclarationError(f"aggregate(emit={emit!r}) is not possible here; use {' or '.join(map(repr, wanted))}.")
        stream, kernels = with_operands(self, given)
        items = tuple(kernels.items())
        step: Operator = SessionStep(items, window) if isinstance(window, Session) else AggregateStep(items, window, emit)
        return stream.process(step, name=name if named else None)

    def _computed(self, expression: str, aggregate: str) -> KeyedStream | None:
        """This stream with an expression as a column named like it; None: it is none over these columns, but a name."""
        if self._node.operator >= 0:
            raise DeclarationError(
                f"Aggregate {aggregate!r} reads {expression!r}, which is no column here; an expression can be read right after "
                "key_by only: have the step before compute it."
            )
        found = self.with_columns({expression: expression})
        return found if isinstance(found, KeyedStream) else None

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

    def deduplicate(
        self, *columns: Expression | Sequence[Expression], within: Duration | None = None, name: str | None = None
    ) -> KeyedStream:
        """Keep the first of records that are equal in `columns` (none: in the key alone).

        Args:
            *columns: What makes two records equal; a list will do.
            within: A record is dropped if an equal one that was kept lies at most so far before it; None: for ever.
            name: The step's name; see `process`.
        """
        names = [as_name(column, "A column of deduplicate") for column in flat(columns)]
        names = [known_column(name, self.schema.names, f"deduplicate({', '.join(names)})") for name in names]
        if within is not None and not self._node.timed:
            raise DeclarationError("deduplicate(within=...) needs an event time; declare it: flow.source(..., time='column').")
        kept_us = None if within is None else duration_us(within, "deduplicate's within")
        return self.process(Deduplicate(tuple(names), kept_us), name=name)

    def join(
        self,
        other: Stream,
        within: Duration | None = None,
        how: Literal["inner", "left", "right", "full", "outer", "asof"] = "inner",
        *,
        tolerance: Duration | None = None,
        name: str | None = None,
    ) -> KeyedStream:
        """Rows of one key together: pairs at most `within` apart, or as of a time. As in SQL, a key with a null matches nothing.

        Args:
            other: A stream keyed by as many columns of the same types, or one that has this region's key columns.
            within: How far apart the event times of a pair are, inclusive.
            how: ``"inner"``; ``"left"``: rows of this side without partner too; ``"right"``: of the other side; ``"full"``, or
                ``"outer"``: of both sides. ``"asof"``: each row of this side with the latest of the other that is not after it; of several
                at one time the last in the order of positions; nulls if there is none. It comes when the frontier has passed the row.
            tolerance: With ``"asof"``: how long before its row the other may be, inclusive; None: however long, and the latest row of each key
                is kept for ever.
            name: The step's name; see `process`.

        Returns:
            Columns of this side, then those of the other without its key columns; a name that both have gets ``_right``.
        """
        step = join_of(within, how, tolerance)
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
            # A column that is named like a key here, but is none there, stays.
            here = {n.lower() for n in self._region.keys.names}
            mapping = {n: f"{n}_right" for n in node.schema.names if n.lower() in here}
            mapping |= dict(zip(keys.names, self._region.keys.names, strict=True))
            renamed = renamed.select(**{mapping.get(n, n): quoted(n) for n in node.schema.names})
        self._region.inputs.append(renamed._node)
        port = ("port", len(self._region.inputs) - 1)
        return self._step(step, [self._input, port], [self.schema, renamed.schema], name=name)

    def _joined_input(self, other: Stream) -> tuple[p.Node, pa.Schema]:
        mine = self._region.keys
        if isinstance(other, KeyedStream) and other._region is self._region:
            raise DeclarationError("A region cannot be joined with itself; key the stream again under another name.")
        if (
            isinstance(other, KeyedStream)
            and other._node.operator < 0
            and not other._region.steps
            and not self._is_read(other._region)
        ):
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

    def _is_read(self, region: p.Region) -> bool:
        """Whether something reads a region's rows already."""
        readers = p.readers(self._flow._regions, self._flow._outputs)
        return any(n.region is region for n in p.upstream_of(p.RegionOutput, *readers))

    def match(
        self,
        query: str,
        define: Mapping[str, Expression] | None = None,
        *,
        type: Expression | None = None,  # noqa: A002  (the public name)
        strategy_scope: str = "end",
        events_window: str = "key",
        on_timeout: str | None = None,
        max_matches_per_event: int = 65_536,
        name: str | None = None,
    ) -> KeyedStream:
        """Find the matches of a CEQL query in each key's events, in event-time order.

        It must come right after ``key_by``, as its conditions are evaluated before the shuffle. ``PARTITION BY`` may be left out; if given,
        it must name the key. Events of which a part of the key is null are left out. ``WITHIN n EVENTS`` counts the key's events. A match
        is told as soon as the frontier has passed its end.

        Args:
            query: The query. Its streams, in ``FROM`` and ``stream>type``, are the sources that come together before ``key_by``; the rows of
                one source or of a region are one stream, whatever the query calls it.
            define: For each event type the SQL condition for an event to be of it. Or:
            type: The column that holds each event's type name.
            strategy_scope: What a selection strategy compares: ``"end"`` or ``"interval"``, as in `penstock.match`.
            events_window: What ``WITHIN n EVENTS`` counts: ``"key"``, the events of the key. Those of all keys, as `penstock.match` counts
                unless told otherwise, nobody sees who sees one key.
            on_timeout: A variable of the result. The stream's `timeouts` then has the runs that have bound it, may still go on when
                their window closes, and of which no match goes on: ``A AS first ; B WITHIN 10 MINUTES`` with
                ``on_timeout="first"`` gives each A that no B follows in time.
            max_matches_per_event: More matches of one closing event are an error; at most 65,536.
            name: The step's name; see `process`. That of `timeouts` has ``.timeouts`` behind it.

        Returns:
            The key, ``match_start`` and ``match_end`` (event times), and arrays of events as `penstock.match` gives them.

        Raises:
            QueryError: The query is wrong, does not fit the columns or the key, or cannot be answered key by key.
            DeclarationError: The stream has no event time, or something stands between ``key_by`` and this step.
        """
        from penstock.operators.match import Match, keyed_pattern  # noqa: PLC0415
        from penstock.operators.timeouts import Timeouts  # noqa: PLC0415
        from penstock.patterns.plan import WHEN, word_type, words_sql  # noqa: PLC0415  (numba takes half a second to load)
        from penstock.patterns.streams import streams_read  # noqa: PLC0415

        if self._node.operator >= 0:
            raise DeclarationError("match must come right after key_by, as its conditions are evaluated before the shuffle.")
        if not self._node.timed:
            raise DeclarationError("match needs an event time; declare it: flow.source(..., time='column').")
        if events_window != "key":
            raise DeclarationError(
                f"events_window={events_window!r}: in a flow WITHIN n EVENTS can only count the events of the key; leave it at 'key'."
            )
        read_node = self._region.inputs[self._input[1]]
        columns, keys, time = self.schema, self._region.keys, time_column(read_node)
        defined = as_texts(define)
        of_type: Any = as_spelled(type, columns.names, "type")
        parsed, pattern = keyed_pattern(
            query,
            columns,
            keys=keys.names,
            time=time,
            define=defined,
            type_column=of_type,
            scope=strategy_scope,
            most=max_matches_per_event,
        )
        streams = conditions_of_streams(parsed, read_node, self._flow._sources)
        read = streams_read(parsed, tuple(streams), _SEVERAL if streams else _ONE)
        tests = words_sql(pattern.automaton.tests, defined, of_type, streams)
        pattern = replace(pattern, streams=read if parsed.streams else (), evaluated=tuple(tests))
        late = None if on_timeout is None else pattern.timing_out(on_timeout, parsed)
        needed = dict.fromkeys([*keys.names, *pattern.needed, *(late.needed if late else ())])  # the rest need not be shuffled
        shown = [(name, quoted(name), columns.field(name).type) for name in needed]
        shown += [(f"{MASK}{i}", sql, word_type(pattern.automaton.tests)) for i, sql in enumerate(tests)]
        if parsed.window is not None and parsed.window.attribute is not None:
            shown.append((WHEN, quoted(parsed.window.attribute), columns.field(parsed.window.attribute).type))
        stream: Any = self if len(read) == len(streams) else self._only(" OR ".join(streams[name] for name in read))
        stream = stream._selected([(name, sql) for name, sql, _ in shown], [pa.field(name, kind) for name, _, kind in shown])
        wanted = " AND ".join(f"{quoted(key)} IS NOT NULL" for key in keys.names)  # an event without a key is part of no match
        if pattern.row_filter is not None:  # the rest is not even shuffled
            wanted += f" AND ({pattern.row_filter})"
        stream = stream.where(wanted)
        matched: KeyedStream = stream.process(Match(pattern, query), name=name)
        if late is not None:
            matched._timeouts = stream.process(Timeouts(late, query), name=None if name is None else f"{name}.timeouts")
        return matched

    @property
    def timeouts(self) -> KeyedStream:
        """The runs of a pattern whose window closed, as rows of the columns of a match; ``match_end`` is when it closed.

        Raises:
            DeclarationError: This is not a ``match(..., on_timeout=...)``.
        """
        if self._timeouts is None:
            raise DeclarationError("Only a match with on_timeout has timeouts: match(query, on_timeout='variable').timeouts.")
        return self._timeouts

    def _only(self, condition: str) -> KeyedStream:
        """The rows for which a condition on hidden columns is true."""
        return cast("KeyedStream", self.apply(Where(condition)))  # all columns stay, and with them the key


Stream._needing_a_key = frozenset(name for name in vars(KeyedStream) if not name.startswith("_")) - {"local", "timeouts"}
