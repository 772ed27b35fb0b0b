"""The one operator that all others are built on: its messages, its state, its output.

In a task a region's operators form a chain. Messages travel along it; an operator handles those that concern it:

    Load(version) · Data(rows) · Frontier(t) · Interrogate(bins) · Collect(keys) · Acquire(states) · Barrier(epoch) · Shutdown

State is keyed: it belongs to one key of the region and moves with it. An operator never sees another worker's keys and keeps
nothing outside `KeyedState`, so it can be rescaled, recovered and replayed without code of its own.

Read next: `penstock.operators.stateful_map` (the simplest operator), `penstock.worker.task`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import StateError
from penstock.operators.partials import FROM, PANE, VALUE, Partials, Parts, parts_schema
from penstock.routing.hashing import spark_xxhash64
from penstock.rows.keys import BIN_BYTES, LONGEST_SUB_KEY, Ints, KeyCodec
from penstock.rows.rows import Emitted, Keys, Order, Rows
from penstock.sql_text.schema import in_micros, parse_schema
from penstock.types import MAX_TIME, MIN_TIME, PART_BITS, ROW_BITS, Duration, whole_partition

if TYPE_CHECKING:
    from penstock.operators.fired import Fired

Output = Emitted | Iterable[Emitted] | None
ERROR_SCHEMA: Final = pa.schema([(n, pa.string()) for n in ("operator", "key", "position", "error", "record")])
"""Columns of records that an operator skips."""
Layout = Mapping[str, str]
"""What a stored value consists of: by the name of a part (a column, an aggregate), what is stored for it."""


class StateView(Protocol):
    """State of one worker in one epoch, see `penstock.state.worker.WorkerState`."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]: ...
    def get_timed(self, keys: list[bytes], due: tuple[int, int] | None = None) -> tuple[list[bytes | None], Ints]: ...
    def put_many(self, keys: list[bytes], values: list[bytes], timers: Ints | None = None) -> None: ...
    def entries(self, prefix: bytes) -> list[tuple[bytes, bytes, int]]: ...
    def delete_many(self, keys: list[bytes]) -> None: ...
    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]: ...
    def due(self, operator: int, upto_us: int) -> list[tuple[bytes, bytes]]: ...


@dataclass
class Context:
    """What an operator knows about its task.

    Attributes:
        region: The region's name.
        operator: The number that separates the operator's state from that of the region's other operators.
        ordinal: The region's index within the flow.
        codec: Codec of the region's key columns.
        inputs: Schema of each input.
        output: Schema of the output.
        frontier: Frontier (µs) of this epoch: all earlier records have arrived.
        before: Frontier of the epoch before.
        latest: Greatest event time (µs) of all input, once that has ended (``frontier`` is `MAX_TIME`).
        sources: Names of the flow's sources by ordinal, to name positions in errors.
        timed: Whether rows have an event time. If not, the time in their order is the number of epochs since they arrived.
        skipped: Records that were left out because a function raised, as (key, position, error, record as text).
        files: By the number of a file source, the names of files by number; missing ones are shown by their number.
        missing: Event time (µs) before which records are missing, as a replay began in the middle of the log (`Operator.link`); `MIN_TIME`: none are.
        needed: Event time (µs) from which on results matter then.
        unsure: Set by the operator: a result that matters hangs on records that are missing.
        released: Keys that come off hold in this epoch, by hash: how far (µs) they had been processed before. Their rows, and timers, may be
            older than `before`.
        layouts: All layouts of stored values that the operator ever had in this checkpoint, the present one last.
    """

    region: str
    operator: int
    ordinal: int
    codec: KeyCodec
    inputs: tuple[pa.Schema, ...]
    output: pa.Schema
    frontier: int = MAX_TIME
    sources: tuple[str, ...] = ()
    timed: bool = True
    skipped: list[tuple[str, str, str, str]] = field(default_factory=list)
    layouts: tuple[Layout, ...] = ()
    files: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    missing: int = MIN_TIME
    needed: int = MIN_TIME
    unsure: bool = False
    before: int = MIN_TIME
    latest: int = MIN_TIME
    released: Mapping[int, int] = field(default_factory=dict)

    def not_past(self, timers: Ints, hashes: Ints) -> Ints:
        """Timers (int64, n) of keys; those that a flow without `on_timer` has left behind fire where this epoch begins, or the key's hold did."""
        begins = np.full(len(timers), self.before)
        for key, since in self.released.items():
            begins[hashes == key] = since
        at: Ints = np.maximum(timers, begins)
        return at

    def position_text(self, order: Order, row: int) -> str:
        """A row's origin for people: ``source/partition @ offset``, or ``source: file row n``, from 1."""
        return position_text(self.sources, self.files, int(order.part[row]), int(order.offset[row]))

    @property
    def marker(self) -> int:
        """The `part` of rows that the frontier triggered; negative and unique within the flow."""
        return marker(self.ordinal, self.operator)


