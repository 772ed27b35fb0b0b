"""Modules are named for what they hold, and stay short enough to read at one sitting."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py"))
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
MOST_LINES = 500


def complaints(name: str, lines: int) -> list[str]:
    """What is wrong with a module of that path and length."""
    found = []
    if words := EMPTY_NAMES & {part.removesuffix(".py") for part in Path(name).parts}:
        found.append(f"{name} is named {min(words)!r}, which says nothing; name it for what it holds.")
    if lines > MOST_LINES:
        found.append(f"{name} has {lines} lines, more than {MOST_LINES}; split it by what its parts do.")
    return found


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(ROOT)) for path in MODULES])
def test_module_has_a_telling_name_and_at_most_500_lines(path):
    found = complaints(str(path.relative_to(ROOT)), len(path.read_text().splitlines()))
    assert not found, " ".join(found)


def test_empty_name_and_long_file_are_found():
    assert complaints("src/penstock/utils.py", 501) == [
        "src/penstock/utils.py is named 'utils', which says nothing; name it for what it holds.",
        "src/penstock/utils.py has 501 lines, more than 500; split it by what its parts do.",
    ]
    assert complaints("src/penstock/common/table.py", 500) != []
    assert complaints("src/penstock/routing/table.py", 500) == []


def test_modules_of_tests_have_names_of_their_own():
    names = Counter(path.stem for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name, n in names.items() if n > 1] == []  # pytest could collect only one of them
