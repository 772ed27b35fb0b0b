"""Split stages over Spark: the rows of hot keys divided over the workers of a region, and their partial results.

A strategy that rests (`penstock.routing.strategy.Strategy.rests`) is not used while all workers have about as many rows by the table. Whether they
have is counted by a sample of the rows, and only in some epochs.

A strategy that needs only counts (`penstock.routing.strategy.ByCounts`) gets those of the keys with many rows, from one job over the key and
the position, and a second one if a worker has too much because of keys that were not divided before; all other rows go the usual way, by one
shuffle. A key's rows are cut at blocks of positions, so what a row's worker is does not depend on tasks.

Any other strategy routes one row after the other, as its sender's rows come: they are first brought to one task per sender.

What is decided depends on the record and the epoch's input only.

Read next: `penstock.worker.task.run_split_task`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.arrow.columns import coalesce_batches, concat_batches, to_indices
from penstock.arrow.pages import BLOCK_ROWS
from penstock.driver.engine import Divided, EpochOrders
from penstock.operators.base import parts_schema
from penstock.routing.hashing import spark_xxhash64
from penstock.routing.memory import Remembered
from penstock.routing.strategy import ByCounts, Parts, Router, Strategy, routed, told
from penstock.spark.columns import spark_schema
from penstock.spark.exchange import Placed, spread, spread_rows
from penstock.spark.internals.plans import select_sql
from penstock.spark.memory import begin_task
from penstock.sql_text.schema import quoted
from penstock.types import OFFSET, PART, SUB
from penstock.worker.spec import RegionSpec, key_columns, key_hashes
from penstock.worker.task import run_split_task

Ints = NDArray[np.int64]

LEAST_ROWS: Final = 1 << 16
"""In an epoch with fewer rows all keys stay whole: to divide them would take longer."""
HOT_ROWS: Final = 1 << 10
"""A key with fewer rows in an epoch stays whole."""
UNEVEN: Final = 1.05
"""All keys stay whole while the busiest worker has less than so many times the mean."""
_SAMPLE: Final = 16
_SAMPLED: Final = f"pmod(xxhash64({PART}, {OFFSET}, {SUB}), {_SAMPLE}) = 0"
_LONGEST: Final = 8
"""After 1, 2, 4 and from then on every 8 epochs in which a sample would have said the same, the rows of one are sampled."""
_MEMORY: Final = -(1 << 62)
"""The sender under which a router keeps what is known of all; no partition has that number."""
_NOTHING: Final = {"seen": np.zeros(1, np.int64), "hot": np.empty(0, np.int64), "bits": np.zeros(1, np.int64)}
"""What is remembered at first. ``seen``: the last epochs that were alike, below 0 if keys were divided; ``hot``: the keys; ``bits``: of blocks."""
_BLOCKS: Final = 256
"""A worker's part of a key is cut to one in so many of its rows."""
_TOP_BITS: Final = 54  # of offsets that are hashes: rows that a frontier triggered


@dataclass(frozen=True)
class Cuts:
    """Where the rows of divided keys go, by their positions.

    Attributes:
        bits: An offset's block is ``offset >> bits``.
        keys: By hash: the first (part, block) of all workers but the first, ascending, and the workers.
    """

    bits: int
    keys: Mapping[int, tuple[Sequence[tuple[int, int]], Sequence[int]]]

    def workers_of(self, hashes: Ints, part: Ints, offset: Ints) -> Ints:
        """The worker of each row (int64, n); the rows are of divided keys."""
        out = np.zeros(len(hashes), np.int64)
        block = blocks_of(part, offset, self.bits)
        for key, (firsts, workers) in self.keys.items():
            mine = np.flatnonzero(hashes == key)
            passed = np.zeros(len(mine), np.int64)
            for at_part, at_block in firsts:
                passed += (part[mine] > at_part) | ((part[mine] == at_part) & (block[mine] >= at_block))
            out[mine] = np.array(workers, np.int64)[passed]
        return out


def blocks_of(part: Ints, offset: Ints, bits: int) -> Ints:
    """The block of each position."""
    return np.where(part < 0, offset >> _TOP_BITS, offset >> bits)


