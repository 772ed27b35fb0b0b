"""Runs, commands and rows kept in memory as text and as tables for notebooks."""

from __future__ import annotations

import datetime as dt
import re
import threading
import xml.etree.ElementTree as ET

import pyarrow as pa
import pytest
from changing import Reader

import penstock as ps
from penstock.arrow.html_tables import html_table, rows_table
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.compile import compile_flow
from penstock.driver.loop import Loop
from penstock.driver.opener import RunOpener
from penstock.driver.run import Run
from penstock.driver.shown import epoch_line, start_line
from penstock.errors import OperatorError
from penstock.protocol.commands import Scale, Snapshot, Tick
from penstock.protocol.rescale import STANDARD
from penstock.testing import Harness
from penstock.testing.engine import LocalEngine
from penstock.types import MAX_TIME, OFFSET, PARTITION

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
EVIL = "<u>&"


def doubled(key, event, state):
    if event.v < 0:
        raise ValueError("negative")
    return (key, 2 * event.v), None


class Running:
    """A run in this process that reads on."""

    def __init__(self, folder, name):
        flow = ps.Flow(EVIL)
        keyed = flow.source("s", Reader(SCHEMA)).key_by("k", name="r" + EVIL)
        keyed.stateful_map(doubled, "k string, v long").sink(ps.memory(name), name="o" + EVIL)
        checkpoint = Checkpoint(str(folder / "c"))
        self.engine, self.offset = LocalEngine(checkpoint, lmdb=False, most=None), 0
        self.give([1, 2, 3])
        compiled = compile_flow(flow.plan(), lambda node, _: node.schema, lambda *_: None)
        loop = Loop(RunOpener(compiled, checkpoint, self.engine, {"r" + EVIL: 1}, STANDARD, lambda _: None))

        def idle():
            threading.Event().wait(0.01)
            if any(r.control.goal for r in loop.last.regions.values()):
                loop.submit(Tick())

        self.engine.idle = idle
        self.run = Run(loop, lambda _: None, bounded=False, drain=False)

    def give(self, values):
        n = len(values)
        columns = {"k": [f"k{v}" for v in values], "v": values, PARTITION: [0] * n}
        columns[OFFSET] = [*range(self.offset, self.offset + n)]
        self.offset += n
        self.engine.pending.setdefault("s", []).append(pa.table(columns))


def test_run_shows_where_it_is_and_how_it_ended(tmp_path):
    run = Running(tmp_path, "shown.run").run
    assert run.scale(workers=2).wait(30)
    assert repr(run).startswith("<Run of flow '<u>&': running; epoch ")
    assert run.state == "running"
    html = run._repr_html_()
    assert "<td>r&lt;u&gt;&amp;</td>" in html
    assert "<td>o&lt;u&gt;&amp;</td>" in html
    assert "Records read" in html
    assert EVIL not in html
    ET.fromstring(f"<all>{html.replace('<br>', '')}</all>")
    assert run.shutdown(drain=True)
    assert repr(run) == (
        f"<Run of flow '<u>&': The flow finished in epoch {run.progress['epoch']}: its input was read to the end; "
        f"epoch {run.progress['epoch']}, 3 rows read, frontier end of input, {run.progress['epoch_ms']:,} ms>"
    )


def test_command_shows_whether_it_waits_is_under_way_done_or_refused(tmp_path):
    running = Running(tmp_path, "shown.command")
    run = running.run
    done = run.scale("r" + EVIL, 3)
    assert done.wait(30)
    assert repr(done).startswith("<scale to 3 workers of region 'r<u>&': done; region r<u>&: ")
    assert EVIL not in done._repr_html_()
    assert done._repr_html_().startswith("<div><b>scale to 3 workers of region")
    assert run.snapshot("a").wait(30)
    first = run.load("a")
    again = run.load("a")
    assert again.wait(30)
    states = {first.state, again.state}
    assert "done" in states
    assert all(s == "done" or "load" in s for s in states)
    running.give([-1])
    with pytest.raises(OperatorError):
        run.await_termination(60)
    assert "failed" in repr(done)  # it raises nothing
    assert "failed" in repr(run)


