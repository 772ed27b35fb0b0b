"""A query checked against the columns and ready to run.

``Pattern`` travels to the workers. The engine evaluates the tests of each event and hands over the bits; the worker does the
rest in NumPy (``batch``, ``operators.match``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrow.columns import HasColumns
from penstock.errors import DeclarationError
from penstock.patterns.algebra import Not, Plus, Query, Then, Times, Window
from penstock.patterns.automaton.build import Automaton, Excluded, Test, TypeIs, build
from penstock.patterns.automaton.determine import Determiniser
from penstock.patterns.automaton.timeouts import STRATEGY, Stopping
from penstock.patterns.predicates import filter_sql, predicate_sql, text_sql
from penstock.patterns.recogniser.tables import BITS
from penstock.patterns.result_columns import Shape, shape_of
from penstock.patterns.scopes import subformulas
from penstock.patterns.source_locations import error_in, error_in_clause
from penstock.sql_text.schema import as_number, as_text, quoted, unknown_column
from penstock.types import MASK

_TESTS_OF_A_BYTE = 7  # a word stays positive
WHEN, KEY = "__ps_when", "__ps_key"
MAX_MATCHES_PER_EVENT = 10_000_000
FEW_MATCHES = 64  # per event


@dataclass(frozen=True, slots=True)
class Pattern:
    """A query, ready to run.

    Attributes:
        automaton, strategy, scope, consume, limit: see ``Recogniser``.
        window: the query's window.
        events_window: ``"global"`` or ``"key"``: whose events an EVENTS window counts.
        order: the columns that order the events; the first gives ``match_start`` and ``match_end``.
        keys: the names of the key columns in the result.
        key_columns: the same in the input of ``batch``: the event's column if the key is one, else a hidden one.
        patient: whether events of no type of the query change nothing and can be dropped.
        shape: the result's other columns.
        max_matches_per_event: more matches of one closing event are an error.
        streams: those after ``FROM``, if there are several.
        evaluated: in a flow, the SQL of the words, which defines the types.
        stops_at: recognise runs that have bound this variable and time out, instead of matches; see ``timeouts``.
    """

    automaton: Automaton
    strategy: str
    scope: str
    consume: str
    limit: int | None
    window: Window | None
    events_window: str
    order: tuple[str, ...]
    keys: tuple[str, ...]
    key_columns: tuple[str, ...]
    patient: bool
    shape: Shape
    max_matches_per_event: int = MAX_MATCHES_PER_EVENT
    stops_at: str = ""
    streams: tuple[str, ...] = ()
    evaluated: tuple[str, ...] = ()

    def follower(self) -> Determiniser | Stopping:
        return Stopping.of(self.automaton, self.stops_at) if self.stops_at else Determiniser(self.automaton, self.followed)

    @property
    def followed(self) -> str:
        """The strategy by which runs are dropped before they are matches: none if conditions between events choose first."""
        return self.strategy if not self.automaton.judges or self.strategy == "STRICT" else "ALL"

    def timing_out(self, variable: str, query: Query) -> Pattern:
        """The pattern of a query's runs that have bound a variable and time out.

        Raises:
            QueryError: There is no window of time, or no such variable in the result; or the strategy or consumption compares
                matches.
        """
        if self.window is None or self.window.kind != "time":
            raise error_in_clause(query, "window", "on_timeout needs a window that closes: WITHIN a time.")
        if self.consume != "NONE" or self.strategy == "STRICT":
            raise error_in_clause(
                query,
                "strategy" if self.strategy == "STRICT" else "consume",
                "on_timeout cannot be combined with CONSUME BY or STRICT, under which runs end before their window does.",
            )
        if self.automaton.judges:
            raise error_in(
                query.text,
                self.automaton.relations[0].op if self.automaton.relations else None,
                "on_timeout cannot be combined with a condition between events or a gap, which only whole matches satisfy or not; compare "
                "them after the match, with .where.",
            )
        if self.shape.counts:
            raise error_in_clause(
                query, "projection", "on_timeout needs events to show, and SELECT COUNT(*) shows none; select the variable."
            )
        names = list(dict.fromkeys(name for kind in self.automaton.kinds for name in kind))
        if variable not in names:
            raise error_in_clause(
                query,
                "projection",
                f"on_timeout names {variable!r}, which is no variable of the result ({', '.join(names) or 'it has none'}); give it a "
                "name with AS.",
            )
        kinds = Stopping.of(self.automaton, variable).kinds
        shape = replace(self.shape, kinds=kinds)
        return replace(self, strategy=STRATEGY, limit=None, shape=shape, stops_at=variable)

    @property
    def words(self) -> int:
        """The number of words of test results per event."""
        return max(1, -(-len(self.automaton.tests) // BITS))

    def masks(self, events: HasColumns) -> list[NDArray[Any]]:
        """The words of events, one array of whole numbers each, see `word_type`."""
        return [events.column(f"{MASK}{i}").to_numpy() for i in range(self.words)]

    @property
    def types(self) -> list[int]:
        """The tests for an event's type, as bits of each word."""
        bits = sum(1 << bit for bit, test in enumerate(self.automaton.tests) if isinstance(test, TypeIs))
        return [bits >> (BITS * i) & (1 << BITS) - 1 for i in range(self.words)]

    @property
    def row_filter(self) -> str | None:
        """The condition, on the words, that an event is of a type of the query; None if other events matter."""
        if not self.patient:
            return None
        return " OR ".join(f"({MASK}{i} & {word}) <> 0" for i, word in enumerate(self.types) if word) or "false"

    @property
    def needs_global_order(self) -> bool:
        """Whether keys are processed together, in the order of all events, because any match drops the runs of all keys."""
        return bool(self.keys) and self.consume == "ANY"

    @property
    def counts_own_events(self) -> bool:
        """Whether windows, if any, are measured in the events of the key."""
        return not self.in_time and (self.window is None or (self.window.kind == "events" and self.events_window == "key"))

    @property
    def in_time(self) -> bool:
        """Whether runs are measured in time: by their window, or without one by a gap behind their first event."""
        return self.window.kind == "time" if self.window is not None else max(self.automaton.spans, default=-1) >= 0

    @property
    def spreads(self) -> bool:
        """Whether the matches of a closing event can be enumerated in parts: they are not compared, limited or only counted."""
        alone = {"ALL", "STRICT"} if self.scope == "end" else {"ALL", "STRICT", "NEXT", "LAST", "MAX"}
        return self.strategy in alone and self.limit is None and not self.shape.counts and not self.automaton.judges

    @property
    def enumerates_locally(self) -> bool:
        """Whether so few matches can end with one event that handing them over costs more than enumerating them."""
        most = self.automaton.most_matches
        return most is not None and most <= FEW_MATCHES

    @property
    def needed(self) -> tuple[str, ...]:
        """The event columns that a worker needs."""
        compared = (value.attribute for relation in self.automaton.relations for value in relation.values)
        return tuple(dict.fromkeys((*self.order, *self.shape.attributes, *compared)))

    def result(self, columns: pa.Schema, keys: list[pa.Field[Any]]) -> pa.Schema:
        """The result's schema, given the events' columns and the key fields."""
        return pa.schema([*keys, *self.shape.fields(columns, columns.field(self.order[0]).type)])


