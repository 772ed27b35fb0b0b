"""Spark's ``xxhash64`` in Python.

The JVM hashes keys before the shuffle; workers, the in-process harness and readers of state hash them here. Both must agree on
every value of every type: XXH64 of the value's bytes, seeded with 42; each further column is seeded with the hash so far; a
null leaves the hash as it is. Python's salted ``hash`` must never decide where a key goes.

Source: Spark SQL's ``XxHash64`` expression; Y. Collet's XXH64. Checked against Spark in ``tests/spark/test_hashing.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import DeclarationError

SEED: Final = 42

Hashes = npt.NDArray[np.int64]


def _hash_column(array: Any, hashes: npt.NDArray[np.uint64]) -> None:
    """Hash a column on top of the hashes so far, which are changed; a null leaves them as they are."""
    from penstock.routing import xxh64  # noqa: PLC0415  (numba takes a fifth of a second to load)

    kind = array.type
    if pa.types.is_null(kind):
        return
    if pa.types.is_dictionary(kind):
        _hash_column(array.dictionary_decode(), hashes)
        return
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else np.empty(0, bool)
    if _is_bytes(kind):
        if not len(array):  # there may be no buffers
            return
        wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        _, offsets, data = array.buffers()
        at = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset :][: len(array) + 1].astype(np.int64)
        xxh64.hash_bytes(np.frombuffer(data or b"", np.uint8), at[:-1], at[1:], missing, hashes)
    elif pa.types.is_decimal(kind) and kind.precision > 18:
        xxh64.hash_bytes(*_decimal_bytes(_words(array)), missing, hashes)
    else:
        numbers = _numbers(array)
        kernel = xxh64.hash_longs if numbers.itemsize == 8 else xxh64.hash_ints
        kernel(numbers, missing, hashes)


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def _numbers(array: Any) -> npt.NDArray[Any]:
    """The number that Spark hashes for each value: uint64 or uint32."""
    kind = array.type
    numbers: npt.NDArray[Any]
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind):
        try:
            micros = array.cast(pa.timestamp("us", kind.tz)) if pa.types.is_timestamp(kind) else array
        except pa.ArrowInvalid as error:
            raise DeclarationError(
                "A key column has times in nanoseconds, which Spark has not; round them to microseconds."
            ) from error
        numbers = micros.cast(pa.int64()).fill_null(0).to_numpy()
    elif pa.types.is_boolean(kind) or pa.types.is_date32(kind) or (pa.types.is_signed_integer(kind) and kind.bit_width <= 32):
        numbers = array.cast(pa.int32()).fill_null(0).to_numpy()
    elif pa.types.is_float64(kind) or pa.types.is_float32(kind):
        numbers = array.fill_null(0.0).to_numpy() + 0.0  # Spark hashes -0.0 as 0.0
        numbers[np.isnan(numbers)] = np.nan
    elif pa.types.is_decimal(kind):
        numbers = np.ascontiguousarray(_words(array)[:, 0])
    else:
        raise DeclarationError(
            f"A key column cannot be of type {kind}; use numbers, strings, booleans, dates, timestamps or decimals."
        )
    return numbers.view(np.uint64 if numbers.itemsize == 8 else np.uint32)


def _words(array: Any) -> npt.NDArray[np.uint64]:
    """Unscaled decimals in two's complement: shape (n, 2), low word first; undefined for nulls."""
    exact = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    return np.frombuffer(exact.buffers()[1], np.uint64).reshape(-1, 2)[exact.offset :][: len(exact)]


def _decimal_bytes(words: npt.NDArray[np.uint64]) -> tuple[Any, Any, Any]:
    """The shortest big-endian form, as Java's ``BigInteger.toByteArray``: all bytes, and the start and end of each decimal."""
    all_16 = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 16)[:, ::-1]
    sign = np.where(all_16[:, :1] >= 128, 255, 0)
    unneeded = (all_16[:, :-1] == sign) & ((all_16[:, 1:] >= 128) == (sign == 255))
    first = np.arange(len(words)) * 16
    return np.ascontiguousarray(all_16).ravel(), first + np.logical_and.accumulate(unneeded, axis=1).sum(axis=1), first + 16


def is_hashable(kind: pa.DataType) -> bool:
    """Whether `spark_xxhash64` takes columns of a type."""
    try:
        spark_xxhash64(pa.array([], kind))
    except DeclarationError:
        return False
    return True


def spark_xxhash64(columns: Any) -> Hashes:
    """Spark's ``xxhash64(columns…)``.

    Args:
        columns: One Arrow array, or a non-empty sequence of them of equal length n.

    Returns:
        int64 array of n hashes.

    Raises:
        DeclarationError: A column's type has no hash (lists, maps, structs).

    Example:
        >>> spark_xxhash64(pa.array([1]))
        array([-7001672635703045582])
    """
    parts: Sequence[Any] = [columns] if isinstance(columns, (pa.Array, pa.ChunkedArray)) else columns
    hashes = np.full(len(parts[0]), SEED, np.uint64)
    for part in parts:
        _hash_column(part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part, hashes)
    return hashes.view(np.int64)
