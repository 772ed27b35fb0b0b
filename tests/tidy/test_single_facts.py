"""What is stated once: names of hidden columns, of Spark's settings and of the checkpoint's files, constants, defaults."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from pathlib import Path

import pytest

from penstock import Flow
from penstock.cli import commands
from penstock.protocol.rescale import STANDARD
from penstock.spark.options import DEFAULT_WORKERS
from penstock.types import duration_us

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "penstock"
TEXTS = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
LONG = 30
"""From so many letters on, constants of one value are one fact, whatever their names."""
CHECKPOINT = "checkpoint/folder.py"
OF_THEIR_OWN = {
    "VERSION": "each format counts its own versions",
}


def literals(text: str) -> set[str]:
    """Texts in a module but docstrings."""
    tree = ast.parse(text)
    alone = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    return {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in alone}


def modules_by_literal(texts: dict[str, str], pattern: str) -> dict[str, set[str]]:
    """By what matches a pattern in their texts, the modules; only what more than one has."""
    found = defaultdict(set)
    for module, text in texts.items():
        for literal in literals(text):
            for match in re.findall(pattern, literal):
                found[match].add(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def constants_twice(texts: dict[str, str]) -> set[str]:
    """Constants of several modules that have one value, and one name or a long value."""
    found = defaultdict(set)
    for module, text in texts.items():
        for node in ast.parse(text).body:
            name = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(name, ast.Name) and name.id.isupper() and node.value is not None:
                value = ast.unparse(node.value)
                if "TypeVar" not in value and name.id not in OF_THEIR_OWN:
                    found[value if len(value) >= LONG else (name.id, value)].add(f"{module}: {name.id}")
    return {", ".join(sorted(places)) for places in found.values() if len({p.split(":")[0] for p in places}) > 1}


def test_hidden_columns_have_their_names_in_one_module():
    assert not modules_by_literal(TEXTS, r"__ps_\w*")


def test_settings_of_spark_have_their_names_in_one_module():
    assert not modules_by_literal(TEXTS, r"^spark(?:\.\w+)+$")


def test_constants_of_several_modules_are_stated_once():
    assert not constants_twice(TEXTS)


def test_names_of_the_checkpoints_files_are_known_to_one_module():
    names = r"(?:penstock|sources|fed)\.json$|state/|\.(?:delta|move|base)$"
    known = {m: [t for t in literals(text) if re.match(names, t)] for m, text in TEXTS.items() if m != CHECKPOINT}
    assert not {module: found for module, found in known.items() if found}


def test_defaults_of_start_are_those_of_the_protocol_the_command_line_and_the_reference():
    start = inspect.signature(Flow.start).parameters
    assert duration_us(start["step_budget"].default) == STANDARD.budget_us
    assert inspect.signature(commands.run).parameters["trigger"].default == start["trigger"].default
    assert f"{DEFAULT_WORKERS} if not given" in " ".join(Flow.start.__doc__.split())
    reference = (ROOT / "docs" / "reference.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)=` \| `([^`]*)` \|", reference, re.MULTILINE))
    shown = {name: rows[name].replace('"', "'") for name in ("trigger", "step_budget", "drain")}
    assert shown == {name: repr(start[name].default) for name in shown}
    assert f"| `workers=` | {DEFAULT_WORKERS} for a new checkpoint |" in reference


@pytest.mark.parametrize(
    ("texts", "twice"),
    [
        ({"a": "X = 1", "b": "X = 1"}, {"a: X, b: X"}),
        ({"a": "X = 1", "b": "X = 2\nY = 1"}, set()),
        ({"a": "X: int = max(1, 2, 3, 4, 5, 6, 7, 8, 9)", "b": "_Y = max(1, 2, 3, 4, 5, 6, 7, 8, 9)"}, {"a: X, b: _Y"}),
    ],
)
def test_constant_that_stands_twice_is_found(texts, twice):
    assert constants_twice(texts) == twice


def test_literal_that_stands_twice_is_found_but_not_in_docstrings():
    texts = {"a": '"""spark.ui"""\nx = "spark.ui"', "b": 'f(f"{y}")\nz = {"spark.ui": 1}', "c": '"""spark.ui"""'}
    assert modules_by_literal(texts, r"^spark(?:\.\w+)+$") == {"spark.ui": {"a", "b"}}