def marker(region: int, operator: int) -> int:
    """See `Context.marker`: of a region and an operator, by their numbers in the plan."""
    return -(region * 256 + operator + 1)


def position_text(sources: Sequence[str], files: Mapping[int, Mapping[int, str]], part: int, offset: int) -> str:
    """See `Context.position_text`."""
    if part < 0:
        return "a result at the frontier"
    source = part >> PART_BITS
    name = sources[source] if source < len(sources) else f"source {source}"
    if source in files:
        number, at = divmod(offset, 1 << ROW_BITS)
        return f"{name}: {files[source].get(number, f'file {number + 1}')} row {at + 1}"
    return f"{name}/{whole_partition(part)} @ {offset}"


class KeyedState:
    """An operator's state: bytes (or any picklable value) per key, with an optional timer.

    Keys are given in bulk as `Keys`, with an optional sub-key per entry (for example a window's start).
    """

    def __init__(self, view: StateView, context: Context) -> None:
        self._view = view
        self._context = context
        self._operator = context.operator

    @property
    def view(self) -> StateView:
        """What it reads and writes."""
        return self._view

    @property
    def slot(self) -> int:
        """The number under which the state is kept."""
        return self._operator

    def names(self, keys: Keys, index: Ints | None = None, sub: Sequence[bytes] | None = None) -> list[bytes]:
        """State keys of entries: of every key, or of ``keys[index[i]]`` with sub-key ``sub[i]``.

        Raises:
            StateError: A key has more than 400 bytes, or a sub-key more than 40. Nothing was changed.
        """
        if sub is not None and len(longest := max(sub, key=len, default=b"")) > LONGEST_SUB_KEY:
            raise StateError(
                f"An operator of region {self._context.region!r} gave a sub-key of {len(longest)} bytes, "
                f"more than {LONGEST_SUB_KEY}; use a digest."
            )
        whole = keys.state_keys(self._operator)
        chosen = whole if index is None else [whole[i] for i in index.tolist()]
        return chosen if sub is None else [a + b for a, b in zip(chosen, sub, strict=True)]

    def get(self, names: list[bytes]) -> list[bytes | None]:
        """Values of entries; None for missing ones."""
        return self._view.get_many(names)

    def get_timed(self, names: list[bytes]) -> tuple[list[bytes | None], Ints]:
        """Values of entries, and their timers (int64 µs, `MAX_TIME`: none)."""
        return self._view.get_timed(names)

    def put(self, names: list[bytes], values: list[bytes], timers: Ints | None = None) -> None:
        """Store entries. Entries with `timers` (int64 µs) are `due` once the frontier has passed these; None: never."""
        self._view.put_many(names, values, timers)

    def delete(self, names: list[bytes]) -> None:
        """Delete entries."""
        if names:
            self._view.delete_many(names)

    def scan(self, name: bytes) -> list[tuple[bytes, bytes]]:
        """All entries whose state key starts with `name`, in order."""
        return self._view.scan(name)

    def due(self, upto: int) -> list[tuple[bytes, bytes]]:
        """Entries of this operator with a timer before `upto`, in order of their timers."""
        return self._view.due(self._operator, upto)

    def keys_of(self, names: Sequence[bytes]) -> tuple[Keys, list[bytes]]:
        """The keys of state keys (repeated as they come), and their sub-keys."""
        encoded = [n[3:] for n in names]
        subs = [e[2 + int.from_bytes(e[:2], "big") :] for e in encoded]
        columns = tuple(self._context.codec.decode(encoded))
        hashes = spark_xxhash64(columns) if names else np.empty(0, np.int64)
        return Keys(columns, hashes, self._context.codec), subs

    def get_objects(self, names: list[bytes]) -> list[Any]:
        """Values stored by `put_objects`; None for missing ones."""
        return [None if v is None else pickle.loads(v) for v in self.get(names)]

    def put_objects(self, names: list[bytes], values: Sequence[Any], timers: Ints | None = None) -> None:
        """Store picklable values; a value of None deletes the entry.

        Raises:
            StateError: A value cannot be pickled. Nothing was stored.
        """
        gone = [n for n, v in zip(names, values, strict=True) if v is None]
        kept = [i for i, v in enumerate(values) if v is not None]
        try:
            raw = [pickle.dumps(values[i], protocol=5) for i in kept]
        except Exception as error:
            raise StateError(
                f'State of region {self._context.region!r} holds a value that cannot be stored ({error}); keep plain data in state, or declare it with state="…".'
            ) from error
        self.put([names[i] for i in kept], raw, None if timers is None else timers[kept])
        self.delete(gone)

    def emit(
        self, data: pa.RecordBatch, keys: Keys, times: Ints, group: Ints | None = None, subs: Ints | None = None
    ) -> Emitted:
        """Rows that the frontier triggers.

        Args:
            data: The output's columns, n rows.
            keys: Their keys.
            times: int64 µs, n: event time of each row; must be before the frontier.
            group: int64, n: index of each row's key; None if row i belongs to key i.
            subs: int64, n: distinguishes rows of one key and time; None if there is one row each.
        """
        which = np.arange(len(keys)) if group is None else group
        n = data.num_rows
        order = Order(
            np.asarray(times, np.int64),
            np.full(n, self._context.marker, np.int64),
            keys.hashes[which],
            np.zeros(n, np.int64) if subs is None else np.asarray(subs, np.int64),
        )
        return Emitted(data, order, which, keys)


