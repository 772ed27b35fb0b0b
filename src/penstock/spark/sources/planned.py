"""Sources whose epochs the driver plans by itself: it asks where an epoch ends, and tasks read what lies between two ends.

Where all sources of a flow are of that kind, no streaming query is needed: `penstock.spark.reading.DriverReading`. Such a source is what Spark knows as
a data source in Python, so together with other sources it can be a part of a query as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.spark.internals.arrow_types import to_arrow
from penstock.spark.internals.plans import frame_of_table, select_sql
from penstock.spark.sources.slices import ROW, Slices
from penstock.sql_text.schema import quoted

Ends = dict[str, Any]
"""Where an epoch's input ends, as JSON."""


class Planner(Protocol):
    """Plans and reads epochs; the names are Spark's. It is sent to tasks."""

    def initialOffset(self) -> Ends:  # noqa: N802
        """Where the first epoch begins."""
        ...

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Plan no further than what there is now."""
        ...

    def latestOffset(self, start: Ends, limit: Any) -> Ends:  # noqa: N802
        """Where an epoch ends that begins at `start`; the same: there is nothing new."""
        ...

    def partitions(self, start: Ends, end: Ends) -> Sequence[Any]:
        """What tasks read, each one part."""
        ...

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read a part; in a task."""
        ...

    def few(self, parts: Sequence[Any]) -> list[pa.RecordBatch] | None:
        """All rows of some parts, where these are so few that the driver reads them more quickly than it starts tasks; None: they are not."""
        ...


@dataclass(frozen=True)
class Planned:
    """A source that the driver plans.

    Attributes:
        schema: The columns of its records.
        planner: Plans and reads.
    """

    schema: StructType
    planner: Planner


class PlannedSlices(Slices):
    """One epoch's input, of sources that the driver has planned.

    Args:
        session: The session of the epochs.
        inputs: By source, what it is, and what tasks read of it.
    """

    def __init__(self, session: SparkSession, inputs: Sequence[tuple[Planned, Sequence[Any]]]) -> None:
        self._session, self._inputs = session, inputs
        self._few: dict[int, pa.Table | None] = {}

    @property
    def session(self) -> SparkSession:
        return self._session

    def rows(self, tag: int, columns: Sequence[str] | None = None) -> DataFrame:
        source, parts = self._inputs[tag - 1]
        names = source.schema.names if columns is None else columns
        chosen = [*map(quoted, names), f"monotonically_increasing_id() as {ROW}"]
        if (few := self.few(tag)) is not None:
            return select_sql(frame_of_table(self._session, few, source.schema), chosen)
        read = partial(_read, source.planner, tuple(parts))
        # Also without parts there is a task: an epoch without input needs no other code than the others.
        frame = self._session.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(read, source.schema)
        return select_sql(frame, chosen)

    def few(self, tag: int) -> pa.Table | None:
        if tag not in self._few:
            source, parts = self._inputs[tag - 1]
            found = source.planner.few(parts)
            self._few[tag] = None if found is None else pa.Table.from_batches(found, to_arrow(source.schema))
        return self._few[tag]

    def files(self, tag: int) -> None:
        del tag


def _read(planner: Planner, parts: Sequence[Any], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0):
            yield from planner.read(parts[number.as_py()])


__all__ = ["Planned", "PlannedSlices", "Planner"]
