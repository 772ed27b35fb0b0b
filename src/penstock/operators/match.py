"""Patterns in a flow: the recogniser as a keyed operator.

Events arrive per key in event-time order. A key's open runs are one state value, so it moves, is snapshot and recovers like any
other state; a key without open runs leaves nothing behind. The engine evaluates the pattern's tests as columns before the
shuffle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import concat_batches, to_indices
from penstock.errors import DeclarationError, OperatorError
from penstock.operators.base import Context, KeyedState, Operator, Output
from penstock.operators.layouts import NONE_DROPPED, columns_text, schema_before
from penstock.patterns.algebra import Query
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.memory import describe, dump, forms, load
from penstock.patterns.plan import Pattern, check_source_of_types, ready
from penstock.patterns.predicates import check_query, expressions_of
from penstock.patterns.recogniser.recogniser import Batch, Recogniser
from penstock.patterns.recogniser.tables import Tables
from penstock.patterns.relations import blocks_of, counts_of, recogniser_of
from penstock.patterns.result_columns import check_case
from penstock.patterns.source_locations import error_in_clause, query_on_one_line
from penstock.patterns.windows import earliest, step_back_text, steps_back, times, without_text
from penstock.rows.keys import Ints
from penstock.rows.rows import Rows
from penstock.sql_text.schema import as_number
from penstock.types import MAX_TIME

MOST_MATCHES = 1 << 16
"""Most matches of one event: 16 bits distinguish the rows of one record in a flow."""


_NEVER = np.iinfo(np.int64).min


@lru_cache(maxsize=32)
def tables_of(pattern: Pattern) -> Tables:
    """The tables of a pattern, shared by a process's epochs."""
    return Tables(pattern.follower())


def keyed_pattern(
    query: str,
    columns: pa.Schema,
    *,
    keys: list[str],
    time: str,
    define: Mapping[str, str] | None,
    type_column: str | None,
    scope: str,
    most: int,
) -> tuple[Query, Pattern]:
    """Check a query that runs key by key, in the order of event time.

    Raises:
        QueryError: it is wrong, or does not fit the columns or the key.
        DeclarationError: another argument is wrong.
    """
    parsed = parse(query)
    check_source_of_types(columns, type_column, define)
    check_query(parsed, columns, types=None if define is None else dict(define))
    if parsed.consume == "ANY":
        raise error_in_clause(
            parsed,
            "consume",
            "CONSUME BY ANY lets a match of one key end those of all keys, but a flow runs key by key; use PARTITION.",
        )
    groups = {name for group in parsed.partition_by for name in group}
    if parsed.partition_by and (groups != set(keys) or any(len(group) > 1 for group in parsed.partition_by)):
        raise error_in_clause(
            parsed,
            "partition_by",
            f"PARTITION BY names {', '.join(sorted(groups))}, but the stream is keyed by {', '.join(keys)}; name the same, or none.",
        )
    if not 0 < as_number(most, "max_matches_per_event", 0) <= MOST_MATCHES:
        raise DeclarationError(f"max_matches_per_event must be from 1 to {MOST_MATCHES:,} in a flow, not {most:,}.")
    shown = tuple(columns.names)
    pattern = ready(
        parsed, shown, order=(time,), keys=tuple(keys), scope=scope, events_window="key", max_matches_per_event=most
    )
    check_case(parsed.text, pattern.shape, keys)
    return parsed, pattern


@dataclass(frozen=True)
class Events:
    """The events that open runs need, followed by rows. Most are in no match, so their columns are not sorted first."""

    remembered: pa.RecordBatch
    rows: Rows

    @property
    def schema(self) -> pa.Schema:
        return self.remembered.schema

    def column(self, name: str) -> EventColumn:
        return EventColumn(self, name)

    def take(self, at: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self.column(name).take(at) for name in self.schema.names], schema=self.schema)