def check_source_of_types(columns: pa.Schema, type_column: str | None, define: Mapping[str, str] | None) -> None:
    """Check that either a column or conditions define event types, and not both.

    Raises:
        DeclarationError: They do not.
    """
    if (type_column is None) == (define is None):
        raise DeclarationError(
            "match needs to know the type of an event: give type='column', or define={'name': 'SQL condition'}, and not both."
        )
    if define is not None:
        if not isinstance(define, Mapping):
            raise DeclarationError(f"define must be a dict of type names and SQL conditions, not {define!r}.")
        for name, condition in define.items():
            as_text(name, "A type's name in define")
            as_text(condition, f"The condition of {name!r} in define")
    if type_column is None:
        return
    if as_text(type_column, "type") not in columns.names:
        raise unknown_column(type_column, columns.names, "type")
    kind = columns.field(type_column).type
    named = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)
    if not any(check(kind) for check in named):
        raise DeclarationError(
            f"type names column {type_column!r} of {kind}, but a type's name is text; cast it, or use define={{'name': 'condition'}}."
        )


def words_sql(
    query_tests: tuple[Test, ...], types: Mapping[str, str] | None, type_column: str | None, streams: Mapping[str, str]
) -> list[str]:
    """Spark SQL expressions, one per 62 tests; their bits are the tests that an event passes.

    Args:
        query_tests: the automaton's tests.
        types: the condition of each event type, if defined so.
        type_column: the column with an event's type name, otherwise.
        streams: the condition for an event to come from each stream; empty if there is only one stream.
    """
    conditions = [test_sql(test, types, type_column, streams) for test in query_tests]
    kind = "TINYINT" if word_type(query_tests) == pa.int8() else "BIGINT"
    words = []
    for start in range(0, max(1, len(conditions)), BITS):
        bits = [
            f"CASE WHEN {condition} THEN CAST({1 << i} AS {kind}) ELSE CAST(0 AS {kind}) END"
            for i, condition in enumerate(conditions[start : start + BITS])
        ]
        words.append(" + ".join(bits) or f"CAST(0 AS {kind})")
    return words


