"""`penstock run --recover recompute --replay-output …`, typed by a user: what the outputs hold then, and what is said; the run itself is in this process."""

from __future__ import annotations

import shutil
import sqlite3
from functools import partialmethod

import pytest

from penstock import cli
from penstock.cli import commands
from penstock.cli.loading import load_flow
from penstock.flow.flow import Flow
from penstock.testing import Harness

ALL, LOST = 60, 40
"""So many records there are, and so many were read when the checkpoint was lost."""
APP = """
from pathlib import Path

import pyarrow as pa

import penstock as ps
from penstock.sources.base import Source

HERE = Path(__file__).parent


class Numbers(Source):
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us")), ("v", pa.int64())])

    def records(self, after):
        first, there = after.get("0", -1) + 1, int((HERE / "there").read_text())
        rows = [{"k": "ab"[v % 2], "at": 1_000_000 * v, "v": v} for v in range(first, there)][:10]
        return pa.Table.from_pylist(rows, schema=self.schema)


def show(table, epoch):
    with (HERE / "screen").open("a") as file:
        file.writelines(f"{v}\\n" for v in table.column("v").to_pylist())


def flow():
    url = f"sqlite:///{HERE}/out.db"
    flow = ps.Flow("shown")
    events = flow.source("events", Numbers(), time="at", lateness="2 seconds", partitions=(0,))
    counts = events.key_by("k").window(ps.tumbling("10 seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
    counts.sink(ps.sql(url, "windows"), name="windows")
    events.where("v % 3 = 0").sink(ps.sql(url, "some"), name="some")
    events.sink(ps.foreach_epoch(show), name="screen")
    return flow
"""


class Started:
    """A run in this process of what the command would start over Spark."""

    def __init__(self, flow, spark, *, checkpoint, group, trigger, drain, workers, **options):
        del spark, group, trigger
        harness = Harness(flow, checkpoint=checkpoint, workers=workers or 2, **options)
        self.last_end, self.changes = harness.last_end, harness.notices
        before = None
        while before != (before := harness.epoch().sources["events"].rows):
            pass
        if drain:
            harness.finish()
        self.outcome = f"{harness.record.regions['k'].workers} workers, finished: {harness.record.finished}."
        harness.close()

    def await_termination(self, timeout=None):
        return True


class Typing:
    """A folder with a flow whose checkpoint is lost, in which commands are typed."""

    def __init__(self, folder, capsys):
        self.folder, self._capsys = folder, capsys

    def said(self, *words, checkpoint="new"):
        code = cli.main(["run", f"{self.folder}/app.py:flow", "--checkpoint", str(self.folder / checkpoint), *words])
        return code, self._capsys.readouterr().err

    def shown(self):
        screen = self.folder / "screen"
        return [int(line) for line in screen.read_text().split()] if screen.exists() else []

    def held(self):
        with sqlite3.connect(self.folder / "out.db") as connection:
            return [sorted(connection.execute(f"SELECT * FROM {table}")) for table in ("windows", "some")]

    def whole(self):
        """What the tables hold of a flow that never lost anything: counts and sums of ten seconds, and every third record."""
        windows = [("ab"[k], 10 * t) for t in range(ALL // 10) for k in range(2)]
        rows = [(k, 5, sum(v for v in range(at, at + 10) if "ab"[v % 2] == k)) for k, at in windows]
        found = self.held()
        return sorted((r[0], *r[-2:]) for r in found[0]) == sorted(rows) and sorted(r[-1] for r in found[1]) == [
            *range(0, ALL, 3)
        ]


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    """A folder with a flow that has read some of its records."""
    folder = tmp_path_factory.mktemp("typed") / "lost"
    folder.mkdir()
    (folder / "app.py").write_text(APP)
    (folder / "there").write_text(str(LOST))
    Started(
        load_flow(f"{folder}/app.py"), None, checkpoint=folder / "lost", group=None, trigger="1 second", drain=False, workers=2
    )
    assert (folder / "screen").read_text().split() == [*map(str, range(LOST))]
    (folder / "screen").unlink()
    (folder / "there").write_text(str(ALL))
    return folder


@pytest.fixture
def typed(lost, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Flow, "start", partialmethod(Started))
    monkeypatch.setattr(commands, "quiet_session", lambda *_, **conf: None)
    return Typing(shutil.copytree(lost, tmp_path / "here"), capsys)


RECOMPUTE = ("--recover", "recompute")


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["--replay-output", "screen=windows"], LOST),
        (["--replay-output=screen=some", "--workers", "3"], LOST),
        (["--replay-output", "screen="], 24),
        (["--replay-output", "screen=", "--since", "1970-01-01T00:00:12"], 12),
    ],
    ids=["by another's mark", "and other workers", "all rows again", "all rows since an earlier time"],
)
def test_output_without_a_mark_is_given_what_was_typed_and_the_tables_each_row_once(typed, words, first):
    code, said = typed.said(*RECOMPUTE, *words)
    assert code == 0, said
    shown = typed.shown()
    assert shown == [*range(shown[0], ALL)]
    assert shown[0] == first
    assert typed.whole()
    lines = said.splitlines()
    assert (
        lines[0]
        == f"State is computed anew from the log: Checkpoint {typed.folder}/new has no state, and the sinks hold rows up to epoch 4."
    )
    assert lines[1].startswith("It begins where it does because ")
    assert lines[-1] == f"{3 if '--workers' in words else 2} workers, finished: True."