@dataclass(frozen=True)
class EventColumn:
    """A column of `Events`."""

    events: Events
    name: str

    def take(self, at: Any) -> Any:
        index = at.to_numpy()
        first = self.events.remembered.num_rows
        new = index >= first
        fresh = self.events.rows.some(self.name, index[new] - first)
        if len(fresh) == len(index):
            return fresh
        old = self.events.remembered.column(self.name).take(to_indices(index[~new]))
        where = np.where(new, len(old) + np.cumsum(new), np.cumsum(~new)) - 1
        return pa.concat_arrays([old, fresh]).take(to_indices(where))


@dataclass
class Match(Operator):
    """Finds the matches of a pattern in each key's events.

    Attributes:
        pattern: The pattern.
        text: The query, for messages.
    """

    pattern: Pattern
    text: str
    kind = "match"
    migrate = None
    typed = "events"
    worded = ("conditions",)

    def __post_init__(self) -> None:
        self.name = "match"

    def output_schema(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> pa.Schema:
        return self.pattern.result(inputs[0], list(keys))

    def meaning(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        p = self.pattern
        options = {"scope": p.scope, "on_timeout": p.stops_at or "none", "streams": ", ".join(p.streams) or "one"}
        events = columns_text(pa.schema([inputs[0].field(name) for name in p.needed]))
        return {"query": query_on_one_line(self.text), "conditions": "; ".join(p.evaluated), "events": events, **options}

    def facts(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        return {name: text for name, text in self.meaning(inputs, keys).items() if name in ("query", "scope", "on_timeout")}

    def fixed(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Sequence[str]:
        return [NONE_DROPPED]

    def span(self) -> int | None:
        window, ends = self.pattern.window, self.pattern.consume != "NONE"
        return int(window.size) if window is not None and window.kind == "time" and not ends else None

    def reads(self) -> Sequence[str]:
        return self.pattern.needed

    def java_expressions(self) -> tuple[str, Iterable[str]]:
        return self.text, expressions_of(self.pattern.automaton.tests)

    def start(self, context: Context) -> None:
        super().start(context)
        schema = context.inputs[0]
        self._columns = pa.schema([schema.field(name) for name in self.pattern.needed])
        before = [schema_before(layout, self._columns) for layout in context.layouts[:-1]]
        self._forms = forms(self.pattern, [*before, self._columns])

    def on_data(self, rows: Rows, state: KeyedState) -> Output:
        names = state.names(rows.keys)
        stored = state.get(names)
        recogniser = self._recogniser()
        before = load(recogniser, stored, self._forms)
        letters = recogniser.tables.letters(self.pattern.masks(rows))
        batch = Batch(letters, *self._measured(rows, before.places, stored), refused=partial(self._stepped_back, rows))
        events = Events(before.events, rows)
        found = self._results(recogniser, batch, events, rows, len(before.owner))
        self._remember(recogniser, rows, np.concatenate([before.owner, rows.group]), events, batch, names, stored, state)
        return found

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        state.delete([name for name, _ in state.due(t)])
        return None

    def show_state(self, value: bytes) -> Any:
        return describe(value, self._forms)

    def _recogniser(self) -> Recogniser:
        return recogniser_of(self.pattern, tables_of(self.pattern), room=1 << 17)

    def _measured(
        self, rows: Rows, places_before: Ints, stored: Sequence[bytes | None]
    ) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """Rows in the window's unit: what `Batch` needs besides the letters.

        Args:
            rows: The rows.
            places_before: Per key, the number of earlier events; for an attribute window, the last value.
            stored: Per key, the stored value.
        """
        window, whose = self.pattern.window, np.arange(len(rows.keys))
        none = np.empty(0, np.int64)
        if window is None or window.kind != "attribute":
            when = (
                rows.order.time
                if self.pattern.in_time
                else np.arange(len(rows)) - rows.starts[rows.group] + places_before[rows.group]
            )
            return when, earliest(self.pattern, rows, when), rows.starts, whose, none, none
        when = times(self.pattern, rows, none, partial(self._without, rows))
        low = earliest(self.pattern, rows, when)
        before = np.where([value is None for value in stored], _NEVER, places_before)
        return when, low, rows.starts, whose, *steps_back(when, low, rows.starts[:-1], before)

    def _stepped_back(self, rows: Rows, row: int) -> OperatorError:
        return OperatorError(step_back_text(self.pattern, self._shown(rows, row)))

    def _without(self, rows: Rows, row: int) -> OperatorError:
        return OperatorError(f"The event of {self._shown(rows, row)} {without_text(self.pattern)}")

    def _shown(self, rows: Rows, row: int) -> str:
        return f"key {rows.keys.values()[int(rows.group[row])]!r} at {self.context.position_text(rows.order, row)}"

    def _results(self, recogniser: Recogniser, batch: Batch, events: Events, rows: Rows, first: int) -> Output:
        order = self.pattern.order[0]
        out = []
        if self.pattern.shape.counts:
            for ends, totals in counts_of(self.pattern, recogniser, batch, events):
                out.append(self._row(rows, events, ends, first, [totals]))
        else:
            for block in blocks_of(self.pattern, recogniser, batch, events):
                start = events.column(order).take(to_indices(block.starts))
                out.append(self._row(rows, events, block.ends, first, [start, *self.pattern.shape.arrays(block, events)]))
        if not out:
            return None
        triggers = np.concatenate([trigger for trigger, _ in out])
        return rows.emit(concat_batches([columns for _, columns in out]), triggers)

    def _row(self, rows: Rows, events: Events, ends: Ints, first: int, arrays: list[Any]) -> tuple[Ints, pa.RecordBatch]:
        trigger = ends - first
        whose = to_indices(rows.group[trigger])
        keys = [column.take(whose) for column in rows.keys.columns]
        end = events.column(self.pattern.order[0]).take(to_indices(ends))
        at = 0 if self.pattern.shape.counts else 1
        return trigger, pa.RecordBatch.from_arrays([*keys, *arrays[:at], end, *arrays[at:]], schema=self.context.output)

    def _remember(
        self,
        recogniser: Recogniser,
        rows: Rows,
        owner: Ints,
        events: Events,
        batch: Batch,
        names: list[bytes],
        stored: Sequence[bytes | None],
        state: KeyedState,
    ) -> None:
        last = rows.starts[1:] - 1
        lows = batch.low[last]
        needed = recogniser.keep(np.arange(len(names)), lows, batch.when[last])
        kept = events.take(to_indices(needed))
        window = self.pattern.window
        by_attribute = window is not None and window.kind == "attribute"
        after = 0 if by_attribute else 1  # the last value of the attribute, or the place of the next event
        values = dump(recogniser, kept, owner[needed], batch.when[last] + after, self._forms)
        there = [i for i, value in enumerate(values) if value is not None]
        timers = self._timers(recogniser, len(names))
        state.put([names[i] for i in there], [values[i] for i in there], None if timers is None else timers[there])  # type: ignore[misc]
        state.delete([names[i] for i, value in enumerate(values) if value is None and stored[i] is not None])

    def _timers(self, recogniser: Recogniser, count: int) -> Ints | None:
        """The end of the last window of each key's runs, or of the gap that they wait in; only what is measured in time ends by itself."""
        if not self.pattern.in_time:
            return None
        size = MAX_TIME if self.pattern.window is None else int(self.pattern.window.size)
        row, node = np.nonzero(recogniser.heads >= 0)
        newest, span = recogniser.arena.arrays[6][recogniser.heads[row, node]], recogniser.tables.spans[node]
        reach = np.where(span >= 0, np.minimum(span, size), size)
        last = np.full(count, np.iinfo(np.int64).min)
        np.maximum.at(last, row, np.where(newest > MAX_TIME - reach - 1, MAX_TIME - 1, newest + reach))
        return last
