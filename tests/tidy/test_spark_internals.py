"""What is private to Spark is touched in `penstock.spark.internals` alone, so that another version of Spark is a matter of that folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"
INTERNALS = "spark/internals/"
OF_SPARK = re.compile(
    r"_j(vm|sc|df|sq|c|sparkSession|tracker|map|seq)|_sc|_gateway|_active(Session|_spark_context)|_ensure_initialized|_instantiatedSession"
)
OF_JAVA = re.compile(r"org\.apache\.(spark|hadoop)\.[a-z.]+[A-Z]")
MODULES = re.compile(
    r"(from|import) py4j\b|from pyspark\.sql\.pandas import|from pyspark\.sql\.pandas\.types import .*\bto_arrow|repartitionById"
)


def private_of_spark(text: str) -> list[str]:
    """Attributes of Spark's that have an underscore, Java's classes, and names that only some versions have."""
    found = [m[0] for m in MODULES.finditer(text)]
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if OF_SPARK.fullmatch(name):
                found.append(name)
            case ast.Call(func=ast.Attribute(attr="conf")):
                pass
            case ast.Attribute() if OF_JAVA.search(ast.unparse(node)):
                found.append(ast.unparse(node))
    return found


def test_only_internals_touch_what_is_private_to_spark():
    modules = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    touched = {name: found for name, text in modules.items() if (found := private_of_spark(text))}
    elsewhere = {name: found for name, found in touched.items() if not name.startswith(INTERNALS)}
    assert not elsewhere, f"put what is private to Spark into {INTERNALS}, with what is lost without it: {elsewhere}"
    assert len(touched) > 3


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("frame._jdf.queryExecution()", ["_jdf"]),
        ("spark._jsparkSession; context._jsc; query._jsq; spark._jvm", ["_jsparkSession", "_jsc", "_jsq", "_jvm"]),
        ("from py4j.protocol import Py4JError", ["from py4j"]),
        ("frame.repartitionById(2, to)", ["repartitionById"]),
        ("java.org.apache.spark.sql.classic.Dataset", ["java.org.apache.spark.sql.classic.Dataset"]),
        ("self._judged; self._jobs; frame.sparkSession; spark.sparkContext", []),
    ],
)
def test_private_call_is_found(text, found):
    assert private_of_spark(text) == found