class Operator:
    """A step of a region. Override what you need; everything has a working default.

    The methods are called in each epoch in this order: `on_data` (only if there are rows), `on_frontier`, `on_barrier`. One that has
    `on_timer` gets rows and timers in turn, in the order of event time. An operator must be deterministic: the same rows and state give the same output, so that running the epoch again repairs a
    crash. Its attributes are configuration; keep everything else in `state`.

    The attributes below, `reads`, `partials`, `user_functions` and `java_expressions` describe an operator to the compiler and
    the engines, which never check its class.

    Example:
        >>> class Drop(Operator):
        ...     def on_data(self, rows, state):
        ...         return None
        >>> nothing = by_plane.process(Drop())
    """

    schema: str | pa.Schema | None = None
    """Output columns; None: those of the input."""
    ordered: bool = True
    """Whether rows must come in event-time order; if so they wait until the frontier has passed them."""
    updates: bool = False
    """Whether an output row replaces the earlier one of the same key."""
    output_key: Sequence[str] = ()
    """Output columns that, beside the region's key, tell which earlier row an output row replaces."""
    reads_only: bool = False
    """Whether it reads no columns but the key's and those of `reads`. Of rows that need no order, no others are sent to it."""
    name: str = ""
    kind: str = ""
    """What it is, in a word; empty: its class's name. Steps of one kind may take one another's state over when a flow has changed."""
    mergeable: bool = False
    """Whether a key's rows can be handled apart, by `lift`, and `on_parts` merges the results in any order to the same output."""
    to_merge: str = ""
    """What would make it mergeable, as the end of a sentence; empty: nothing would. A strategy that divides keys leaves them whole for it."""
    typed: str = ""
    """The word of `meaning` that lists the columns of a stored value, as ``(name type, …)``: a changed flow is judged by the columns in it,
    and ``context.layouts`` has them once they have changed; empty: there is none."""
    worded: Sequence[str] = ()
    """The words of `meaning` that are SQL: white space outside of quotes makes no other state."""
    migrate: Sequence[Callable[[Any], Any]] | None = ()
    """Functions from an older state to the next one, oldest first (`KeyedStream.process`); None: it takes none."""
    timer_lead: Duration = 0
    """How long after the row that sets it, at least, a timer is. Rows of a key that are less apart come together; with 0, those of one moment do."""
    migrates_itself: bool = False
    """Whether it has `migrate` called itself."""
    passes: bool = False
    """Whether its output rows are rows that it was given, so that it may be taken away from a flow that has state."""

    context: Context

    def meaning(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        """The meaning of stored state, as plain text per part: ``{"window": "1 minute"}``.

        The checkpoint keeps it. A flow that is started with another meaning of a step is refused, so whatever makes stored
        state worthless when it changes belongs here. The default is empty.

        Args:
            inputs: Schema of each input.
            keys: The region's key columns.
        """
        del inputs, keys
        return {}

    def facts(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        """What a person should know of it, by name, for `Flow.explain`; its `meaning` if not said otherwise."""
        return self.meaning(inputs, keys)

    def layout(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Layout:
        """The content of a stored value, by part. A changed flow may add and remove parts, but not change one.

        An operator that has a layout reads values of all of ``context.layouts``.
        """
        del inputs, keys
        return {}

    def fixed(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Sequence[str]:
        """Parts of the layout whose types must stay; others may become wider (int to bigint, float to double, more digits of decimals).

        ``"+"`` among them says that no part may be added, ``"-"`` that none may be dropped. The default is every part.
        """
        return list(self.layout(inputs, keys))

    def reads(self) -> Sequence[str]:
        """Columns that a row must have; rows that waited before a flow got them cannot be read."""
        return ()

    def span(self) -> int | None:
        """How far back (µs of event time) from a row that it gives out records lie that matter to it; 0: it remembers nothing; None: without end.

        A recomputation of its state begins so much earlier. What it remembers of older records must not show in any later row.
        """
        return None

    def link(self) -> int | None:
        """How far back (µs of event time) a record reaches another one, if such records hold together in chains of any length; None: not so.

        Then `span` has no end, and a replay begins some links back. There the operator must compare what it gives out with
        ``context.missing``: if a row at or after ``context.needed`` might be another one with older records, it sets ``context.unsure``, and the
        replay begins anew, from further back. `sure` says so of its state.
        """
        return None

    def sure(self, state: KeyedState) -> bool:
        """Whether its state is what it would be with all records before ``context.missing``; asked at the end of a replay of one with a `link`."""
        del state
        return False

    def partials(self, source: pa.Schema) -> Partials | None:
        """Partial results of its only input that can be computed before the shuffle; `on_partials` merges them. None: it needs
        rows.

        An engine may send rows all the same, and several partial results per key; the output must not depend on it.

        Args:
            source: Columns of the input.
        """
        del source
        return None

    def user_functions(self) -> Iterable[Any]:
        """Users' functions and classes that it calls; their modules are sent to the workers."""
        return [type(self), *(self.migrate or ()), *(value for value in vars(self).values() if callable(value))]

    def java_expressions(self) -> tuple[str, Iterable[str]]:
        """A text for messages, and its regular expressions; Java checks them when the flow starts."""
        return "", ()

    def kind_name(self) -> str:
        """Its kind, in a word."""
        return self.kind or type(self).__name__

    def describe(self) -> str:
        """The operator in a word or two, for messages."""
        return self.name or type(self).__name__

    def output_schema(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> pa.Schema:
        """Columns of the output; refuses inputs that cannot work.

        Args:
            inputs: Schema of each input; a column of unknown type has type ``pa.null()``.
            keys: The region's key columns.

        Raises:
            DeclarationError: An input column is missing or of a wrong type.
        """
        if isinstance(self.schema, str):
            return parse_schema(self.schema, f"the schema of operator {self.describe()}")
        return in_micros(self.schema) if self.schema is not None else inputs[0]

    def start(self, context: Context) -> None:
        """Called once per task, before anything else."""
        self.context = context

    def on_data(self, rows: Rows, state: KeyedState) -> Output:
        """Handle the due rows: grouped by key, in order. Several inputs: see `on_inputs`."""
        del state
        return rows.emit(rows.data)

    def on_inputs(self, inputs: Sequence[Rows], state: KeyedState) -> Output:
        """Handle the rows of all inputs; the default hands the only one to `on_data`."""
        return self.on_data(inputs[0], state) if len(inputs[0]) else None

    def on_partials(self, batch: pa.RecordBatch, keys: Keys, group: Ints, state: KeyedState) -> Output:
        """Merge partial results from before the shuffle; called in place of `on_inputs` if there are `partials`.

        Args:
            batch: Key columns, `PANE` (int64) if there are panes, then the results of `Partials.columns`; sorted by key and
                pane.
            keys: The distinct keys.
            group: int64, n: key of each row, ascending.
            state: This operator's state.
        """
        del batch, keys, group, state
        raise NotImplementedError

    def lift(self, rows: Rows) -> Parts:
        """The partial results of some rows of keys, made where there is no state; only if it is `mergeable`."""
        raise NotImplementedError(f"{self.describe()} is said to be mergeable, and has no lift.")

    def on_parts(self, parts: Parts, state: KeyedState) -> Output:
        """Merge partial results of rows that were handled apart; called before `on_inputs`, which then gets rows of other keys.

        Args:
            parts: Sorted by key, pane, and the worker that made them; there may be several for a key and pane.
            state: This operator's state.
        """
        raise NotImplementedError(f"{self.describe()} is said to be mergeable, and has no on_parts.")

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        """Every row before `t` (µs; MAX_TIME at the end of input) has been handled."""
        del t, state
        return None

    def on_timer(self, fired: Fired, state: KeyedState) -> Output:
        """Entries whose timer has come: all rows of their keys before it have been handled, and none at its time or later.

        For operators whose rows are `ordered`, in place of `on_frontier`. The entries are there without their timer. What is put with
        a timer meanwhile must be later than the one that fired; in `on_data`, a timer that is not after its row counts as the next
        microsecond. So results do not depend on epochs.
        """
        del fired, state
        return None

    def on_interrogate(self, bins: Sequence[int], state: KeyedState) -> None:
        """State of `bins` is about to move; an operator need not do anything."""
        del bins, state

    def on_collect(self, keys: Keys, state: KeyedState) -> None:
        """State of `keys` has left this worker."""
        del keys, state

    def on_acquire(self, keys: Keys, state: KeyedState) -> None:
        """State of `keys` has arrived at this worker."""
        del keys, state

    def on_barrier(self, epoch: int, state: KeyedState) -> None:
        """The epoch ends; the next epoch finds what is in `state` now."""
        del epoch, state

    def on_shutdown(self, state: KeyedState) -> None:
        """The flow ends; never called again."""
        del state

    def show_state(self, value: bytes) -> Any:
        """A stored value for people: something that JSON can hold, or text."""
        return pickle.loads(value)


__all__ = [
    "BIN_BYTES", "FROM", "PANE", "VALUE", "Context", "KeyedState", "Operator", "Output", "Partials", "Parts", "StateView", "parts_schema",
]  # fmt: skip
