"""Late records, looked for one by one in the chunks that may hold some, and told apart from the others.

Partition, offset and time of the records cross to Python, in their tasks or, where they are few, at the driver. Late records that are not many
are told apart by their offsets, written into the filters of both streams. Otherwise a window function marks the records of the chunks that
have some.

Read next: `penstock.progress.lateness`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.arrow.columns import lexicographic
from penstock.progress.lateness import Base, ChunkId, late_rows
from penstock.rows.keys import Ints
from penstock.spark.columns import array_sql
from penstock.spark.sources.file_times import CHUNK_BITS, MANY_LATE
from penstock.sql_text.schema import quoted
from penstock.types import MIN_TIME, OFFSET, PART, TIME

Suspects = dict[ChunkId, Base]
_FEW: Final = 16
SMALL_ROWS: Final = 1 << 18  # of so many rows partition, offset and time (24 bytes) are looked at by the driver
CHUNK: Final = "__ps_chunk"
LATE: Final = "__ps_late"
_KNOWN: Final = "__ps_known"


# A chunk as one number. Two chunks may have the same one: then one more is looked at.
_CODE: Final = f"(shiftleft({PART}, 24) ^ shiftright({OFFSET}, {CHUNK_BITS}))"


def _code(part: int, chunk: int) -> int:
    """The same, which Spark cuts to 64 bits."""
    return ((part << 24 ^ chunk) + 2**63) % 2**64 - 2**63


@dataclass(frozen=True)
class Late:
    """Late records that were found.

    Attributes:
        part: Their partitions' numbers, int64 of shape (n,).
        offset: Their offsets, likewise.
        all: Whether these are all, and nothing else has their positions; else they stand for the chunks that have some.
    """

    part: Ints
    offset: Ints
    all: bool = True

    def chunks(self) -> set[ChunkId]:
        """The chunks that have some."""
        return set(zip(self.part.tolist(), (self.offset >> CHUNK_BITS).tolist(), strict=True))


def late_among(seen: Iterable[Ints], suspects: Suspects, lateness_us: int) -> Late:
    """The late ones of some records.

    Args:
        seen: Their partitions' numbers, offsets and event times (µs), int64 of shape (n,); chunks of suspects must be whole.
        suspects: Chunks that may hold late records.
        lateness_us: The lateness bound.
    """
    part, offset, time = seen
    late = late_rows(part, offset >> CHUNK_BITS, offset, time, suspects, lateness_us)
    if not late.any():
        return Late(part[:0], offset[:0])
    told_apart = bool(((part[1:] == part[:-1]) & (offset[1:] > offset[:-1])).all())
    if not told_apart:
        order = lexicographic([part, offset])
        part, offset, late = part[order], offset[order], late[order]
        told_apart = not ((part[1:] == part[:-1]) & (offset[1:] == offset[:-1]) & (late[1:] != late[:-1])).any()
    found = Late(part[late], offset[late], told_apart)
    if found.all and len(found.part) <= MANY_LATE:
        return found
    chunk = found.offset >> CHUNK_BITS
    first = np.append(True, (np.diff(found.part) != 0) | (np.diff(chunk) != 0))
    return Late(found.part[first], found.offset[first], all=False)


def find_late(
    rows: DataFrame, rows_by_chunk: Mapping[ChunkId, int], suspects: Suspects, lateness_us: int, *, whole: bool
) -> Late:
    """Look for late records, in one job.

    Args:
        rows: The epoch's records with hidden columns.
        rows_by_chunk: How many records chunks have; a chunk that is not there has too many for the driver.
        suspects: Chunks that may hold late records.
        lateness_us: The lateness bound.
        whole: Whether each chunk is read by one task.
    """
    seen = rows.select(PART, OFFSET, TIME)
    if len(suspects) < _FEW:
        seen = seen.where(f"array_contains({array_sql(_code(*chunk) for chunk in suspects)}, {_CODE})")
        number = sum(rows_by_chunk.get(chunk, SMALL_ROWS + 1) for chunk in suspects)
    else:
        number = sum(rows_by_chunk.values()) if suspects.keys() <= rows_by_chunk.keys() else SMALL_ROWS + 1
    if number <= SMALL_ROWS:
        table: Any = seen.toArrow()
        return late_among((c.to_numpy() for c in table.columns), suspects, lateness_us)
    if not whole:
        seen = seen.repartition(PART, F.expr(f"shiftright({OFFSET}, {CHUNK_BITS})"))
    found: Any = seen.mapInArrow(_looking(suspects, lateness_us), f"{PART} long, {OFFSET} long, found boolean").toArrow()
    part, offset, exact = found.columns
    every = len(part) <= MANY_LATE and bool(pc.all(exact, min_count=0).as_py())
    return Late(part.to_numpy(), offset.to_numpy(), every)


def _looking(suspects: Suspects, lateness_us: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def looked_at(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if tables := [b for b in batches if b.num_rows]:
            seen = (c.to_numpy() for c in pa.Table.from_batches(tables).columns)
            late = late_among(seen, suspects, lateness_us)
            exact = np.full(len(late.part), late.all)
            yield pa.RecordBatch.from_arrays(list(map(pa.array, (late.part, late.offset, exact))), [PART, OFFSET, "found"])

    return looked_at


def is_one_of(late: Late) -> str:
    """SQL of whether a record is one of those found, which are all."""
    among = []
    for part in np.unique(late.part).tolist():
        offsets = ", ".join(f"{o}L" for o in late.offset[late.part == part].tolist())
        among.append(f"({PART} = {part}L and {OFFSET} in ({offsets}))")
    return f"coalesce({' or '.join(among)}, false)"


def marked(rows: DataFrame, chunks: Suspects, lateness_us: int) -> DataFrame:
    """Rows with `__ps_late`: in the chunks given in offset order against the running maximum, elsewhere false."""
    table = [
        (*chunk, *(None if t == MIN_TIME else t for t in (base.latest, base.late_floor)), True)
        for chunk, base in chunks.items()
    ]
    schema = f"{PART} long, {CHUNK} long, __ps_latest long, __ps_floor long, {_KNOWN} boolean"
    known = F.broadcast(rows.sparkSession.createDataFrame(table, schema))
    inside = rows.withColumn(CHUNK, F.expr(f"shiftright({OFFSET}, {CHUNK_BITS})")).join(known, [PART, CHUNK], "left")
    order = Window.partitionBy(PART, CHUNK).orderBy(OFFSET).rowsBetween(Window.unboundedPreceding, -1)
    accused = inside.where(f"{_KNOWN} is not null").withColumn("__ps_top", F.max(TIME).over(order))
    bound = f"greatest(greatest(__ps_top, __ps_latest) - {lateness_us}L, __ps_floor)"
    own = [quoted(c) for c in rows.columns]
    judged = accused.selectExpr(*own, f"coalesce({TIME} < {bound}, false) as {LATE}")
    return judged.unionByName(inside.where(f"{_KNOWN} is null").selectExpr(*own, f"false as {LATE}"))


__all__ = ["Late", "find_late", "is_one_of", "late_among", "marked"]
