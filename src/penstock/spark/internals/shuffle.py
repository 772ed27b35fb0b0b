"""Rows to the partition whose number they carry: ``DataFrame.repartitionById`` from PySpark 4.1 on, and before it by its hash.

Before 4.1 a number is replaced by one whose hash, modulo the number of partitions, is that number: the hash by which ``repartition``
places rows. So every row is in the same partition in every version; what is lost without ``repartitionById`` is the time of one hash
per row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)

_SEED: Final = 42
_TRIED: Final = 1024


def to_partitions(frame: DataFrame, partitions: int, number: Column) -> DataFrame:
    """The rows, each in the partition of its number; those of one partition keep the order within each task that they come from.

    Args:
        frame: The rows.
        partitions: How many partitions there are.
        number: Of each row the number of its partition, an int from 0 on, less than `partitions`, never null.
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(partitions, number)
    return by_hash(frame, partitions, number)


def by_hash(frame: DataFrame, partitions: int, number: Column) -> DataFrame:
    """As `to_partitions`, for versions without ``repartitionById``."""
    text = ",".join(map(str, ints_by_partition(partitions)))
    ints = F.expr(
        f"cast(split('{text}', ',') as array<int>)"
    )  # as text: Spark folds it once, and generates the same code for others
    return frame.repartition(partitions, F.element_at(ints, number + F.lit(1)))


@lru_cache(maxsize=64)
def ints_by_partition(partitions: int) -> tuple[int, ...]:
    """For each partition the first integer, from 0 on, whose rows ``repartition(partitions, ...)`` puts there."""
    found = np.full(partitions, -1, np.int64)
    begin, step = 0, max(_TRIED, 4 * partitions)
    while (found < 0).any():
        tried = np.arange(begin, begin + step, dtype=np.int64)
        places, first = np.unique(murmur3(tried.astype(np.int32)).astype(np.int64) % partitions, return_index=True)
        new = found[places] < 0
        found[places[new]] = tried[first[new]]
        begin += step
    return tuple(found.tolist())


def murmur3(numbers: np.ndarray) -> np.ndarray:
    """Spark SQL's ``hash`` of integers.

    Args:
        numbers: int32, not changed.

    Returns:
        int32, one for each.

    Source: Appleby, MurmurHash3_x86_32, of one block of four bytes.
    """
    with np.errstate(over="ignore"):
        k = numbers.view(np.uint32) * np.uint32(0xCC9E2D51)
        k = ((k << np.uint32(15)) | (k >> np.uint32(17))) * np.uint32(0x1B873593)
        h = np.uint32(_SEED) ^ k
        h = ((h << np.uint32(13)) | (h >> np.uint32(19))) * np.uint32(5) + np.uint32(0xE6546B64)
        h ^= np.uint32(4)  # the length in bytes
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
    return h.view(np.int32)


__all__ = ["by_hash", "ints_by_partition", "murmur3", "to_partitions"]
