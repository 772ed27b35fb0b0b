"""A flow on one checkpoint, of which every run may have another declaration."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import dataclass

import pyarrow as pa

import penstock as ps
from penstock.protocol.rescale import STANDARD
from penstock.testing import Harness

COLUMNS = "k string, x int, v long, u long, id int, at timestamp"
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("x", pa.int32()),
        ("v", pa.int64()),
        ("u", pa.int64()),
        ("id", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NUMBERS = itertools.count()


@dataclass
class Reader:
    schema: pa.Schema = SCHEMA


def row(x: int, second: float | None = None, **more) -> dict:
    at = BEGIN + dt.timedelta(seconds=x if second is None else second)
    return {"k": "a", "x": x, "v": x, "u": 10 * x, "id": x, "at": at} | more


class Changing:
    """One checkpoint and one table; each part runs another declaration of the flow."""

    def __init__(self, folder, lateness="10 seconds", time="at"):
        self.folder, self.lateness, self.time = str(folder / "checkpoint"), lateness, time
        self.table, self.tables = f"changing {next(NUMBERS)}", {}

    def harness(
        self, declare, *, source="s", schema=SCHEMA, forget=(), name=None, limits=STANDARD, on_step=lambda _: None, **options
    ):
        flow = ps.Flow("changing")
        options = {"time": self.time, "lateness": self.lateness} | options
        stream = flow.source(source, Reader(schema), **options)
        made = declare(stream)
        for stream in made if isinstance(made, tuple) else (made,):
            table = f"{self.table} {stream.schema}"  # a memory sink keeps its columns
            self.tables.setdefault(table)
            stream.sink(ps.memory(table), name=name)
        return Harness(flow, checkpoint=self.folder, workers=2, forget=forget, limits=limits, on_step=on_step)

    def run(self, declare, *epochs, drain=False, source="s", **options):
        with self.harness(declare, source=source, **options) as harness:
            for rows in epochs:
                harness.push(source, rows)
                harness.epoch()
            if drain:
                harness.finish()
            return harness.notices

    def rows(self):
        return [r for table in self.tables for r in ps.memory(table).rows()]


def count(key, event, state):
    n = (0 if state is None else state[0]) + 1
    return (event.x, n), (n,)


def counted(stream, **options):
    return stream.stateful_map(count, "x int, n long", "n long", **options)


class Last(ps.Aggregate):
    """In order, so that an aggregate with it waits for the frontier."""

    type = "bigint"

    def zero(self):
        return None

    def add(self, state, value):
        return value

    def merge(self, a, b):
        return a if b is None else b

    def finish(self, state):
        return state
