"""Tables that `lookup` looks in: read once, checked, and put into the order of their keys, so that they are told apart by their rows alone.

A table is a part of the flow's declaration, like the text of a condition. Whatever it was given as, it is an Arrow table from here on: a file may
change or vanish afterwards, and a DataFrame may be of any session.

Read next: `penstock.flow.lookup`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from penstock.arrow.columns import to_indices
from penstock.errors import DeclarationError, raised
from penstock.flow.table_files import read_files
from penstock.rows.keys import KeyCodec
from penstock.sources.files import Files
from penstock.sql_text.given import known_column
from penstock.sql_text.schema import as_schema

LARGEST_TABLE: Final = 256 << 20
"""So many bytes a table may have in memory: every task gets a copy of it."""
_INSTEAD: Final = "make it a source and join the two streams"


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a table by its keys: at most one for each key, and none whose key has a null part.

    Attributes:
        rows: The rows, in the order of their keys as bytes.
        keys: The key columns.
        fingerprint: A digest of the columns and rows; their order does not matter.
    """

    rows: pa.Table
    keys: tuple[str, ...]
    fingerprint: str
    _found: dict[tuple[pa.DataType, ...], pa.Table] = field(default_factory=dict)
    _at: dict[tuple[pa.DataType, ...], _Index] = field(default_factory=dict)

    def for_keys(self, looked_up: pa.Schema) -> pa.Table:
        """The rows with keys of the types that are looked up; rows are left out whose key no value of those types equals.

        Args:
            looked_up: The columns of the stream that are compared with the keys, in their order.

        Raises:
            DeclarationError: Values of the two types cannot be equal.
        """
        kinds = tuple(f.type for f in looked_up)
        if kinds not in self._found:
            rows = self.rows
            for mine, theirs in zip(self.keys, looked_up, strict=True):
                rows = _as_type(rows, mine, theirs)
            self._found[kinds] = rows
        return self._found[kinds]

    def at(self, columns: list[Any], looked_up: pa.Schema) -> Any:
        """int64: for each row of some key columns the row of `for_keys` with that key; −1: there is none."""
        kinds = tuple(f.type for f in looked_up)
        if kinds not in self._at:
            rows = self.for_keys(looked_up)
            self._at[kinds] = _Index([rows.column(name) for name in self.keys])
        return self._at[kinds].of(columns)


class _Index:
    """Where a key is in a table: column by column, the pair of what is found so far and the next value becomes a number of its own.

    Args:
        columns: The table's key columns, without nulls and with no key twice.
    """

    def __init__(self, columns: list[Any]) -> None:
        self._values = [pc.unique(_bits(column)) for column in columns]
        self._pairs: list[Any] = []
        first, *others = self._codes(columns)
        for codes, values in zip(others, self._values[1:], strict=True):
            pairs, first = np.unique(first * len(values) + codes, return_inverse=True)
            self._pairs.append(pairs)
        self._rows = np.argsort(first)

    def _codes(self, columns: list[Any]) -> list[Any]:
        """For each column the number of each value; −1: the table does not have it."""
        found = (pc.index_in(_bits(c), values, skip_nulls=True) for c, values in zip(columns, self._values, strict=True))
        return [pc.fill_null(codes, -1).to_numpy().astype(np.int64) for codes in found]

    def of(self, columns: list[Any]) -> Any:
        """The row of each key; −1: there is none."""
        if not len(self._rows):
            return np.full(len(columns[0]), -1, np.int64)
        first, *others = self._codes(columns)
        for codes, values, pairs in zip(others, self._values[1:], self._pairs, strict=True):
            wanted = first * len(values) + codes
            at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
            first = np.where((first >= 0) & (codes >= 0) & (pairs[at] == wanted), at, -1)
        return np.where(first >= 0, self._rows[first], -1)


