"""Tables of `lookup` in files with a declared schema: CSV, JSON lines and Parquet, as `penstock.sources.files` declares them.

They are read here, without Spark, by the rules of a source's files: CSV has a header line with the declared names, an empty field is null, quoted or
not, and a time without a zone is in UTC. A row that does not fit the schema is refused, as a table that lacks it would be another one.

Read next: `penstock.flow.tables`.
"""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.json as pajson
import pyarrow.parquet as pq

from penstock.errors import DeclarationError
from penstock.sources.files import Files

_INSTEAD = "read the files with Spark or pandas, and give what that gives"
_ZONED = r"(Z|[+-]\d\d(:?\d\d)?)$"
_DATE = r"^\d{4}-\d\d-\d\d$"


def read_files(files: Files) -> pa.Table:
    """The rows of all files, in the declared columns.

    Raises:
        DeclarationError: An option is not known, or a file lacks a column.
        OSError, pyarrow.ArrowException: A file cannot be read.
    """
    path, kind = (
        files.path.removeprefix("file://"),
        {"csv": ds.CsvFileFormat, "json": ds.JsonFileFormat, "parquet": ds.ParquetFileFormat},
    )
    found: Any = ds.dataset(path, format=kind[files.format]())
    read = {"csv": _csv, "json": _json, "parquet": _parquet}[files.format]
    tables = [read(found.filesystem, path, files) for path in found.files]
    return pa.concat_tables(tables) if tables else files.schema.empty_table()


def _csv(fs: Any, path: str, files: Files) -> pa.Table:
    known = ("header", "multiline", "sep", "delimiter")
    given = {name.lower(): value for name, value in files.options.items()}
    for name, value in files.options.items():
        if name.lower() not in known or (name.lower() == "header" and value != "true"):
            raise DeclarationError(f"lookup does not know the option {name}={value!r} of CSV; {_INSTEAD}.")
    parse = pacsv.ParseOptions(
        delimiter=given.get("sep", given.get("delimiter", ",")), newlines_in_values=given.get("multiline") == "true"
    )
    with fs.open_input_file(path) as file, pacsv.open_csv(file, parse_options=parse) as reader:
        header = reader.schema.names
    if [n.lower() for n in header] != [n.lower() for n in files.schema.names]:
        raise DeclarationError(
            f"The first line of {path} names the columns {', '.join(header)[:200]}, and lookup expects {', '.join(files.schema.names)}: correct the one "
            "or the other."
        )
    convert = pacsv.ConvertOptions(
        column_types=_parsed(files.schema),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
        true_values=["true", "True", "TRUE"],
        false_values=["false", "False", "FALSE"],
    )
    read = pacsv.ReadOptions(column_names=files.schema.names, skip_rows=1)
    with fs.open_input_file(path) as file:
        return _typed(pacsv.read_csv(file, read, parse, convert), files.schema)


def _json(fs: Any, path: str, files: Files) -> pa.Table:
    for name, value in files.options.items():
        raise DeclarationError(f"lookup does not know the option {name}={value!r} of JSON; {_INSTEAD}.")
    for column in files.schema:
        if pa.types.is_nested(column.type) and "binary" in str(column.type):
            raise DeclarationError(
                f"lookup reads bytes in JSON only in columns of their own, and {column.name!r} is {column.type}; {_INSTEAD}."
            )
    parse = pajson.ParseOptions(
        explicit_schema=_parsed(files.schema, pa.types.is_date, pa.types.is_binary), unexpected_field_behavior="ignore"
    )
    with fs.open_input_file(path) as file:
        rows = pajson.read_json(file, parse_options=parse)
    for i, column in enumerate(files.schema):
        if pa.types.is_binary(column.type):
            rows = rows.set_column(i, column, _of_base64(rows.column(column.name)))
    return _typed(rows, files.schema)


def _of_base64(texts: Any) -> Any:
    """Bytes as JSON has them.

    Raises:
        pyarrow.ArrowInvalid: A text is not of base 64.
    """
    try:
        return pa.array([None if t is None else base64.b64decode(t, validate=True) for t in texts.to_pylist()], pa.binary())
    except ValueError as error:
        raise pa.ArrowInvalid(f"bytes in JSON are text in base 64: {error}") from error


def _parquet(fs: Any, path: str, files: Files) -> pa.Table:
    rows = pq.read_table(path, filesystem=fs)
    for column in files.schema:
        if column.name not in rows.schema.names:
            if files.missing_columns == "fail":
                raise DeclarationError(
                    f"The file {path} lacks column {column.name!r}, which lookup expects; correct the one or the other."
                )
            rows = rows.append_column(column.name, pa.nulls(rows.num_rows, column.type))
    return rows.select(files.schema.names).cast(files.schema)


def _parsed(schema: pa.Schema, *texts: Any) -> pa.Schema:
    """The types that are parsed: times come as text, because some have a zone and some have not, and so do other types if need be."""
    kinds = (pa.types.is_timestamp, *texts)
    return pa.schema([pa.field(f.name, pa.string() if any(of(f.type) for of in kinds) else f.type) for f in schema])


def _typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns: list[Any] = []
    for column in schema:
        values: Any = rows.column(column.name)
        if pa.types.is_timestamp(column.type):
            values = pc.if_else(
                pc.match_substring_regex(values, _DATE), pc.binary_join_element_wise(values, " 00:00", ""), values
            )
            zoned = pc.if_else(pc.match_substring_regex(values, _ZONED), values, pc.binary_join_element_wise(values, "Z", ""))
            values = zoned.cast(pa.timestamp("us", "UTC"))
        columns.append(values.cast(column.type))
    return pa.table(columns, schema=schema)


__all__ = ["read_files"]