def word_type(query_tests: tuple[Test, ...]) -> pa.DataType:
    """The type of `words_sql`: small for a few tests, because moving columns takes a worker much time."""
    return pa.int8() if len(query_tests) <= _TESTS_OF_A_BYTE else pa.int64()


def test_sql(test: Test, types: Mapping[str, str] | None, type_column: str | None, streams: Mapping[str, str]) -> str:
    """One test as a Spark SQL condition."""
    match test:
        case TypeIs(type=name, stream=stream):
            own = type_sql(name, types, type_column)
            return f"({own} AND {streams[stream]})" if streams and stream is not None else own
        case Excluded(type=name, condition=condition):
            own = type_sql(name, types, type_column)
            return own if condition is None else f"({own} AND {filter_sql(condition)})"
        case _:
            return predicate_sql(test)


def type_sql(name: str, types: Mapping[str, str] | None, type_column: str | None) -> str:
    """The condition that an event is of a type."""
    if types is not None:
        return f"({types[name]})"
    return f"(CAST({quoted(type_column)} AS STRING) = {text_sql(name)})"


def ready(
    query: Query,
    columns: tuple[str, ...],
    *,
    order: tuple[str, ...],
    keys: tuple[str, ...],
    scope: str = "end",
    events_window: str = "global",
    max_matches_per_event: int = MAX_MATCHES_PER_EVENT,
) -> Pattern:
    """Make a query ready to run.

    Args:
        query: a parsed query.
        columns: the events' columns.
        order: the columns that order events.
        keys: the key columns' names in the result.
        scope: ``"end"`` or ``"interval"``: which matches a strategy compares.
        events_window: ``"global"`` or ``"key"``.
        max_matches_per_event: more matches of one closing event are an error.

    Raises:
        DeclarationError: an invalid argument.
        QueryError: LIMIT with COUNT(*), or two columns of one name.
    """
    if scope not in {"end", "interval"}:
        raise DeclarationError(f"strategy_scope={scope!r} is not known; use 'end' or 'interval'.")
    if events_window not in {"global", "key"}:
        raise DeclarationError(f"events_window={events_window!r} is not known; use 'global' or 'key'.")
    as_number(max_matches_per_event, "max_matches_per_event")
    automaton = build(query)
    if query.window is not None and query.window.kind != "time":
        automaton = replace(automaton, spans=())  # runs are measured in another unit
    shape = shape_of(query, columns, automaton.kinds, keys)
    compared = {value.attribute for relation in automaton.relations for value in relation.values}
    shown = {*order, *shape.attributes, *compared} & {group[0] for group in query.partition_by if len(group) == 1}
    if shape.counts and query.limit is not None:
        raise error_in_clause(
            query, "limit", "LIMIT has no meaning with COUNT(*), which gives one row per closing event; leave it out."
        )
    return Pattern(
        automaton=automaton,
        strategy=query.strategy,
        scope=scope,
        consume="PARTITION" if query.consume == "ANY" and not keys else query.consume,
        limit=query.limit,
        window=query.window,
        events_window=events_window if keys else "key",
        order=order,
        keys=keys,
        key_columns=tuple(key if key in shown else f"{KEY}{i}" for i, key in enumerate(keys)),
        patient=_patient(query, window_of_key=events_window == "key" or not keys),
        shape=shape,
        max_matches_per_event=max_matches_per_event,
    )


def _patient(query: Query, *, window_of_key: bool) -> bool:
    """Whether events that pass no test change no run: nothing is contiguous or excluded, and no window counts them."""
    if query.strategy == "STRICT" or (window_of_key and query.window is not None and query.window.kind == "events"):
        return False
    return not any(
        isinstance(part, Not) or (isinstance(part, Plus | Times | Then) and part.contiguous)
        for part in subformulas(query.formula)
    )
