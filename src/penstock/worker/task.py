"""The data path of one worker in one epoch: one pure function.

`run_region_task` is called by the Spark task and by the in-process harness alike. It has no I/O of its own: rows come as Arrow
batches, state through a view, messages as values; it gives output rows and a report, and leaves its changes in the view. The order
of an epoch, and what is given up, is that of `penstock.protocol.rescale.worker`; here is what it is carried out on.

Invariants: an operator that needs order sees, per key, ascending positions and no row at or after the frontier; the outputs of a
step are complete up to the frontier before the next step sees them; nothing depends on how rows were cut into batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import coalesce_batches, concat_batches, conformed, to_indices, values_of
from penstock.errors import OperatorError, PenstockError, raised
from penstock.operators.base import ERROR_SCHEMA, PANE, VALUE, Context, KeyedState, Operator, Parts, parts_schema
from penstock.operators.migration import view_of
from penstock.protocol.messages import Acquire, Barrier, BinSizes, Collect, Collected, Frontier, Message, Shutdown
from penstock.protocol.reports import WorkerReport
from penstock.protocol.rescale.worker import WorkerEpoch
from penstock.routing.hashing import spark_xxhash64
from penstock.routing.loads import MOST_REPORTED, HotKey, hottest
from penstock.rows.keys import KeyCodec
from penstock.rows.rows import Emitted, Keys, Order, Rows, group_rows, regroup
from penstock.state.worker import MemoryState, WorkerState
from penstock.types import BINS, MAX_TIME, MIN_TIME, OFFSET, ORDER, TIME
from penstock.worker.collect_state import GivenUp, LeavingState, key_of
from penstock.worker.held_rows import dequeue, enqueue, split_held
from penstock.worker.spec import OUT, PACKED_BITS, Out, Port, RegionSpec
from penstock.worker.waiting_rows import Waiting, forget_tombstones

MOST_TEXT: Final = 60
"""Of a hot key's value, so many characters are reported."""
SPLIT_SHARE: Final = 0.01
"""A worker of a split stage reports keys with at least this share of its rows."""


def run_region_task(
    spec: RegionSpec,
    worker: int,
    epoch: int,
    messages: Sequence[Message],
    rows: Iterable[pa.RecordBatch],
    state: WorkerState,
    acquired: Sequence[bytes] = (),
    clock: Callable[[], float] = lambda: 0.0,
    make: Callable[..., RegionTask] | None = None,
) -> tuple[list[pa.RecordBatch], WorkerReport, GivenUp | None]:
    """Run one worker of a region through one epoch.

    Args:
        spec: The region.
        worker: The worker's number.
        epoch: The epoch's number.
        messages: From the controller, in order.
        rows: The worker's rows in the schema ``spec.in_schema``, in any order.
        state: The worker's state as the epoch before left it; holds this epoch's changes afterwards.
        acquired: Names of entries of state that have come from other workers, if an operator wants to hear of them.
        clock: Gives seconds, to measure what giving up state costs.
        make: Makes the task; None: `RegionTask`.

    Returns:
        Output rows in the schema ``spec.out_schema``; the report, which knows of no files yet; the state that leaves.

    Raises:
        PenstockError: The messages are not those of an epoch (rule W1). Nothing was changed.
        OperatorError: A user's function raised. `state` is then to be thrown away.
        StateError: A state or key cannot be stored. Likewise.
    """
    orders = WorkerEpoch(worker, epoch, messages)
    received = _unpack(spec, rows)
    rows_in = sum(b.num_rows for batches in received for b in batches)
    hot = _hot_keys(spec, received) if spec.report_above else ()
    task = (make or RegionTask)(spec, worker, epoch, orders.frontier, received, state, acquired)
    answer = orders.run(task, clock)
    out = [_pack(spec, i, task.output(o)) for i, o in enumerate(spec.outs)]
    out = [b for b in out if b.num_rows]
    skipped = {s.operator.describe(): len(c.skipped) for s, c in zip(spec.steps, task.contexts, strict=True) if c.skipped}
    unsure = task.unsure(orders.frontier)
    first = next((f"key {key} at {at}: {error}" for c in task.contexts for key, at, error, _ in c.skipped[:1]), "")
    counts = rows_in, sum(b.num_rows for b in out), skipped, first, task.held_rows
    return out, WorkerReport(worker, epoch, *counts, 0, (), answer, hot, unsure=unsure), task.given_up


