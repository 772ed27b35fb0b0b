"""Draw the diagrams of the guides from the tables that the code runs by: ``python docs/diagrams.py`` rewrites them in place."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.protocol.rescale import TRANSITIONS

GUIDE = Path(__file__).parent / "guide-rescaling.md"
_BLOCK = re.compile(r"(<!-- diagram: rescale -->\n).*?(<!-- end -->)", re.DOTALL)


def rescale() -> str:
    """The state machine of a rescale, as Mermaid."""
    lines = ["stateDiagram-v2", "    [*] --> settled"]
    lines += [f"    {before} --> {after}: {what} ({rule})" for before, what, after, rule in TRANSITIONS]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def drawn(text: str) -> str:
    """A guide with its diagrams as they should be."""
    return _BLOCK.sub(lambda found: found[1] + rescale() + found[2], text)


if __name__ == "__main__":
    GUIDE.write_text(drawn(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
