"""An epoch in this process: Arrow tables for frames, DuckDB for SQL, workers one after the other.

The same driver, the same tasks, the same files as over Spark; only the shuffle is a filter and expressions are run by DuckDB in
place of Spark SQL (which agree on common expressions; where they do not, test such an expression over Spark).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.columns import concat_batches
from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord
from penstock.driver.compile import CompiledRegion
from penstock.driver.engine import Bounds, Divided, EpochOrders, Scan, SourceFrames, shown_columns
from penstock.driver.epoch import part_number
from penstock.driver.input_files import InputFile
from penstock.driver.loop import Loop
from penstock.errors import DeclarationError, PenstockError, raised
from penstock.flow import plan as p
from penstock.flow.steps import Sql
from penstock.operators.base import parts_schema
from penstock.progress.ahead import Aside, in_question, is_aside, put_aside
from penstock.progress.lateness import Base, ChunkId, chunks_of, late_rows
from penstock.progress.source_state import SourceState
from penstock.protocol.commands import Command, Copied
from penstock.routing.memory import Remembered
from penstock.routing.strategy import Router, Strategy, routed, told
from penstock.sinks.base import Stager
from penstock.sources.base import MALFORMED
from penstock.state.compaction import iterate
from penstock.state.deltas import SCHEMA, read_batches
from penstock.state.files import resolve
from penstock.state.store import close_stores
from penstock.state.worker import MemoryState, WorkerState
from penstock.testing.frames import as_port, by_sql, empty, sent, within
from penstock.types import OFFSET, ORDER, PART, PARTITION, SUB, TIME, Refusal, visible
from penstock.worker.audit import map_twice, run_twice
from penstock.worker.batches import map_batch
from penstock.worker.copying import Copy
from penstock.worker.run import Assignment, States, local_states, run_worker
from penstock.worker.spec import Port, epoch_ports, split_stage
from penstock.worker.task import run_region_task, run_split_task

CHUNK_ROWS = 4
_SEEN = (PART, OFFSET, TIME)


class LocalBackend:
    """The input of one epoch and what runs it.

    Args:
        inputs: By source, its records with the columns OFFSET and the partition's name.
        commands: Control rows of this epoch.
        assign: Makes a worker's assignment of (compiled region, work).
        states: Gives workers their state.
        ends: Where this input ends, for a snapshot.
        mapped: Runs users' functions over batches: `map_batch`, or what does so twice.
        again: See `Backend.read_again`.
    """

    def __init__(
        self,
        inputs: dict[str, pa.Table],
        commands: Sequence[tuple[str, Command]],
        assign: Any,
        states: States,
        ends: str = "0",
        mapped: Callable[..., pa.RecordBatch] = map_batch,
        again: Callable[[], str] = lambda: "",
    ) -> None:
        self._again = again
        self._inputs = inputs
        self._commands = list(commands)
        self._assign = assign
        self._states = states
        self._attempt = 0
        self._ends = ends
        self._mapped = mapped
        self._divided: dict[str, dict[int, Divided]] = {}
        self._asides: dict[str, tuple[Aside, ...]] = {}

    def control(self, known: Sequence[str]) -> list[tuple[str, Command]]:
        return sorted((c for c in self._commands if c[0] not in known), key=lambda c: c[0])

    def input(self) -> str:
        return self._ends

    def keep_input(self) -> None:
        """It is the caller's."""

    def input_kept(self) -> None:
        """It is the caller's."""

    def check_input(self) -> None:
        """It is the caller's."""

    def describe(self, *what: str) -> None:
        """Nobody looks at it."""

    def scan(self, source: p.SourceNode, ordinal: int, state: SourceState, bounds: Bounds | None = None) -> Scan:
        table, left = self._inputs.get(source.name), False
        if table is not None and bounds is not None:
            table, left = within(table, bounds)
            self._inputs = {**self._inputs, source.name: table}
        if table is None or not table.num_rows:
            return Scan(left=left)
        bad = self._malformed(source, table)
        good = table.filter(pc.invert(bad))
        first = ""
        if bad.true_count:
            row = table.filter(bad).slice(0, 1).to_pylist()[0]
            first = (
                f"at {source.connector.place(row[PARTITION], row[OFFSET])}: {row.get(MALFORMED) or f'{source.time} is null'}"
            )
        columns = self._hidden(source, ordinal, good)
        names = {part_number(ordinal, name): str(name) for name in good.column(PARTITION).unique().to_pylist()}
        offset = columns[OFFSET]
        fingerprint = [good.column(name).to_numpy() for name in source.connector.fingerprint]
        chunks = chunks_of(columns[PART], offset // CHUNK_ROWS, offset, columns[TIME], names.__getitem__, fingerprint)
        ahead = 0
        if source.ahead_us is not None and in_question(state, chunks, source.ahead_us)[1]:
            seen = [columns[name] for name in _SEEN]
            chunks, self._asides[source.name], ahead = put_aside(state, chunks, source.ahead_us, seen, CHUNK_ROWS)
        return Scan(chunks, bad.true_count, first, left=left, ahead=ahead)

    def read_again(self) -> str:
        return self._again()

    def _malformed(self, source: p.SourceNode, table: pa.Table) -> Any:
        bad = np.zeros(table.num_rows, bool)
        if source.time:
            bad |= table.column(source.time).is_null().to_numpy()
        if MALFORMED in table.column_names:
            bad |= table.column(MALFORMED).is_valid().to_numpy()
        return pa.array(bad)

    def _hidden(self, source: p.SourceNode, ordinal: int, table: pa.Table) -> dict[str, Any]:
        n = table.num_rows
        time = table.column(source.time).cast(pa.int64()).to_numpy() if source.time else np.zeros(n, np.int64)
        coded: Any = table.column(PARTITION).combine_chunks().dictionary_encode("encode")
        numbers = np.array([part_number(ordinal, name) for name in coded.dictionary.to_pylist()], np.int64)
        part = numbers[coded.indices.to_numpy()]
        return {TIME: time, PART: part, OFFSET: table.column(OFFSET).to_numpy().astype(np.int64), SUB: np.zeros(n, np.int64)}

    def source(self, source: p.SourceNode, ordinal: int, candidate_chunks: dict[ChunkId, Base]) -> SourceFrames:
        table = self._inputs.get(source.name)
        if table is None or not table.num_rows:
            return SourceFrames(empty(source.schema))
        bad = self._malformed(source, table)
        malformed = None
        if bad.true_count:
            rows = table.filter(bad)
            offsets: list[Any] = rows.column(OFFSET).to_pylist()
            places = [source.connector.place(a, b) for a, b in zip(rows.column(PARTITION).to_pylist(), offsets, strict=True)]
            given = rows.column(MALFORMED).to_pylist() if MALFORMED in rows.column_names else [None] * rows.num_rows
            texts = [own or str(r) for own, r in zip(given, rows.select(visible(rows.column_names)).to_pylist(), strict=True)]
            errors = [f"{source.time} is null" if own is None else "malformed" for own in given]
            malformed = pa.table({"source": [source.name] * len(texts), "position": places, "error": errors, "record": texts})
        table = table.filter(pc.invert(bad))
        hidden = self._hidden(source, ordinal, table)
        frame = table.select(source.schema.names)
        for name in ORDER:
            frame = frame.append_column(name, pa.array(hidden[name]))
        ahead = None
        if asides := self._asides.get(source.name):
            aside = is_aside(asides, *(hidden[name] for name in _SEEN))
            ahead, frame = frame.filter(pa.array(aside)), frame.filter(pa.array(~aside))
            hidden = {name: column[~aside] for name, column in hidden.items()}
        if not candidate_chunks:
            return SourceFrames(frame, None, malformed, ahead=ahead)
        chunks = hidden[OFFSET] // CHUNK_ROWS
        late = late_rows(hidden[PART], chunks, hidden[OFFSET], hidden[TIME], candidate_chunks, source.lateness_us)
        return SourceFrames(frame.filter(pa.array(~late)), frame.filter(pa.array(late)), malformed, int(late.sum()), ahead)

    def late(self, source: p.SourceNode) -> int:
        del source
        return 0

    def step(self, node: p.StepNode, inputs: Sequence[pa.Table]) -> pa.Table:
        table, step = inputs[0], node.step
        if len(inputs) > 1:
            table = pa.concat_tables([i.select(table.column_names).cast(table.schema) for i in inputs])
        if (sql := node.sql) is not None:
            return table if sql == Sql() else by_sql(node, table, sql)
        if (fn := step.batch_function()) is not None:
            batches = [self._mapped(step.describe(), fn, b, node.schema) for b in table.to_batches() if b.num_rows]
            return pa.Table.from_batches(batches) if batches else empty(node.schema)
        raise DeclarationError(f"{step.kind} needs Spark; test this flow over Spark, or use where, select, map_batches.")

    def empty(self, node: p.Node) -> pa.Table:
        return empty(node.schema)

    def split(
        self, compiled: CompiledRegion, step: int, frame: pa.Table, work: EpochOrders
    ) -> tuple[pa.Table, pa.Table | None]:
        stage, strategy = split_stage(compiled.spec, step), compiled.region.distribute
        port = stage.ports[0]
        rows, hashes = as_port(port, 0, stage.keys, frame, 1)
        to, router = self._routed(port, strategy, rows, hashes, work)
        away = np.unique(hashes[to != work.routing.workers_of(hashes)])
        whole = ~np.isin(hashes, away)
        loads = np.bincount(to[~whole], minlength=work.workers)
        with told(strategy):
            router.finished(loads.tolist())  # every row takes as long as any other
        kept = Remembered.of(strategy, work.workers, router.memory)
        made, hot = zip(
            *(
                run_split_task(stage, worker, sent(rows.filter(pa.array(~whole & (to == worker))), stage))
                for worker in range(work.workers)
            ),
            strict=True,
        )
        self._divided.setdefault(stage.name, {})[port.slot] = Divided(tuple(loads.tolist()), kept, hot=hot)
        parts = pa.Table.from_batches(made)
        return frame.filter(pa.array(whole)), parts if parts.num_rows else None

    def _routed(self, port: Port, strategy: Strategy, rows: pa.Table, hashes: Any, work: EpochOrders) -> tuple[Any, Router]:
        """The worker of each row, and the router: sender by sender, in the order of positions."""
        part, offset, sub, at = (rows.column(name).to_numpy() for name in (PART, OFFSET, SUB, TIME))
        order = np.lexsort((hashes, at, sub, offset, part))
        bounds = np.flatnonzero(np.diff(part[order])) + 1
        senders = {int(part[at[0]]): at for at in np.split(order, bounds) if len(at)}
        router = work.routers.get(port.slot, Remembered()).router(strategy, work.workers, work.routing)
        to = np.empty(len(hashes), np.int64)
        by_sender = {s: hashes[at] for s, at in senders.items()}
        for sender, workers in routed(strategy, router, work.workers, by_sender).items():
            to[senders[sender]] = workers
        return to, router

    def divided(self, compiled: CompiledRegion) -> Mapping[int, Divided]:
        return self._divided.get(compiled.spec.name, {})

    def region(self, compiled: CompiledRegion, inputs: Sequence[pa.Table | None], work: EpochOrders) -> pa.Table:
        empty = parts_schema(compiled.spec.keys).empty_table
        spec, tables = epoch_ports(compiled.spec, inputs, empty, releases=work.releases)
        frames = [
            as_port(port, i, spec.keys, table, len(spec.ports))
            for i, (port, table) in enumerate(zip(spec.ports, tables, strict=True))
        ]
        assignment: Assignment = replace(self._assign(compiled, work), spec=spec)
        out: list[pa.RecordBatch] = []
        if spec.keys.names:
            places = [(frame, work.routing.workers_of(hashes)) for frame, hashes in frames]
        else:
            (port,), ((rows, hashes),), strategy = spec.ports, frames, compiled.region.distribute
            to, router = self._routed(port, strategy, rows, hashes, work)
            places = [(rows, to)]
            kept = Remembered.of(strategy, work.workers, router.memory)
            self._divided[spec.name] = {port.slot: Divided((), kept)}
        for worker in range(work.workers):
            mine = []
            for frame, workers in places:
                here = workers == worker
                if here.any():
                    mine += sent(frame.filter(pa.array(here)), spec)
            self._attempt += 1
            out += run_worker(assignment, worker, self._attempt, self._states, mine)
        return pa.Table.from_batches(out, spec.out_schema)

    def part(self, frame: pa.Table, compiled: CompiledRegion, out: int) -> pa.Table:
        spec = compiled.spec
        if len(spec.outs) == 1:
            return frame
        tags: Any = frame.column(0)
        mine = frame.filter(pc.equal(tags, pa.scalar(out, pa.int32())))
        prefix = f"{out}."
        names = [n for n in mine.column_names if n.startswith(prefix)]
        return mine.select(names).rename_columns([n[len(prefix) :] for n in names])

    def keep(self, frame: pa.Table) -> pa.Table:
        return frame

    def force(self, frame: pa.Table) -> None:
        del frame

    def collect(self, frame: pa.Table, hidden: Sequence[str] = ()) -> Iterable[pa.RecordBatch]:
        shown = frame.select(shown_columns(frame.column_names, hidden))
        return [b for b in shown.to_batches() if b.num_rows]

    def stage(self, frame: pa.Table, stager: Stager, hidden: Sequence[str] = ()) -> Iterable[bytes]:
        tokens: list[bytes] = []
        for batch in self.collect(frame, hidden):  # one for each worker that had rows
            self._attempt += 1
            tokens += stager([batch], self._attempt)
        return tokens

    def done(self) -> None:
        """Nothing is kept."""


class LocalEngine:
    """One flow's input in this process, epoch by epoch, and the engine that reads it.

    Args:
        checkpoint: The checkpoint.
        lmdb: Keep state in LMDB rather than in memory.
        most: An epoch reads at most so many pushes of each source; None: all.

    Attributes:
        now_us: What the clock shows.
        pending: By source, what was pushed and is in no epoch yet.
        log: By epoch, its input and the commands that were given to it.
        local: Folder of the stores.
        idle: Called by `read` when there is nothing to read; pushes records or gives a command.
    """

    beside: bool = False
    divides_from: int = 0
    inserts: bool = True
    dump = staticmethod(cloudpickle.dumps)

    def __init__(self, checkpoint: Checkpoint, *, lmdb: bool, most: int | None) -> None:
        # One harness, one checkpoint, one identity: another harness must not find this one's marks in a sink of the same name.
        self.identity: str = f"harness-{checkpoint.root.strip('/').replace('/', '-')}"
        self.by: Mapping[str, Any] = {"host": "here", "pid": 0}
        self._checkpoint, self._most = checkpoint, most
        self.now_us: int = 0
        self.pending: dict[str, list[pa.Table]] = {}
        self.log: list[tuple[dict[str, pa.Table], list[tuple[str, Command]]]] = []
        self.log += [({}, [])] * (checkpoint.last().epoch + 1)
        self._left: list[tuple[str, Command]] = []
        self._given_again: set[int] = set()
        self.local: str = f"{checkpoint.root}/local"
        self.idle: Callable[[], None] = lambda: None
        self._caches: dict[str, tuple[str, MemoryState]] = {}
        self._states = local_states("harness") if lmdb else self._in_memory

    def plan_epoch(self, commands: Sequence[Command] = (), advance_us: int = 1_000_000) -> None:
        """Settle what the next epoch reads: what was pushed, and commands."""
        self.now_us += advance_us
        inputs = {name: pa.concat_tables(tables[: self._most]) for name, tables in self.pending.items()}
        self.pending = {n: tables[self._most :] for n, tables in self.pending.items() if self._most and tables[self._most :]}
        given = [(f"{len(self.log):012d}-{i}.json", command) for i, command in enumerate(commands)]
        self.log.append((inputs, [*self._left, *given]))
        self._left = []

    def run_planned(self, loop: Loop, *, available: bool = True, roll_back: bool = False) -> bool:
        """Run the epochs that are planned and not committed; says whether one has ended the reading.

        Args:
            loop: Whose epochs.
            available: Whether only what there is is read.
            roll_back: Whether to go back to a snapshot here if one is told to, and to run on when the reading has ended.
        """
        while (number := loop.last.epoch + 1) < len(self.log):
            inputs, given = self.log[number]
            # What others wrote: the driver leaves out what it has obeyed.
            written = [(name, self._checkpoint.read_command(name)) for name in self._checkpoint.control_names()]
            twice = partial(map_twice, [source.name for source in loop.flow.plan.sources], {})
            mapped = twice if loop.settings.audits(number) else map_batch
            again = partial(self._give_again, number, inputs, loop)
            assign, commands = self._assign(loop, number), [*given, *written]
            backend = LocalBackend(inputs, commands, assign, self._states, f"{number}", mapped, again)
            ended = loop.epoch(number, backend, available=available)
            # Committed: read again only after going back to a snapshot, if there is one.
            kept = self._checkpoint.snapshot_names() or (loop.last.recovery is not None and loop.last.recovery.cut)
            self.log[number] = (inputs if kept and number not in self._given_again else {}, [])
            if loop.last.goes_back:
                self._left = [c for c in given if c[0] not in loop.last.control]
            if ended and not roll_back:
                return True
            if loop.last.goes_back:
                anew = loop.last.begins_anew
                loop.roll_back()
                if anew:  # what was read is read again at once
                    self.plan_epoch(advance_us=0)
        return False

    def _assign(self, loop: Loop, epoch: int) -> Callable[..., Assignment]:
        uri, flow, run = self._checkpoint.uri, loop.settings.flow, loop.settings.run
        compute = run_twice if loop.settings.audits(epoch) else run_region_task
        return lambda compiled, work: Assignment(
            uri, flow, compiled.spec, epoch, run, work.routing, work.messages, work.versions, self.local, compute
        )

    def _in_memory(self, assignment: Assignment, worker: int, identity: str) -> WorkerState:
        """State in memory, brought to the wanted version from the checkpoint's files."""
        version = assignment.versions[worker]
        fs, root = resolve(assignment.checkpoint)
        lineage, state = self._caches.get(identity, ("", MemoryState()))
        state.discard()
        chain = version.lineages()
        if lineage in chain:
            for delta in version.deltas[chain.index(lineage) :]:
                state.apply(concat_batches([*read_batches(fs, root, delta)], SCHEMA))
        else:
            state = MemoryState()
            state.apply(concat_batches([*iterate(fs, root, version)], SCHEMA))
        self._caches[identity] = (version.lineage(), state)
        return state

    def forget_state(self) -> None:
        """Lose what is kept of state outside the checkpoint."""
        self._caches.clear()
        close_stores(self.local)
        shutil.rmtree(self.local, ignore_errors=True)

    def clock_us(self) -> int:
        return self.now_us

    def schema(self, node: p.Node) -> pa.Schema:
        return node.schema

    def begin(self, loop: Loop) -> None:
        """There is nothing that could not begin."""

    def read(self, loop: Loop, available: bool) -> bool:
        ended = self.run_planned(loop, available=available) or loop.ended(available)
        while not ended and not loop.leaving:
            if self.waits(loop):
                self.plan_epoch()
                ended = self.run_planned(loop, available=available)
            elif available:
                break
            else:
                self.idle()
        return True

    def waits(self, loop: Loop) -> bool:
        """Whether there is something to read."""
        return bool(self.pending or self._left or set(self._checkpoint.control_names()).difference(loop.last.control))

    def interrupt(self) -> None:
        return  # whoever could call it waits for the epoch under way

    def copy(self, copy: Copy) -> Copied:
        return copy.carry_out(self._checkpoint)

    def has_begun(self, log: str, epoch: int = 0) -> bool:
        return epoch < len(self.log)

    def _give_again(self, number: int, inputs: dict[str, pa.Table], loop: Loop) -> str:
        """Give the next epoch the input of this one, besides its own; see `Backend.read_again`."""
        if number in self._given_again:  # the epoch is run again
            return loop.last.log
        self._given_again.add(number)
        if number + 1 == len(self.log):
            self.log.append(({}, []))
        following, commands = self.log[number + 1]
        put = {
            n: pa.concat_tables([t for t in (inputs.get(n), following.get(n)) if t is not None])
            for n in {**inputs, **following}
        }
        self.log[number + 1] = put, commands
        return loop.last.log

    def files_of(self, source: p.SourceNode) -> None:
        return None

    def begin_log(self, read: Mapping[str, Sequence[InputFile]], epoch: int) -> str:
        self._put_back(0)  # what a recomputation has read that begins anew
        self.log = [({}, [])] * (epoch + 1)
        return "spark"

    def input_refusal(self, last: EpochRecord, kept: EpochRecord) -> Refusal | None:
        return None

    def rewrite_offset_log(self, last: EpochRecord, kept: EpochRecord, epoch: int) -> str:
        first = kept.epoch + 1
        self._put_back(first)
        self.log = self.log[:first] + [({}, [])] * (epoch + 1 - first)
        return last.log

    def _put_back(self, first: int) -> None:
        """Put what epochs from `first` on have read before what waits."""
        pending, self.pending = self.pending, {}
        for inputs in (*(i for i, _ in self.log[first:]), {n: pa.concat_tables(t) for n, t in pending.items()}):
            for name, table in inputs.items():
                self.pending.setdefault(name, []).append(table)

    def translated(self, error: BaseException) -> PenstockError:
        return error if isinstance(error, PenstockError) else PenstockError(f"The flow failed: {raised(error)}")

    def lost(self) -> PenstockError | None:
        return None

    def unread(self, last: EpochRecord) -> dict[str, int]:
        return {}