def _bits(column: Any) -> Any:
    """A column of which equal values have equal bits: there is one NaN, and one zero."""
    if not pa.types.is_floating(column.type):
        return column
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    one = pc.if_else(pc.is_nan(whole), pa.scalar(np.nan, whole.type), pc.add(whole, pa.scalar(0.0, whole.type)))
    return one.view(pa.int64() if pa.types.is_float64(one.type) else pa.int32())


@dataclass(frozen=True, eq=False)
class Refresh:
    """A table that is read again while the flow runs.

    Attributes:
        every_us: After how long.
        given: Path of Parquet files, or a function that gives a table.
        declared: The table as it was when the flow was declared. Columns that it lacks are not looked at later.
    """

    every_us: int
    given: Any
    declared: Table

    def read(self) -> Table:
        """The table as it is now.

        Raises:
            DeclarationError: It cannot be read, has several rows of a key, or lacks a column that the flow knows.
        """
        known = self.declared.rows.schema
        table = read_table(self.given, self.declared.keys, known)
        for there, column in zip(table.rows.schema, known, strict=True):
            if there.type != column.type:
                raise DeclarationError(
                    f"The table of lookup has column {column.name!r} as {there.type}, which was {column.type} when the flow began."
                )
        return table

    def stored(self, rows: pa.Table) -> Table | None:
        """The table with rows that were stored; None: they are of a table that was declared otherwise."""
        return read_table(rows, self.declared.keys) if rows.schema.equals(self.declared.rows.schema) else None


def refreshed(given: Any, every_us: int, table: Table) -> Refresh:
    """How a table that was read once is read again.

    Raises:
        DeclarationError: What was given holds rows, so that it cannot become another table.
    """
    if not (isinstance(given, (str, PurePath, Files)) or callable(given)):
        raise DeclarationError(
            f"lookup(refresh=...) needs what can be read again, the path of files or a function that gives a table, not {type(given).__name__}; "
            "write lookup(lambda: spark.read.table('t'), ...)."
        )
    return Refresh(every_us, given, table)


def comparable(mine: pa.DataType, theirs: pa.DataType) -> bool:
    """Whether values of two types can be equal: the same type, or two of whole numbers, of decimals, of floats, or of times."""
    families = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_floating, pa.types.is_timestamp)
    unknown = pa.types.is_null(mine) or pa.types.is_null(theirs)
    return unknown or mine == theirs or any(of(mine) and of(theirs) for of in families)


def check_types(mine: pa.Field[Any], theirs: pa.Field[Any]) -> None:
    """Refuse a key column whose values cannot equal those of the stream's column.

    Raises:
        DeclarationError: They cannot.
    """
    if not comparable(mine.type, theirs.type):
        raise DeclarationError(
            f"lookup compares {theirs.name!r} of the stream, which is {theirs.type}, with {mine.name!r} of the table, which is {mine.type}: "
            "values of these types never equal one another; cast one of them."
        )


def _as_type(rows: pa.Table, name: str, looked_up: pa.Field[Any]) -> pa.Table:
    """The rows whose key has an equal one in another type, in that type."""
    given: Any = rows.column(name).combine_chunks()
    check_types(rows.schema.field(name), looked_up)
    kind = looked_up.type
    if given.type == kind:
        return rows
    if pa.types.is_null(kind):  # a column of nulls, which equal nothing
        return rows.slice(0, 0)
    if pa.types.is_decimal(kind):
        kept = np.array([_fits(value, kind) for value in given.to_pylist()], bool)
        cast = given.filter(pa.array(kept)).cast(kind)
    else:
        narrow = given.cast(kind, safe=False)
        back: Any = narrow.cast(given.type, safe=False)
        same = pc.equal(back, given)
        if pa.types.is_floating(kind):
            same = pc.or_(same, pc.is_nan(given))
        kept = same.to_numpy(zero_copy_only=False)
        cast = narrow.filter(same)
    left = rows.filter(pa.array(kept))
    return left.set_column(left.schema.get_field_index(name), pa.field(name, kind), cast)


def _fits(value: Any, kind: Any) -> bool:
    try:
        pa.scalar(value, kind)
    except pa.ArrowInvalid:
        return False
    return True


