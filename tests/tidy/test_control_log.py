"""The control log has one writer, which names its files; whatever gives a command goes through it."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"


def test_control_log_is_written_by_the_commander_alone():
    writers = [
        f"{path.relative_to(PACKAGE)}: {ast.unparse(node.func)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("checkpoint.command")
    ]
    assert writers == ["driver/commands.py: self._checkpoint.command"]
