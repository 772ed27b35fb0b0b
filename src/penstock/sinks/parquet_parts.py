"""Parts of an epoch's Parquet file: tasks write them where the rows are, and the commit joins them into one file.

Joining reads no row: the bytes of the row groups are copied, and the footer (Thrift's compact protocol) is written anew with their new
offsets. So an epoch stays one file, which readers see whole or not at all, in the order of its parts.

Read next: `penstock.sinks.parquet`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from penstock.errors import SinkError
from penstock.sinks.parts import Part

_COPIED_BYTES: Final = 4 << 20
_MAGIC: Final = b"PAR1"


@dataclass(frozen=True)
class PartFiles:
    """Parts as Parquet files in the staging folder; see `penstock.sinks.parts.PartStore`.

    Attributes:
        files: The file system.
        staging: The staging folder.
        schema: The output's columns.
        landmark: A file of this run; a host that does not see it cannot write there.
        target: What holds the rows, for messages.
    """

    files: Any
    staging: str
    schema: pa.Schema
    landmark: str
    target: str

    def reported(self, doing: str) -> AbstractContextManager[None]:
        """See `reported`."""
        return reported(self.target, doing)

    def reachable(self) -> bool:
        """Whether the landmark is there."""
        try:
            return bool(self.files.get_file_info(self.landmark).type == fs.FileType.File)
        except OSError:
            return False

    def write(self, name: str, groups: Iterator[pa.Table]) -> Part:
        """Write a file of row groups."""
        name, rows = f"{name}.parquet", 0
        with part_file(self.files, f"{self.staging}/{name}", self.schema) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=group.num_rows)
                rows += group.num_rows
        return Part(name, rows)


def part_file(files: Any, path: str, schema: pa.Schema) -> pq.ParquetWriter:
    """A Parquet file to be written; all parts of an output are written alike."""
    return pq.ParquetWriter(path, schema, filesystem=files, compression="zstd")


@contextmanager
def reported(target: str, doing: str) -> Iterator[None]:
    """Raise an error of the storage as `SinkError`."""
    try:
        yield
    except (OSError, pa.ArrowException) as broken:
        text = str(broken).strip().splitlines()
        raise SinkError(
            f"{target} could not {doing} ({text[0] if text else type(broken).__name__}): correct that and start again."
        ) from broken


# -- joining


def join(files: Any, parts: Sequence[str], path: str) -> None:
    """Write a Parquet file of the row groups of others, in their order.

    Args:
        files: The file system.
        parts: Paths of files that `part_file` has written with one schema; they stay.
        path: The new file.

    Cost: copies the parts' bytes once; holds their footers and a few MiB.
    """
    footer: _Struct = {}
    with files.open_output_stream(path) as out:
        out.write(_MAGIC)
        for part in parts:
            with files.open_input_file(part) as source:
                size = source.size()
                source.seek(size - 8)
                end = size - 8 - int.from_bytes(source.read(4), "little")
                source.seek(end)
                found = _Reader(source.read(size - 8 - end)).struct()
                shift = out.tell() - len(_MAGIC)
                source.seek(len(_MAGIC))
                while piece := source.read(min(_COPIED_BYTES, end - source.tell())):
                    out.write(piece)
            groups = found[_GROUPS][1][1]
            for group in groups:
                _shift(group, shift)
            if footer:
                footer[_NUM_ROWS] = (_I64, footer[_NUM_ROWS][1] + found[_NUM_ROWS][1])
                footer[_GROUPS][1][1].extend(groups)
            else:
                footer = found
        written = bytearray()
        _write_struct(written, footer)
        out.write(bytes(written) + len(written).to_bytes(4, "little") + _MAGIC)


_Struct = dict[int, tuple[int, Any]]
"""A Thrift struct: by number of the field its type and value; of a list the type of its elements and these."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12
_NUM_ROWS, _GROUPS = 3, 4  # fields of FileMetaData in parquet.thrift
_COLUMNS, _ORDINAL, _META = 1, 7, 3  # of RowGroup, RowGroup, ColumnChunk
_GROUP_OFFSETS: Final = (5,)
_CHUNK_OFFSETS: Final = (2, 4, 6)
_META_OFFSETS: Final = (9, 10, 11, 14)


def _shift(group: _Struct, by: int) -> None:
    """Move what a row group says of places in its file; 0 stands for none."""
    group.pop(_ORDINAL, None)  # optional, of use to encrypted files alone
    places: list[tuple[_Struct, tuple[int, ...]]] = [(group, _GROUP_OFFSETS)]
    for chunk in group[_COLUMNS][1][1]:
        places += [(chunk, _CHUNK_OFFSETS), (chunk[_META][1], _META_OFFSETS)]
    for struct, numbers in places:
        for number in numbers:
            if number in struct and struct[number][1]:
                struct[number] = (_I64, struct[number][1] + by)


class _Reader:
    """Reads Thrift's compact protocol, as far as Parquet uses it."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self) -> _Struct:
        fields: _Struct = {}
        number = 0
        while head := self._take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15
            fields[number] = (kind, None if kind in (_TRUE, _FALSE) else self._value(kind))
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self._zigzag()
        if kind == _BINARY:
            return self._take(self._varint())
        if kind == _LIST:
            head = self._take(1)[0]
            size = head >> 4 if head >> 4 < 15 else self._varint()
            return head & 15, [self._value(head & 15) for _ in range(size)]
        if kind == _STRUCT:
            return self.struct()
        if kind in (_TRUE, _FALSE, _BYTE, _DOUBLE):  # a truth value here is an element of a list
            return self._take(8 if kind == _DOUBLE else 1)
        raise pa.ArrowInvalid(f"the footer of a part has a field of type {kind}")


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _write_zigzag(out: bytearray, value: int) -> None:
    _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _write_struct(out: bytearray, fields: _Struct) -> None:
    last = 0
    for number, (kind, value) in fields.items():
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _write_zigzag(out, number)
        last = number
        if kind not in (_TRUE, _FALSE):
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (_I16, _I32, _I64):
        _write_zigzag(out, value)
    elif kind == _BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == _LIST:
        of, elements = value
        out.append(min(len(elements), 15) << 4 | of)
        if len(elements) >= 15:
            _write_varint(out, len(elements))
        for element in elements:
            _write_value(out, of, element)
    elif kind == _STRUCT:
        _write_struct(out, value)
    else:
        out += value