def cut(blocks: Mapping[int, tuple[Ints, Ints, Ints]], divided: Mapping[int, Parts], bits: int) -> Cuts:
    """Cut each divided key between blocks, as near as possible to where its parts end.

    Args:
        blocks: By hash, the key's blocks in order: part, block, rows.
        divided: By hash, its parts (`penstock.routing.strategy.ByCounts.divide`).
        bits: Of the blocks.
    """
    keys = {}
    for key, parts in divided.items():
        part, block, rows = blocks[key]
        edges = np.concatenate(([0], np.cumsum(rows)))
        ends = np.cumsum([size for _, size in parts])[:-1]
        above = np.searchsorted(edges, ends)
        nearest = np.where(edges[above] - ends <= ends - edges[np.maximum(above - 1, 0)], above, above - 1)
        firsts, workers = [], [parts[0][0]]
        for at, (worker, _) in zip(nearest.tolist(), parts[1:], strict=True):
            if at < len(rows):
                firsts.append((int(part[at]), int(block[at])))
                workers.append(worker)
        keys[key] = (firsts, workers)
    return Cuts(bits, keys)


@dataclass(frozen=True)
class Positions:
    """Reads the key's hash and the position from rows in the columns of a stage's input.

    Attributes:
        keys: As `key_columns` gives them.
        part, offset, sub: The place of the column, or (for a known one) the value of all rows.
    """

    keys: list[list[int]]
    part: tuple[bool, int]
    offset: tuple[bool, int]
    sub: tuple[bool, int]

    @staticmethod
    def of(stage: RegionSpec) -> Positions:
        """Those of a stage."""
        (port,), names = stage.ports, stage.in_schema.names
        known = dict(port.known)
        places = [(True, int(known[n])) if n in known else (False, names.index(n)) for n in (PART, OFFSET, SUB)]
        return Positions(key_columns(stage), *places)

    def hashes(self, rows: pa.RecordBatch) -> Ints:
        """int64, n; 0 where there are no keys."""
        found: Ints = key_hashes(self.keys, rows) if self.keys[0] else np.zeros(rows.num_rows, np.int64)
        return found

    def column(self, which: tuple[bool, int], rows: pa.RecordBatch) -> Ints:
        """One of the position's columns (int64, n)."""
        is_known, at = which
        return np.full(rows.num_rows, at, np.int64) if is_known else rows.column(at).to_numpy()


