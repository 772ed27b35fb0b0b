"""A sink that penstock does not know: it wants each row's position, and has rows staged where they are, or is given them in the driver."""

from __future__ import annotations

import datetime as dt
import pickle
import random
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import DeclarationError
from penstock.testing import Harness
from penstock.types import ORDER

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Positions:
    """Keeps rows with their positions, given in the driver."""

    durable = False
    wants_positions = True

    def __init__(self):
        self.rows, self.schema, self.declared = Counter(), None, None

    def validate(self, schema, *, updates, key):
        self.declared = schema

    def open(self, claim, schema):
        self.schema = schema

    def held(self, output):
        return None

    def write(self, batches, mark):
        found = [row for batch in batches for row in batch.select(self.schema.names).to_pylist()]
        self.rows.update(tuple(row.values()) for row in found)
        return len(found)

    def close(self):
        pass


@dataclass
class Stager:
    """What the tasks are sent."""

    names: list[str]

    def __call__(self, batches, attempt):
        for batch in batches:
            yield pickle.dumps(batch.select(self.names).to_pylist())


class StagedPositions(Positions):
    """The same of a sink that stages."""

    def stager(self, mark):
        return Stager(self.schema.names)

    def commit(self, tokens, mark):
        found = [row for token in tokens for row in pickle.loads(token)]
        self.rows.update(tuple(row.values()) for row in found)
        return len(found)

    def write(self, batches, mark):
        assert not list(batches)
        return 0


def count(key, event, state):
    n = (state or 0) + 1
    return [(key, n, event.v)] * (1 + event.v % 2), n


def flow_of(made):
    """Outputs of all kinds of steps, each with a sink of its own; `made` gets them by name."""
    flow = ps.Flow("positions")
    events = flow.source("events", ps.files("none", "k string, at timestamp, v long"), time="at", lateness="2 seconds")
    by_key = events.key_by("k")
    counted = by_key.stateful_map(count, "k string, n long, v long")
    outputs = {
        "source": events,
        "where": events.where("v % 3 = 0").select("v"),
        "late": events.late,
        "input": by_key,
        "counted": counted,
        "after": counted.local().with_columns(w="v + 1"),
        "windows": by_key.window(ps.sliding("4 seconds", "2 seconds")).aggregate(n=ps.count()),
        "twice": counted.key_by("n", name="second").stateful_map(count, "k long, n long, v long"),
    }
    for name, stream in outputs.items():
        made[name] = (StagedPositions if name in ("input", "windows", "where") else Positions)()
        stream.sink(made[name], name=name)
    return flow


def records(seed, n=60):
    dice, now, out = random.Random(seed), 0, []
    for v in range(n):
        now += dice.choice([0, 0, 1])
        at = BEGIN + dt.timedelta(seconds=now - dice.choice([0, 0, 1, 2, 5]))
        out.append({"k": dice.choice(["a", "b", None]), "at": at, "v": v})
    return out


def run(seed, *, epochs, workers, scale=()):
    """What each sink holds after the records of two partitions, in so many epochs."""
    made, dice = {}, random.Random(seed)
    rows = {p: records(p) for p in (0, 1)}
    cuts = {p: sorted(dice.choices(range(len(rows[p]) + 1), k=epochs - 1)) for p in rows}
    with Harness(flow_of(made), workers=workers) as harness:
        for epoch in range(epochs):
            for p, whole in rows.items():
                begin, end = ([0, *cuts[p]][epoch], [*cuts[p], len(whole)][epoch])
                harness.push("events", whole[begin:end], partition=p)
            harness.epoch(*([{"command": "scale", "workers": scale[epoch]}] if epoch < len(scale) else []))
        harness.finish()
    return made


@pytest.fixture(scope="module")
def calm():
    return run(0, epochs=1, workers=1)


def test_sink_that_wants_positions_gets_them_in_its_schemas_and_rows(calm):
    for name, sink in calm.items():
        assert sink.rows, name
        for schema in (sink.declared, sink.schema):
            assert schema.names[-4:] == [*ORDER], name
            assert [schema.field(n).type for n in ORDER] == [pa.int64()] * 4, name
        assert all(None not in row[-4:] for row in sink.rows), name
        repeated = Counter(row[-4:] for row in sink.rows.elements())
        assert set(repeated.values()) == {1}, name
    sub = Counter(row[-1] for row in calm["counted"].rows.elements())
    assert len(sub) == 2, "a record of an odd number gives two rows, which are told apart"


@pytest.mark.parametrize("seed", range(6))
def test_positions_of_rows_are_the_same_whatever_the_epochs_workers_and_rescales(calm, seed):
    dice = random.Random(seed)
    scale = [dice.randint(1, 5) for _ in range(dice.randint(0, 3))]
    found = run(seed, epochs=dice.randint(2, 9), workers=dice.randint(1, 4), scale=scale)
    for name, sink in calm.items():
        assert found[name].rows == sink.rows, name


def test_position_of_a_record_names_its_partition_and_offset(calm):
    found = [(row[:3], row[-4:]) for row in calm["source"].rows]
    parts = sorted({part for _, (_, part, _, _) in found})
    assert len(parts) == 2
    for (k, at, v), (time, part, offset, sub) in found:
        assert (offset, sub) == (v, 0)  # v counts the records of a partition
        assert time == (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
        assert {"k": k, "at": at, "v": v} == records(parts.index(part))[v]


def test_sink_that_wants_positions_is_refused_where_records_are_text():
    flow = ps.Flow("text")
    with pytest.raises(
        DeclarationError, match=r"wants positions, which records that were left out have as text only; give them"
    ):
        flow.source("events", ps.files("none", "k string, at timestamp, v long"), time="at", on_error=Positions())