def read_table(given: Any, keys: tuple[str, ...], known: pa.Schema | None = None) -> Table:
    """Read and check a table.

    Args:
        given: A PyArrow table, a pandas DataFrame, a Spark DataFrame of any session, the path of a Parquet file or folder, files
            with a schema, or a function that gives one of these.
        keys: Its key columns.
        known: Only these columns are looked at; None: all.

    Raises:
        DeclarationError: It is none of these, is a stream, is too large, cannot be read, lacks a key column, or has two rows of one key.
    """
    rows = _read(given)
    if known is not None:
        rows = _only(rows, known)
    schema = as_schema(rows.schema, "The table of lookup")
    schema = pa.schema([pa.field(f.name, _plain(f.type, f.name)) for f in schema])
    keys = tuple(known_column(name, schema.names, "lookup's on, for the table,") for name in keys)
    for name in keys:
        if pa.types.is_nested(schema.field(name).type):
            raise DeclarationError(
                f"lookup cannot compare {name!r}, which is {schema.field(name).type}; give single values as the key."
            )
    try:
        rows = rows.cast(schema)
        rows.validate(full=True)
    except pa.ArrowException as error:
        raise DeclarationError(f"The table of lookup has a value that Spark cannot hold ({error}); round it before.") from error
    _check_size(rows.nbytes)
    for name in keys:
        rows = rows.filter(pc.is_valid(rows.column(name)))
    rows = rows.combine_chunks()
    encoded = KeyCodec(pa.schema([schema.field(name) for name in keys])).bodies([rows.column(name) for name in keys])
    order = sorted(range(len(encoded)), key=encoded.__getitem__)
    twice = next((b for a, b in pairwise(order) if encoded[a] == encoded[b]), None)
    if twice is not None:
        key = ", ".join(f"{name}={rows.column(name)[twice].as_py()!r}" for name in keys)
        raise DeclarationError(
            f"The table of lookup has several rows for {key}, and a row of the stream can get one only; keep one row of each key, "
            "or name further columns in on=."
        )
    sorted_rows = rows.take(to_indices(np.array(order, np.int64))).combine_chunks()
    return Table(sorted_rows, keys, _fingerprint(sorted_rows, keys))


def _only(rows: pa.Table, known: pa.Schema) -> pa.Table:
    """Some columns of a table. One that holds nothing but nulls has no type of its own: pandas gives such columns of a result without rows."""
    for name in known.names:
        count = rows.column_names.count(name)
        if count == 0:
            raise DeclarationError(f"The table of lookup lacks column {name!r}, which it had when the flow began.")
        if count > 1:
            raise DeclarationError(f"The table of lookup names column {name!r} {count} times; rename one.")
    found = rows.select(known.names)
    fields = [known.field(f.name) if pa.types.is_null(f.type) else f for f in found.schema]
    return found.cast(pa.schema(fields))


def _read(given: Any) -> pa.Table:
    module = type(given).__module__.split(".", 1)[0]
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, (str, PurePath)):
        return _of_path(str(given))
    if isinstance(given, Files):
        return _of_files(given)
    if module == "pandas" and hasattr(given, "columns"):
        return _of_pandas(given)
    if module == "pyspark" and hasattr(given, "isStreaming"):
        if given.isStreaming:
            raise DeclarationError(
                "lookup needs a table, and this DataFrame is a stream; make it a source, flow.source('name', dataframe, time='at'), and join the two streams."
            )
        return _of_spark(given)
    if callable(given) and not isinstance(given, type):
        return _read(_called(given))
    raise DeclarationError(
        f"lookup needs a DataFrame of Spark or pandas, a pyarrow.Table, the path of Parquet files or files(…), not {type(given).__name__}."
    )


def _called(function: Callable[[], Any]) -> Any:
    try:
        found = function()
    except Exception as error:
        raise DeclarationError(f"The function of lookup failed ({raised(error)}); fix it.") from error
    if callable(found):
        raise DeclarationError("The function of lookup gave a function; let it give a table.")
    return found


