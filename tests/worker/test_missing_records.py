"""Steps whose records hold together in chains, given a log without its beginning: what they call sure is what they give of the whole log."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.driver.compile import compile_flow
from penstock.operators.base import Operator
from penstock.operators.deduplicate import Deduplicate
from penstock.operators.session import SessionStep
from penstock.protocol.messages import Barrier, Frontier, Missing
from penstock.sources.base import Source
from penstock.state.worker import MemoryState
from penstock.testing.frames import as_port, sent
from penstock.types import MIN_TIME, OFFSET, PART, SUB, TIME
from penstock.worker.task import run_region_task

S = 1_000_000
AT = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Record = tuple[int, str]
"""Second and key."""


class Records(Source):
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])


def step_of(kind: str, link: int) -> Any:
    """A region with one step whose links have so many seconds."""
    flow = ps.Flow("f")
    keyed = flow.source("in", Records(), time="at").key_by("k", name="r")
    found = (
        keyed.window(ps.session(f"{link} seconds")).aggregate(n=ps.count())
        if kind == "session"
        else keyed.deduplicate(within=f"{link} seconds")
    )
    found.sink(ps.memory("missing records"), name="out")
    return compile_flow(flow.plan(), lambda node, _: node.schema, lambda *_: None).regions["r"].spec


def given(spec: Any, epochs: list[tuple[list[Record], int]], before: int, needed: int, stop: int) -> tuple[Counter[Any], bool]:
    """Rows that matter, and whether the step was sure until the end of epoch `stop`; the rest of the epochs is not told of anything."""
    state, reached, rows, sure = MemoryState(), MIN_TIME, Counter[Any](), True
    for epoch, (records, frontier) in enumerate(epochs):
        table = pa.table(
            {"k": [k for _, k in records], "at": [AT + dt.timedelta(seconds=s) for s, _ in records]}, schema=Records.schema
        )
        hidden = {
            TIME: [s * S for s, _ in records],
            PART: [0] * len(records),
            OFFSET: [*range(len(records))],
            SUB: [0] * len(records),
        }
        for name, values in hidden.items():
            table = table.append_column(name, pa.array(values, pa.int64()))
        port, _ = as_port(spec.ports[0], 0, spec.keys, table, 1)
        told = (Missing(0, before, needed, epoch == stop),) if before > MIN_TIME and epoch <= stop else ()
        messages = [Frontier(reached, frontier * S, told), Barrier(epoch)]
        batches, report, _ = run_region_task(spec, 0, epoch, messages, sent(port, spec) if records else [], state)
        changes, reached, sure = state.changes(), frontier * S, sure and not report.unsure
        state.discard()
        state.apply(changes)
        for row in (row for batch in batches for row in batch.to_pylist()):
            time = (row["window_end"] if "window_end" in row else row["at"] + dt.timedelta(microseconds=1)) - AT
            if time / dt.timedelta(microseconds=1) > needed:
                rows[row["k"], *(v for k, v in row.items() if k in ("n", "at", "window_start", "window_end"))] += 1
    return rows, sure


def case(seed: int) -> bool:
    """Leave the first records out; gives whether the step was sure."""
    dice = random.Random(seed)
    kind, link = dice.choice(["session", "deduplicate"]), dice.randrange(1, 6)
    spec, time, log = step_of(kind, link), 0, []
    pauses, keys = dice.choice([[0, 1, 1, 2], [1, 2, 3], [0, 1, 1, 9], [2, 5, 11], [1, 1, 1, 14]]), dice.choice(["a", "ab"])
    for _ in range(50):
        time += dice.choice(pauses)
        log.append((max(0, time - dice.choice([0, 0, 1, 3])), dice.choice(keys)))
    first = dice.randrange(1, 20)
    before = max(s for s, _ in log[:first]) + 1
    needed = before + link * dice.choice([1, 2, 4])
    cuts = sorted({first, *(dice.randrange(first, 50) for _ in range(5)), 50})
    spans = list(zip([0, *cuts], cuts, strict=False))
    frontiers = [max(s for s, _ in log[:b]) - 3 for _, b in spans]
    stop = next((i for i, f in enumerate(frontiers) if f >= needed), None)
    if stop is None:
        return False
    epochs = [(log[a:b], f) for (a, b), f in zip(spans, frontiers, strict=True)]
    whole, _ = given(spec, epochs, MIN_TIME, needed * S, stop)
    part, sure = given(spec, [([], MIN_TIME // S), *epochs[1:]], before * S, needed * S, stop)
    assert not sure or part == whole, f"seed {seed}, {kind} of {link} s: missing {whole - part}, too many {part - whole}"
    return sure


@pytest.mark.slow
def test_rows_that_matter_when_the_step_is_sure_are_those_of_the_whole_log():
    sure = sum(map(case, range(150)))
    assert 30 < sure < 120


@pytest.mark.soak
def test_rows_that_matter_when_the_step_is_sure_are_those_of_the_whole_log_in_ten_thousand_cases():
    assert sum(map(case, range(10_000)))


# ------------------------------------------------------------------------------------------------------------- broken variants


def nothing_is_told_of_results(patch: pytest.MonkeyPatch) -> None:
    for kind in (SessionStep, Deduplicate):
        started = kind.start

        def start(self: Operator, context: Any, started: Any = started) -> None:
            context.needed = 1 << 62
            started(self, context)

        patch.setattr(kind, "start", start)


def sessions_are_sure_of_their_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionStep, "sure", lambda *_: True)


def deduplication_is_sure_of_its_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deduplicate, "sure", lambda *_: True)


def doubt_is_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.operators.deduplicate._DOUBT", b"")


def doubt_ends_with_what_was_kept(patch: pytest.MonkeyPatch) -> None:
    """It is forgotten as soon as the record that was kept is, and not so much later as another one could have been kept."""
    put = Deduplicate.on_data

    def shorter(self: Deduplicate, rows: Any, state: Any) -> Any:
        kept = state.put
        state.put = lambda names, values, timers: kept(
            names,
            values,
            timers if timers is None else [min(t, int(x)) for t, x in zip(timers, ends(values, self.within_us), strict=True)],
        )
        try:
            return put(self, rows, state)
        finally:
            del state.put

    patch.setattr(Deduplicate, "on_data", shorter)


def ends(values: list[bytes], within_us: int | None) -> list[int]:
    return [int.from_bytes(v[:8], "big") - (1 << 63) + (within_us or 0) for v in values]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [
        nothing_is_told_of_results,
        sessions_are_sure_of_their_state,
        deduplication_is_sure_of_its_state,
        doubt_is_not_remembered,
        doubt_ends_with_what_was_kept,
    ],
    ids=lambda m: m.__name__,
)
def test_search_when_a_step_is_sure_too_soon_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="missing"):
        sum(map(case, range(1500)))
