"""Test a flow without Spark: push records, run epochs, look at what the sinks hold.

    harness = Harness(flow, workers=2)
    harness.push("flights", [{"tail": "N1", "at": ..., "delay": 3.0}])
    harness.epoch()
    harness.finish()
    out.rows()                       # with out = penstock.memory("out") as the flow's sink

Everything but Spark is the real thing: lateness, frontier, state files, sinks, commit. A crash can be put before any step.
"""

from __future__ import annotations

import datetime as dt
import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord
from penstock.driver.compile import compile_flow
from penstock.driver.loop import Loop
from penstock.driver.opener import RunOpener
from penstock.driver.recompute import recompute_of
from penstock.errors import DeclarationError, RecordError
from penstock.flow.flow import Flow
from penstock.protocol.commands import Command, Copied, Load, Scale, Snapshot, decode
from penstock.protocol.rescale import STANDARD, Limits
from penstock.routing.hashing import spark_xxhash64
from penstock.rows.keys import WORKER_BIN, KeyCodec
from penstock.sources.base import MALFORMED
from penstock.state.compaction import iterate
from penstock.state.files import resolve
from penstock.state.store import close_stores
from penstock.testing.engine import LocalEngine
from penstock.types import OFFSET, PARTITION
from penstock.worker.audit import audited_epochs
from penstock.worker.copying import copies_due

_users: Counter[str] = Counter()  # harnesses by the folder of their stores, which those on one checkpoint share


class Crash(Exception):  # noqa: N818  (not an error: the test asked for it)
    """Put into a run on purpose; what was not committed is lost.

    Example:
        >>> def die(step):
        ...     if step == "commit":
        ...         raise Crash
        >>> stored = flights.key_by("tail").deduplicate().sink(ps.memory("first flights"))
        >>> Harness(flow, on_step=die).epoch()
        Traceback (most recent call last):
            ...
        penstock.testing.harness.Crash
    """