def run_split_task(stage: RegionSpec, worker: int, rows: Iterable[pa.RecordBatch]) -> tuple[pa.RecordBatch, tuple[HotKey, ...]]:
    """The partial results that one worker of a split stage makes of its rows in an epoch. Nothing is kept.

    Args:
        stage: From `penstock.worker.spec.split_stage`.
        worker: The worker's number.
        rows: Its rows in the schema ``stage.in_schema``, in any order.

    Returns:
        In the columns of `parts_schema`, sorted by key and pane; and the hottest of its keys.

    Raises:
        OperatorError: A user's function raised.
        StateError: A partial result cannot be stored.
    """
    (port,), schema = stage.ports, parts_schema(stage.keys)
    (received,) = _unpack(stage, rows)
    if not any(batch.num_rows for batch in received):
        return pa.RecordBatch.from_pylist([], schema=schema), ()
    task = RegionTask(stage, worker, 0, Frontier(MIN_TIME, MAX_TIME), [received], MemoryState(), ())
    given = _due(stage, port, received, Frontier(MIN_TIME, MAX_TIME), 0, task.state)
    made: pa.RecordBatch = task.call_operator(0, "lift", lambda rows: task.operators[0].lift(rows).batch(worker, schema), given)
    sizes = np.diff(given.starts)
    several = np.flatnonzero(sizes >= max(1, SPLIT_SHARE * len(given)))
    at = several[np.lexsort((given.keys.hashes[several], -sizes[several]))][:MOST_REPORTED]
    texts = [_text(values) for values in zip(*(values_of(c) for c in given.keys.take(at).columns), strict=True)]
    return made, tuple(map(HotKey, given.keys.hashes[at].tolist(), sizes[at].tolist(), texts))


