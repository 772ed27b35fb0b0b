"""``penstock match``: a pattern over files, its matches as a table or as JSON lines."""

from __future__ import annotations

import atexit
import logging
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.inputs import check_beginnings, format_of, found_files, local, read_by_spark
from penstock.cli.misuse import MisuseError, as_typed
from penstock.errors import DeclarationError, PenstockError

if TYPE_CHECKING:
    from penstock.spark.patterns.match_files import FileMatches

_MASTER: Final = re.compile(r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[.+\]|yarn|spark://.+|k8s://.+")
_LOUD: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers with which PySpark prints at length what it raises anyway."""


def quiet_session(context: typer.Context, master: str | None, **conf: str) -> Any:
    """A Spark session that logs nothing unless ``--debug`` is given: a failure is one sentence.

    Raises:
        MisuseError: There is no such master.
    """
    if master is not None and not _MASTER.fullmatch(master):
        raise MisuseError(
            f"--master {master!r} is no Spark master; give local[2], local[*], spark://HOST:PORT, k8s://… or yarn."
        )
    from penstock.spark.session.local import session

    if not context.obj:
        logging.getLogger().addFilter(_not_of_py4j)
        atexit.register(
            logging.getLogger().removeFilter, _not_of_py4j
        )  # DuckDB complains about objects that a logger still holds at the end
    spark = session(master, **conf)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark's would cancel the epoch that must end first
    if not context.obj:
        spark.sparkContext.setLogLevel("OFF")
        for name in _LOUD:
            sys.modules["pyspark.logger"].PySparkLogger.getLogger(name).setLevel("CRITICAL")
    return spark


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Drop Py4J's long log of what Ctrl-C interrupted."""
    return not str(record.msg).endswith("while sending command.")


def match(
    context: typer.Context,
    query: Annotated[
        str, typer.Argument(help="A CEQL query, such as 'SELECT * WHERE a ; b+ WITHIN 10 MINUTES'; @FILE reads it.")
    ],
    files: Annotated[list[str], typer.Argument(help="CSV with a header, JSON lines or Parquet; folders and patterns too.")],
    order_by: Annotated[list[str], typer.Option("--order-by", help="The column that orders the events; again for ties.")],
    define: Annotated[list[str] | None, typer.Option("--define", help="name=condition in SQL, for each event type.")] = None,
    of_type: Annotated[
        str | None, typer.Option("--type", help="The column that holds each event's type name, instead of --define.")
    ] = None,
    where: Annotated[str | None, typer.Option(help="A condition in SQL on whole matches.")] = None,
    kind: Annotated[str | None, typer.Option("--format", help="csv, json or parquet, where the names do not say.")] = None,
    schema: Annotated[str | None, typer.Option(help="Columns and types, such as 'at timestamp, user string'.")] = None,
    escape: Annotated[
        str | None,
        typer.Option(help="What stands before a quote inside a quoted CSV field, such as '\\'; a quote if not given."),
    ] = None,
    multi_line: Annotated[bool, typer.Option("--multi-line", help="Quoted CSV fields may have line breaks.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="At most so many rows in the table; 0: all.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines; what a pipe gets anyway.")] = False,
    master: Annotated[str | None, typer.Option(help="Spark master; all cores of this machine if not given.")] = None,
) -> None:
    """Find the matches of a CEQL query in files, without a flow."""
    from penstock.patterns.ceql.parsing import parse

    files = [local(name) for name in files]
    with as_typed():  # before Java is started
        text = _text_of(query[1:]) if query.startswith("@") else query
        parse(text)
        types = _definitions(define)
        there = found_files(files)
        kind = format_of(there, kind)
        if (types is None) == (of_type is None):
            raise DeclarationError(
                "The type of an event must be known: give --type COLUMN, or --define name=condition for every type, and not both."
            )
        named = [("order_by", name) for name in order_by] + ([] if of_type is None else [("type", of_type)])
        if escape is not None and len(escape) != 1:
            raise DeclarationError(f"--escape must be one character, such as '\\', not {escape!r}.")
        check_beginnings(there, kind, named=named if schema is None else (), escape=escape)

    from penstock.spark.patterns.match_files import FileMatches
    from penstock.spark.session.settings import PROGRESS

    spark = quiet_session(context, master, **{PROGRESS: str(sys.stderr.isatty()).lower()})
    how = {"order_by": order_by, "type": of_type, "define": types, "where": where}
    with as_typed(), _refused_by_spark(files, schema):
        found = FileMatches(spark, text, read_by_spark(files), kind, schema, escape=escape, multi_line=multi_line, **how)
    if as_json or not sys.stdout.isatty():
        for line in found.lines():
            print(line)
    elif found.columns:
        _print_table(found, limit)
    if left_out := found.left_out():
        print(left_out, file=sys.stderr)


@contextmanager
def _refused_by_spark(files: list[str], schema: str | None) -> Iterator[None]:
    """An error of Spark's analysis, before any row is read, as misuse of the command."""
    try:
        yield
    except DeclarationError:
        raise
    except PenstockError as error:
        text = str(error)
        remote = [name for name in files if "://" in name]
        if remote and ("No FileSystem for scheme" in text or "hasn't implemented" in text):
            raise MisuseError(
                f"Spark on this machine cannot list {remote[0]!r}; copy the files here, or give Spark what reads them."
            ) from error
        if type(error.__cause__).__name__ not in {"AnalysisException", "ParseException"}:
            raise
        if schema is not None:
            from penstock.sql_text.schema import parse_schema

            parse_schema(schema, "--schema")  # has a better message for that case
        raise MisuseError(text) from error


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"The query cannot be read from {path!r}: {error}; give a text file.") from error


def _definitions(define: list[str] | None) -> dict[str, str] | None:
    types: dict[str, str] = {}
    for text in define or ():
        name, equals, condition = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier() or not condition:
            raise DeclarationError(f"--define {text!r} is not of the form name=condition, as in --define 'late=delay > 15'.")
        if name in types:
            raise DeclarationError(f"--define names the type {name!r} twice; join the conditions by OR.")
        types[name] = condition
    return types or None


def _print_table(found: FileMatches, limit: int) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = found.rows(limit + 1 if limit else 0)
    table = Table(*found.columns, show_lines=True)  # text that looks like markup is data
    for row in rows[: limit or None]:
        table.add_row(*(_cell(value) for value in row))
    Console(markup=False, emoji=False).print(table)
    if limit and len(rows) > limit:
        print(f"There are more than {limit}; --limit 0 shows all, --json gives them as they come.", file=sys.stderr)


def _cell(value: Any) -> str:
    """A value as text; a list of events has one event per line."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "\n".join(" ".join(map(_cell, event)) if isinstance(event, tuple) else _cell(event) for event in value)
    return str(value)


__all__ = ["match"]
