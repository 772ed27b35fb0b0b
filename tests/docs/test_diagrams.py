"""The guides' diagrams are what the tables in the code give."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_diagram_of_a_rescale_is_drawn_from_the_machines_table():
    spec = importlib.util.spec_from_file_location("diagrams", ROOT / "docs" / "diagrams.py")
    diagrams = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(diagrams)
    text = diagrams.GUIDE.read_text(encoding="utf-8")
    assert "stateDiagram-v2" in text
    assert text == diagrams.drawn(text), "run python docs/diagrams.py"
