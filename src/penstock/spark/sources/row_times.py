"""Event times of rows of Parquet files, read by the tasks that have the rows, which also leave out late ones.

Where footers cannot show that no record is late, every time must be looked at. If the driver does that, Spark's scan reads the same column
once more and hands it over value by value. Here the scan reads neither: a task gets rows with their offsets, reads its file's column of
times, adds them to the rows and judges the file. What was seen before the file, the footers say.

Read next: `penstock.spark.sources.file_times`, `penstock.progress.lateness`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import AccumulatorParam, SparkContext

from penstock.arrow.columns import UTC
from penstock.driver.compile import CompiledFlow, CompiledRegion
from penstock.flow import plan as p
from penstock.progress.lateness import Base
from penstock.rows.keys import Ints
from penstock.spark.sources.file_times import FileColumn, JudgedFile
from penstock.spark.sources.readers import reader_of
from penstock.types import ROW_BITS, TIME

Mask = NDArray[np.bool_]
Counts = dict[tuple[str, Any], Any]
"""Late rows by (what they are counted under, number of a file); split stages count likewise (`penstock.spark.dividing`)."""
_IN_FILE: Final = (1 << ROW_BITS) - 1
_counts: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()


class _Counted(AccumulatorParam[Counts]):
    """What tasks have counted; a task that ran twice has counted the same."""

    def zero(self, value: Counts) -> Counts:  # noqa: ARG002  (Spark's signature)
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # noqa: N802  (Spark's name)
        value1.update(value2)
        return value1


def counts_of(context: SparkContext) -> Any:
    """What tasks of this application have counted (an accumulator of `Counts`)."""
    if context not in _counts:
        _counts[context] = context.accumulator({}, _Counted())
    return _counts[context]


def sources_alone(flow: CompiledFlow) -> dict[str, CompiledRegion]:
    """Sources that may leave their event times to tasks, and the region of each.

    They are of Parquet files, go to one region and nowhere else, through no more than conditions and projections, and their times are in a column
    of its rows. Who wants late or malformed records reads the source as well, so these are found before.
    """
    found = {}
    for region in flow.regions.values():
        spec, fed = region.spec, region.region.inputs[region.feeds[0]]
        sources = p.upstream_of(p.SourceNode, fed)
        plain = p.by_sql(fed) and all(flow.consumers.get(id(node), 0) <= 1 for node in p.upstream(fed))
        if len(spec.ports) != 1 or len(sources) != 1 or not plain:
            continue
        timed_by = dict(spec.ports[0].known).get(TIME)
        leaves = reader_of(sources[0]).leaves_times(sources[0])
        if leaves and isinstance(timed_by, str) and timed_by in spec.ports[0].own.names and spec.ports[0].partial_of is None:
            found[sources[0].name] = region
    return found


@dataclass(frozen=True)
class RowTimes:
    """Adds the event times to rows that come without them, and leaves out late ones.

    Attributes:
        files: By number, the files, and what was seen before each.
        lateness_us: The lateness bound.
        name: What the late rows are counted under.
        counts: Where (an accumulator).
        offset: Place of the column of offsets, in the rows as they come, of which the lower `shift` bits are others'.
        shift: See there.
        column: Place of the column of times, once it is there.
    """

    files: Mapping[int, tuple[FileColumn, Base]]
    lateness_us: int
    name: str
    counts: Any
    offset: int
    shift: int
    column: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows with times.

        Args:
            batches: Rows of one task; those of a file come in order.

        Raises:
            RecordError: A file's times cannot be read any more.
        """
        judged: dict[int, JudgedFile] = {}
        for batch in batches:
            offsets: Ints = batch.column(self.offset).to_numpy() >> self.shift
            numbers = offsets >> ROW_BITS
            cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            for begin, end in pairwise(cuts):
                if begin < end:
                    number = int(numbers[begin])
                    if number not in judged:
                        judged[number] = JudgedFile(*self.files[number], self.lateness_us)
                    times, late = judged[number].of(offsets[begin:end] & _IN_FILE)
                    columns = list(batch.slice(begin, end - begin).columns)
                    columns.insert(self.column, pa.array(times).view(UTC))
                    rows = pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])
                    yield rows if late is None else rows.filter(pa.array(~late))
        for number, file in judged.items():
            self.counts.add({(self.name, number): file.finish()})


__all__ = ["RowTimes", "counts_of", "sources_alone"]
