"""Submit commands to a flow through its control log, from any process, and follow them.

A command is checked against the last committed epoch before it is written, so most invalid ones are refused at once. The
controller checks again when it obeys.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.arrow.html_tables import escaped
from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord
from penstock.driver.rollback import rollback_refusal
from penstock.driver.shown import rescale_line
from penstock.errors import CheckpointError, DeclarationError, FinishedError, PenstockError, ReplacedError
from penstock.protocol.commands import Command, Drain, Load, Move, Scale, Snapshot, Stop, Tick, kind_of
from penstock.protocol.controller import Now, decide, refusal, said
from penstock.protocol.rescale import STANDARD
from penstock.routing.hashing import spark_xxhash64
from penstock.types import Refusal

_POLL_S: Final = 0.05
_numbers = itertools.count()


@dataclass(frozen=True, repr=False)
class CommandHandle:
    """A submitted command.

    Attributes:
        name: Its name in the control log.
        command: The command.
        regions: The regions that it rescales; empty: none.
        latest: Returns the last committed epoch's record; raises the flow's error.
        running: Returns whether the flow still runs.
        waiting: Returns the names in the control log; commands obeyed long ago are no longer there.

    Example:
        >>> stored = flights.key_by("tail").deduplicate().sink(ps.memory("first flights"))
        >>> run = flow.start(spark, checkpoint="checkpoint", workers=1)
        >>> asked = run.scale("tail", 2)
        >>> asked.wait(timeout=60), asked.done, asked.replaced
        (True, True, '')
        >>> sorted(asked.progress)  # by region
        ['tail']
        >>> run.shutdown(drain=False)
        True
    """

    name: str
    command: Command
    regions: tuple[str, ...]
    latest: Callable[[], EpochRecord]
    running: Callable[[], bool]
    waiting: Callable[[], Sequence[str]]

    def __repr__(self) -> str:
        moved = "".join(f"; {line}" for line in self._moved())
        return f"<{said(self.command)}: {self.state}{moved}>"

    def _repr_html_(self) -> str:
        moved = "".join(f"<br>{escaped(line)}" for line in self._moved())
        return f"<div><b>{escaped(said(self.command))}</b>: {escaped(self.state)}{moved}</div>"

    def _moved(self) -> list[str]:
        """What its rescales have moved, a line for each region."""
        try:
            return [rescale_line(region, figures) for region, figures in self.progress.items()]
        except PenstockError:  # the flow's, which `state` tells
            return []

    @property
    def state(self) -> str:
        """Where it is: ``waiting`` for the next epoch, ``under way``, ``done``, or in a sentence why it is not carried out. Raises nothing."""
        try:
            if self.done:
                return "done"
            record = self.latest()
        except PenstockError as error:
            return str(error).rstrip(".")
        under_way = "under way" if self.name in record.control else "waiting"
        return under_way if self.running() else f"{under_way}, goes on when the flow is started again"

    @property
    def replaced(self) -> str:
        """What replaced it before it was carried out, as a sentence: a later command, a rollback, the flow's end. Empty:
        nothing.
        """
        record = self.latest()
        if self.name in record.replaced:
            return record.replaced[self.name]
        if record.finished and self._unheard(record) and not isinstance(self.command, Stop | Drain | Load):
            return f"The {said(self.command)} came too late: the flow finished in epoch {record.epoch}."
        return ""

    @property
    def done(self) -> bool:
        """Whether it has been carried out: obeyed, and all its regions have settled.

        Raises:
            DeclarationError: It was refused after all; nothing was changed.
            ReplacedError: Something replaced it; it will not be carried out.
        """
        record = self.latest()
        if self.name in record.refused:
            raise DeclarationError(record.refused[self.name])
        if replaced := self.replaced:
            raise ReplacedError(replaced)
        if record.finished and isinstance(self.command, Stop | Drain):
            return True
        return not record.rollback_pending and not self._unheard(record) and self.name not in record.open

    def _unheard(self, record: EpochRecord) -> bool:
        return self.name not in record.control and self.name in self.waiting()

    @property
    def progress(self) -> dict[str, Any]:
        """By region: phase, bins left, keys and bytes moved, time left (ms); empty before the first epoch that obeys it."""
        figures = self.latest().figures.regions
        return {r: figures[r].rescaled() for r in self.regions if r in figures}

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done.

        Args:
            timeout: Seconds; None: no limit.

        Returns:
            Whether it is done; also False if the flow stopped before.

        Raises:
            DeclarationError: It was refused after all; nothing was changed.
            ReplacedError: Something replaced it; it will not be carried out.
            PenstockError: The flow failed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            if (until is not None and time.monotonic() > until) or not self.running():
                return self.done
            time.sleep(_POLL_S)
        return True


class Commander:
    """Writes commands into a checkpoint's control log.

    Args:
        checkpoint: The flow's checkpoint.
        latest: Returns the last committed epoch's record; None: read from the checkpoint.
        running: Returns whether the flow runs; None: assumed.
        unreachable: Why the flow cannot go back, for a command to load; None: decided by the checkpoint alone.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        latest: Callable[[], EpochRecord] | None = None,
        running: Callable[[], bool] | None = None,
        unreachable: Callable[[EpochRecord, Load], Refusal | None] | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._latest = latest or checkpoint.last
        self._running = running or (lambda: True)
        self._unreachable = unreachable or (lambda record, command: rollback_refusal(checkpoint, record, command))

    def scale(self, region: str | None, workers: int) -> CommandHandle:
        """Request a number of workers for a region, or for all regions at once.

        Raises:
            DeclarationError: There is no such region, or it cannot have so many workers. Nothing was changed.
            FinishedError: The flow has ended for good.
        """
        return self._ask(Scale(region, workers), region)

    def move(self, region: str, keys: Sequence[Any], worker: int | None, schema: pa.Schema) -> CommandHandle:
        """Request single keys at a worker, or back with their bins (None).

        Args:
            region: The region.
            keys: Key values; tuples if the key has several columns.
            worker: The worker, or None.
            schema: The region's key columns.

        Raises:
            DeclarationError: There is no such region or worker, or a key does not fit the columns. Nothing was changed.
            FinishedError: The flow has ended for good.
        """
        hashes = tuple(int(h) for h in hashes_of(keys, schema))
        return self._ask(Move(region, hashes, worker), region)

    def snapshot(self, name: str) -> CommandHandle:
        """Request a named, consistent copy of all state, routing and positions at the end of an epoch.

        Raises:
            DeclarationError: The name is invalid or taken. Nothing was changed.
            FinishedError: The flow has ended for good.
        """
        return self._ask(Snapshot(name), None)

    def load(self, name: str, *, keep_output: bool = False) -> CommandHandle:
        """Request a rollback to a snapshot.

        Args:
            name: The snapshot.
            keep_output: Go back even if a sink cannot take back its later rows.

        Raises:
            DeclarationError: There is no such snapshot, or the flow cannot go back to it. Nothing was changed.
            CheckpointError: The flow has not committed an epoch yet.
        """
        return self._ask(Load(name, keep_output), None)

    def stop(self, *, drain: bool = False, run: int | None = None) -> CommandHandle:
        """Ask a run to stop after an epoch, or the flow to process its present input and end.

        Args:
            drain: Whether to end.
            run: The run to stop; None: the newest. Later runs are not stopped.

        Raises:
            FinishedError: The flow has ended for good.
        """
        if self._latest().finished:
            raise FinishedError(f"The flow of checkpoint {self._checkpoint.uri} has finished already.")
        return self._submitted(Drain() if drain else Stop(run or self._checkpoint.newest_run()), ())

    def ask_for_an_epoch(self) -> None:
        """Have an epoch run though no record has come: before the first one no command can be checked."""
        self.submit(Tick())

    def submit(self, command: Command) -> str:
        """Write any command; returns its name in the log, which begins with the time (see `given_at`). Nothing else writes the
        log.
        """
        name = f"{time.time_ns():020d}-{os.getpid():07d}-{next(_numbers):06d}.json"
        self._checkpoint.command(command, name)
        return name

    def _ask(self, command: Command, region: str | None) -> CommandHandle:
        record = self._latest()
        if record.finished and not isinstance(command, Load):
            raise FinishedError(
                f"The flow of checkpoint {self._checkpoint.uri} has finished and takes no further commands ({kind_of(command)})."
            )
        if record.epoch < 0:
            self.ask_for_an_epoch()
            raise CheckpointError("The flow has not committed its first epoch yet; try again in a moment.")
        controls = {n: r.control for n, r in record.regions.items()}
        before = [n for n in self._checkpoint.control_names() if n not in record.control]
        there = self._checkpoint.snapshot_names(record.epoch)
        # As if those that are on their way had been obeyed: a move may name a worker that a scale is about to bring.
        ahead = [(n, self._checkpoint.read_command(n)) for n in before]
        decided = decide(ahead, controls, there, STANDARD, Now(record.epoch + 1))
        load = decided.load or record.rollback_pending
        if load and load.name in there:  # what will be there then is in the snapshot
            decided.controls = {n: r.control for n, r in self._checkpoint.read_snapshot(load.name).regions.items()}
        known = [*there, *decided.snapshots]
        unreachable: dict[Load, Refusal] = {}
        if isinstance(command, Load) and command.name in known and (refused := self._unreachable(record, command)):
            unreachable[command] = refused
        if refused := refusal(command, decided.controls, known, unreachable):
            raise DeclarationError(refused.sentence)
        settled = isinstance(command, Snapshot | Load)
        regions = () if settled else (region,) if region is not None else tuple(decided.controls)
        return self._submitted(command, regions)

    def _submitted(self, command: Command, regions: tuple[str, ...]) -> CommandHandle:
        return CommandHandle(
            self.submit(command), command, regions, self._latest, self._running, self._checkpoint.control_names
        )


