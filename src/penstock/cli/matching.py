"""``penstock match``: a pattern over files, its matches as a table or as JSON lines."""

from __future__ import annotations

import glob
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.errors import DeclarationError

if TYPE_CHECKING:
    from penstock.spark.matching import FileMatches

FORMATS: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
_PACKED: Final = (".gz", ".bz2", ".zst")


def quiet_session(context: typer.Context, master: str | None, **conf: str) -> Any:
    """A Spark session that logs nothing unless ``--debug`` is given: what fails is told in one sentence."""
    from penstock.spark.session import session

    spark = session(master, **conf)
    if not context.obj:
        spark.sparkContext.setLogLevel("OFF")
    return spark


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
    limit: Annotated[int, typer.Option(help="At most so many rows in the table; 0: all.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines; what a pipe gets anyway.")] = False,
    master: Annotated[str | None, typer.Option(help="Spark master; all cores of this machine if not given.")] = None,
) -> None:
    """Find the matches of a CEQL query in files, without a flow."""
    from penstock.cer.parsing import parse

    text = _text_of(query[1:]) if query.startswith("@") else query
    parse(text)  # before Java is started
    types, kind = _definitions(define), _format_of(files, kind)

    from penstock.spark.matching import FileMatches

    spark = quiet_session(context, master, **{"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()})
    how = {"order_by": order_by, "type": of_type, "define": types, "where": where}
    found = FileMatches(spark, text, files, kind, schema, **how)
    if as_json or not sys.stdout.isatty():
        for line in found.lines():
            print(line)
    elif found.columns:
        _print_table(found, limit)
    if left_out := found.left_out():
        print(left_out, file=sys.stderr)


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"The query cannot be read from {path!r}: {error}; give a text file.") from error


def _format_of(files: list[str], given: str | None) -> str:
    """The format of files, which must exist and have the same."""
    there = set(FORMATS.values())
    if given is not None and given not in there:
        raise DeclarationError(f"There is no format {given!r}; there are {', '.join(sorted(there))}.")
    found: dict[str, str] = {}
    for path in _paths(files):
        name = Path(path).name.lower()
        for ending in _PACKED:
            name = name.removesuffix(ending)
        kind = FORMATS.get(Path(name).suffix)
        if kind is not None:
            found.setdefault(kind, path)
        elif given is None:
            raise DeclarationError(f"What {path!r} holds does not follow from its name; say --format csv, json or parquet.")
    if given is None and len(found) > 1:
        both = " and ".join(f"{kind} ({path})" for kind, path in sorted(found.items()))
        raise DeclarationError(f"All files must have one format, and these have {both}; match them one after the other.")
    return given or next(iter(found))


def _paths(files: list[str]) -> list[str]:
    """Every file that is meant; hidden ones, which Spark does not read either, left out."""
    paths = []
    for name in files:
        found = [name] if "://" in name else sorted(glob.glob(name, recursive=True))  # noqa: PTH207  (absolute patterns too)
        inside = [p for f in found for p in (sorted(q for q in Path(f).rglob("*") if q.is_file()) if Path(f).is_dir() else [f])]
        shown = [str(p) for p in inside if not Path(p).name.startswith((".", "_"))]
        if not shown:
            raise DeclarationError(f"There is no file {name!r}; give files, folders, or patterns such as 'logs/*.csv'.")
        paths += shown
    return paths


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
    table = Table(*found.columns, show_lines=True)
    for row in rows[: limit or None]:
        table.add_row(*(_cell(value) for value in row))
    Console().print(table)
    if limit and len(rows) > limit:
        print(f"There are more than {limit}; --limit 0 shows all, --json gives them as they come.", file=sys.stderr)


def _cell(value: Any) -> str:
    """A value; of a list of events one event per line."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "\n".join(" ".join(map(_cell, event)) if isinstance(event, tuple) else _cell(event) for event in value)
    return str(value)


__all__ = ["match"]
