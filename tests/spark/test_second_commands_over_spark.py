"""A second command during every first over real Spark: what the sink holds in the end is every record, once."""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import replace

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.errors import CheckpointError, DeclarationError, FinishedError
from penstock.protocol.commands import Load

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
KINDS = ("scale", "move", "snapshot", "load", "drain", "stop")
PAIRS = [p for p in itertools.product(KINDS, KINDS) if p[0] != "snapshot" or p[1] == "load"]
FILES, PER_FILE, STARTS = 6, 5, 12


def counted(key, event, state):
    n = (state or 0) + 1
    return (key, n, event.v), n


class Someone:
    """Gives two commands at moments drawn by lot, from a thread of their own, whichever run there is."""

    def __init__(self, seed, pair):
        self.dice = random.Random(seed)
        self.plan = list(pair)
        self.at = self.dice.randrange(FILES - 1)
        self.gap = self.dice.choice([0, 0, 1, 2])
        self.run, self.asked, self.snapshots = None, [], 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._live, daemon=True)

    def _live(self):
        while self.plan and not self.over.wait(0.01):
            run = self.run
            if run is not None and run.active and run.progress["epoch"] >= self.at:
                self._give(run, self.plan.pop(0))
                self.at = run.progress["epoch"] + self.gap

    def _give(self, run, kind):
        try:
            if kind == "scale":
                self.asked.append(run.scale("k", self.dice.randint(1, 4)))
            elif kind == "move":
                self.asked.append(run.move("k", ["k0"], self.dice.choice([0, 1, None])))
            elif kind == "snapshot":
                self.asked.append(run.snapshot(f"more{self.snapshots}"))
                self.snapshots += 1
            elif kind == "load":
                self.asked.append(run.load("early"))
            else:
                run.shutdown(drain=kind == "drain", timeout=0)
        except (CheckpointError, DeclarationError, FinishedError):
            return


def check(spark, tmp_path, seed, pair):
    folder = tmp_path / f"{seed}"
    for i in range(FILES):
        rows = [{"k": f"k{j % 3}", "at": fr.moment(i), "v": PER_FILE * i + j} for j in range(PER_FILE)]
        fr.write_parquet(folder / "in", rows, SCHEMA, i)
    out = ps.memory(f"second.{folder}")
    flow = ps.Flow("second")
    source = ps.files(str(folder / "in"), "k string, at timestamp, v long", max_files_per_epoch=1)
    flow.source("events", source, time="at").key_by("k").stateful_map(counted, "k string, n long, v long").sink(out, name="out")
    someone = Someone(seed, pair)
    options = {"checkpoint": str(folder / "c"), "workers": 2}
    # A snapshot to go back to, taken before anything else.
    trigger = "0 seconds"
    run = flow.start(spark, trigger=trigger, **options)
    assert run.snapshot("early").wait(120)
    someone.run = run
    someone.thread.start()
    for _ in range(STARTS):
        deadline = time.monotonic() + 300
        while run.active:
            assert time.monotonic() < deadline, (seed, pair)
            if trigger != "available_now" and not someone.plan and run.progress["sources"]["events"]["files"] == FILES:
                run.shutdown(drain=True, timeout=0)
            run.await_termination(0.2)
        assert run.outcome
        if run.progress["finished"]:
            break
        trigger = someone.dice.choice(["available_now", "0 seconds"])
        someone.run = run = flow.start(
            spark, trigger=trigger, drain=someone.dice.random() < 0.7, checkpoint=options["checkpoint"]
        )
    someone.over.set()
    someone.thread.join()
    assert run.progress["finished"], (seed, pair)
    assert sorted(r["v"] for r in out.rows()) == [*range(FILES * PER_FILE)], (seed, pair)
    assert not run.progress["sources"]["events"]["late"]
    for given in someone.asked:
        asked = replace(given, latest=Checkpoint(options["checkpoint"]).last)  # a handle knows what its own run has seen
        if not asked.replaced and asked.name not in run.progress["refused"]:
            assert asked.done or isinstance(asked.command, Load), (seed, pair, asked.command)


# Each kind comes first and second several times; the others in the soak, and all of them at hundreds of moments in process.
SOME = [n for n, pair in enumerate(PAIRS) if sum(map(KINDS.index, pair)) % 2 == 0]
OTHERS = [n for n in range(len(PAIRS)) if n not in SOME]


@pytest.mark.parametrize(
    "numbers",
    [SOME[::2], *(pytest.param(numbers, marks=pytest.mark.soak) for numbers in (SOME[1::2], OTHERS))],
    ids=["some", "more", "others"],
)
def test_rows_when_a_second_command_comes_during_a_first_over_spark_are_all_there_once(spark, tmp_path, monkeypatch, numbers):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    for number in numbers:
        check(spark, tmp_path, number, PAIRS[number])
