"""`penstock.watch`: a table on a terminal, nothing elsewhere, the flow's error in both."""

from __future__ import annotations

import io
import re

import pyarrow as pa
import pytest
from rich.console import Console

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.compile import compile_flow
from penstock.driver.loop import Loop
from penstock.driver.opener import RunOpener
from penstock.driver.run import Run
from penstock.errors import OperatorError
from penstock.protocol.rescale import STANDARD
from penstock.sources.base import Source
from penstock.testing.engine import LocalEngine
from penstock.types import OFFSET, PARTITION

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
BOLD = "[bold]k[/bold]"


class Given(Source):
    """Records that are pushed."""

    schema = SCHEMA


class Terminal(io.StringIO):
    """What a terminal is given."""

    def isatty(self):
        return True


def fails(key, event, state):
    if event.v < 0:
        raise ValueError("negative")
    return (key, event.v), None


def started(folder, values):
    flow = ps.Flow("watched")
    rows = flow.source("s", Given()).key_by("k", name=BOLD.replace("/", ""))
    rows.stateful_map(fails, "k string, v long").sink(ps.memory(f"watched.{folder.name}"), name="out")
    checkpoint = Checkpoint(str(folder / "c"))
    engine = LocalEngine(checkpoint, lmdb=False, most=None)
    n = len(values)
    columns = {"k": ["a"] * n, "v": values, PARTITION: [0] * n, OFFSET: [*range(n)]}
    engine.pending["s"] = [pa.table(columns)]
    compiled = compile_flow(flow.plan(), lambda node, _: node.schema, lambda *_: None)
    loop = Loop(RunOpener(compiled, checkpoint, engine, {r.name: 1 for r in flow.plan().regions}, STANDARD, lambda _: None))
    return Run(loop, lambda _: None, bounded=True, drain=True)


def shown(monkeypatch, made, run, every=0.01):
    """What `watch` writes to stderr, without the codes that move the cursor."""
    monkeypatch.setattr("sys.stderr", made)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    ps.watch(run, every=every)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", made.getvalue())


def test_watch_shows_the_last_epoch_on_a_terminal(tmp_path, monkeypatch):
    text = shown(monkeypatch, Terminal(), started(tmp_path, [1, 2, 3]))
    assert "flow watched: The flow finished in epoch" in text
    assert "end of input" in text
    assert "3 rows so far" in text
    assert re.search(r"\[bold\]k\[bold\] +1 ", text)  # a name is no markup
    assert "region [bold]k[bold]: KeyGrouping()" in text


def test_watch_shows_nothing_where_there_is_no_terminal(tmp_path, monkeypatch):
    assert shown(monkeypatch, io.StringIO(), started(tmp_path, [1])) == ""


@pytest.mark.parametrize("made", [Terminal, io.StringIO])
def test_watch_raises_what_the_flow_failed_with(made, tmp_path, monkeypatch):
    with pytest.raises(OperatorError, match="negative"):
        shown(monkeypatch, made(), started(tmp_path, [-1]))


def test_terminal_of_the_tests_is_one():
    assert Console(file=Terminal()).is_terminal