def _of_path(path: str) -> pa.Table:
    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise DeclarationError(f"lookup finds no file {path}; give the path of a Parquet file or folder.") from None
    except Exception as error:
        raise DeclarationError(
            f"lookup cannot read {path} as Parquet ({raised(error)}); for CSV or JSON give files(path, schema, 'csv') with its columns."
        ) from error


def _of_files(files: Files) -> pa.Table:
    try:
        return read_files(files)
    except FileNotFoundError:
        raise DeclarationError(f"lookup finds no file {files.path}; give the path of a file or folder.") from None
    except (OSError, pa.ArrowException) as error:
        raise DeclarationError(
            f"lookup cannot read {files.path} as {files.format} with the declared schema ({raised(error)}); correct the one or the other."
        ) from error


def _of_pandas(frame: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    except Exception as error:
        why = ": ".join(str(part) for part in reversed(error.args))
        raise DeclarationError(
            f"lookup cannot read the DataFrame of pandas ({why}); give each column a name of its own and values of one type that Spark has."
        ) from error


def _of_spark(frame: Any) -> pa.Table:
    try:
        found: pa.Table = frame.toArrow()
    except Exception as error:
        raise DeclarationError(f"lookup cannot read the DataFrame ({raised(error)}); {_INSTEAD}.") from error
    return found


def _check_size(size: int) -> None:
    if size > LARGEST_TABLE:
        raise DeclarationError(
            f"The table of lookup has {size >> 20} MiB, more than {LARGEST_TABLE >> 20}, and every task would get a copy; {_INSTEAD}."
        )


_SIGNED: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
}


def _plain(kind: Any, name: str) -> Any:
    """The type that Spark has for a column: no dictionaries, no large offsets, no unsigned numbers, times in UTC."""
    of = pa.types
    if of.is_dictionary(kind):
        return _plain(kind.value_type, name)
    if of.is_large_string(kind) or of.is_string_view(kind):
        return pa.string()
    if of.is_large_binary(kind) or of.is_binary_view(kind) or of.is_fixed_size_binary(kind):
        return pa.binary()
    if of.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if of.is_date64(kind):
        return pa.date32()
    if of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type, name))
    if of.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type, name)) for field in kind])
    if of.is_map(kind):
        return pa.map_(_plain(kind.key_type, name), _plain(kind.item_type, name))
    if kind in _SIGNED:
        return _SIGNED[kind]
    known = (of.is_integer, of.is_floating, of.is_boolean, of.is_string, of.is_binary, of.is_date32, of.is_decimal128)
    if not any(is_kind(kind) for is_kind in known):
        raise DeclarationError(
            f"The table of lookup has column {name!r} of type {kind}, which Spark does not have; cast it, or leave it out."
        )
    return kind


def _without_hidden(values: Any) -> Any:
    """The same values; the fields of a struct that is null are null, too, whatever was hidden there."""
    kind = values.type
    if pa.types.is_struct(kind):
        fields = [_without_hidden(part) for part in values.flatten()]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=values.is_null() if values.null_count else None)
    if pa.types.is_nested(kind):  # a list, or a map, which is a list of pairs
        inner = [_without_hidden(values.values)]
        return pa.Array.from_buffers(kind, len(values), values.buffers()[:2], values.null_count, values.offset, children=inner)
    return values.take(to_indices(np.arange(len(values)))) if values.null_count else values


def _fingerprint(rows: pa.Table, keys: tuple[str, ...]) -> str:
    for i, column in enumerate(rows.schema):
        if rows.num_rows and pa.types.is_nested(column.type):
            rows = rows.set_column(i, column, _without_hidden(rows.column(i).combine_chunks()))
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema.remove_metadata()) as writer:
        writer.write_table(rows)
    digest = xxhash.xxh3_128(repr(keys).encode())
    digest.update(memoryview(out.getvalue()))
    return digest.hexdigest()


__all__ = ["LARGEST_TABLE", "Refresh", "Table", "check_types", "comparable", "read_table", "refreshed"]