class SplitStages:
    """The split stages of one epoch.

    Args:
        counts: Where tasks leave what they have counted (an accumulator, `penstock.spark.sources.row_times.counts_of`).
        name: Makes what is counted the epoch's own.
        home_sql: SQL of the worker of a key, given the table and SQL of its hash.
        columns: Rows in the columns of a stage's input, given the stage and the rows.
    """

    def __init__(
        self,
        counts: Any,
        name: str,
        home_sql: Callable[[Any, str], str],
        columns: Callable[[RegionSpec, DataFrame], DataFrame],
    ) -> None:
        self._counts, self._name, self._home_sql, self._columns = counts, name, home_sql, columns
        self._made: dict[tuple[str, int], tuple[Strategy, EpochOrders, Router]] = {}
        self._plans: dict[tuple[str, int], tuple[Cuts | bool | None, DataFrame]] = {}

    def split(
        self,
        stage: RegionSpec,
        strategy: Strategy,
        frame: DataFrame,
        work: EpochOrders,
        keep: Callable[[DataFrame], DataFrame],
    ) -> tuple[DataFrame, DataFrame | None]:
        """See `penstock.driver.engine.Backend.split`. `keep`: applied to the frame before it is read several times."""
        named, hashed = _named(stage), _hash_sql(stage)
        router = _router(stage, strategy, work)
        if named not in self._plans:
            self._made[named] = strategy, work, router
            self._plans[named] = self._planned(frame, hashed, strategy, router, work, keep)
        plan, frame = self._plans[named]
        if plan is None:
            return frame, None
        if isinstance(plan, Cuts):
            hot = _among(hashed, [*plan.keys])
            placed = spread(self._columns(stage, frame.where(hot)), stage.in_schema, _by_cuts(stage, plan), work.workers)
            return frame.where(f"not ({hot})"), self._parts(stage, named, *placed)
        return frame.limit(0), self._parts(stage, named, *self._routed(stage, named, frame, strategy, work))

    def shared(
        self, stage: RegionSpec, strategy: Strategy, frame: DataFrame, work: EpochOrders
    ) -> tuple[DataFrame, Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]]:
        """The rows of a stage without keys at its workers, and what reads them there."""
        named, schema = _named(stage), stage.in_schema
        self._made[named] = strategy, work, _router(stage, strategy, work)
        rows, paged = self._routed(stage, named, frame, strategy, work)
        return rows, lambda batches: (rows for _, rows in spread_rows(batches, schema, paged=paged))

    def divided(self, region: str) -> dict[int, Divided]:
        """See `penstock.driver.engine.Backend.divided`."""
        out = {}
        found = self._counts.value
        for (name, slot), (strategy, work, router) in self._made.items():
            if name == region:
                mine = {at: found.pop((under, at)) for under, at in list(found) if under == self._under((name, slot))}
                rows = [mine.get(("rows", worker), 0) for worker in range(work.workers)]
                router.memory.update({at[1]: arrays for at, arrays in mine.items() if at[0] == "memory"})
                took = [mine.get(("seconds", worker), (0.0, 0.0)) for worker in range(work.workers)]
                with told(strategy):
                    router.finished([1000 * wall for wall, _ in took])
                kept = Remembered.of(strategy, work.workers, router.memory)
                hot = tuple(mine.get(("hot", worker), ()) for worker in range(work.workers))
                out[slot] = Divided(tuple(rows), kept, tuple(1000 * cpu for _, cpu in took), hot)
        return out

    def _under(self, named: tuple[str, int]) -> str:
        return f"{self._name}{named[1]} {named[0]}"

    def _planned(
        self,
        frame: DataFrame,
        hashed: str,
        strategy: Strategy,
        router: Router,
        work: EpochOrders,
        keep: Callable[[DataFrame], DataFrame],
    ) -> tuple[Cuts | bool | None, DataFrame]:
        """What to do, and the frame to read. What the router remembers is changed.

        Returns:
            Where rows of hot keys go; True: to route all rows; None: all keys stay whole.
        """
        if not strategy.rests and not isinstance(router, ByCounts):
            return True, frame
        before = router.memory.get(_MEMORY, _NOTHING)
        seen, home = int(before["seen"][0]), self._home_sql(work.routing, hashed)
        uneven = seen < 0
        counts_all = isinstance(router, ByCounts) and uneven
        if counts_all or _is_due(seen):
            frame = keep(frame)
        if not counts_all and _is_due(seen):
            uneven = not is_even(sample_rows(frame, home, work.workers), UNEVEN)
        if not uneven or not isinstance(router, ByCounts):
            router.memory[_MEMORY] = {**_NOTHING, "seen": np.array([min(seen, 0) - 1 if uneven else max(seen, 0) + 1])}
            return uneven or None, frame
        bits = int(before["bits"][0])
        found = count_rows(frame, hashed, home, before["hot"], bits, work.workers)
        total = int(found.loads.sum())
        plan = None
        if total >= LEAST_ROWS and found.loads.max() >= UNEVEN * total / work.workers:
            plan = self._cut(frame, hashed, strategy, router, found, bits)
        hot = np.array([*plan.keys] if plan else [], np.int64)
        same = np.array([-1 if plan else max(seen, 0) + 1])
        router.memory[_MEMORY] = {"seen": same, "hot": hot, "bits": np.array([_bits(found.loads)])}
        return plan, frame

    def _cut(
        self, frame: DataFrame, hashed: str, strategy: Strategy, router: ByCounts, found: Counted, bits: int
    ) -> Cuts | None:
        total, blocks = int(found.loads.sum()), found.blocks
        most = max(HOT_ROWS, total // (64 * router.workers))
        full = set(np.flatnonzero(found.loads * router.workers > total).tolist())
        new = [key for key, (home, rows) in found.sampled.items() if home in full and 2 * rows >= most]
        if new:
            bits = _bits(found.loads)
            blocks = _blocks(frame, hashed, [*new, *blocks], bits)
        sizes = {key: int(rows.sum()) for key, (_, _, rows) in blocks.items() if rows.sum() >= most}
        with told(strategy):
            divided = router.divided(np.array(list(sizes), np.int64), np.array(list(sizes.values()), np.int64), found.loads)
        return cut(blocks, divided, bits) if divided else None

    def _routed(
        self, stage: RegionSpec, named: tuple[str, int], frame: DataFrame, strategy: Strategy, work: EpochOrders
    ) -> tuple[DataFrame, bool]:
        """Rows at their workers, routed by one task for each sender, in the order of positions."""
        where, schema, workers = Positions.of(stage), stage.in_schema, work.workers
        rows, paged = spread(self._columns(stage, frame), schema, _by_sender(stage, workers), workers)
        before, home, counts, under = (
            work.routers.get(stage.ports[0].slot, Remembered()),
            work.routing,
            self._counts,
            self._under(named),
        )

        def ordered(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Ints]]:
            whole = concat_batches([rows for _, rows in spread_rows(batches, schema, paged=paged)], schema)
            if not whole.num_rows:
                return
            part, offset, sub = (where.column(c, whole) for c in (where.part, where.offset, where.sub))
            order = np.lexsort((sub, offset, part))
            hashes, part = where.hashes(whole)[order], part[order]
            cuts = np.flatnonzero(np.diff(part)) + 1
            router = before.router(strategy, workers, home)
            senders = dict(zip(part[np.append(0, cuts)].tolist(), np.split(hashes, cuts), strict=True))
            to = routed(strategy, router, workers, senders)
            counts.add({(under, ("memory", sender)): router.memory[sender] for sender in senders if sender in router.memory})
            yield whole.take(to_indices(order)), np.concatenate([to[sender] for sender in senders])

        return spread(rows, schema, ordered, workers)

    def _parts(self, stage: RegionSpec, named: tuple[str, int], rows: DataFrame, paged: bool) -> DataFrame:
        """The partial results of rows at their workers."""
        counts, under, schema = self._counts, self._under(named), parts_schema(stage.keys)

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            begin_task()
            mine = [*spread_rows(batches, stage.in_schema, paged=paged)]
            if mine:  # the number of the task is not that of the worker, as these rows are united with others
                worker, rows = mine[0][0], [batch for _, batch in mine]
                began, cpu, count = time.perf_counter(), time.thread_time(), sum(batch.num_rows for batch in rows)
                parts, hot = run_split_task(stage, worker, rows)
                took = time.perf_counter() - began, time.thread_time() - cpu
                counts.add(
                    {(under, ("rows", worker)): count, (under, ("seconds", worker)): took, (under, ("hot", worker)): hot}
                )
                yield parts

        return rows.mapInArrow(run, spark_schema(schema))


