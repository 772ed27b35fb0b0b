"""A message that the receiver does not know is an error: it would have been an order, and the epoch would commit without it."""

from __future__ import annotations

import dataclasses
import json

import pytest

import penstock as ps
from penstock.driver.inspect import view_region
from penstock.errors import PenstockError
from penstock.protocol.messages import Answer, Barrier, BinSizes, Collected, Frontier
from penstock.protocol.reports import StateMove, WorkerReport, decode_report, encode_report
from penstock.state.worker import MemoryState
from penstock.testing import Harness
from penstock.types import MAX_TIME, MIN_TIME
from penstock.worker.task import run_region_task


@dataclasses.dataclass(frozen=True)
class Pause:
    """No message of this version."""

    epoch: int


ORDERS = (Frontier(MIN_TIME, MAX_TIME), Pause(3), Barrier(3))
WHY = r"^Worker 1 was given Pause\(epoch=3\), which is no message that this version knows\.$"


def counting():
    flow = ps.Flow("unknown")
    flow.source("a", ps.files("none", "k string, v long")).key_by("k").aggregate(n=ps.count()).sink(ps.memory("unknown"))
    return flow


def test_worker_when_it_is_given_a_message_it_does_not_know_refuses_it():
    with Harness(counting(), workers=2) as harness:
        harness.epoch()
        spec = view_region(harness.checkpoint, "k").spec
        with pytest.raises(PenstockError, match=WHY):
            run_region_task(spec, 1, 3, ORDERS, [], MemoryState())


def test_report_when_it_goes_through_json_comes_back_the_same():
    sized, taken = BinSizes(((3, 100), (4, 7)), 5), Collected(((1, 2),), ((3, 0, 4),), ((-7, 1),), ((8, 1, 900),), 5, 800)
    for answer in (Answer(), Answer(sized, taken, 12, ((-5, 64),))):
        report = WorkerReport(1, 3, 10, 9, {"f": 1}, "key 1", 2, 4, (StateMove(-1, {"path": "f"}),), answer)
        assert decode_report(json.loads(json.dumps(encode_report(report)))) == report


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: {**raw, "mood": "good"}, r"unexpected keyword argument 'mood'\.$"),
        (lambda raw: {n: v for n, v in raw.items() if n != "rows_in"}, r"missing 1 required positional argument: 'rows_in'\.$"),
        (lambda raw: {**raw, "answer": {**raw["answer"], "split": []}}, r"unexpected keyword argument 'split'\.$"),
        (lambda raw: {**raw, "moves": [{"to": 1, "files": []}]}, r"^A worker's report is unknown to this version: "),
    ],
)
def test_driver_when_a_worker_reports_what_it_does_not_know_refuses_the_epoch(monkeypatch, change, why):
    with Harness(counting(), workers=2) as harness:
        harness.push("a", [{"k": "x", "v": 1}])
        before = harness.epoch()
        monkeypatch.setattr("penstock.worker.run.encode_report", lambda report: change(encode_report(report)))
        harness.push("a", [{"k": "x", "v": 2}])
        with pytest.raises(PenstockError, match=why):
            harness.epoch()
        assert harness.record == before
        monkeypatch.undo()
        assert harness.resume().epoch == before.epoch + 1
