"""Indexes list every document, and what documents say of files, modules and formats is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.checkpoint.formats import FORMAT

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "penstock"
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))


def links(document: Path) -> list[Path]:
    """The files that a document links to, each as often as it does."""
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    return [(document.parent / target).resolve() for target in found if "://" not in target]


def test_index_lists_every_document_once():
    documents = [
        *DOCS.glob("*.md"),
        *(DOCS / "internals").glob("*.md"),
        DOCS / "decisions" / "README.md",
        DOCS / "site" / "api.rst",
        ROOT / "CONTRIBUTING.md",
    ]
    assert sorted(links(DOCS / "index.md")) == sorted({*documents, ROOT / "CHANGELOG.md"} - {DOCS / "index.md"})


def test_index_of_decisions_lists_every_decision_once_in_order():
    listed = [path for path in links(DOCS / "decisions" / "README.md") if path.parent == DOCS / "decisions"]
    assert listed == DECISIONS


def test_index_of_decisions_gives_their_titles_and_a_line():
    text = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d{4})\]\(\S+\) \| (.+?) \| \S.+ \|$", text, re.MULTILINE)
    titles = [path.read_text(encoding="utf-8").splitlines()[0] for path in DECISIONS]
    assert [f"# {number} {title}" for number, title in rows] == titles


@pytest.mark.parametrize("document", DECISIONS, ids=lambda path: path.name)
def test_decision_has_context_decision_and_consequences_then_figures_and_alternatives(document):
    headings = re.findall(r"^## (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:3] == ["Context", "Decision", "Consequences"]
    assert headings[3:] in ([], ["Measured"], ["Rejected"], ["Measured", "Rejected"])


def test_compatibility_names_the_present_format():
    stated = re.findall(r"present format is (\d+)", (DOCS / "compatibility.md").read_text(encoding="utf-8"))
    assert stated == [str(FORMAT)]


def test_contributing_names_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|docs)/[\w./]+)`", text)
    assert len(named) >= 20
    assert [name for name in named if not (ROOT / name).exists()] == []


# ------------------------------------------------------------------------------------------------ names of code in docs/internals

TEXTS = {path.relative_to(PACKAGE).with_suffix(""): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
FILES = [
    str(path.relative_to(ROOT)) for folder in ("src", "tests", "docs", "benchmarks") for path in (ROOT / folder).rglob("*.py")
]
ELSEWHERE = ("gc.", "pa.", "np.", "ps.", "spark.", "penstock.match", "Dataset.", "String.", "BatchedPython", "_metadata.")
"""How names begin that are not found in a module: those of others, and public names, which the reference checks."""


def modules(dotted: str) -> list[str]:
    """The texts of the modules whose path ends so, and of those that have a class of that name."""
    parts = tuple(dotted.split("."))
    ends = [text for path, text in TEXTS.items() if path.parts[-len(parts) :] == parts or path.parts == (*parts, "__init__")]
    ends += [text for path, text in TEXTS.items() if path.parts[-len(parts) - 1 :] == (*parts, "__init__")]
    return ends + [text for text in TEXTS.values() if re.search(rf"^class {parts[-1]}\b", text, re.MULTILINE)]


def is_there(name: str) -> bool:
    """Whether there is a file ``folder/module.py``, or what ``module.name`` or ``Class.name`` says."""
    if name.endswith(".py"):
        return any(file == name or file.endswith(f"/{name}") for file in FILES)
    dotted = name.removeprefix("penstock.")
    owner, _, last = dotted.rpartition(".")
    return bool(modules(dotted)) or any(re.search(rf"\b{last}\b", text) for text in modules(owner))


def named_in(document: Path) -> list[str]:
    """What a document names in backticks that has the form of a module's file or of a dotted name."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL))
    form = re.compile(r"[\w/]+\.py|\w+(?:\.[a-zA-Z_]+)+")
    return [
        span
        for span in spans
        if form.fullmatch(span) and not span.startswith(ELSEWHERE) and not span.endswith((".toml", ".json"))
    ]


def test_name_that_is_in_no_module_is_found():
    assert is_there("worker/task.py")
    assert is_there("collect.cut")
    assert is_there("Placement.announced")
    assert not is_there("runtime/task.py")
    assert not is_there("collect.slice")
    assert not is_there("Placement.apart_from")


@pytest.mark.parametrize("document", [*sorted((DOCS / "internals").glob("*.md")), *DECISIONS], ids=lambda path: path.name)
def test_internals_and_decisions_name_modules_and_functions_that_exist(document):
    assert [name for name in named_in(document) if not is_there(name)] == []


def test_internals_of_patterns_name_modules_of_patterns():
    table = (DOCS / "internals" / "patterns.md").read_text(encoding="utf-8").split("| step |")[1].split("\n\n")[0]
    cells = [row.split("|")[3] for row in table.splitlines()[2:]]
    named = [name for cell in cells for name in re.findall(r"`([\w/]+)`", cell)]
    assert len(named) >= 15
    assert [name for name in named if not (PACKAGE / "patterns" / f"{name}.py").exists()] == []
