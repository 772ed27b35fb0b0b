"""Memory is bounded by the windows, and what is asked of the arena at once may be more than it has."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from penstock.patterns.automaton.build import build
from penstock.patterns.automaton.determine import Determiniser
from penstock.patterns.batch import _Worker as Worker
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.plan import ready
from penstock.patterns.recogniser.recogniser import Batch, Recogniser
from penstock.patterns.recogniser.tables import Tables
from penstock.types import MASK


def recogniser_of(query, **options):
    parsed = parse(query)
    tables = Tables(Determiniser(build(parsed), parsed.strategy))
    return Recogniser(tables, **options), tables


def feed(recogniser, tables, types, bits, window, at=0):
    masks = np.array([bits[t] for t in types], np.uint64)[None]
    when = np.arange(at, at + len(types))
    batch = Batch(tables.letters(masks), when, when - window, np.array([0, len(types)]), np.array([0]))
    return sum(len(block.ends) for block in recogniser.feed(batch))


def test_arena_stays_as_large_as_the_window_needs():
    recogniser, tables = recogniser_of("SELECT * WHERE A ; B ; C", room=1 << 14)
    types = np.random.default_rng(1).integers(0, 9, 400_000)
    bits = [1, 2, 4, 0, 0, 0, 0, 0, 0]
    assert feed(recogniser, tables, types, bits, window=60) > 100_000
    assert recogniser.arena.room == 1 << 14


def test_event_that_needs_more_nodes_than_a_sweep_frees_is_read():
    alternatives = " OR ".join(f"(A AS x{i} ; B{i})" for i in range(60))
    recogniser, tables = recogniser_of(f"SELECT * WHERE ({alternatives})", room=1 << 10)
    assert feed(recogniser, tables, [0, 0, 1], [1, 2], window=10) == 2
    assert recogniser.arena.room > 1 << 10


def told(recogniser, tables, keys=300, epochs=3):
    """Matches and counts of many keys' events, fed epoch by epoch."""
    rng = np.random.default_rng(5)
    bits, found = np.array([1, 2, 4, 0], np.uint64), []
    recogniser.rows(keys)
    for epoch in range(epochs):
        starts = np.append(0, np.cumsum(rng.integers(20, 80, keys)))
        when = np.concatenate([np.sort(rng.integers(100 * epoch, 100 * epoch + 100, n)) for n in np.diff(starts)])
        letters = tables.letters(bits[rng.integers(0, 4, len(when))][None])
        batch = Batch(letters, when, when - 30, starts, np.arange(keys))
        for closings, lows in recogniser.closings(batch):
            found += zip(closings[0].tolist(), recogniser.arena.counted(closings[1], lows)[0][0].tolist(), strict=True)
        needed = recogniser.keep(np.arange(keys), batch.low[starts[1:] - 1])
        found.append(needed.tolist())
    return found


def test_sweeps_of_what_is_new_change_no_match():
    query = "SELECT * WHERE A ; B+ ; C"
    small, large = recogniser_of(query, room=1 << 12), recogniser_of(query, room=1 << 20)
    assert told(*small) == told(*large)
    assert small[0].arena.room < 1 << 16
    assert small[0].arena.count == large[0].arena.count


def test_old_nodes_are_swept_too_before_the_arena_grows():
    recogniser, tables = recogniser_of("SELECT * WHERE A ; B ; C", room=1 << 12)
    letters = tables.letters(np.array([1, 2, 4], np.uint64)[np.random.default_rng(2).integers(0, 3, 60_000)][None])
    when = np.arange(len(letters))
    batch = Batch(letters, when, when - 300, np.array([0, len(letters)]), np.array([0]))
    assert sum(closings.shape[1] for closings, _ in recogniser.closings(batch)) > 10_000
    assert recogniser.arena.room == 1 << 12


@pytest.mark.parametrize("window", ["5 EVENTS", "5 SECONDS"])
def test_keys_that_are_seen_together_are_forgotten_when_nothing_of_theirs_is_open(window):
    query = parse(f"SELECT * WHERE A ; B ; C PARTITION BY [k] WITHIN {window} CONSUME BY ANY")
    pattern = ready(query, ("k", "at"), order=("at",), keys=("k",), scope="end", events_window="key")
    assert pattern.needs_global_order
    (key,), worker, found, held = pattern.key_columns, None, [], []
    for chunk in range(8):
        # Nothing begins for a thousand keys, a run for one. It goes on for the first two of these in the fourth chunk, and ends for one.
        keys, bits = [*range(1_000 * chunk, 1_000 * chunk + 1_001)], [0] * 1_000 + [1]
        if chunk == 4:
            keys, bits = [*keys, 2_000, 1_000, 2_000], [*bits, 2, 2, 4]
        columns = {
            key: pa.array(keys, pa.int64()),
            "at": pa.array(np.arange(len(keys)) + 2_000 * chunk, pa.timestamp("us")),
            f"{MASK}0": pa.array(bits, pa.int64()),
        }
        rows = pa.RecordBatch.from_pydict(columns)
        worker = worker or Worker(pattern, rows.schema)
        found.append([row["k"] for batch in worker.read(rows) for row in batch.to_pylist()])
        assert len(worker.numbers) == len(worker.recogniser.heads)
        held.append(len(worker.numbers))
    assert found == [[], [], [], [], [2_000], [], [], []]
    assert held == [1, 2, 3, 4, 4, 1, 2, 3]  # of the other keys that a match has emptied a chunk later


def test_declaring_a_flow_loads_no_compiler_and_no_client_of_redis():
    code = "import sys, penstock.flow.keyed, penstock.spark.run; assert not {'numba', 'lark', 'redis'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
