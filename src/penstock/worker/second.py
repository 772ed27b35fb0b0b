"""The second computation of an audit: a process of its own, with another hash seed, that computes for one parent.

What must not matter is different here: the order of the rows, how they are cut into batches, the order of keys and which of them an
operator sees together (as if two workers had them), the hash seed, and what users' modules remember: what is new here is computed twice.

The parent keeps the state; it is read through the parent, as a version that does not change. Read next: `penstock.worker.audit`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Final

import cloudpickle
import numpy as np
import pyarrow as pa

from penstock.arrow.columns import concat_batches, to_indices
from penstock.errors import PenstockError, raised
from penstock.operators.base import KeyedState, StateView
from penstock.operators.migration import view_of
from penstock.protocol.messages import Frontier
from penstock.rows.rows import Emitted, Rows
from penstock.state.overlay import Due, Ints
from penstock.state.worker import WorkerState
from penstock.types import BINS
from penstock.worker.batches import map_batch
from penstock.worker.collect_state import GivenUp
from penstock.worker.task import RegionTask, run_region_task

_KEPT_LOADED: Final = 8
_MIXED: Final = 2_654_435_761  # Knuth's: consecutive numbers times this, modulo 2^32, are spread


@dataclass(frozen=True)
class Left:
    """What a computation of a region's task left.

    Attributes:
        steps: By step, its rows as `table_of` gives them, and the records it skipped.
        changes: The changes to state.
        moved: State that went to other workers, in the columns of the changes.
    """

    steps: Sequence[tuple[pa.RecordBatch, Sequence[tuple[str, ...]]]]
    changes: pa.RecordBatch
    moved: Sequence[pa.RecordBatch]

    @staticmethod
    def by(task: RegionTask, state: WorkerState, given: GivenUp | None) -> Left:
        """Of a task that has run."""
        steps = [(table_of(r), [*c.skipped]) for r, c in zip(task.results, task.contexts, strict=True)]
        return Left(steps, state.changes(), [] if given is None else [*given.rows.values()])


def table_of(rows: Rows) -> pa.RecordBatch:
    """Rows as columns without names: the user's, four of their order, the key's hash, the key's."""
    order: list[Any] = [pa.array(c, pa.int64()) for c in rows.order.columns()]
    at = to_indices(rows.group)
    columns = [*rows.data.columns, *order, pa.array(rows.keys.hashes[rows.group]), *(c.take(at) for c in rows.keys.columns)]
    return pa.RecordBatch.from_arrays(columns, names=[str(i) for i in range(len(columns))])


def mixed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Its rows in another order."""
    return batch.take(to_indices(np.argsort(-(np.arange(batch.num_rows) * _MIXED % (1 << 32)), kind="stable")))


def second_region(users: Sequence[Any], given: Any, rows: Sequence[pa.RecordBatch], parent: Connection) -> Left:
    """The task of a region's worker."""
    tasks: list[RegionTask] = []

    def make(*about: Any) -> RegionTask:
        tasks.append(_InShares(*about))
        return tasks[0]

    plain, worker, epoch, messages, acquired = given
    spec = replace(plain, steps=tuple(replace(step, operator=o) for step, o in zip(plain.steps, users, strict=True)))
    with WorkerState(_OfParent(parent)) as state:
        _, _, left = run_region_task(spec, worker, epoch, messages, map(mixed, reversed(rows)), state, acquired, make=make)
        return Left.by(tasks[0], state, left)


