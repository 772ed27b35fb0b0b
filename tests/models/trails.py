"""What a run keeps of its epochs: how far each had read and processed, and which tables it has met. Epochs that are given up are not in it.

An oracle that must know in which epoch something was read, or has left a region, is told by it.

Read next: `oracle`, `table_versions`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import recipes as r
from judging import NEVER, Clock, Records
from table_versions import Rows, fingerprint

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord
from penstock.driver.refreshing import RefreshedTables

END = (1 << 63) - 1
"""The frontier of a region whose input has ended."""


@dataclass
class Kept:
    """An epoch.

    Attributes:
        offsets: By source and partition, how far it has read.
        frontiers: By region, how far it has processed (µs).
        held: By region and key (hash), the last epoch that has processed rows of a key that is on hold.
        tables: The table that each lookup has met, by the name of its column.
        back_us: Where the flow has gone back: the clock (µs).
    """

    offsets: Mapping[tuple[str, str], int]
    frontiers: Mapping[str, int]
    held: Mapping[tuple[str, int], int]
    tables: Mapping[str, Rows]
    back_us: int | None = None


@dataclass
class Trail:
    """The epochs of a run that counts.

    Attributes:
        epochs: By number.
        tables: The lookups whose tables are read again, by the name of their column.
        resting: The regions whose state has gone on through all recomputations.
        begins: Called when a recomputation has begun, if there are such tables: rows that are in the sinks may have met others.
    """

    recipe: r.Recipe
    epochs: dict[int, Kept] = field(default_factory=dict)
    tables: dict[str, r.Lookup] = field(default_factory=dict)
    resting: frozenset[str] = frozenset()
    begins: Callable[[], None] = lambda: None
    _before: dict[int, Kept] = field(default_factory=dict)
    _names: dict[str, tuple[str, Rows]] = field(default_factory=dict)
    _one: dict[tuple[str, Rows], Rows] = field(default_factory=dict)
    _attempts: dict[str, int] = field(default_factory=dict)
    _stay: Mapping[str, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = self.recipe.refreshed()
        for column, node in self.tables.items():
            for rows in node.again.becomes(node.rows):
                name = fingerprint(node.on, column, rows, narrow=node.narrow)
                self._one[column, rows] = self._names.setdefault(name, (column, rows))[1]
            self._attempts[column] = len(node.again.found)

    def commit(self, record: EpochRecord) -> None:
        """An epoch is committed, or gives up those after a snapshot or those that a recomputation reads again."""
        offsets = {(n, key): p.offset for n, s in record.sources.items() for key, p in s.partitions.items()}
        frontiers = {n: s.frontier for n, s in record.regions.items()}
        held = {(n, h.key): h.since for n, s in record.regions.items() for h in s.control.held}
        back = [b for b in record.rolled_back if b.upto == record.epoch - 1]
        if back:
            self.epochs = {e: kept for e, kept in self.epochs.items() if e <= back[0].to}
        met = dict(self._names[read.version.rpartition("-r")[0]] for read in record.tables.values())
        begins = record.recovery is not None and not record.tables
        if begins:
            if self.tables:
                self.begins()
            self.resting = (self.resting & record.regions.keys()) | record.recovery.resting.keys()  # type: ignore[union-attr]
            self._before |= self.epochs
            self.epochs = {
                e: kept
                for e, kept in self.epochs.items()
                if all(o <= offsets.get(p, -1 << 63) for p, o in kept.offsets.items())
            }
        elif self._stay:  # state is computed anew
            assert met == self._stay, f"the tables became {met}, not {self._stay}, while state was computed anew"
        elif not back and record.rollback_pending is None:
            self._check(met)
        self._stay = met if record.recovery is not None and record.recovery.active else {}
        heard = [p.heard_us for s in record.sources.values() for p in s.partitions.values()]
        self.epochs[record.epoch] = Kept(offsets, frontiers, held, met, max(heard, default=0) if back else None)

    def _check(self, met: Mapping[str, Rows]) -> None:
        """An epoch meets what one of its attempts has found; where one has found nothing, or it need not be read again, what any has found."""
        for column, rows in met.items():
            again = self.tables[column].again
            begin, self._attempts[column] = self._attempts[column], len(again.found)
            found = again.found[begin:]
            assert found or again.every_us, f"{column} was not read again"
            if again.every_us or None in found:
                found = [*again.found, *again.declared]
            assert rows in [None if x is None else self._one[column, x] for x in found], (
                f"{column} has {rows}, but {found} was found"
            )

    def copy(self) -> tuple[dict[int, Kept], Mapping[str, Rows]]:
        """What belongs to a copy of the checkpoint."""
        return dict(self.epochs), self._stay

    def restore(self, copied: tuple[dict[int, Kept], Mapping[str, Rows]] | None) -> None:
        """Go on with a copy of the checkpoint; None: with an empty one."""
        epochs, self._stay = copied or ({}, {})
        self.epochs, self._before = dict(epochs), {}

    def of_resting(self) -> Trail:
        """That of regions whose state goes on: what was read before a recomputation is not read again."""
        return replace(self, epochs={**self._before, **self.epochs}, resting=frozenset())

    def table(self, column: str, epoch: int) -> Rows:
        """The table that a lookup has met in an epoch; before the first one that has read records, that of it."""
        return next(k.tables[column] for e, k in sorted(self.epochs.items()) if e >= epoch and column in k.tables)

    def read_in(self, source: str, partition: Any, offset: int) -> int:
        """The epoch that has read a record."""
        return next(e for e, k in self.epochs.items() if k.offsets.get((source, str(partition)), -1 << 63) >= offset)

    def records(self, data: Records) -> Records:
        """Records with the epoch that has read them; those without a time, which none keeps, with the last one."""
        last = max(self.epochs)
        return {
            name: [(last if x.get("at", x) is None else self.read_in(name, x["p"], x["o"]), x) for _, x in rows]
            for name, rows in data.items()
        }

    def clock(self, clock: Clock) -> Clock:
        """What the clock has shown in the epochs that count; where the flow has gone back, all have been heard."""
        back = {e: (k.back_us, True, True) for e, k in self.epochs.items() if k.back_us is not None}
        return {e: clock[e] for e in self.epochs if e not in back} | back

    def last_frontier(self, region: str) -> int:
        """How far a region had processed before the end of its input (µs)."""
        return max(
            (k.frontiers.get(region, -NEVER) for k in self.epochs.values() if k.frontiers.get(region) != END), default=-NEVER
        )

    def left_in(self, region: str, key: int, time: int, arrived: int, *, timed: bool) -> int:
        """The epoch in which a row of a key (hash), of a time (µs), has left a region that it reached in the epoch `arrived`."""
        return next(
            e
            for e, k in self.epochs.items()
            if e >= arrived and (not timed or k.frontiers.get(region, -NEVER) > time) and k.held.get((region, key), e) >= e
        )


@contextlib.contextmanager
def trailed(recipe: r.Recipe, begins: Callable[[], None] = lambda: None) -> Iterator[Trail]:
    """The trail of what runs meanwhile, on one checkpoint; `begins` is called when a recomputation has begun."""
    trail, whole = Trail(recipe, begins=begins), Checkpoint.commit

    def commit(self: Checkpoint, record: EpochRecord, run: int) -> None:
        whole(self, record, run)
        trail.commit(record)

    with patch.object(Checkpoint, "commit", commit):
        yield trail


@contextlib.contextmanager
def clocks() -> Iterator[dict[int, tuple[int, bool, bool]]]:
    """The clock of epochs meanwhile: by epoch, what it showed (µs) and whether another run had the epoch before, as checkpoints keep it.

    They keep none while no source goes by it; the last attempt at an epoch counts then.
    """
    found: dict[int, tuple[int, bool, bool]] = {}
    noted: set[int] = set()
    whole, begun = Checkpoint.decided, RefreshedTables.used

    def decided(self: Checkpoint, epoch: int, given_now: Any, run: Any) -> Any:
        kept = whole(self, epoch, given_now, run)
        found[epoch] = kept["now_us"], kept["resumed"], False
        noted.add(epoch)
        return kept

    def used(self: RefreshedTables, epoch: int, now_us: int, **more: Any) -> Any:
        if epoch not in noted:
            found[epoch] = now_us, False, False
        return begun(self, epoch, now_us, **more)

    with patch.object(Checkpoint, "decided", decided), patch.object(RefreshedTables, "used", used):
        yield found
