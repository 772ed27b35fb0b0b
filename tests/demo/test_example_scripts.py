"""The scripts in examples/ run to their end; each checks its own results."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.spark
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_example_runs_and_says_what_it_found(script, spark, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out