class Harness:
    """Runs a flow in this process.

    Args:
        flow: The flow. Its sources may be anything with a schema; what they would read is given by `push`, unless they can be read in this
            process (`penstock.sources.Source.records`).
        workers: Number of workers of every region, or by region.
        checkpoint: Folder; a temporary one if not given. One that has state of a flow before is taken over, or refused, as by `Flow.start`.
        forget: Regions and steps of the flow before whose state may be forgotten.
        limits: What bounds a step of a rescale.
        lmdb: Keep state in LMDB as Spark's tasks do, rather than in memory (slower).
        on_step: Called with the name of every step before it; may raise `Crash`.
        most: An epoch reads at most so many pushes of each source; None: all.
        audit: As `penstock.Flow.start` takes it.
        recover: As for `Flow.start`; records that a recomputation needs must be pushed again, from the beginning of each partition.
        since: As for `Flow.start`, likewise `replay_outputs`.
        replay_outputs: See there.

    Example:
        >>> out = ps.memory("flights per plane")
        >>> stored = flights.key_by("tail").window(ps.tumbling("1 hour")).aggregate(n=ps.count()).sink(out)
        >>> hour = dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)
        >>> harness = Harness(flow)
        >>> harness.push("flights", [{"tail": "N1", "at": hour, "delay": 3.0}, {"tail": "N1", "at": hour, "delay": 5.0}])
        >>> harness.epoch().epoch, harness.snapshot("one").epoch, harness.loadable()
        (0, 1, ['one'])
        >>> scaled = harness.scale("tail", 3)
        >>> steps = harness.settle()  # a rescale takes some epochs
        >>> harness.record.regions["tail"].control.workers, len(harness.keys("tail")), harness.copy()
        (3, 1, [])
        >>> harness.restart()  # as after a crash
        >>> harness.resume().epoch == harness.record.epoch
        True
        >>> back = harness.load("one")  # the next epoch reads later input again
        >>> harness.finish().finished, out.rows()[0]["n"]
        (True, 2)
        >>> harness.notices, harness.last_end.partition(". ")[0]
        ([], 'Run 1 (process 0 on here, started 1970-01-01 00:00:00 UTC) did not end cleanly')
        >>> harness.close()
    """

    def __init__(
        self,
        flow: Flow,
        *,
        workers: int | Mapping[str, int] = 1,
        checkpoint: str | os.PathLike[str] | None = None,
        lmdb: bool = False,
        limits: Limits = STANDARD,
        on_step: Callable[[str], None] = lambda _: None,
        most: int | None = None,
        forget: Sequence[str] = (),
        audit: bool | int = False,
        recover: str = "checkpoint",
        since: str | dt.datetime | None = None,
        replay_outputs: Mapping[str, str | None] | None = None,
    ) -> None:
        plan = flow.plan()
        recompute = recompute_of(recover, since, replay_outputs)
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-harness-") if checkpoint is None else None
        self._checkpoint = Checkpoint(checkpoint if self._folder is None else self._folder.name)  # type: ignore[arg-type]  # one is there
        by_region = {
            r.name: r.workers or (workers if isinstance(workers, int) else workers.get(r.name, 1)) for r in plan.regions
        }
        self._offsets: dict[tuple[str, Any], int] = {}
        self._reached: dict[str, dict[str, int]] = {}
        self._compiled = compile_flow(plan, lambda node, _: node.schema, lambda *_: None)
        self._engine = LocalEngine(self._checkpoint, lmdb=lmdb, most=most)
        audited = audited_epochs(audit)
        opener = RunOpener(
            self._compiled, self._checkpoint, self._engine, by_region, limits, on_step, tuple(forget), audited, recompute
        )
        self._loop = Loop(opener)
        _users[self._engine.local] += 1
        self._close = weakref.finalize(self, _let_go, self._engine.local, self._folder)
        self.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its stores, and remove its temporary folder if it made one. A harness that is no longer used is closed by Python."""
        self._close()

    @property
    def notices(self) -> list[str]:
        """What of the state starts empty or is forgotten because the flow has changed, a sentence each."""
        return self._loop.opener.notices

    @property
    def last_end(self) -> str:
        """As `penstock.driver.run.Run.last_end`."""
        return self._loop.opener.last_end

    @property
    def checkpoint(self) -> str:
        """Its checkpoint's folder, as the commands of the command line take it."""
        return self._checkpoint.uri

    @property
    def record(self) -> EpochRecord:
        """The last committed epoch's record."""
        return self._loop.last

    def push(self, source: str, rows: Sequence[Mapping[str, Any]] | pa.Table, partition: Any = 0) -> None:
        """Add records to what the next epoch reads.

        Args:
            source: Name of the source.
            rows: The records, in the order of their offsets.
            partition: Source partition they belong to; offsets go on from the last push.
        """
        sources = self._compiled.plan.sources
        node = next((s for s in sources if s.name == source), None)
        if node is None:
            raise DeclarationError(f"The flow has no source {source!r}; there are {', '.join(s.name for s in sources)}.")
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([dict(r) for r in rows], schema=node.schema)
        if not table.num_rows:
            return
        if node.position is not None and set(node.position) <= set(table.column_names):
            partitions, offsets = table.column(node.position[0]), table.column(node.position[1]).cast(pa.int64())
            if offsets.null_count:
                raise RecordError(f"source {source} has a record without an offset: column {node.position[1]} is null")
        else:
            start = self._offsets.get((source, partition), 0)
            self._offsets[source, partition] = start + table.num_rows
            partitions = pa.array([partition] * table.num_rows)
            offsets = pa.array(range(start, start + table.num_rows), pa.int64())  # type: ignore[assignment]
        own = [node.connector.time] if node.time is not None and node.time == node.connector.time else []
        own += [name for name in (MALFORMED, *node.connector.fingerprint) if name in table.column_names]
        table = table.select([*node.schema.names, *own]).append_column(PARTITION, partitions).append_column(OFFSET, offsets)
        self._engine.pending.setdefault(source, []).append(table)

    def _read(self) -> None:
        """Push what sources give that can be read here, and of which nothing waits."""
        for source in self._compiled.plan.sources:
            known = self.record.sources.get(source.name)
            states = known.partitions.items() if known else ()
            reached = self._reached.setdefault(source.name, {name: state.offset for name, state in states})
            table = None if source.name in self._engine.pending else source.connector.records(reached)
            if table is not None and table.num_rows:
                self._offsets.setdefault((source.name, 0), reached.get("0", -1) + 1)
                self.push(source.name, table)
                read = self._engine.pending[source.name][-1].select([PARTITION, OFFSET]).to_pylist()
                reached |= {str(row[PARTITION]): row[OFFSET] for row in read}

    def epoch(self, *commands: str | Mapping[str, Any] | Command, advance_us: int = 1_000_000) -> EpochRecord:
        """Run one epoch over what was pushed since the last.

        Args:
            *commands: Commands to the controller, such as ``"end"`` or ``{"command": "scale", "region": "k", "workers": 3}``, or as
                `penstock.protocol.commands` has them.
            advance_us: How much clock time passes before it.
        """
        self._read()
        self._engine.plan_epoch([_command(c) for c in commands], advance_us)
        self._engine.run_planned(self._loop, roll_back=True)
        return self.record

    def resume(self) -> EpochRecord:
        """Run the epochs that were begun and not committed, as Spark does after a restart; goes back to a snapshot if told to."""
        self._engine.run_planned(self._loop, roll_back=True)
        return self.record

    def finish(self) -> EpochRecord:
        """End of input: the frontier goes to MAX and everything is given out. Keys on hold are copied first.

        Raises:
            RecoveryError: State is being computed anew, and what was pushed does not come by the marks of the sinks. They were given nothing.
        """
        before = None
        while (now := self.record.recovery) is not None and now.active and (now.passed, now.rows) != before:
            before = now.passed, now.rows
            self.epoch()  # what was pushed may lie behind a mark at which an epoch of the replay ends, and the end behind that
        record = self.epoch("end")
        while not record.finished:  # an end that waited behind a command to go back was about input that is read again
            record = self.epoch(*(self.copy() if record.ending else ["end"]))
        return record

    def available(self, *, drain: bool = True) -> EpochRecord:
        """A new run that reads what was pushed and ends, as ``start(trigger="available_now")`` does; it obeys what comes meanwhile.

        Example:
            >>> stored = flights.key_by("tail").deduplicate().sink(ps.memory("first flights"))
            >>> with Harness(flow) as harness:
            ...     harness.available(drain=False).finished
            False
        """
        return self._supervise(bounded=True, drain=drain)

    def follow(self, idle: Callable[[], None]) -> EpochRecord:
        """A new run that reads on until it is told to end, as ``start(trigger="1 second")`` does.

        Args:
            idle: Called when there is nothing to read; pushes records or gives a command.

        Raises:
            AssertionError: It did neither.
            FinishedError: The flow has reached the end of its input.

        Example:
            >>> stored = flights.key_by("tail").deduplicate().sink(ps.memory("first flights"))
            >>> stop = [sys.executable, "-m", "penstock", "stop", "--drain", "--timeout", "0", "--checkpoint"]  # 0: do not wait
            >>> with Harness(flow) as harness:
            ...     harness.follow(lambda: subprocess.run([*stop, harness.checkpoint], stderr=subprocess.DEVNULL)).finished
            True
        """

        def fed() -> None:
            idle()
            assert self._engine.waits(self._loop), "nothing to read, and no command"

        self._engine.idle = fed
        return self._supervise(bounded=False, drain=True)

    def _supervise(self, *, bounded: bool, drain: bool) -> EpochRecord:
        self._read()
        self._loop.opener.start_anew()
        if self._loop.start(bounded=bounded):
            self._loop.supervise(bounded=bounded, drain=drain)
        return self.record

    def scale(self, region: str | None, workers: int) -> EpochRecord:
        """Run an epoch that is told to change the number of workers of a region, or of all."""
        return self.epoch(Scale(region, workers))

    def snapshot(self, name: str) -> EpochRecord:
        """Run an epoch at whose end a snapshot is taken."""
        return self.epoch(Snapshot(name))

    def load(self, name: str, *, keep_output: bool = False) -> EpochRecord:
        """Run an epoch that is told to go back to a snapshot, and go back; the next epoch reads again all that came since."""
        return self.epoch(Load(name, keep_output))

    def loadable(self) -> list[str]:
        """Names of the snapshots that the flow can go back to, whatever its sinks can."""
        names = self._checkpoint.snapshot_names(self.record.epoch)
        return [n for n in names if not self._loop.opener.rollback_refusal(self.record, Load(n, keep_output=True))]

    def settle(self, most: int = 1000) -> int:
        """Run empty epochs, copying keys on hold, until no region is rescaling; gives their number.

        Raises:
            AssertionError: That took more than `most` epochs.
        """
        for n in range(most):
            if all(r.control.goal is None for r in self.record.regions.values()):
                return n
            self.epoch(*self.copy())
        raise AssertionError(f"still rescaling after {most} epochs")

    def keys(self, region: str) -> list[int]:
        """Hashes of the keys that a region remembers anything of, in order."""
        fs, root = resolve(self._checkpoint.uri)
        codec = KeyCodec(self._compiled.regions[region].spec.keys)
        found: set[int] = set()
        state = self.record.regions[region]
        for version in state.versions:
            for batch in iterate(fs, root, version):
                listed: list[Any] = batch.column(0).to_pylist()
                own = [n[3:] for n in listed if n[:2] != WORKER_BIN]
                found |= set(spark_xxhash64(codec.decode(own)).tolist()) if own else set()
        found |= {h.key for h in state.control.held}
        return sorted(found)

    def copy(self) -> list[Copied]:
        """Copy the state of keys on hold, as the concurrent job does; gives the commands that report it."""
        settings = self._loop.settings
        return [self._engine.copy(copy) for copy in copies_due(self.record, settings.flow, settings.run)]

    def restart(self, *, forget_local_state: bool = False) -> None:
        """Start a new run on the same checkpoint, as after a crash. Older runs are fenced. One that is on its way back goes on."""
        self._loop.opener.start_anew()
        if forget_local_state:
            self._engine.forget_state()
        self._loop.open()


def _command(given: str | Mapping[str, Any] | Command) -> Command:
    if isinstance(given, str):
        return decode({"command": given})
    return decode(dict(given)) if isinstance(given, Mapping) else given


def _let_go(local: str, folder: tempfile.TemporaryDirectory[str] | None) -> None:
    """Close the stores of a harness, unless another one has the same, and remove its temporary folder."""
    _users[local] -= 1
    if not _users[local]:
        del _users[local]
        close_stores(local)
    if folder is not None:
        folder.cleanup()
