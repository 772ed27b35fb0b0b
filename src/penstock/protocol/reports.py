"""A worker's report of an epoch, in its delta file, and its JSON.

Read next: `penstock.driver.transfer`, which turns reports into the next epoch's start.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from penstock.errors import PenstockError
from penstock.protocol.messages import Answer, BinSizes, Collected
from penstock.routing.loads import HotKey


@dataclass(frozen=True, slots=True)
class StateMove:
    """A file (plain values) of state that a worker has given up, and who gets it; −1: deletions, which stay with the giver."""

    to: int
    file: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's report to the driver about its epoch.

    Attributes:
        worker: The worker.
        epoch: The epoch.
        rows_in: Rows (or partial aggregates) received.
        rows_out: Rows emitted, of all outputs.
        skipped: Per operator, the number of records left out because the user's function raised.
        first_skipped: One of them, as text.
        held_rows: Rows of keys on hold that were queued.
        rows: Changes of state in the delta file.
        moves: State given up.
        answer: To the controller.
        hot: Its hottest keys, if the region's strategy asks for them.
        cpu_us: CPU time of its thread (µs).
        unsure: A step whose results hang on records that a replay lacks (`penstock.protocol.messages.Missing`); empty: none.
    """

    worker: int
    epoch: int
    rows_in: int
    rows_out: int
    skipped: dict[str, int]
    first_skipped: str
    held_rows: int
    rows: int
    moves: tuple[StateMove, ...]
    answer: Answer
    hot: tuple[HotKey, ...] = ()
    cpu_us: int = 0
    unsure: str = ""


def encode_report(report: WorkerReport) -> dict[str, Any]:
    """A report as plain values for JSON; `decode_report` reads it."""
    answer = report.answer
    asked = {"sized": answer.sized and _plain(answer.sized), "taken": answer.taken and _plain(answer.taken)}
    return {**_plain(report), "moves": [_plain(m) for m in report.moves], "answer": {**_plain(answer), **asked}}


def decode_report(raw: Any) -> WorkerReport:
    """A report from JSON.

    Raises:
        PenstockError: A field is missing, or unknown to this version. Nothing was changed.
    """
    try:
        answer = {n: _tuples(v) for n, v in raw["answer"].items()}
        for name, cls in (("sized", BinSizes), ("taken", Collected)):
            if answer[name] is not None:
                answer[name] = cls(**{n: _tuples(v) for n, v in answer[name].items()})
        moves = tuple(StateMove(**m) for m in raw["moves"])
        hot = tuple(HotKey(*k) for k in raw.get("hot", ()))  # which the version before did not report
        return WorkerReport(**{**raw, "answer": Answer(**answer), "moves": moves, "hot": hot})
    except (KeyError, TypeError, AttributeError) as wrong:
        raise PenstockError(f"A worker's report is unknown to this version: {wrong}.") from wrong


def _plain(value: Any) -> dict[str, Any]:
    """Field by field; not `asdict`, which copies thousands of pairs one by one."""
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _tuples(value: Any) -> Any:
    return tuple(map(tuple, value)) if isinstance(value, list) else value
