"""``penstock diff``: what changes of a flow mean for a checkpoint, without a start."""

from __future__ import annotations

import json
import sys

import pytest

from penstock import cli
from penstock.cli.loading import load_flow
from penstock.testing import Harness

APP = """
import penstock as ps


def remember(key, event, state):
    return None, event.v


flow = ps.Flow("app")
events = flow.source("events", ps.files("in", "k string, v long, at timestamp"), time="at")
events.where("v > 0").key_by("k").stateful_map(remember, "n long", state="v long").sink(ps.memory("app"))
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    """Writes the flow's file; before the first, a checkpoint of it is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()

    def write(old: str = "", new: str = "") -> None:
        assert old in APP
        (tmp_path / "app.py").write_text(APP.replace(old, new))

    write()
    with Harness(load_flow("app.py:flow"), checkpoint="ckpt", workers=2) as harness:
        harness.push("events", [{"k": "a", "v": 1, "at": 1}])
        harness.epoch()
    return write


def test_diff_when_nothing_or_something_has_changed_says_so_without_spark_and_changes_nothing(app, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "ckpt").rglob("*")}
    assert cli.main(["diff", "app.py:flow", "--checkpoint", "ckpt"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("unchanged") == 4  # source, region, step, output
    assert "A start goes on with the state." in shown.out
    app("v > 0", "v > 1")
    assert cli.main(["diff", "app.py:flow", "--checkpoint", "ckpt"]) == 0
    assert "come by other steps" in " ".join(capsys.readouterr().out.split())
    app('.key_by("k")', '.key_by("v")')
    assert cli.main(["diff", "app.py:flow", "--checkpoint", "ckpt", "--json"]) == 0
    found = capsys.readouterr()
    said = json.loads(found.out)
    assert [(v["kind"], v["name"], v["verdict"]) for v in said["verdicts"]][1:4] == [
        ("region", "v", "starts empty"), ("step", "v/stateful_map", "starts empty"), ("region", "k", "forgotten"),
    ]  # fmt: skip
    assert (said["starts"], said["recomputed"], said["kept"]) == (False, [], [])
    assert said["refusal"].startswith("State of region 'k' of checkpoint ckpt cannot be taken over")
    assert found.err == ""
    assert cli.main(["diff", "app.py:flow", "--checkpoint", "ckpt", "--forget", "k", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["starts"] is True
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "ckpt").rglob("*")} == before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("app.py:flow", "--checkpoint", "nope"), 1, "nope is not a checkpoint of penstock"),
        (("app.py:other", "--checkpoint", "ckpt"), 2, "app.py has no 'other'"),
        (("app.py:flow", "--checkpoint", "ckpt", "--forget", "k"), 1, "forget names 'k', which the flow has"),
    ],
)
def test_diff_when_it_cannot_compare_ends_as_other_commands_do(words, code, said, app, capsys):
    assert cli.main(["diff", *words]) == code
    assert said in capsys.readouterr().err


def test_diff_when_the_checkpoint_is_another_flows_says_whose(app, capsys):
    app('Flow("app")', 'Flow("other")')
    assert cli.main(["diff", "app.py:flow", "--checkpoint", "ckpt"]) == 1
    assert "belongs to flow 'app', not 'other'" in capsys.readouterr().err


def test_diff_when_the_declaration_says_all_types_never_loads_spark(app):
    import subprocess

    code = "import sys; from penstock.cli import main; code = main(sys.argv[1:]); print(code, 'pyspark' in sys.modules)"
    words = [sys.executable, "-c", code, "diff", "app.py:flow", "--checkpoint", "ckpt", "--json"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1] == "0 False"


@pytest.mark.spark
def test_diff_when_only_spark_knows_a_type_says_so_and_asks_it(app, tmp_path):
    import subprocess

    app('.where("v > 0")', ".with_columns(w='hash(k)')")
    words = [sys.executable, "-m", "penstock", "diff", "app.py:flow", "--checkpoint", "ckpt", "--json"]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert found.stderr == "Only Spark knows the types of some columns; starting a local session.\n"
    said = json.loads(found.stdout)
    assert said["starts"] is True
    assert [v["verdict"] for v in said["verdicts"] if v["kind"] == "step"] == ["loads"]
