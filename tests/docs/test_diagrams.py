"""The documents' diagrams are what their sources give: tables in the code, figures of benchmarks, a drawing under docs/images."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def diagrams():
    spec = importlib.util.spec_from_file_location("diagrams", ROOT / "docs" / "diagrams.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_diagram_of_a_rescale_is_drawn_from_the_machines_table(diagrams):
    text = diagrams.GUIDE.read_text(encoding="utf-8")
    assert "stateDiagram-v2" in text
    assert text == diagrams.drawn(text), "run python docs/diagrams.py"


def test_diagram_of_a_member_is_drawn_from_the_machines_table(diagrams):
    text = diagrams.GROUPS.read_text(encoding="utf-8")
    assert "elsewhere --> waiting: assigned (P1)" in text
    assert text == diagrams.drawn(text), "run python docs/diagrams.py"


def test_diagrams_of_joining_and_leaving_are_what_the_machine_did(diagrams):
    text = diagrams.RUN_IT_TWICE.read_text(encoding="utf-8")
    assert text.count("now owned") == 2
    assert "partition 0: " not in diagrams.joining()  # a partition that stays never notices
    assert text == diagrams.drawn(text), "run python docs/diagrams.py"


def test_picture_of_the_architecture_is_drawn_from_its_source(diagrams):
    text = diagrams.README.read_text(encoding="utf-8")
    assert "flowchart" in text
    assert text == diagrams.drawn(text), "run python docs/diagrams.py"


def test_picture_of_the_architecture_names_folders_that_exist(diagrams):
    named = {name.strip() for names in re.findall(r"<i>(.*?)</i>", diagrams.architecture()) for name in names.split(",")}
    assert len(named) >= 10
    assert {name for name in named if not (ROOT / "src" / "penstock" / name).is_dir()} == set()


def test_picture_of_a_rescale_is_drawn_from_the_benchmark(diagrams):
    assert diagrams.EPOCHS.read_text(encoding="utf-8") == diagrams.epochs(), "run python docs/diagrams.py"


def test_readme_has_at_most_1200_words():
    words = len((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert words <= 1200