def _is_due(seen: int) -> bool:
    """Whether rows are sampled after so many epochs without a change."""
    same = abs(seen)
    return same % _LONGEST == 0 if same >= _LONGEST else same & (same - 1) == 0


def is_even(sampled: Ints, most: float) -> bool:
    """Whether the busiest worker has less than so many times the mean, by a sample of the rows: what may be chance is allowed for."""
    mean = float(sampled.mean())
    return float(sampled.max()) <= most * mean + 2 * math.sqrt(mean)


def sample_rows(frame: DataFrame, home: str, workers: int) -> Ints:
    """About a 16th of the rows, counted by home (int64, workers)."""
    found = select_sql(frame.where(_SAMPLED), [f"{home} as home"]).groupBy("home").agg(F.expr("count(*) as n")).toArrow()
    return np.bincount(found.column("home").to_numpy(), weights=found.column("n").to_numpy(), minlength=workers).astype(
        np.int64
    )


def _by_cuts(stage: RegionSpec, plan: Cuts) -> Placed:
    where = Positions.of(stage)

    def placed(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Ints]]:
        for rows in coalesce_batches(batches, BLOCK_ROWS):
            yield rows, plan.workers_of(where.hashes(rows), where.column(where.part, rows), where.column(where.offset, rows))

    return placed


def _by_sender(stage: RegionSpec, tasks: int) -> Placed:
    where = Positions.of(stage)

    def placed(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Ints]]:
        for rows in coalesce_batches(batches, BLOCK_ROWS):
            yield rows, spark_xxhash64([pa.array(where.column(where.part, rows))]) % tasks

    return placed


