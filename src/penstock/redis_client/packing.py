"""Rows as packed entries: what a script adds to the partitions of a stream.

A block is one MessagePack array, which Lua reads in C: for each entry its partition (from 1), the number of texts that follow, and these: name,
value, name, value. One argument for thousands of entries costs the client and the server a tenth of one for each text.

Read next: `penstock.redis_client.values`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.redis_client.entries import NO_VALUES
from penstock.redis_client.partition_streams import partition_of
from penstock.redis_client.values import encoded

BLOCK_ROWS: Final = 10_000


def blocks(rows: pa.RecordBatch, partitions: int, key: str | None, first: int) -> Iterator[tuple[int, bytes]]:
    """Rows as blocks, each with its number of rows.

    Args:
        rows: The rows.
        partitions: Number of the stream's partitions.
        key: The column by whose text they are placed, null by none; None: one after the other.
        first: Without a key, the partition of the first row, modulo their number.
    """
    for begin in range(0, rows.num_rows, BLOCK_ROWS):
        part = rows.slice(begin, BLOCK_ROWS)
        yield part.num_rows, _block(part, partitions, key, first + begin)


def _block(rows: pa.RecordBatch, partitions: int, key: str | None, first: int) -> bytes:
    texts = {name: encoded(column) for name, column in zip(rows.schema.names, rows.columns, strict=True)}
    n = rows.num_rows
    places: Any = (
        (np.arange(first, first + n) % partitions).tolist()
        if key is None
        else [partition_of(text or b"", partitions) for text in texts[key]]
    )
    values = sum(
        (column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64) for column in rows.columns), np.zeros(n, np.int64)
    )
    width = np.maximum(2 * values, 2)
    heads = map(bytes.__add__, map(_whole, [p + 1 for p in places]), map(_whole, width.tolist()))
    cells: list[Iterable[bytes]] = [_cells(name, column) for name, column in texts.items()]
    none = _raw(NO_VALUES) * 2
    cells.append([none if empty else b"" for empty in (values == 0).tolist()])
    total = int(width.sum()) + 2 * n
    return b"\xdd" + total.to_bytes(4, "big") + b"".join(map(b"".join, zip(heads, *cells, strict=True)))


def _cells(name: str, texts: list[bytes | None]) -> Iterator[bytes]:
    return map(_cell, repeat(_raw(name.encode())), texts)


def _cell(prefix: bytes, text: bytes | None) -> bytes:
    return b"" if text is None else prefix + _raw(text)


def _raw(text: bytes) -> bytes:
    size = len(text)
    if size < 32:
        return _SHORT[size] + text
    return (b"\xda" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xdb" + size.to_bytes(4, "big")) + text


_SHORT: Final = [bytes([0xA0 | size]) for size in range(32)]


def _whole(number: int) -> bytes:
    return number.to_bytes(1, "big") if number < 128 else b"\xcd" + number.to_bytes(2, "big")


__all__ = ["BLOCK_ROWS", "blocks"]
