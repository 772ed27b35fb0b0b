"""Keys as bytes: an injective encoding of the key columns, and the layout of a state key.

A state key is ``bin (2 bytes) ‖ operator (1) ‖ length of the key (2) ‖ key ‖ sub-key``, so a bin is a range, and so is one key
of one operator. Null is a key like any other.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import StateError
from penstock.types import BINS

Ints = npt.NDArray[np.int64]

BIN_BYTES: Final = [b.to_bytes(2, "big") for b in range(BINS)]
WORKER_BIN: Final = b"\xff\xff"
"""Prefix of entries that belong to the worker as a whole (records that wait for the frontier)."""

LONGEST_KEY: Final = 400
"""Bytes that the values of a key's columns may have together."""
LONGEST_SUB_KEY: Final = 40
"""Bytes of a sub-key; a whole state key may have 511, which is LMDB's bound."""
_LONGEST_BODY: Final = 460
_LENGTHS: Final = [n.to_bytes(2, "big") for n in range(_LONGEST_BODY + 1)]
_NULL: Final = b"\x00"


def biased(times: Ints) -> list[bytes]:
    """Times as 8 bytes each in sort order."""
    raw = (times.view(np.uint64) ^ np.uint64(1 << 63)).astype(">u8").tobytes()
    return [raw[i : i + 8] for i in range(0, len(raw), 8)]


def unbiased(raw: Sequence[bytes]) -> Ints:
    """The inverse of `biased`."""
    return (np.frombuffer(b"".join(raw), ">u8").astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64)


def _encode_scalars(column: Any) -> list[bytes]:
    """One column, each value self-contained: a marker byte, then its bytes."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [_NULL if v is None else b"\x01" + v for v in column.cast(pa.large_binary()).to_pylist()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [_NULL if v is None else b"\x01" + v for v in column.to_pylist()]
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        wide: Any = column.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(kind) else column.cast(pa.int64())
        body = biased(np.ascontiguousarray(wide.fill_null(0).to_numpy(zero_copy_only=False), np.int64))
        if not column.null_count:
            return [b"\x01" + b for b in body]
        return [b"\x01" + b if ok else _NULL for b, ok in zip(body, column.is_valid().to_pylist(), strict=True)]
    return [_NULL if v is None else b"\x01" + pickle.dumps(_plain(v), protocol=4) for v in column.to_pylist()]


def _plain(value: Any) -> Any:
    """−0.0 and 0.0 are one key, and so are all NaNs, as in Spark; also within lists and structs."""
    if isinstance(value, float):
        return float("nan") if value != value else value + 0.0  # noqa: PLR0124
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return [_plain(inner) for inner in value.values()]
    return value


def _decode_scalars(raw: list[bytes], kind: pa.DataType) -> Any:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array([None if r == _NULL else r[1:].decode() for r in raw], kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if r == _NULL else r[1:] for r in raw], kind)
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        missing = np.fromiter((r == _NULL for r in raw), bool, len(raw))
        numbers = unbiased([b"\x80" + b"\x00" * 7 if r == _NULL else r[1:] for r in raw])
        base: Any = pa.array(numbers, pa.int64(), mask=missing)
        return base.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else base.cast(kind)
    return pa.array([None if r == _NULL else pickle.loads(r[1:]) for r in raw], kind)


def _length(part: bytes) -> bytes:
    """The length in two bytes; lengths beyond a key's limit, which only `KeyCodec.bodies` accepts, have a marker."""
    return _LENGTHS[len(part)] if len(part) <= _LONGEST_BODY else b"\xff\xff" + len(part).to_bytes(8, "big")


@dataclass(frozen=True)
class KeyCodec:
    """Encodes and decodes the key columns of a region.

    Attributes:
        schema: The key columns, in order.
    """

    schema: pa.Schema

    def encode(self, columns: Sequence[Any]) -> list[bytes]:
        """Bytes of each key: 2 bytes of length, then the key; different keys have different bytes.

        Args:
            columns: One Arrow array per key column, of equal length.

        Raises:
            StateError: A key's values have more than 400 bytes together (fewer from 21 columns on). Nothing was changed.
        """
        bodies = self.bodies(columns)
        frame = len(columns) if len(columns) == 1 else 3 * len(columns)  # stored beside the values
        most = min(LONGEST_KEY, _LONGEST_BODY - frame)
        longest = max(bodies, key=len, default=b"")
        if len(longest) > most + frame:
            start = longest[1 if len(columns) == 1 else 3 :][:40]
            raise StateError(
                f"A key of {len(longest) - frame} bytes, {start!r}…, is longer than {most} bytes; "
                "key by a shorter column, for example its hash."
            )
        return [_LENGTHS[len(b)] + b for b in bodies]

    def bodies(self, columns: Sequence[Any]) -> list[bytes]:
        """As `encode`, without a limit and without the length."""
        parts = [_encode_scalars(c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c) for c in columns]
        if len(parts) == 1:
            return parts[0]
        framed = [[_length(p) + p for p in part] for part in parts]
        return [b"".join(row) for row in zip(*framed, strict=True)]

    def decode(self, encoded: Sequence[bytes]) -> list[Any]:
        """The key columns as Arrow arrays; `encoded` may have sub-keys at its end."""
        bodies = [e[2 : 2 + int.from_bytes(e[:2], "big")] for e in encoded]
        if len(self.schema) == 1:
            return [_decode_scalars(bodies, self.schema.field(0).type)]
        split: list[list[bytes]] = [[] for _ in self.schema]
        for body in bodies:
            at = 0
            for part in split:
                n = int.from_bytes(body[at : at + 2], "big")
                part.append(body[at + 2 : at + 2 + n])
                at += 2 + n
        return [_decode_scalars(part, f.type) for part, f in zip(split, self.schema, strict=True)]
