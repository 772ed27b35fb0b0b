"""Tests look at what the package shows. What they take of its inside is counted, and the number goes down only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MOST = 87  # there were 182 at 217514f

# Of PySpark, which shows its Java objects no other way, of named tuples, and the method that notebooks call.
OF_OTHERS = {"_gateway", "_gateway_client", "_jdf", "_jsc", "_jsparkSession", "_jtracker", "_jvm", "_replace", "_repr_html_"}


def private_names(text: str) -> list[str]:
    """Names with one underscore that a module takes of others: attributes but those of `self`, imports, and names as text given to
    `setattr` or `getattr`.
    """
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name):
                found.append(name)
            case ast.ImportFrom(names=names):
                found += [alias.name for alias in names]
            case ast.Call(func=ast.Name(id="setattr" | "getattr") | ast.Attribute(attr="setattr"), args=args):
                found += [a.value for a in args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return sorted(n for n in found if n.startswith("_") and not n.startswith("__") and n not in OF_OTHERS)


def test_tests_take_no_more_private_names_than_before():
    by_module = {str(p.relative_to(TESTS)): private_names(p.read_text()) for p in TESTS.rglob("*.py")}
    taken = sum(map(len, by_module.values()))
    assert taken <= MOST, f"{taken} private names: look at outputs, status or the checkpoint instead. {by_module}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("run._query.id", ["_query"]),
        ("self._query; cls._query; f(x).query", []),
        ("self.run._query", ["_query"]),
        ("from a import _b, c", ["_b"]),
        ("patch.setattr(A, '_b', 3); setattr(a, '_c', 1); getattr(a, '_d')", ["_b", "_c", "_d"]),
        ("spark._jvm; a._replace(b=1); a.__dict__; _local()", []),
    ],
)
def test_private_name_is_found(text, found):
    assert private_names(text) == found
