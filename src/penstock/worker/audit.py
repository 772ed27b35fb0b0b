"""The audit: what users' functions give is computed twice, and the first difference stops the run.

`run_twice` and `map_twice` stand in for `run_region_task` and `map_batch`, which engines call through what they are given for an epoch; where
there is no audit nothing is different. The second computation runs in a process of its own (`penstock.worker.second`), which is started
once for each process that computes and ends with it. It reads state through this one. Rows go to it as they come, so each of
the two processes holds what any task holds.

Only what users' code makes is compared: each step's rows and its state. Read next: `penstock.worker.differences`.
"""

from __future__ import annotations

import atexit
import operator
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import PathFinder
from multiprocessing import Pipe
from typing import Any, Final

import cloudpickle
import pyarrow as pa

from penstock.errors import AuditError, DeclarationError, PenstockError
from penstock.operators.base import Operator, position_text
from penstock.protocol.messages import Message
from penstock.protocol.reports import WorkerReport
from penstock.rows.keys import WORKER_BIN
from penstock.state.worker import MemoryState, WorkerState
from penstock.types import ORDER
from penstock.worker.batches import map_batch
from penstock.worker.collect_state import GivenUp
from penstock.worker.differences import NOTHING, different_entry, different_rows, entries_of
from penstock.worker.pickling import loose_modules
from penstock.worker.second import Left
from penstock.worker.spec import RegionSpec
from penstock.worker.task import RegionTask, run_region_task

GUIDE: Final = "docs/guide-determinism.md"
_KEPT_PICKLES: Final = 8
_MOST_SHOWN: Final = 200
_HASH_SEEDS: Final = ("1", "2")


def audited_epochs(audit: bool | int) -> int:
    """One epoch in so many is to be audited; 0: none.

    Args:
        audit: As `penstock.flow.flow.Flow.start` takes it.

    Raises:
        DeclarationError: It is neither True or False nor a number from 1.
    """
    if not isinstance(audit, int) or (not isinstance(audit, bool) and audit < 1):
        raise DeclarationError(f"start(audit={audit!r}) must be True, False, or a number n from 1: one epoch in n is audited.")
    return int(audit)


def run_twice(
    spec: RegionSpec,
    worker: int,
    epoch: int,
    messages: Sequence[Message],
    rows: Iterable[pa.RecordBatch],
    state: WorkerState,
    acquired: Sequence[bytes] = (),
    clock: Callable[[], float] = lambda: 0.0,
) -> tuple[list[pa.RecordBatch], WorkerReport, GivenUp | None]:
    """As `run_region_task`.

    Raises:
        AuditError: The second computation gave something else. `state` is then to be thrown away.
        PenstockError: As `run_region_task`, or the second computation could not be made.
    """
    if not spec.steps:
        return run_region_task(spec, worker, epoch, messages, rows, state, acquired, clock)
    tasks: list[RegionTask] = []

    def make(*about: Any) -> RegionTask:
        tasks.append(RegionTask(*about))
        return tasks[0]

    operators = [step.operator for step in spec.steps]
    functions = [fn for made in operators for fn in made.user_functions()]
    plain = replace(spec, steps=tuple(replace(step, operator=Operator()) for step in spec.steps))
    where = f"In epoch {epoch}, region {spec.name!r}"
    with second_process().job("region", operators, functions, (plain, worker, epoch, messages, acquired)) as job:
        done = run_region_task(spec, worker, epoch, messages, job.seen(rows), state, acquired, clock, make)
        theirs = job.result(state, where)
    _compare(spec, where, tasks[0], Left.by(tasks[0], state, done[2]), theirs, state)
    return done


def _compare(spec: RegionSpec, where: str, task: RegionTask, ours: Left, theirs: Left, state: WorkerState) -> None:
    """Raise the first difference, in the order of the steps."""
    changed = [entries_of(left.changes, left.moved) for left in (ours, theirs)]
    for i, step in enumerate(spec.steps):
        ran, names = task.operators[i], step.out_schema.names
        what = f"{where}: {ran.describe()} is not deterministic: computed twice from the same rows and state"
        (rows, skipped), (others, also_skipped) = ours.steps[i], theirs.steps[i]
        if (found := different_rows(rows, others, len(names), len(ORDER) + 1)) is not None:
            known, *both = found
            _, part, offset, _, _, *key = known[len(names) :]
            at = position_text(spec.sources, spec.files, part, offset)
            raise differs(what, f"it gave for key {_key(key)} at {at}", [_row(names, row) for row in both])
        if (apart := set(skipped) ^ set(also_skipped)) != set():
            key_text, position, why, _ = min(apart)
            both = [why if (key_text, position) in {s[:2] for s in each} else NOTHING for each in (skipped, also_skipped)]
            raise differs(what, f"it failed for key {key_text} at {position} with", both)
        entry = different_entry(changed[0], changed[1], step.slot, state.committed.entries, ran.show_state)
        if entry is not None and entry[0][:2] != WORKER_BIN:
            name, *both = entry
            key = [column[0].as_py() for column in task.codec.decode([name[3:]])]
            raise differs(what, f"it left for key {_key(key)} the state", both)


