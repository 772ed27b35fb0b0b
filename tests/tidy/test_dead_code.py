"""Every function and class of the package is used by the package, is a hook that others call, or is for users."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"
TEXTS = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}

_EXAMPLE = re.compile(r"^ +(?:>>>|\.\.\.) .*$", re.MULTILINE)  # a line of a docstring's example is no use of anything

# (module, name) → who uses it. An entry that the package uses by now, or that is gone, fails too.
ELSEWHERE = {
    ("cli/grouped.py", "produce"): "typer calls it",
    ("cli/loading.py", "get_code"): "Python's import calls it",
    ("operators/base.py", "get_objects"): "operators of users",
    ("patterns/reference.py", "evaluate"): "the oracle of the tests",
    ("spark/sources/row_times.py", "addInPlace"): "Spark calls it",
    ("state/store.py", "catch_up"): "tests look at what it took; tasks ask for a version by `snapshot`",
    ("testing/harness.py", "loadable"): "users of the harness",
    ("testing/harness.py", "resume"): "users of the harness, after a crash",
}
BY_NAME = {
    "patterns/ceql/parsing.py": "lark calls a method for each rule of the grammar",
    "spark/sources/read_back.py": "Spark calls the methods of a source in Python",
}


def unused(texts: dict[str, str]) -> set[tuple[str, str]]:
    """Functions and classes whose name stands nowhere but where they are made and in a list of names."""
    words = Counter(word for text in texts.values() for word in re.findall(r"\w+", _EXAMPLE.sub("", text)))
    found = set()
    for module, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("__"):
                listed = len(re.findall(rf'"{node.name}"', text))
                if words[node.name] - listed <= 1:
                    found.add((module, node.name))
    return found


def test_functions_and_classes_are_used():
    dead = {(module, name) for module, name in unused(TEXTS) if module not in BY_NAME} - ELSEWHERE.keys()
    assert not dead, f"Nothing in the package uses {sorted(dead)}; delete them, or say in ELSEWHERE who uses them."


def test_what_is_said_to_be_used_elsewhere_is_there_and_is_used_by_nothing_here():
    assert ELSEWHERE.keys() <= unused(TEXTS)


@pytest.mark.parametrize(
    ("texts", "dead"),
    [
        ({"a.py": "def f(): ...\n__all__ = ['f']".replace("'", '"')}, {("a.py", "f")}),
        ({"a.py": "def f(): ...", "b.py": "from a import f\nf()"}, set()),
        ({"a.py": "class C:\n    def m(self): ..."}, {("a.py", "C"), ("a.py", "m")}),
    ],
)
def test_unused_function_is_found(texts, dead):
    assert unused(texts) == dead
