"""From flow down nothing looks at a clock, chance, the network, the log or the environment: those are arguments.

That is what lets the same code run in a Spark task, in a unit test and in a simulator, with the same result in each.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"
PURE = (
    "driver",
    "worker",
    "flow",
    "operators",
    "checkpoint",
    "state",
    "progress",
    "protocol",
    "rows",
    "patterns",
    "routing",
    "arrow",
    "sql_text",
    "types.py",
    "errors.py",
)
MODULES = sorted(
    path for name in PURE for path in ([PACKAGE / name] if name.endswith(".py") else (PACKAGE / name).rglob("*.py"))
)
IMPURE_IMPORTS = frozenset(
    {"asyncio", "concurrent", "logging", "multiprocessing", "random", "secrets", "socket", "subprocess", "threading", "time"}
)
IMPURE_NAMES = frozenset(
    {
        "datetime.now",
        "datetime.today",
        "datetime.utcnow",
        "date.today",
        "np.random",
        "numpy.random",
        "os.environ",
        "os.getenv",
        "os.urandom",
        "uuid.uuid1",
        "uuid.uuid4",
    }
)

# (module, what) → why it may. An entry that nothing needs any more fails too.
ALLOWED: dict[tuple[str, str], str] = {
    **{
        ("driver/group_run.py", what): "begins and ends runs as the group says; what it does changes no result"
        for what in ("threading", "time")
    },
    ("state/files.py", "uuid.uuid4"): "names a temporary file, which no other writer may have",
    **{
        ("driver/background.py", what): "works beside the epochs; what it does changes no result"
        for what in ("concurrent.futures", "threading", "time")
    },
    **{
        ("worker/audit.py", what): "another hash seed needs another process; what it computes only confirms what there is"
        for what in ("multiprocessing", "os.environ", "subprocess")
    },
    ("worker/second.py", "multiprocessing.connection"): "the state of its parent; all else is an argument",
    ("driver/run.py", "threading"): "follows the loop in a thread of its own, and waits for its end",
    (
        "driver/commands.py",
        "time",
    ): "gives commands names that ascend, and waits for what comes of them; outside of every epoch",
    (
        "worker/run.py",
        "concurrent.futures",
    ): "writes a delta while the rows that go with it are taken; neither sees the other",
    ("worker/run.py", "time"): "measures what moving state costs; steps follow it, results do not",
}


def impurities(source: str) -> set[str]:
    """What a module's text uses that it must not."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if _is_impure(alias.name)}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {node.module} if _is_impure(node.module) else {name for name in full if name in IMPURE_NAMES}
        elif isinstance(node, ast.Attribute):
            dotted = ".".join(ast.unparse(node).split(".")[-2:])
            found |= {dotted} & IMPURE_NAMES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash":
            found.add("hash()")
    return found


def _is_impure(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in IMPURE_IMPORTS or module in IMPURE_NAMES


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(PACKAGE)) for path in MODULES])
def test_module_from_flow_down_is_pure(path):
    name = str(path.relative_to(PACKAGE))
    found = {what for what in impurities(path.read_text()) if (name, what) not in ALLOWED}
    assert not found, f"src/penstock/{name} uses {', '.join(sorted(found))}; take it as an argument, or say in ALLOWED why not."


def test_every_exception_is_still_needed():
    for (name, what), reason in ALLOWED.items():
        assert reason, f"The exception for {what} in {name} gives no reason; write one."
        assert what in impurities((PACKAGE / name).read_text()), f"{name} no longer uses {what}; take it out of ALLOWED."


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import time", "time"),
        ("import os, random as r", "random"),
        ("from threading import Lock", "threading"),
        ("import concurrent.futures", "concurrent.futures"),
        ("from os import environ", "os.environ"),
        ("import os\nhome = os.environ['HOME']", "os.environ"),
        ("import numpy as np\nnp.random.default_rng(1)", "np.random"),
        ("import datetime as dt\ndt.datetime.now()", "datetime.now"),
        ("def bin_of(key): return hash(key) % 4096", "hash()"),
    ],
)
def test_impure_module_is_found(source, what):
    assert impurities(source) == {what}


@pytest.mark.parametrize("source", ["from datetime import time", "import os\nos.replace('a', 'b')", "table.hash(keys)"])
def test_pure_module_is_let_through(source):
    assert impurities(source) == set()
