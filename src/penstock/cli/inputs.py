"""The files of ``penstock match``: find them, and check their beginnings.

Spark ignores files deeper in folders, reads any text as CSV, and takes the columns of CSV files by position whatever their
first lines say. So files are found here, and the beginning of each is read before Spark starts.
"""

from __future__ import annotations

import bz2
import csv
import glob
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.errors import DeclarationError
from penstock.sql_text.schema import unknown_column

FORMATS: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
_OPENED: Final[dict[str, Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".zst": None}
_LINE: Final = 1 << 20
"""Of a longer first line nothing is said."""


def found_files(names: Sequence[str]) -> list[str]:
    """Every file that is named, in folders at any depth; addresses with ``://`` unchanged. Hidden files, which Spark ignores,
    are left out.

    Raises:
        DeclarationError: A name matches no file.
    """
    paths: list[str] = []
    for name in names:
        files = [path for _, inside in _meant_by(name) for path in inside]
        if not files:
            raise DeclarationError(f"There is no file {name!r}; give files, folders, or patterns such as 'logs/*.csv'.")
        paths += files
    return paths


def read_by_spark(names: Sequence[str]) -> list[str]:
    """The same for Spark: single files, but whole folders if their sub-folders give columns, as in ``day=1``."""
    paths: list[str] = []
    for found, files in (meant for name in names for meant in _meant_by(name)):
        by_columns = any("=" in part for file in files for part in Path(file).parts[len(Path(found).parts) : -1])
        paths += [found] if by_columns else files
    return [re.sub(r"([\\\[\]{}*?^])", r"\\\1", path) if "://" not in path else path for path in paths]


def format_of(files: Sequence[str], given: str | None) -> str:
    """The common format of files.

    Raises:
        DeclarationError: They have several, or their names do not show it.
    """
    there = set(FORMATS.values())
    if given is not None and given not in there:
        raise DeclarationError(f"There is no format {given!r}; there are {', '.join(sorted(there))}.")
    found: dict[str, str] = {}
    for path in files:
        name = Path(path.lower())
        kind = FORMATS.get((name.with_suffix("") if name.suffix in _OPENED else name).suffix)
        if kind is not None:
            found.setdefault(kind, path)
        elif given is None:
            raise DeclarationError(f"The name of {path!r} does not show its format; give --format csv, json or parquet.")
    if given is None and len(found) > 1:
        both = " and ".join(f"{kind} ({path})" for kind, path in sorted(found.items()))
        raise DeclarationError(f"All files must have one format, and these have {both}; match them one after the other.")
    return given or next(iter(found))


def check_beginnings(
    files: Sequence[str], kind: str, *, named: Sequence[tuple[str, str]] = (), escape: str | None = None
) -> None:
    """Check the beginning of every local file.

    Args:
        files: The files.
        kind: Their format.
        named: Columns that the command names, each with its option, if they must be in the first line of a CSV file.
        escape: The character before a quote inside a quoted field; None: another quote.

    Raises:
        DeclarationError: A file has another format, or the first lines of CSV files differ.
    """
    here = [path for path in files if "://" not in path]
    if kind == "parquet":
        _check_parquet(here, inferred=bool(named))
    elif kind == "json":
        for path in here:
            _check_json(path)
    else:
        _check_csv(here, named, escape)


def _check_parquet(files: Sequence[str], *, inferred: bool) -> None:
    for path in files:
        if not Path(path).stat().st_size:  # Spark would ignore it silently
            raise DeclarationError(
                f"{path!r} is empty, not a Parquet file, which has columns even without rows; write it again, or leave it out."
            )
        with _opened(path, plain=True) as file:
            if file.read(4) not in (b"PAR1", b"PARE"):
                raise DeclarationError(f"{path!r} is not a Parquet file; give --format csv or json if it is one of these.")
        if inferred:  # otherwise the column may not even be read
            _check_times(path)


def _check_times(path: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from penstock.spark.failures import COARSER

    try:
        columns = pq.read_schema(path)
    except (pa.ArrowException, OSError):  # Spark reports what is wrong
        return
    for column in columns:
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            raise DeclarationError(
                f"{path!r} has times in nanoseconds in its column {column.name!r}, which Spark does not read; {COARSER}"
            )


def _check_json(path: str) -> None:
    line = _first_line(path)
    if line is None:
        return
    try:
        rows = json.loads(line)
    except ValueError:
        rows = None
    rows = rows if isinstance(rows, list) else [rows]
    if not all(isinstance(row, dict) for row in rows):
        raise DeclarationError(
            f"{path!r} does not begin with a line of JSON but with {_shown(line)}; put one object on each line, or correct --format."
        )


def _check_csv(files: Sequence[str], named: Sequence[tuple[str, str]], escape: str | None) -> None:
    first: tuple[str, list[str]] | None = None
    for path in files:
        line = _first_line(path)
        if line is None:
            continue
        if "\0" in line or line.startswith("PAR1"):
            raise DeclarationError(f"{path!r} is not a text file; give --format parquet if it is Parquet.")
        names = next(csv.reader([line], strict=False, doublequote=escape is None, escapechar=escape))
        if first is None:
            first = path, names
            _check_columns(path, line, names, named)
        elif names != first[1]:
            raise DeclarationError(
                f"The first line of {path!r} is {_shown(line)}, but that of {first[0]!r} names {', '.join(first[1])[:80]}; "
                "all CSV files must name the same columns in the same order."
            )


def _check_columns(path: str, line: str, names: list[str], named: Sequence[tuple[str, str]]) -> None:
    names = [*_as_spark_names(names), *(part.partition("=")[0] for part in Path(path).parts[:-1] if "=" in part)]
    missing = [(option, name) for option, name in named if name not in names]
    if missing and len(missing) == len(named):
        option, name = missing[0]
        raise DeclarationError(
            f"{option} names column {name!r}, but the first line of {path!r}, which must name the columns with commas between, "
            f"is {_shown(line)}; correct the one or the other."
        )
    if missing:
        raise unknown_column(missing[0][1], names, missing[0][0])


def _as_spark_names(names: list[str]) -> list[str]:
    """Column names as Spark makes them: those that are empty or repeated get their number."""
    lower = [name.lower() for name in names]
    return [f"_c{i}" if not name else f"{name}{i}" if lower.count(lower[i]) > 1 else name for i, name in enumerate(names)]


def _first_line(path: str) -> str | None:
    """The first line that is not blank; None: there is none, or it cannot be read here."""
    try:
        with _opened(path) as file:
            begun = b""
            while not begun.strip() and (part := file.readline(_LINE)):
                begun = part.removeprefix(b"\xef\xbb\xbf")
    except (OSError, EOFError) as error:
        raise DeclarationError(f"{path!r} cannot be read: {error}; fix it, or leave it out.") from error
    if not begun.strip() or (len(begun) >= _LINE and not begun.endswith(b"\n")):
        return None
    return begun.decode(errors="replace").rstrip("\r\n")


def _opened(path: str, *, plain: bool = False) -> Any:
    import io

    how = open if plain else _OPENED.get(Path(path).suffix.lower(), open)
    return io.BytesIO() if how is None else how(path, "rb")


def _shown(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:60] + "…")


def _meant_by(name: str) -> Iterator[tuple[str, list[str]]]:
    """A name, or all matches of a pattern; and the files of each: itself, or those in the folder. Addresses are not checked."""
    if "://" in name:
        yield name, [name]
        return
    for found in [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True)):  # noqa: PTH207  (absolute patterns too)
        files = _inside(Path(found)) if Path(found).is_dir() else [found]
        yield found, [path for path in files if _is_shown(path)]


def _inside(folder: Path) -> list[str]:
    """Files at any depth, without hidden folders."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return [str(p) for p in files if all(_is_shown(part) for part in p.relative_to(folder).parts)]


def _is_shown(path: str) -> bool:
    return not Path(path).name.startswith((".", "_"))


def local(name: str) -> str:
    """A name; for a local file without ``file://``."""
    return unquote(urlsplit(name).path) if name.startswith("file:/") else name


__all__ = ["check_beginnings", "format_of", "found_files", "local", "read_by_spark"]
