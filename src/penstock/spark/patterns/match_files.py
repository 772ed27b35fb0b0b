"""A pattern over files: what ``penstock match`` shows.

Read next: `penstock.spark.patterns.match`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from penstock.patterns.algebra import Query
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.plan import check_source_of_types
from penstock.patterns.predicates import check_query
from penstock.patterns.streams import streams_read
from penstock.spark.failures import translated
from penstock.spark.patterns.match import match
from penstock.spark.session.own import results_session
from penstock.spark.sources.file_frames import RFC_4180
from penstock.sql_text.schema import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "csv": {"header": "true", "inferSchema": "true", "mode": "FAILFAST", **RFC_4180},
    "json": {"inferTimestamp": "true", "mode": "FAILFAST"},
    "parquet": {},
}
"""How each format is read: a row that is none stops it, where Spark would make its columns null or leave some out."""


class FileMatches:
    """The matches of a query in files, in the order of their ends.

    Args:
        spark: The session.
        query: The query.
        files: Files, folders and patterns of one format.
        kind: The format, one of `OPTIONS`.
        schema: Columns and types; None: as the files say, or as their values look.
        escape: What stands before a quote inside a quoted field of CSV; None: another quote.
        multi_line: Whether fields of CSV may have line breaks; a file is then read by one task.
        **how: As for `penstock.match`.

    Raises:
        QueryError: The query is wrong, or does not fit the columns.
        PenstockError: The files cannot be read, or another argument is wrong.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: str,
        files: Sequence[str],
        kind: str,
        schema: str | None = None,
        *,
        escape: str | None = None,
        multi_line: bool = False,
        **how: Any,
    ) -> None:
        parsed = parse(query)
        streams_read(parsed, (), "files are one stream; match(...) of Python takes several DataFrames by name")
        self._keys = parsed.partition_by
        self._found: DataFrame | None
        spark = results_session(spark)  # text is read in UTC
        with _ours():
            reader = spark.read.format(kind).options(**OPTIONS[kind])
            if kind == "csv":
                reader = reader.options(escape=escape or RFC_4180["escape"], multiLine=multi_line)
            events = (reader.schema(schema) if schema is not None else reader).load(list(files))
            watched, self._keyless = _watched(events, self._keys)
            self._found = None
            if schema is None and _is_unknown(events):
                _check_names(parsed, events.columns, how)
                return
            found = match(watched, query, **how)
            self._found = found.orderBy("match_end", *(["match_start"] if "match_start" in found.columns else []))

    @property
    def columns(self) -> list[str]:
        """Names of the columns; none where there is no event and so no type of a column."""
        return [] if self._found is None else self._found.columns

    def rows(self, limit: int) -> list[tuple[Any, ...]]:
        """The first matches; all if `limit` is 0."""
        if self._found is None:
            return []
        with _ours():
            return list(self._found.limit(limit).collect() if limit else self._found.collect())

    def lines(self) -> Iterator[str]:
        """All matches as JSON, one after the other; only some are held at a time."""
        if self._found is None:
            return
        lines = self._found.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("line"))
        with _ours():
            for row in lines.toLocalIterator():
                yield row["line"]

    def left_out(self) -> str:
        """A sentence about the events that were left out, or that there were none; else empty. Only after the matches were read."""
        if self._found is None:
            return "The files hold no event, so there is no match."
        number = self._keyless.get["without"] if self._keyless is not None else 0
        names = " and ".join(" or ".join(group) for group in self._keys)
        return f"{number:,} event{'s' * (number != 1)} without {names} left out: no key, no match." if number else ""


def _is_unknown(events: DataFrame) -> bool:
    """Whether nothing is there to tell the types of columns by: a file with a header at most."""
    return all(kind == "string" for _, kind in events.dtypes) and events.isEmpty()


def _check_names(query: Query, names: Sequence[str], how: Mapping[str, Any]) -> None:
    """Check what can be checked of columns of which only the names are known, or not even these."""
    if names:
        columns = pa.schema([(name, pa.null()) for name in names])
        check_source_of_types(columns, how.get("type"), how.get("define"))
        check_query(query, columns, types=how.get("define"))


def _watched(events: DataFrame, groups: tuple[tuple[str, ...], ...]) -> tuple[DataFrame, Observation | None]:
    """The events, and what counts those that have no key."""
    if not groups or not {name for group in groups for name in group} <= set(events.columns):
        return events, None
    without = F.lit(False)
    for group in groups:
        without = without | F.coalesce(*(F.col(quoted(name)) for name in group)).isNull()
    keyless = Observation("events without a key")
    return events.observe(keyless, F.count_if(without).alias("without")), keyless


@contextmanager
def _ours() -> Iterator[None]:
    """Errors of Spark as penstock's own."""
    try:
        yield
    except Exception as error:
        raise translated(error, "The query") from error


__all__ = ["OPTIONS", "FileMatches"]