def map_twice(
    sources: Sequence[str],
    files: Mapping[int, Mapping[int, str]],
    what: str,
    fn: Any,
    batch: pa.RecordBatch,
    schema: pa.Schema,
) -> pa.RecordBatch:
    """As `map_batch`, which has no state.

    Args:
        sources: Names of the flow's sources, to name the record.
        files: As `penstock.operators.base.position_text` takes them.
        what: The step, for messages.
        fn: The function.
        batch: Rows with hidden columns.
        schema: Columns of the result, without hidden ones.

    Raises:
        AuditError: The second computation gave something else.
        PenstockError: As `map_batch`, or the second computation could not be made.
    """
    if not batch.num_rows:
        return map_batch(what, fn, batch, schema)
    with second_process().job("batch", [fn], [fn], (what, schema)) as job:
        (given,) = job.seen([batch])
        out = map_batch(what, fn, given, schema)
        other = job.result(MemoryState(), what)
    if (found := different_rows(out, other, len(schema), len(ORDER))) is not None:
        known, *both = found
        _, part, offset, _ = known[len(schema) :]
        told = f"{what} is not deterministic: computed twice from the same rows, in other batches and another order"
        place = position_text(sources, files, part, offset)
        raise differs(told, f"it gave for the record at {place}", [_row(schema.names, row) for row in both])
    return out


def differs(what: str, gave: str, both: Sequence[Any]) -> AuditError:
    """The error: what is not deterministic, what it gave for what, and both results."""
    first, then = (each if each == NOTHING else _short(str(each)) for each in both)
    return AuditError(
        f"{what}, {gave} first {first} and then {then}; {GUIDE} lists what makes functions so, with the remedy for each. "
        "Nothing of the epoch was stored."
    )


def _row(names: Sequence[str], row: Any) -> Any:
    return row if row == NOTHING else dict(zip(names, row, strict=True))


def _key(key: Sequence[Any]) -> str:
    return repr(key[0]) if len(key) == 1 else repr(tuple(key))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


class _Second:
    """The process that computes a second time, and what is said to it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._there, theirs = Pipe()
        seed = next(s for s in _HASH_SEEDS if s != os.environ.get("PYTHONHASHSEED"))
        code = f"from penstock.worker.second import main; main({theirs.fileno()})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # what users' functions print is printed once
        )
        theirs.close()

    @property
    def lives(self) -> bool:
        """Whether it can be given another job."""
        return self.pid == os.getpid() and self._process.poll() is None and not self._there.closed

    def close(self) -> None:
        """End it."""
        if self.pid == os.getpid():
            self._there.close()
            self._process.kill()
            self._process.wait()

    @contextmanager
    def job(self, kind: str, users: Sequence[Any], functions: Sequence[Any], given: Any) -> Iterator[_Second]:
        """One computation: `seen`, then `result`. If anything fails the process is ended, for it waits for more.

        Args:
            kind: One of `penstock.worker.second.JOBS`.
            users: What users have made.
            functions: The functions and classes in it.
            given: The rest.
        """
        try:
            self._there.send((kind, _pickled(users, functions), given))
            yield self
        except (EOFError, BrokenPipeError, ConnectionError) as error:
            self.close()
            raise PenstockError(
                f"The audit's second process has ended with code {self._process.returncode}: it may have had no memory; start with fewer rows per "
                "epoch, or without audit."
            ) from error
        except BaseException:
            self.close()
            raise

    def seen(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows, which the process gets, too."""
        for batch in rows:
            self._there.send(batch)
            yield batch

    def result(self, state: WorkerState, where: str) -> Any:
        """What the second computation gives; it reads the version of the state that the first one began with.

        Raises:
            AuditError: It failed, as the first one did not.
            PenstockError: The functions could not be loaded.
        """
        self._there.send(None)
        while True:
            what, given = self._there.recv()
            match what:
                case "done":
                    return given
                case "failed":
                    raise AuditError(
                        f"{where} is not deterministic: computed a second time from the same rows and state it failed: {given} {GUIDE} lists "
                        "what makes functions so, with the remedy for each. Nothing of the epoch was stored."
                    )
                case "unloadable":
                    raise PenstockError(
                        f"{where} cannot be audited: its functions cannot be loaded in another process ({given})."
                    )
            self._there.send(getattr(state.committed, what)(*given))


_before: list[tuple[Sequence[Any], bytes]] = []


def _pickled(users: Sequence[Any], functions: Sequence[Any]) -> bytes:
    """What users have made, as it was before it first ran here: then there may be things in it that cannot be pickled."""
    for known, pickled in _before:
        if len(known) == len(users) and all(map(operator.is_, known, users)):
            return pickled
    modules = {module for module in loose_modules(functions) if not _importable(module)}
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        made: bytes = cloudpickle.dumps(users)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    _before[:] = [*_before[1 - _KEPT_PICKLES :], (users, made)]
    return made


def _importable(module: Any) -> bool:
    """Whether a process with the same path can import a module by its name."""
    package, _, inside = module.__name__.partition(".")
    found = PathFinder.find_spec(package)
    return found is not None and (bool(inside) or found.origin == module.__file__)


_seconds: list[_Second] = []


def second_process() -> _Second:
    """This process's other one, started if need be."""
    if not (_seconds and _seconds[-1].lives):
        _seconds[:] = [_Second()]
    return _seconds[0]


@atexit.register
def _end() -> None:
    for second in _seconds:
        second.close()
