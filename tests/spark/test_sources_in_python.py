"""A source that is written in Python, as the tutorial shows it: positions hold over starts, and each row is processed once."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_python_source_of_the_tutorial_gives_each_row_once_over_two_starts(spark, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = TUTORIAL.read_text()
    (block, shown) = re.search(
        r"<!-- file: orders\.py -->.*?```python\n(.*?)^```\n\n```\n(.*?)```", text, re.DOTALL | re.MULTILINE
    ).groups()
    exec(compile(block, "orders.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == shown == "[('ada', 1, 100), ('bob', 2, 250), ('ada', 3, 150), ('ada', 4, 157)]\n"
    with sqlite3.connect("spent.db") as database:
        assert database.execute("SELECT count(*) FROM spent").fetchone() == (4,)