def _named(stage: RegionSpec) -> tuple[str, int]:
    """A stage's region, and the slot of its input."""
    return stage.name, stage.ports[0].slot


def _router(stage: RegionSpec, strategy: Strategy, work: EpochOrders) -> Router:
    """The router of a stage, with what it remembers."""
    return work.routers.get(stage.ports[0].slot, Remembered()).router(strategy, work.workers, work.routing)


def _bits(loads: Ints) -> int:
    """The bits of blocks for an epoch with these rows by worker."""
    return max(0, (int(loads.sum()) // (len(loads) * _BLOCKS)).bit_length() - 1)


def _hash_sql(stage: RegionSpec) -> str:
    return f"xxhash64({', '.join(map(quoted, stage.keys.names))})"


def _bigint(number: int) -> str:
    return f"bigint('{number}')"  # the least one is no literal


@dataclass(frozen=True)
class Counted:
    """An epoch's rows, counted.

    Attributes:
        loads: By worker, the rows of keys at home there (int64).
        sampled: By hash of a key with many rows, its home and about how many rows it has.
        blocks: Of keys that were divided before, as from `_blocks`.
    """

    loads: Ints
    sampled: dict[int, tuple[int, int]]
    blocks: dict[int, tuple[Ints, Ints, Ints]]


def count_rows(frame: DataFrame, hashed: str, home: str, known: Ints, bits: int, workers: int) -> Counted:
    """Count rows by home, a sample of them by key, and those of known keys by block, in one job."""
    is_known = _among(hashed, known.tolist()) if len(known) else "false"
    seen = select_sql(
        frame,
        [
            f"{home} as home",
            f"case when {is_known} or {_SAMPLED} then {hashed} end as key",
            f"case when {is_known} then {PART} end as part",
            f"case when {is_known} then {_block_sql(bits)} end as block",
        ],
    )
    by_key = seen.groupBy("home", "key", "part", "block").agg(F.expr("count(*) as n"))
    few = f"part is null and n < {HOT_ROWS // _SAMPLE // 2}"
    merged = select_sql(by_key, ["home", f"case when not ({few}) then key end as key", "part", "block", "n"])
    found = merged.groupBy("home", "key", "part", "block").agg(F.expr("sum(n) as n")).toArrow()
    homes, rows = found.column("home").to_numpy(), found.column("n").to_numpy()
    loads = np.bincount(homes, weights=rows, minlength=workers).astype(np.int64)
    one_by_one = found.filter(found.column("key").is_valid())
    of_known = one_by_one.column("part").is_valid()
    sampled = one_by_one.filter(pc.invert(of_known)).to_pylist()
    return Counted(loads, {r["key"]: (r["home"], r["n"] * _SAMPLE) for r in sampled}, _by_block(one_by_one.filter(of_known)))


def _among(hashed: str, keys: Sequence[int]) -> str:
    return f"{hashed} in ({', '.join(map(_bigint, keys))})"


def _block_sql(bits: int) -> str:
    return f"if({PART} < 0, shiftright({OFFSET}, {_TOP_BITS}), shiftright({OFFSET}, {bits}))"


def _blocks(frame: DataFrame, hashed: str, keys: Sequence[int], bits: int) -> dict[int, tuple[Ints, Ints, Ints]]:
    """By hash, the blocks of some keys in the order of positions: part, block, rows."""
    theirs = select_sql(
        frame.where(_among(hashed, keys)), [f"{hashed} as key", f"{PART} as part", f"{_block_sql(bits)} as block"]
    )
    return _by_block(theirs.groupBy("key", "part", "block").agg(F.expr("count(*) as n")).toArrow())


def _by_block(found: pa.Table) -> dict[int, tuple[Ints, Ints, Ints]]:
    key, *columns = (found.column(name).to_numpy().astype(np.int64) for name in ("key", "part", "block", "n"))
    order = np.lexsort((columns[1], columns[0], key))
    key, columns = key[order], [column[order] for column in columns]
    bounds = np.flatnonzero(np.diff(key)) + 1
    parts = zip(*(np.split(column, bounds) for column in columns), strict=True)
    return dict(zip(key[np.append(0, bounds)].tolist(), parts, strict=True)) if len(key) else {}
