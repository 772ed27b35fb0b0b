"""Stateless steps: each says what it does to rows in one of three forms, which the engines run. Only these know a step by its form.

    sql               Spark SQL; over Spark as it is, in this process by DuckDB
    batch_function    a Python function over Arrow record batches; in both
    frame_function    a function over Spark's DataFrames; over Spark only

Read next: `penstock.flow.plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.flow.tables import Refresh, Table
from penstock.sql_text.schema import as_schema, quoted
from penstock.types import SUB

BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch]
_SHOWN: Final = 200


@dataclass(frozen=True, eq=False)
class Beside:
    """A table of which each row gets the row with its key, or nulls.

    Attributes:
        table: The table.
        on: The columns that are looked up, in the order of the table's keys.
        columns: The table's columns that are added: name there, and in the output, where no column has it yet.
        inner: Rows without a row in the table are left out.
    """

    table: Table
    on: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    inner: bool


@dataclass(frozen=True)
class Sql:
    """What a step does, as Spark SQL. A row gives one row or none, at the same position.

    Attributes:
        where: The condition for a row to stay; empty: all stay.
        columns: Name and expression of each column; None: the columns stay.
        sub: An expression over hidden columns that replaces `penstock.types.SUB`; empty: it stays.
        beside: A table to join before anything else; None: none.
    """

    where: str = ""
    columns: tuple[tuple[str, str], ...] | None = None
    sub: str = ""
    beside: Beside | None = None


class StatelessStep:
    """A stateless step: a frozen declaration in one of the three forms.

    Example:
        >>> class Positive(StatelessStep):
        ...     kind = "positive"
        ...     def sql(self, before):
        ...         return Sql(where="v > 0")
    """

    schema: str | pa.Schema | None = None
    """Output columns; None: those of the input."""
    kind: str = "step"
    """What it is, in a word."""
    refresh: Refresh | None = None
    """How its table is read again while the flow runs; None: it has none, or one that stays."""

    def sql(self, before: pa.Schema) -> Sql | None:
        """The step in SQL, given the columns of its input."""

    def batch_function(self) -> BatchFunction | None:
        """A function as `penstock.flow.stream.Stream.map_batches` takes it."""

    def frame_function(self) -> Callable[[Any], Any] | None:
        """A function as `penstock.flow.stream.Stream.transform` takes it."""

    def output_schema(self, before: pa.Schema) -> pa.Schema:
        """Columns of the output, given those of the input; a type that is not known yet is ``pa.null()``."""
        return before if self.schema is None else as_schema(self.schema, f"the schema of {self.kind}")

    def describe(self, column: str | None = None) -> str:
        """The step as it was declared, for messages; `column`: of `sql` the one that is meant."""
        return self.kind

    def identity(self) -> str:
        """What tells it from others. A checkpoint keeps a digest; a change may part a stateful step behind it from its state."""
        return self.describe()

    def tables(self) -> Mapping[str, str]:
        """The tables that its rows depend on, as text by name: a start with another text says so."""
        return {}

    def with_table(self, table: Table) -> StatelessStep:
        """The step with other rows in the table that `refresh` reads again."""
        raise NotImplementedError(f"{self.kind} has no table that is read again.")

    def user_functions(self) -> Iterable[Any]:
        """Users' functions and classes that it calls; the modules that define them are sent to the workers."""
        return [type(self), *(value for value in vars(self).values() if callable(value))]


@dataclass(frozen=True)
class Where(StatelessStep):
    """Rows that satisfy a condition.

    Example:
        >>> Where("v > 1").describe()
        "where('v > 1')"
    """

    condition: str
    kind = "where"

    def sql(self, before: pa.Schema) -> Sql:
        return Sql(where=self.condition)

    def describe(self, column: str | None = None) -> str:
        return f"where({_shown(self.condition)})"

    def identity(self) -> str:
        return f"Where {self.condition}"


@dataclass(frozen=True)
class Select(StatelessStep):
    """Columns by SQL expressions, as (name, expression); `adds`: all columns of the input are among them."""

    columns: tuple[tuple[str, str], ...]
    adds: bool
    schema: pa.Schema
    kind = "select"

    def sql(self, before: pa.Schema) -> Sql:
        return Sql(columns=self.columns)

    def output_schema(self, before: pa.Schema) -> pa.Schema:
        return self.schema

    def describe(self, column: str | None = None) -> str:
        new = [(name, sql) for name, sql in self.columns if sql != quoted(name)]
        inside = ", ".join(f"{name}={_shown(sql)}" for name, sql in new if column in (None, name))
        return f"{'with_columns' if self.adds and new else 'select'}({inside or ', '.join(self.schema.names)})"

    def identity(self) -> str:
        return f"Select {self.columns}"


class _Calling(StatelessStep):
    fn: Callable[[Any], Any]
    stored_as: str

    def describe(self, column: str | None = None) -> str:
        return f"{self.kind}({getattr(self.fn, '__name__', 'fn')})"

    def identity(self) -> str:
        return f"{self.stored_as} {getattr(self.fn, '__name__', '')}"


@dataclass(frozen=True)
class Transform(_Calling):
    """Any function from DataFrame to DataFrame that keeps the hidden columns."""

    fn: Callable[[Any], Any]
    schema: pa.Schema | None
    kind, stored_as = "transform", "Transform"

    def frame_function(self) -> Callable[[Any], Any]:
        return self.fn


@dataclass(frozen=True)
class MapBatches(_Calling):
    """A Python function over Arrow record batches."""

    fn: BatchFunction
    schema: pa.Schema
    kind, stored_as = "map_batches", "MapBatches"

    def batch_function(self) -> BatchFunction:
        return self.fn


@dataclass(frozen=True)
class Union(StatelessStep):
    """Rows of several streams as they are: a node with several inputs has the rows of all."""

    kind = "union"

    def sql(self, before: pa.Schema) -> Sql:
        return Sql()

    def identity(self) -> str:
        return "Union "


@dataclass(frozen=True)
class Numbered(StatelessStep):
    """Rows of the nth of several streams, told from those that the others have of the same record: as in their stream, then by stream."""

    nth: int
    streams: int
    kind = "numbered"

    def sql(self, before: pa.Schema) -> Sql:
        return Sql(sub=f"{SUB} * {self.streams} + {self.nth}")

    def identity(self) -> str:
        return f"Numbered {self.nth}"


def _shown(sql: str) -> str:
    text = " ".join(sql.split())
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
