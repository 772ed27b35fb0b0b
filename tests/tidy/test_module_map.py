"""The module map names every folder once, says rightly which import pyspark, and lists them as imports point."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "penstock"
MAP = re.findall(r"^\| `([\w/]+)` \| (.+?) \| (yes|no) \|$", (ROOT / "docs/internals/modules.md").read_text(), re.MULTILINE)
LAYERS = next(
    contract["layers"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    if contract["id"] == "layers"
)


def folders():
    return {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")} - {"."}


def test_map_when_a_folder_comes_or_goes_is_changed_with_it():
    assert sorted(name for name, _, _ in MAP) == sorted(folders())


def test_map_when_a_folder_imports_pyspark_says_so():
    imports = re.compile(r"^\s*(?:from|import) pyspark\b", re.MULTILINE)
    found = {name for name in folders() if any(imports.search(path.read_text()) for path in (PACKAGE / name).glob("*.py"))}
    assert found == {name for name, _, pyspark in MAP if pyspark == "yes"}


def test_map_when_layers_change_has_their_order():
    layer = {name.strip(): i for i, names in enumerate(LAYERS) for name in names.split("|")}
    order = [layer[name.split("/")[0]] for name, _, _ in MAP]
    assert order == sorted(order)


def test_only_names_that_everything_knows_lie_beside_the_folders():
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__", "errors", "types", "version"}
