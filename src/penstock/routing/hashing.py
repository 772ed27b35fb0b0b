"""Where a key goes: Spark's ``xxhash64``, computed the same way in Python.

The JVM hashes keys before the shuffle; the in-process harness and readers of state hash them here. Both must agree on every
value of every type, so this is Spark's function to the bit: XXH64 of the value's bytes, seeded with 42, each further column
seeded with the hash so far, a null leaving the seed as it is. Python's own salted ``hash`` must never decide where a key goes.

Source: Spark SQL's ``XxHash64`` expression; Y. Collet's XXH64. Checked against Spark in ``tests/routing/test_hashing.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from penstock.errors import DeclarationError
from penstock.types import BINS

SEED: Final = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(0x9E3779B185EBCA87),
    np.uint64(0xC2B2AE3D27D4EB4F),
    np.uint64(0x165667B19E3779F9),
    np.uint64(0x85EBCA77C2B2AE63),
    np.uint64(0x27D4EB2F165667C5),
)

Hashes = npt.NDArray[np.int64]


def _rotate(x: npt.NDArray[np.uint64], by: int) -> npt.NDArray[np.uint64]:
    return (x << np.uint64(by)) | (x >> np.uint64(64 - by))


def _avalanche(h: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


def _hash_long(values: npt.NDArray[np.int64], seed: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        h = seed + _P5 + np.uint64(8)
        h = h ^ (_rotate(values.view(np.uint64) * _P2, 31) * _P1)
        h = _rotate(h, 27) * _P1 + _P4
        return _avalanche(h)


def _hash_int(values: npt.NDArray[np.int32], seed: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        h = seed + _P5 + np.uint64(4)
        h = h ^ (values.view(np.uint32).astype(np.uint64) * _P1)
        h = _rotate(h, 23) * _P2 + _P3
        return _avalanche(h)


def _hash_bytes(values: list[bytes], seed: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    digest = xxhash.xxh64_intdigest
    return np.fromiter((digest(v, int(s)) for v, s in zip(values, seed, strict=True)), np.uint64, len(values))


def _decimal_bytes(unscaled: int) -> bytes:
    """The shortest two's-complement big-endian form, as Java's ``BigInteger.toByteArray``."""
    return unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)


def hash_column(column: pa.Array[Any] | pa.ChunkedArray[Any], seed: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hash one column on top of the hashes so far; a null leaves them unchanged."""
    array: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_null(kind):
        return seed
    missing = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_dictionary(kind):
        return hash_column(array.dictionary_decode(), seed)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        hashed = _hash_bytes(pc.fill_null(array.cast(pa.large_binary()), b"").to_pylist(), seed)
    elif pa.types.is_int64(kind) or pa.types.is_timestamp(kind):
        unit = array.cast(pa.timestamp("us", kind.tz)) if pa.types.is_timestamp(kind) else array
        hashed = _hash_long(pc.fill_null(unit.cast(pa.int64()), 0).to_numpy(zero_copy_only=False), seed)
    elif pa.types.is_boolean(kind) or pa.types.is_date32(kind) or (pa.types.is_signed_integer(kind) and kind.bit_width <= 32):
        hashed = _hash_int(pc.fill_null(array.cast(pa.int32()), 0).to_numpy(zero_copy_only=False), seed)
    elif pa.types.is_float64(kind):
        floats = pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False).copy()
        floats[floats == 0] = 0.0  # Spark hashes −0.0 as 0.0
        floats[np.isnan(floats)] = np.nan
        hashed = _hash_long(floats.view(np.int64), seed)
    elif pa.types.is_float32(kind):
        singles = pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False).astype(np.float32)
        singles[singles == 0] = 0.0
        singles[np.isnan(singles)] = np.nan
        hashed = _hash_int(singles.view(np.int32), seed)
    elif pa.types.is_decimal(kind):
        unscaled = [0 if v is None else int(v.scaleb(kind.scale)) for v in array.to_pylist()]
        if kind.precision <= 18:
            hashed = _hash_long(np.array(unscaled, np.int64), seed)
        else:
            hashed = _hash_bytes([_decimal_bytes(v) for v in unscaled], seed)
    else:
        raise DeclarationError(
            f"A key column cannot be of type {kind}; use numbers, strings, booleans, dates, timestamps or decimals."
        )
    return np.where(missing, seed, hashed)


def spark_xxhash64(columns: Any, seed: npt.NDArray[np.uint64] | int = SEED) -> Hashes:
    """Spark's ``xxhash64(columns…)``.

    Args:
        columns: One Arrow array, or a non-empty sequence of them of equal length n.
        seed: The seed, or one of them per row (uint64, n).

    Returns:
        int64 array of n hashes.

    Raises:
        DeclarationError: A column's type has no hash (lists, maps, structs).

    Example:
        >>> spark_xxhash64(pa.array([1]))
        array([-7001672635703045582])
    """
    parts: Sequence[Any] = [columns] if isinstance(columns, (pa.Array, pa.ChunkedArray)) else columns
    n = len(parts[0])
    so_far = np.full(n, seed, np.uint64) if isinstance(seed, int) else np.asarray(seed, np.uint64)
    for part in parts:
        so_far = hash_column(part, so_far)
    return so_far.view(np.int64)


def bins_of(hashes: Hashes) -> npt.NDArray[np.int64]:
    """The key group of each hash: ``pmod(hash, BINS)``."""
    return hashes % BINS
