"""What the documentation says is run: code blocks of README and tutorial, doctests, and the names of the reference.

A block runs if an HTML comment stands right before it: ``<!-- runs -->``, ``<!-- runs: spark -->`` (needs Spark), ``<!-- file: name -->``
(is saved under that name). Blocks of one document run in order, in one folder and one namespace, as a reader would paste them.
"""

from __future__ import annotations

import datetime as dt
import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
    "docs/guide-timers.md",
    "docs/guide-event-time.md",
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


_REDIS = "redis://localhost:6379"
"""Stands in examples for a server; the tests' own takes its place where one is needed."""


def given() -> dict[str, Any]:
    """What examples may use without a word, as the API page says: modules, a flow with a source, and streams of two more flows."""
    trips = "tail string, origin string, at timestamp, delay double"
    flows = [ps.Flow(name) for name in ("example", "planes", "days")]
    flights, others, more = (flow.source("flights", ps.files("flights", trips, "csv"), time="at") for flow in flows)
    by_day = more.key_by("origin").window(ps.tumbling("1 day"))
    names = {"ps": ps, "pa": pa, "pc": pc, "np": np, "dt": dt, "time": time, "threading": threading}
    names |= {"sys": sys, "subprocess": subprocess}
    return {**names, "flow": flows[0], "flights": flights, "by_plane": others.key_by("tail"), "by_day": by_day}


def examples(module: str) -> list[doctest.DocTest]:
    """The examples in a module's docstrings."""
    found = doctest.DocTestFinder().find(importlib.import_module(module))
    return [each for each in found if each.examples]


def needs(example: doctest.DocTest) -> set[str]:
    """Which servers an example needs."""
    source = "".join(line.source for line in example.examples)
    redis = _REDIS in source and re.search(r"Producer\(|Consumer\(|start\(", source)
    return {*(["spark"] if re.search(r"\bspark\b", source) else []), *(["redis"] if redis else [])}


def run_examples(found: list[doctest.DocTest], url: str = _REDIS, **more: Any) -> None:
    """Run examples, each with what is given anew."""
    runner = doctest.DocTestRunner(verbose=False)
    for example in found:
        example.globs |= {name: value for name, value in {**given(), **more}.items() if name not in example.globs}
        for line in example.examples:
            line.source = line.source.replace(_REDIS, url)
        runner.run(example)
    assert not runner.failures, f"{runner.failures} of {runner.tries} lines of examples fail."


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(name, folder):
    run_examples([each for each in examples(name) if not needs(each)])


WITH_SERVERS = [(module, each.name) for module in modules() for each in examples(module) if needs(each)]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), WITH_SERVERS, ids=[name for _, name in WITH_SERVERS])
def test_examples_in_docstrings_run_with_servers(module, name, folder, spark, redis_url):
    (folder / "flights").mkdir()
    (folder / "flights" / "1.csv").write_text(
        "tail,origin,at,delay\nN1,JFK,2013-01-01 05:10:00,4\nN1,JFK,2013-01-01 05:40:00,16\n"
    )
    url = f"{redis_url.rpartition('/')[0]}/{WITH_SERVERS.index((module, name)) % 16}"  # a database of its own
    run_examples([each for each in examples(module) if each.name == name], url, spark=spark)


def shown(what: object) -> str:
    """The lines of a docstring that are run."""
    return "\n".join(re.findall(r"^\s*(?:>>>|\.\.\.) .*$", inspect.getdoc(what) or "", re.MULTILINE))


def has_example(row: str) -> bool:
    """Whether a name of the reference has an example that runs, in its own docstring or, for a method, in that of its class."""
    name = row.partition("(")[0]
    if ">>>" in shown(found_at(name)):
        return True
    head, _, method = name.rpartition(".")
    return head not in ("", "ps") and re.search(rf"\.{method}\b", shown(found_at(head))) is not None


def test_every_public_name_has_an_example_that_runs():
    rows = [row.partition("(")[0] for row in REFERENCE]
    public = {row for row in rows if re.fullmatch(r"ps\.\w+|[A-Z][a-z]\w+(\.\w+)?", row)} | {
        f"ps.{name}" for name in ps.__all__
    }
    errors = {row for row in public if row.endswith("Error")} - {"ps.PenstockError"}
    assert len(public - errors) > 140
    assert sorted(row for row in public - errors - {"ps.__version__"} if not has_example(row)) == []


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
