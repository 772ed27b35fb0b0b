"""What the documentation says is run: code blocks of README and tutorial, doctests, and the names of the reference.

A block runs if an HTML comment stands right before it: ``<!-- runs -->``, ``<!-- runs: spark -->`` (needs Spark), ``<!-- file: name -->``
(is saved under that name). Blocks of one document run in order, in one folder and one namespace, as a reader would paste them.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md",
    "docs/tutorial.md",
    "docs/guide-patterns.md",
    "docs/patterns-compared.md",
    "docs/patterns-recipes.md",
    "docs/guide-changing-flows.md",
    "docs/guide-joins.md",
    "docs/guide-skew.md",
    "docs/guide-groups.md",
]
_BLOCK = re.compile(r"((?:^<!-- [^\n]* -->\n)+)```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code of a document."""

    line: int
    text: str
    file: str | None
    runs: bool
    spark: bool


def blocks(document: str) -> list[Block]:
    """The marked blocks of a document."""
    text = (ROOT / document).read_text()
    found = []
    for match in _BLOCK.finditer(text):
        marks = match[1]
        file = re.search(r"file: ([\w.]+)", marks)
        line = text[: match.start(2)].count("\n")
        found.append(Block(line, match[2], file and file[1], "runs" in marks, "runs: spark" in marks))
    return found


def run_blocks(document: str, *, with_spark: bool) -> dict[str, Any]:
    """Run the blocks of a document in the current folder; returns the namespace."""
    space: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(document):
        # Results do not depend on epochs, so the test takes fewer of them than a reader who wants to watch.
        text = block.text.replace("max_files_per_epoch=1", "max_files_per_epoch=5")
        if block.file:
            Path(block.file).write_text(text)
        if block.runs and (with_spark or not block.spark):
            exec(compile("\n" * block.line + text, str(ROOT / document), "exec"), space)
    for name in [n for n in space if n.startswith("test_")]:
        space[name]()
    return space


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, whose modules can be imported and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document_runs_as_far_as_it_needs_no_spark(document, folder):
    run_blocks(document, with_spark=False)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_document_runs_over_spark(document, folder, spark):
    run_blocks(document, with_spark=True)


def test_every_document_has_blocks_that_run():
    counts = {d: (sum(b.runs and not b.spark for b in blocks(d)), sum(b.spark for b in blocks(d))) for d in DOCUMENTS}
    assert counts["README.md"][1] >= 2
    assert min(counts["docs/tutorial.md"]) >= 4


def test_queries_in_documents_are_queries():
    text = (ROOT / "docs/patterns-compared.md").read_text()
    queries = re.findall(r"^```ceql\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(queries) >= 8
    for query in queries:
        assert str(ps.parse(query)).startswith("SELECT")


# ---------------------------------------------------------------------------------------------------------------- doctests


def modules() -> list[str]:
    """All modules of penstock; importing those of `penstock.spark` starts nothing, and their examples must not either."""
    found = [m.name for m in pkgutil.walk_packages(ps.__path__, "penstock.")]
    return [name for name in found if not name.endswith("__main__")]


# Examples that are drawings: they use names that stand for the reader's own.
_DRAWINGS = {"penstock.sinks.foreach.foreach_epoch"}


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(name, folder):
    module = importlib.import_module(name)
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(verbose=False)
    for found in finder.find(module, extraglobs={"ps": ps}):
        if found.name not in _DRAWINGS:
            runner.run(found)
    assert not runner.failures, f"{runner.failures} of {runner.tries} examples in the docstrings of {name} fail."


# --------------------------------------------------------------------------------------------------------------- reference

_ROW = re.compile(r"^\| `([^`|]+)` \|", re.MULTILINE)
REFERENCE = _ROW.findall((ROOT / "docs/reference.md").read_text())


def found_at(path: str) -> object:
    """The object that the reference names: ``ps.sql``, ``Stream.where``, ``Harness.push``."""
    homes = {"Harness": "penstock.testing", "Crash": "penstock.testing", "Run": "penstock.driver.run"}
    homes |= {"GroupRun": "penstock.driver.group_run", "RedisStreams": "penstock.sources.redis_streams"}
    head, *rest = path.split(".")
    home = homes.get(
        head,
        {"Flow": "penstock.flow.flow", "Stream": "penstock.flow.stream"}.get(
            head, "penstock.flow.keyed" if head.endswith("Stream") else "penstock"
        ),
    )
    at = ps if head == "ps" else getattr(importlib.import_module(home), head)
    for name in rest:
        at = inspect.getattr_static(at, name) if inspect.isclass(at) else getattr(at, name)
    return at


def test_reference_names_exactly_the_public_names():
    named = {row.removeprefix("ps.").split("(")[0] for row in REFERENCE if row.startswith("ps.")}
    assert named == set(dir(ps))


@pytest.mark.parametrize("row", [r for r in REFERENCE if "(" in r and not r.startswith("penstock ")])
def test_reference_gives_the_arguments_that_there_are(row):
    path, _, listed = row.partition("(")
    signature = inspect.signature(found_at(path))
    there = [n for n in signature.parameters if n != "self"]
    given = [re.sub(r"[=:].*", "", part).strip(" *") for part in listed.rstrip(")").split(",")]
    assert [g for g in given if g and g != "…"] == there


@pytest.mark.parametrize("row", [r for r in REFERENCE if re.match(r"[A-Z]\w+\.\w+$", r)])
def test_reference_names_attributes_that_exist(row):
    assert found_at(row) is not None


@pytest.mark.parametrize("name", [r for r in REFERENCE if r.endswith("Error") and not r.startswith("ps.")])
def test_reference_names_errors_that_exist(name):
    assert hasattr(importlib.import_module("penstock.errors"), name)


def test_reference_names_every_error():
    errors = importlib.import_module("penstock.errors")
    there = {n for n, v in vars(errors).items() if inspect.isclass(v) and issubclass(v, errors.PenstockError)}
    assert there <= {r.removeprefix("ps.") for r in REFERENCE}


def test_reference_names_every_command_and_option():
    from typer.main import get_command

    from penstock.cli import application

    there = {}
    for name, command in get_command(application()).commands.items():
        there |= (
            {f"{name} {sub}": each for sub, each in command.commands.items()}
            if hasattr(command, "commands")
            else {name: command}
        )
    rows = {}
    for row in (row for row in REFERENCE if row.startswith("penstock ")):
        words = row.split()
        rows[words[1] if words[1] in there else " ".join(words[1:3])] = row
    assert set(rows) == set(there)
    for name, command in there.items():
        options = {o for p in command.params for o in p.opts if o.startswith("--") and o != "--help"}
        assert set(re.findall(r"--[\w-]+", rows[name])) == options, name


@pytest.mark.parametrize(
    "document", sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
)
def test_links_between_documents_lead_somewhere(document):
    base = (ROOT / document).parent
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert os.path.exists(base / target), f"{document} links to {target}, which does not exist."  # noqa: PTH110