class RegionTask:
    """What a region's messages are carried out on: its rows as columns, its state in entries, its operators.

    Attributes:
        results: By step, its output, once the rows are processed.
        contexts: By step, what it knows, and which records it skipped.
    """

    bins = BINS

    def __init__(
        self,
        spec: RegionSpec,
        worker: int,
        epoch: int,
        frontier: Frontier,
        received: list[list[pa.RecordBatch]],
        state: WorkerState,
        acquired: Sequence[bytes],
    ) -> None:
        self.spec, self.epoch, self.state, self.received, self.acquired = spec, epoch, state, received, acquired
        self.codec = KeyCodec(spec.keys)
        about = (frontier.now, spec.sources, spec.timed)
        self.contexts = [
            Context(
                spec.name,
                s.slot,
                spec.ordinal,
                self.codec,
                s.in_schemas,
                s.out_schema,
                *about,
                layouts=s.layouts,
                files=spec.files,
                before=frontier.before,
                latest=frontier.latest,
            )
            for s in spec.steps
        ]
        for told in frontier.missing:
            self.contexts[told.step].missing, self.contexts[told.step].needed = told.before, told.needed
        self.operators = [copy.copy(s.operator) for s in spec.steps]
        for operator, context in zip(self.operators, self.contexts, strict=True):
            operator.start(context)
        pairs = zip(self.operators, self.contexts, strict=True)
        self.states = [KeyedState(view_of(state, operator), context) for operator, context in pairs]
        self.results: list[Rows] = []
        self.inputs: list[Rows | None] = []
        self.released = False
        self.held_rows = 0
        self.given_up: GivenUp | None = None
        self.leaving = LeavingState(self.codec, state, frontier.now, worker, epoch)
        self.bytes_of, self.keys_of = self.leaving.bytes_of, self.leaving.keys_of
        self._take_waiting(frontier.before)

    def _take_waiting(self, before: int) -> None:
        """Give steps that no longer wait what they waited for, as if it came now; before anything of this epoch comes to wait."""
        takers = [(port.takes, rows, port.columns) for port, rows in zip(self.spec.ports, self.received, strict=True)]
        for n, (slot, received, columns) in enumerate(takers):
            if slot is not None:
                others = [port.slot for port in self.spec.ports if port.waits] + [taken for taken, *_ in takers[n + 1 :]]
                received.extend(Waiting(self.state, slot, columns).release(before, MAX_TIME, stay=slot in others))

    def hold(self, keys: Sequence[int]) -> dict[int, int]:
        """Queue the rows of keys on hold; gives the bytes queued by key."""
        queued: dict[int, int] = {}
        for i, port in enumerate(self.spec.ports):
            if not self.received[i]:
                continue
            rows = concat_batches(self.received[i])
            rows, held = split_held(rows, rows.column(rows.num_columns - 1).to_numpy(), keys)
            self.received[i] = [rows]
            self.held_rows += sum(h.num_rows for h in held.values())
            for key, size in enqueue(self.state, port.slot, self.epoch, held).items():
                queued[key] = queued.get(key, 0) + size
        return queued

    def release(self, keys: Mapping[int, int]) -> None:
        """Put the queued rows of keys before those that came."""
        self.released = True
        for context in self.contexts:
            context.released = dict(keys)
        for i, port in enumerate(self.spec.ports):
            in_turn = not self.spec.timed and port.partial_of is None
            queued = dequeue(self.state, port.slot, self.epoch, list(keys), in_turn=in_turn)
            self.received[i] = [*(conformed(q, port.columns) for q in queued), *self.received[i]]

    def hear(self, message: Acquire | Barrier | Shutdown) -> None:
        """Hand a message to the operators."""
        match message:
            case Acquire():
                self.call_hook("on_acquire", self.acquired)
            case Barrier(epoch=epoch):
                self.each(lambda operator, kept: operator.on_barrier(epoch, kept))
            case Shutdown():
                self.each(lambda operator, kept: operator.on_shutdown(kept))

    def interrogate(self, start: int, entries: int) -> BinSizes:
        """Sizes of bins from `start` on, until so many entries were seen."""
        self.each(lambda operator, kept: operator.on_interrogate(range(start, BINS), kept))
        sizes, after = self.state.measure(start, BINS, entries)
        return BinSizes(tuple(sizes), after)

    def give_up(self, leaving: Collected, asked: Collect) -> tuple[int, int]:
        """Give up state; the number of keys and of bytes."""
        self.given_up = given = self.leaving.take(leaving, asked)
        self.call_hook("on_collect", given.names)
        return given.keys, given.bytes

    def unsure(self, frontier: Frontier) -> str:
        """A step of which something that matters hangs on records that a replay lacks; empty: none."""
        for told in frontier.missing:
            i, ends = told.step, told.ends
            if self.contexts[i].unsure or (ends and not self.call_operator(i, "sure", self.operators[i].sure, self.states[i])):
                return self.operators[i].describe()
        return ""

    def each(self, call: Any) -> None:
        """Call every operator with its state."""
        for i, (operator, state) in enumerate(zip(self.operators, self.states, strict=True)):
            self.call_operator(i, "a hook", call, operator, state)

    def call_hook(self, hook: str, names: Sequence[bytes]) -> None:
        """Call a hook of those operators that have it, with the keys that entries belong to."""
        for i, (operator, state) in enumerate(zip(self.operators, self.states, strict=True)):
            if getattr(type(operator), hook) is getattr(Operator, hook):
                continue
            encoded = sorted({key_of(name) for name in names if name[2] == state.slot})
            if encoded:
                columns = tuple(self.codec.decode(encoded))
                self.call_operator(i, hook, getattr(operator, hook), Keys(columns, spark_xxhash64(columns), self.codec), state)

    def call_operator(self, i: int, where: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call an operator; raise what fails as OperatorError."""
        try:
            given = call(*arguments)
            return list(given) if isinstance(given, Iterator) else given  # a generator raises while it is read
        except PenstockError:
            raise
        except Exception as error:
            raise OperatorError(f"{self._name(i)} failed in {where}: {raised(error)}; fix the operator.") from error

    def emitted(self, i: int, where: str, call: Callable[..., Any], *arguments: Any) -> list[Emitted]:
        """The rows that a call of an operator gives."""
        given = self.call_operator(i, where, call, *arguments)
        if given is None:
            return []
        parts = [given] if isinstance(given, Emitted) or not isinstance(given, Iterable) else list(given)
        for part in parts:
            if not isinstance(part, Emitted):
                what = f"{self._name(i)} gave {type(part).__name__} in {where}"
                raise OperatorError(f"{what}; it must give what rows.emit(...) or state.emit(...) give.")
        return parts

    def _name(self, i: int) -> str:
        return f"Operator {self.operators[i].describe()} of region {self.spec.name!r}"

    def process(self, frontier: Frontier) -> None:
        """Every operator in turn: its rows, then the frontier."""
        self.inputs = [
            _due(self.spec, port, rows, frontier, self.epoch, self.state) if port.partial_of is None else None
            for port, rows in zip(self.spec.ports, self.received, strict=True)
        ]
        for i, step in enumerate(self.spec.steps):
            self.results.append(regroup(self.run_step(i, frontier), step.out_schema, self.codec))
        forget_tombstones(self.state, frontier.now)

    def run_step(self, i: int, frontier: Frontier) -> list[Emitted]:
        """The output of one operator."""
        parts: list[Emitted] = []
        step = self.spec.steps[i]
        first = step.inputs[0]
        if first[0] == "port" and self.spec.ports[first[1]].partial_of is not None:
            parts += self.emitted(i, "on_data", self._merge_partials, i, first[1], self.partials(first[1]))
        else:
            given = [self.rows(*source) for source in step.inputs]
            if step.parts is not None and any(b.num_rows for b in self.partials(step.parts)):
                parts += self.emitted(i, "on_parts", self._merge_divided, i, step.parts, given)
            if any(len(g) for g in given):
                parts += self.emitted(i, "on_data", self.operators[i].on_inputs, given, self.states[i])
        return parts + self.emitted(i, "on_frontier", self.operators[i].on_frontier, frontier.now, self.states[i])

    def rows(self, kind: str, index: int) -> Rows:
        """The rows of a port, or of an operator before."""
        rows = self.inputs[index] if kind == "port" else self.results[index]
        assert rows is not None
        return rows

    def partials(self, port: int) -> list[pa.RecordBatch]:
        """The partial results that came by a port, with the key's hash last; none if the epoch lacks the port."""
        return self.received[port] if port < len(self.received) else []

    def _merge_partials(self, i: int, port: int, batches: list[pa.RecordBatch]) -> Any:
        batch = concat_batches(batches, self.spec.ports[port].columns)
        if not batch.num_rows:
            return None
        hashes = batch.column(batch.num_columns - 1).to_numpy()
        operator, panes = self.operators[i], PANE in self.spec.ports[port].schema.names
        if not panes and not self.released:  # the JVM gave one row per key: nothing to group
            columns = tuple(batch.columns[: len(self.spec.keys)])
            keys, group = Keys(columns, hashes, self.codec), np.arange(batch.num_rows)
            return operator.on_partials(batch, keys, group, self.states[i])
        zero = np.zeros(batch.num_rows, np.int64)
        pane = batch.column(len(self.spec.keys)).to_numpy() if panes else zero
        rows = group_rows(batch, Order(pane, zero, zero, zero), hashes, self.spec.keys.names, self.codec)
        return operator.on_partials(rows.data, rows.keys, rows.group, self.states[i])

    def _merge_divided(self, i: int, port: int, given: list[Rows]) -> Any:
        """Hand over partial results; rows of the same keys go with them, and are taken from those `given`."""
        spec, operator = self.spec.ports[port], self.operators[i]
        batches = list(self.partials(port))
        divided = np.isin(given[0].keys.hashes, np.concatenate([b.column(b.num_columns - 1).to_numpy() for b in batches]))
        if divided.any():  # queued while the key was on hold, in epochs in which it was whole
            lifted = operator.lift(given[0].of_keys(divided))
            given[0] = given[0].of_keys(~divided)
            hashes = pa.array(lifted.keys.hashes[lifted.group])
            batches.append(pa.RecordBatch.from_arrays([*lifted.batch(-1, spec.schema).columns, hashes], schema=spec.columns))
        batch = concat_batches(batches, spec.columns)
        pane, made_by = (batch.column(len(self.spec.keys) + n).to_numpy() for n in range(2))
        zero = np.zeros(batch.num_rows, np.int64)
        by_hash = batch.column(batch.num_columns - 1).to_numpy()
        rows = group_rows(batch, Order(pane, made_by, zero, zero), by_hash, self.spec.keys.names, self.codec)
        parts = Parts(rows.keys, rows.group, rows.order.time, rows.column(VALUE).to_pylist())
        return operator.on_parts(parts, self.states[i])

    def output(self, out: Out) -> tuple[pa.RecordBatch, Order | None]:
        """The rows of an output, with their positions."""
        if out.errors:
            skipped = self.contexts[out.operator].skipped
            name = self.spec.steps[out.operator].operator.describe()
            columns = [[name] * len(skipped), *([s[i] for s in skipped] for i in range(4))]
            return pa.RecordBatch.from_arrays([pa.array(c, pa.string()) for c in columns], schema=ERROR_SCHEMA), None
        rows = self.rows("port", out.port) if out.operator < 0 else self.results[out.operator]
        return rows.data, rows.order


def _unpack(spec: RegionSpec, rows: Iterable[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
    """The rows of each port."""
    ports = [_Received(port, spec.keys.names) for port in spec.ports]
    if len(ports) == 1:
        return [[ports[0].whole(batch.columns) for batch in coalesce_batches(rows)]]
    out: list[list[pa.RecordBatch]] = [[] for _ in ports]
    for batch in coalesce_batches(rows):
        tags = batch.column(0).to_numpy(zero_copy_only=False)
        at = 1
        for i, port in enumerate(ports):
            mine = to_indices(np.flatnonzero(tags == i))
            if len(mine):
                out[i].append(port.whole([column.take(mine) for column in batch.columns[at : at + port.width]]))
            at += port.width
    return out


class _Received:
    """Makes a port's rows of what is sent of them."""

    def __init__(self, port: Port, keys: Sequence[str]) -> None:
        self.width = len(port.own) + len(port.sent)
        self._columns = port.columns
        self._sent = [*port.own, *(port.columns.field(name) for name in port.sent)]
        self._packed = port.packed and (len(port.own) + port.sent.index(OFFSET), port.schema.get_field_index(port.packed))
        self._known = sorted((port.columns.get_field_index(name), known) for name, known in port.known)
        self._keys = [port.schema.get_field_index(name) for name in keys]

    def whole(self, columns: Sequence[Any]) -> pa.RecordBatch:
        """Rows with all columns. Spark's Arrow types may differ from ours in time zone or nullability."""
        arrays = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, self._sent, strict=True)]
        if self._packed:
            offset, byte = self._packed
            both = arrays[offset].to_numpy()
            arrays[offset] = pa.array(both >> PACKED_BITS)
            arrays.insert(byte, pa.array(both.astype(np.int8)))
        for at, known in self._known:
            if isinstance(known, int):
                column = pa.repeat(pa.scalar(known, pa.int64()), len(arrays[0]))
            else:
                column = arrays[self._columns.get_field_index(known)].cast(pa.int64())
            arrays.insert(at, column)
        hashes = spark_xxhash64([arrays[i] for i in self._keys]) if self._keys else np.zeros(len(arrays[0]), np.int64)
        arrays.append(pa.array(hashes))
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns)