@pytest.mark.parametrize(
    ("words", "code", "words_said"),
    [
        (
            [*RECOMPUTE],
            1,
            (
                "Output 'screen' goes to foreach_epoch(show), which does not remember what it was given; say what becomes of it in a recomputation with "
                "replay_outputs={'screen': 'another output'} (--replay-output screen=OTHER), whose mark then counts for it (what lies between two epochs is lost "
                "or given twice), or replay_outputs={'screen': None} (--replay-output screen=), and it is given all rows of the replay again."
            ),
        ),
        (
            [*RECOMPUTE, "--replay-output", "sceen="],
            1,
            "replay_outputs (--replay-output) names 'sceen', which is no output of the flow; it is for outputs whose sinks keep none, here screen; leave it out.",
        ),
        (
            [*RECOMPUTE, "--replay-output", "screen=windoes"],
            1,
            "replay_outputs (--replay-output) follows 'windoes' for 'screen', which is no output with a mark; there are windows, some.",
        ),
        (
            [*RECOMPUTE, "--replay-output", "screen=screen"],
            1,
            "replay_outputs (--replay-output) follows 'screen' for 'screen', which is no output with a mark; there are windows, some.",
        ),
        (
            [*RECOMPUTE, "--replay-output", "screen=", "--replay-output", "windows="],
            1,
            (
                "replay_outputs (--replay-output) names 'windows', whose sink keeps a mark: sql('sqlite:///FOLDER/out.db', 'windows', mode='append'); "
                "it is for outputs whose sinks keep none, here screen; leave it out."
            ),
        ),
        (
            [*RECOMPUTE, "--replay-output", "screen=windows", "--replay-output", "screen="],
            2,
            "--replay-output names 'screen' twice; say once what becomes of it.",
        ),
        ([*RECOMPUTE, "--replay-output", "screen"], 2, "--replay-output screen must be OUTPUT=OTHER, or OUTPUT= alone."),
        ([*RECOMPUTE, "--replay-output", "=windows"], 2, "--replay-output =windows must be OUTPUT=OTHER, or OUTPUT= alone."),
        (
            ["--replay-output", "screen="],
            2,
            "replay_outputs=... (--replay-output) is about a recomputation; add recover='recompute' (--recover recompute).",
        ),
        ([*RECOMPUTE[:1], "anew"], 2, "start(recover='anew') is not known; use 'checkpoint' or 'recompute'."),
    ],
    ids=[
        "nothing",
        "a slip",
        "another's slip",
        "itself",
        "a table",
        "twice",
        "no sign",
        "no output",
        "no recomputation",
        "no way",
    ],
)
def test_what_is_typed_wrongly_is_refused_in_a_sentence_and_no_output_is_given_anything(typed, words, code, words_said):
    before = typed.held()
    assert typed.said(*words) == (code, words_said.replace("FOLDER", str(typed.folder)) + "\n")
    assert typed.shown() == []
    assert typed.held() == before


@pytest.mark.parametrize("slip", ["sceen=", "screen=windoes"])
def test_slip_is_refused_also_where_nothing_has_to_be_computed_anew(typed, slip):
    code, said = typed.said(*RECOMPUTE, "--replay-output", slip, checkpoint="lost")
    assert (code, "replay_outputs (--replay-output)" in said) == (1, True)
    code, said = typed.said(*RECOMPUTE, "--replay-output", "screen=", checkpoint="lost")
    assert code == 0, said
    assert typed.shown() == [*range(LOST, ALL)]
    assert typed.whole()
