"""Every line of the cheat sheet's penstock column runs, in order, after the blocks that stand before it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SHEET = (Path(__file__).parents[2] / "docs" / "cheat-sheet.md").read_text(encoding="utf-8")
_PIECE = re.compile(r"^<!-- runs -->\n```python\n(.*?)^```$|^\| [^|]+ \| ([^|]+) \| `([^`|]+)` \|$", re.DOTALL | re.MULTILINE)
PIECES = [(block or line, bool(line)) for block, _, line in _PIECE.findall(SHEET)]


def needs_spark(line: str) -> bool:
    return re.search(r"\b(spark|run)\b", line) is not None


def run_sheet(space: dict, *, with_spark: bool) -> int:
    """Run what can be run; returns how many lines of the tables there were."""
    ran = [(text, line) for text, line in PIECES if with_spark or not (line and needs_spark(text))]
    for text, _ in ran:
        exec(compile(text, "cheat-sheet.md", "exec"), space)
    return sum(line for _, line in ran)


def test_every_row_of_the_cheat_sheet_is_read():
    rows = [line for line in SHEET.splitlines() if line.startswith("| ") and "| PySpark |" not in line]
    assert len(rows) == sum(line for _, line in PIECES) >= 30


def test_spark_column_of_the_cheat_sheet_is_python():
    for spark in (spark for _, spark, line in _PIECE.findall(SHEET) if line):
        for code in re.findall(r"`([^`]+)`", spark):
            if not code.startswith("MERGE"):
                ast.parse(code.replace("…", "").removeprefix("."))


def test_cheat_sheet_runs_as_far_as_it_needs_no_spark(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_sheet({}, with_spark=False) >= 20


@pytest.mark.spark
@pytest.mark.slow
def test_cheat_sheet_runs_over_spark(tmp_path, monkeypatch, spark, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trips").mkdir()
    (tmp_path / "trips" / "1.csv").write_text(
        "tail,origin,at,delay\nN1,JFK,2013-01-01 05:10:00,4\nN1,JFK,2013-01-01 05:40:00,16\n"
    )
    space = {"spark": spark}
    assert run_sheet(space, with_spark=True) >= 30
    assert space["run"].exception is None
    assert "N1" in capsys.readouterr().out  # the state that read_state shows
