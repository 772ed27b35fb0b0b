"""What a source declares: the contract between a flow and where its records come from.

A source is a frozen value in a file of its own in this folder. It names what is read and reads nothing. Over Spark its reader does, which
`penstock.spark.sources.readers` lists; in process its records are pushed.

Read next: `penstock.sources.files`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.sql_text.schema import parse_schema, quoted
from penstock.types import HIDDEN

MALFORMED: Final = f"{HIDDEN}corrupt"
"""Hidden column: of a malformed record its text, else null."""


@dataclass(frozen=True)
class Shared:
    """A stream whose partitions applications can share: its name, the same in all of them, and the number of its partitions."""

    stream: str
    partitions: int


class Source:
    """A declared source. A subclass has a `schema`, and says what differs from the rest.

    Attributes:
        schema: Columns and types of its records.
        position: The columns with the partition and the offset of each record, in `schema` or hidden ones of whole numbers; None: the reader gives all records one
            partition, and offsets.
        time: A hidden column of its records, not in `schema`, with their event time in µs, where they have one of their own.
        fingerprint: Hidden columns of its records, not in `schema`, of whole numbers, that tell a record from another one that has its position and
            time where the log has been changed.
        steady: Whether the reader's offsets are the same whenever records are read again.
    """

    schema: pa.Schema
    position: tuple[str, str] | None = None
    time: str | None = None
    fingerprint: tuple[str, ...] = ()
    steady: bool = False

    def describe(self) -> str:
        """What it is, in a word."""
        return type(self).__name__

    def meaning(self) -> dict[str, str]:
        """What its positions are of; a flow that goes on with another meaning is refused."""
        return {"kind": self.describe()}

    def shared(self) -> Shared | None:
        """What applications of a group can share of it; None: it cannot be read by partition."""
        return None

    def only(self, partition: int) -> Source:
        """The same source, of which one partition is read; its positions are as in the whole."""
        raise NotImplementedError(f"{self.describe()} cannot be read by partition")

    def records(self, after: Mapping[str, int]) -> pa.Table | None:
        """Read an epoch's records in this process, where the source can be read so; None: it cannot.

        Args:
            after: By partition the last offset read; without `position` all records are of partition ``"0"``.

        Returns:
            Those that follow, of each partition in the order of offsets; no rows: there are none yet.
        """
        del after
        return None

    def place(self, partition: Any, offset: int) -> str:
        """Where a record is, for people."""
        return f"{partition} @ {self.position_name(offset)}"

    def position_name(self, offset: int) -> str:
        """What a position in a partition is called, for people."""
        return str(offset)

    def folder(self) -> str | None:
        """The folder that it reads; None: it reads none."""
        return None


class Streaming(Source):
    """What a user gives that declares nothing: a streaming DataFrame, of any connector of Spark's; in process anything that has a schema.

    Args:
        frame: What was given.
        schema: Its columns.
    """

    def __init__(self, frame: Any, schema: pa.Schema) -> None:
        self.frame, self.schema = frame, schema

    def describe(self) -> str:
        return type(self.frame).__name__


def as_source(given: Any, name: str) -> Source:
    """What a user gives as a source, declared.

    Raises:
        DeclarationError: It is none.
    """
    if isinstance(given, Source):
        return given
    schema = getattr(given, "schema", None)
    if schema is not None and hasattr(given, "isStreaming"):
        if not given.isStreaming:
            raise DeclarationError(f"Source {name!r} is a batch DataFrame; use spark.readStream, or penstock.files(...).")
        columns = (f"{quoted(f.name)} {f.dataType.simpleString()}" for f in schema.fields)
        schema = parse_schema(", ".join(columns), f"the schema of source {name!r}")
    if not isinstance(schema, pa.Schema):
        raise DeclarationError(
            f"Source {name!r} is {given!r}; use penstock.files(...), penstock.rate(...) or a spark.readStream DataFrame."
        )
    return Streaming(given, schema)