def second_batch(users: Sequence[Any], given: Any, rows: Sequence[pa.RecordBatch], parent: Connection) -> pa.RecordBatch:
    """A user's function over record batches."""
    del parent
    (fn,), (what, schema) = users, given
    (batch,) = map(mixed, rows)
    at = max(1, batch.num_rows // 3)
    return concat_batches(
        [map_batch(what, fn, part, schema) for part in (batch.slice(0, at), batch.slice(at)) if part.num_rows]
    )


JOBS: Final[dict[str, Callable[[Sequence[Any], Any, Sequence[pa.RecordBatch], Connection], Any]]] = {
    "region": second_region,
    "batch": second_batch,
}


class _InShares(RegionTask):
    """A task whose operators get the keys of odd bins, then those of even ones, each share with operators of its own."""

    share = 0

    def run_step(self, i: int, frontier: Frontier) -> list[Emitted]:
        out: list[Emitted] = []
        whole = self.states[i]
        for self.share in (1, 0):
            self.operators[i] = copy.copy(self.spec.steps[i].operator)
            self.operators[i].start(self.contexts[i])
            view = view_of(_Share(self.state, self.share), self.operators[i])
            self.states[i] = KeyedState(view, self.contexts[i])
            out += super().run_step(i, frontier)
        self.states[i] = whole
        return out

    def rows(self, kind: str, index: int) -> Rows:
        rows = super().rows(kind, index)
        return rows.of_keys(rows.keys.hashes % BINS % 2 == self.share) if self.at_step() else rows

    def partials(self, port: int) -> list[pa.RecordBatch]:
        every = super().partials(port)
        mine = [b.column(b.num_columns - 1).to_numpy() % BINS % 2 == self.share for b in every]
        return [b.take(to_indices(np.flatnonzero(m))) for b, m in zip(every, mine, strict=True)]

    def at_step(self) -> bool:
        """Whether a step is running; otherwise its rows are given out."""
        return len(self.results) < len(self.spec.steps)


class _Share:
    """The state of the keys of every other bin."""

    def __init__(self, view: StateView, share: int) -> None:
        self._view, self._share = view, share
        self.get_many, self.get_timed = view.get_many, view.get_timed
        self.put_many, self.delete_many = view.put_many, view.delete_many

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return [entry for entry in self._view.scan(prefix) if entry[0][1] % 2 == self._share]

    def entries(self, prefix: bytes) -> list[tuple[bytes, bytes, int]]:
        return [entry for entry in self._view.entries(prefix) if entry[0][1] % 2 == self._share]

    def due(self, operator: int, upto_us: int) -> list[tuple[bytes, bytes]]:
        return [entry for entry in self._view.due(operator, upto_us) if entry[0][1] % 2 == self._share]


class _OfParent:
    """The version of the state that the parent has."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent

    def _ask(self, method: str, *arguments: Any) -> Any:
        self._parent.send((method, arguments))
        return self._parent.recv()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._ask("get_many", list(keys))
        return found

    def get_timed(self, keys: Sequence[bytes], due: Due | None = None) -> tuple[list[bytes | None], Ints]:
        found: tuple[list[bytes | None], Ints] = self._ask("get_timed", list(keys), due)
        return found

    def entries(self, prefix: bytes) -> list[tuple[bytes, bytes, int]]:
        found: list[tuple[bytes, bytes, int]] = self._ask("entries", prefix)
        return found

    def measure(self, start: int, stop: int, entries: int) -> tuple[list[tuple[int, int]], int]:
        found: tuple[list[tuple[int, int]], int] = self._ask("measure", start, stop, entries)
        return found

    def due(self, operator: int, upto_us: int, apart: Sequence[AbstractSet[bytes]]) -> list[tuple[int, bytes, bytes]]:
        found: list[tuple[int, bytes, bytes]] = self._ask("due", operator, upto_us, [set(a) for a in apart])
        return found

    def close(self) -> None:
        """It is the parent's."""


def main(fd: int) -> None:
    """Compute until the parent has gone.

    Args:
        fd: The file descriptor of the connection to it.
    """
    parent, loaded = Connection(fd), dict[bytes, Any]()
    while True:
        try:
            kind, pickled, given = parent.recv()
        except (EOFError, ConnectionError):
            return
        rows = list(_received(parent))
        digest = hashlib.sha256(pickled).digest()
        fresh = digest not in loaded
        try:
            users = loaded[digest] = cloudpickle.loads(pickled) if fresh else loaded[digest]
        except Exception as error:  # noqa: BLE001  (whatever the user's modules raise; the parent tells it)
            parent.send(("unloadable", raised(error)))
            continue
        try:
            for _ in range(1 + fresh):
                result = JOBS[kind](users, given, rows, parent)
        except PenstockError as error:
            parent.send(("failed", str(error)))
        else:
            parent.send(("done", result))
        while len(loaded) > _KEPT_LOADED:
            del loaded[next(iter(loaded))]


def _received(parent: Connection) -> Iterator[pa.RecordBatch]:
    while (batch := parent.recv()) is not None:
        yield batch