def given_at(name: str) -> dt.datetime | None:
    """When a command was given, which `Commander.submit` names it after; None: something else has named it."""
    try:
        return dt.datetime.fromtimestamp(int(name[:20]) / 1e9, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return None


def hashes_of(keys: Sequence[Any], schema: pa.Schema) -> np.typing.NDArray[np.int64]:
    """The hashes of keys given as people write them; text is parsed as the column's type.

    Raises:
        DeclarationError: A key does not fit the key columns.
    """
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise DeclarationError(f"keys must be a list of keys, not {keys!r}; write [{keys!r}].")
    if not schema.names:
        raise DeclarationError(
            "A stage without keys has none that could be moved; give it another number of workers with scale."
        )
    rows = [k if isinstance(k, (tuple, list)) else (k,) for k in keys]
    columns = []
    for i, field in enumerate(schema):
        if any(len(r) != len(schema) for r in rows):
            raise DeclarationError(
                f"A key of this region has {len(schema)} columns ({', '.join(schema.names)}); give that many values."
            )
        values = [r[i] for r in rows]
        try:
            as_text = all(isinstance(v, str) for v in values) and not pa.types.is_string(field.type)
            columns.append(pa.array(values, pa.string()).cast(field.type) if as_text else pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise DeclarationError(f"Key column {field.name!r} is of type {field.type}: {error}.") from error
    return spark_xxhash64(columns)