def test_command_that_nobody_has_heard_yet_waits(tmp_path):
    run = Running(tmp_path, "shown.waits").run
    assert run.snapshot("first").wait(30)
    assert run.shutdown(drain=False)
    asked = run.snapshot("later")
    assert asked.state == "waiting, goes on when the flow is started again"


def test_rows_in_memory_are_a_table_with_the_last_rows_escaped():
    table = pa.table({EVIL: [*range(30)], "t": [EVIL] * 29 + [None]})
    shown = rows_table(table, "memory('x')")
    assert shown.count("<tr>") == 21
    assert "30 rows, the last 20" in shown
    assert EVIL not in shown
    assert "<i>null</i>" in shown
    assert ps.memory("shown.nothing")._repr_html_() == "<div>memory(&#x27;shown.nothing&#x27;): 0 rows</div>"


def test_times_beyond_pythons_and_nested_values_are_shown():
    far = pa.array([MAX_TIME, 0, None], pa.timestamp("us", "UTC"))
    table = pa.table({"t": far, "l": [[1], [], None], "d": [dt.date(2024, 1, 1)] * 3})
    assert rows_table(table, "x").count("<td>") == 9
    assert html_table(["a"], []) == ""
    assert "1,000" in html_table(["a"], [[1000]])
    assert len(html_table(["a"], [["x" * 10_000]])) < 400


KEYED = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])


def keyed(second, v=1, k="a"):
    return {"k": k, "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second), "v": v}


def test_line_of_an_epoch_says_what_happened_and_nothing_if_that_was_nothing():
    flow = ps.Flow("lines")
    rows = flow.source("s", Reader(KEYED), time="at", lateness="1 second")
    counts = rows.key_by("k").window(ps.tumbling("1 minute")).aggregate(n=ps.count())
    counts.sink(ps.memory("shown.lines"), name="counts")
    rows.sink(ps.memory("shown.raw"), name="raw")
    with Harness(flow, workers=2) as harness:

        def line(*commands):
            before = harness.record
            return re.sub(r"[\d,]+ ms", "5 ms", epoch_line(before, harness.epoch(*commands)))

        harness.push("s", [keyed(0), keyed(100, k="b"), keyed(1)])
        assert line() == "epoch 0: 3 rows in, 3 rows out (counts 1, raw 2), 1 record late, frontier 2024-01-01 00:01:39, 5 ms"
        assert line() == ""
        assert line() == ""
        harness.push("s", [keyed(101)])
        assert line() == "epoch 3: 1 row in, 1 row out (raw 1), frontier 2024-01-01 00:01:40, 5 ms"
        said = line(Scale("k", 3))
        assert said.startswith("epoch 4: 0 rows in, 0 rows out, 1 command, frontier")
        assert "; region k: " in said
        assert "to 3 workers" in said
        assert "5 ms, refused: There is no region 'x'" in line(Scale("x", 3))
        harness.settle()
        assert line() == ""
        assert "epoch 8: 0 rows in, 0 rows out, 1 command, frontier" in line(Snapshot("kept"))
        before = harness.record
        assert "2 rows out (counts 2), 1 command, frontier end of input" in epoch_line(before, harness.finish())


@pytest.mark.parametrize(
    ("epoch", "workers", "ui", "line"),
    [
        (-1, {"k": 2, "o": 1}, None, "run 3 on /c begins; regions k (2 workers), o (1 worker)"),
        (4, {}, "http://h:4040", "run 3 on /c goes on after epoch 4; no regions; Spark UI http://h:4040"),
    ],
)
def test_line_of_a_start_says_where_it_goes_on(epoch, workers, ui, line):
    assert start_line("/c", 3, epoch, workers, ui) == line
