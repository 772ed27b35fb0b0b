"""Rows of Parquet files that were stored with their positions; see `penstock.sinks.stored_rows`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import dataset

from penstock.errors import SinkError
from penstock.sinks.parquet_parts import reported
from penstock.sinks.sql_databases import imported, quoted
from penstock.sinks.stored_rows import OrderedRows
from penstock.types import Mark

_TABLE: Final = "stored"


@dataclass(frozen=True)
class FileRows(OrderedRows):
    """The rows of an output in a directory.

    Attributes:
        make: Makes a sink of the directory.
        output: The output; None: the only one there.
    """

    make: Callable[[], Any]
    output: str | None
    schema: pa.Schema | None
    target: str
    table: str = _TABLE

    def held(self) -> Mark | None:
        """See `StoredRows.held`.

        Raises:
            SinkError: As in the contract; also if several outputs are there and none was named.
        """
        outputs = self.make().outputs()
        if self.output is None and len(outputs) > 1:
            raise SinkError(
                f"{self.target} holds outputs {' and '.join(map(repr, outputs))}: say which, read_back(…, output=…)."
            )
        output = self.output or (outputs[0] if outputs else None)
        held: Mark | None = None if output is None else self.make().held(output)
        return held

    def numbers(self, statement: str) -> list[tuple[int, ...]]:
        """See `OrderedRows.numbers`."""
        with self._opened() as connection:
            found: list[tuple[int, ...]] = connection.sql(statement).fetchall()
            return found

    def rows(self, columns: Sequence[pa.Field[Any]], rest: str) -> pa.Table:
        """See `OrderedRows.rows`."""
        chosen = ", ".join(quoted(column.name) for column in columns)
        with self._opened() as connection:
            found: pa.Table = connection.sql(f"SELECT {chosen} FROM {_TABLE} {rest}").to_arrow_table()  # noqa: S608
        return found.cast(pa.schema(columns))

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """DuckDB, with the files of the epochs that the mark has."""
        duckdb = imported("duckdb", "duckdb")
        mark = self.held()
        with reported(self.target, "give back its rows"):
            files, paths = self.make().files_of(mark.output, mark.epoch) if mark is not None else (None, [])
            with duckdb.connect() as connection:
                if paths:
                    connection.register(_TABLE, dataset.dataset(paths, filesystem=files, format="parquet", schema=self.schema))
                else:
                    assert self.schema is not None
                    connection.register(_TABLE, self.schema.empty_table())
                try:
                    yield connection
                except duckdb.Error as broken:
                    raise SinkError(f"{self.target} could not give back its rows ({str(broken).splitlines()[0]}).") from broken