def _hot_keys(spec: RegionSpec, received: list[list[pa.RecordBatch]]) -> tuple[HotKey, ...]:
    """The keys that have most of the rows, with their values as text."""
    batches = [batch for batches in received for batch in batches if batch.num_rows]
    hashes = np.concatenate([np.empty(0, np.int64), *(b.column(b.num_columns - 1).to_numpy() for b in batches)])
    ends = np.cumsum([b.num_rows for b in batches])
    out = []
    for key, rows, first in hottest(hashes, spec.report_above):
        at = int(np.searchsorted(ends, first, "right"))
        batch, row = batches[at], first - int(ends[at]) + batches[at].num_rows
        out.append(HotKey(key, rows, _text([batch.column(name)[row].as_py() for name in spec.keys.names])))
    return tuple(out)


def _text(values: Sequence[Any]) -> str:
    """A key's values as text."""
    text = ", ".join("null" if value is None else str(value) for value in values)
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


def _due(
    spec: RegionSpec, port: Port, batches: list[pa.RecordBatch], frontier: Frontier, epoch: int, state: WorkerState
) -> Rows:
    """The rows of a port that operators may see now, grouped and in order. Empties `batches`, which are not needed twice."""
    at = len(port.schema)
    schema = port.columns
    waiting = Waiting(state, port.slot, schema) if port.waits else None
    released = waiting.release(frontier.before, frontier.now) if waiting is not None else []
    batch = concat_batches([*released, *batches], schema)
    batches.clear()
    now = None
    if waiting is not None and frontier.now != MAX_TIME:
        due = batch.column(at).to_numpy() < frontier.now
        if not due.all():
            waiting.keep(epoch, batch.take(to_indices(np.flatnonzero(~due))))
            now = np.flatnonzero(due)
    order = Order(*(batch.column(at + i).to_numpy() for i in range(len(ORDER))))
    hashes = batch.column(at + len(ORDER)).to_numpy()
    data = pa.RecordBatch.from_arrays(batch.columns[:at], schema=port.schema)
    timed_by = dict(port.known).get(TIME)
    return group_rows(
        data, order, hashes, spec.keys.names, KeyCodec(spec.keys), now, timed_by if isinstance(timed_by, str) else None
    )


def _pack(spec: RegionSpec, index: int, output: tuple[pa.RecordBatch, Order | None]) -> pa.RecordBatch:
    """One output's rows in the schema of the task's output."""
    data, order = output
    arrays: list[Any] = list(data.columns)
    if spec.outs[index].positions and order is not None:
        arrays += [pa.array(c, pa.int64()) for c in order.columns()]
    schema = spec.out_schema
    if len(spec.outs) == 1:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    n, columns = data.num_rows, []
    for field_ in schema:
        prefix, _, _ = field_.name.partition(".")
        if field_.name == OUT:
            columns.append(pa.array(np.full(n, index, np.int32)))
        elif prefix == str(index):
            columns.append(arrays.pop(0))
        else:
            columns.append(pa.nulls(n, field_.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
