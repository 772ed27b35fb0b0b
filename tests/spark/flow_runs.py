"""Run flows over Spark to their end, and the same flow in the harness, for tests that compare."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock.testing import Harness

_NUMBERS = itertools.count()
BEGIN = dt.datetime(2024, 3, 10, 6, 59, 50, tzinfo=dt.UTC)  # clocks change in New York ten seconds later


def moment(seconds):
    return BEGIN + dt.timedelta(seconds=seconds)


def stamp(path, order):
    """Give a file its place in the order of files."""
    os.utime(path, (1_700_000_000 + order, 1_700_000_000 + order))


def write_parquet(folder, rows, schema, order):
    """A file whose records come after those of all lower `order`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, f"f{order:03d}.parquet")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    stamp(path, order)


def write_text(folder, text, order, ending):
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, f"f{order:03d}.{ending}")
    path.write_text(text, encoding="utf-8")
    stamp(path, order)


class Sinks:
    """Memory sinks by output name."""

    def __init__(self):
        self.prefix = f"flows{next(_NUMBERS)}"
        self.made = {}

    def __call__(self, name):
        self.made[name] = ps.memory(f"{self.prefix}.{name}")
        return self.made[name]

    def content(self):
        return {name: multiset(sink.rows()) for name, sink in self.made.items()}


def multiset(rows):
    """Rows without order; floats as far as sums of any order agree."""
    return Counter(tuple((n, _plain(v)) for n, v in row.items()) for row in rows)


def _plain(value):
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.9g}") + 0.0
    if isinstance(value, list):
        return tuple(_plain(v) for v in value)
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value


def over_spark(spark, checkpoint, declare, **options):
    """Run `declare(sink) -> Flow` to its end and give what its sinks hold."""
    sinks = Sinks()
    run = declare(sinks).start(spark, checkpoint=str(checkpoint), **{"trigger": "available_now", **options})
    assert run.await_termination(600)
    return sinks.content()


def in_harness(declare, records, **options):
    """The same without Spark; `records`: source → rows in their order, or partition → rows."""
    sinks = Sinks()
    with Harness(declare(sinks), **options) as harness:
        for source, rows in records.items():
            for partition, part in rows.items() if isinstance(rows, dict) else [(0, rows)]:
                harness.push(source, part, partition)
        harness.epoch()
        harness.finish()
        return sinks.content()


def difference(found, wanted):
    """By output, what is missing and what is too much; empty if nothing."""
    assert found.keys() == wanted.keys()
    return {n: (wanted[n] - found[n], found[n] - wanted[n]) for n in found if found[n] != wanted[n]}
