"""What a figure is: each is declared once, with its name, unit, meaning, and whether it adds up.

What shows figures (`penstock status`, tables, metrics) and what documents them goes by the declarations, so a new figure is a field of a class and
a value where it is known.

Read next: `penstock.checkpoint.figures`, those of a flow; `penstock.group.figures`, those of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

from penstock.types import time_text


@dataclass(frozen=True, slots=True)
class Figure:
    """What a figure is.

    Attributes:
        kind: ``counter``: it only rises, or each epoch adds its own; ``gauge``: what it is now, or after the epoch.
        unit: ``rows``, ``bytes``, ``ms`` …; ``time`` is event time in µs.
        help: What it means, in a line.
        title: At the head of its column in tables; empty: not shown there.
        name: Its name, unique among those of one kind of thing.
    """

    kind: Literal["counter", "gauge"]
    unit: str
    help: str
    title: str = ""
    name: str = ""

    def text(self, value: Any) -> str:
        """A value as people read it.

        Example:
            >>> Figure("gauge", "bytes", "").text(1536), Figure("counter", "rows", "").text(12345)
            ('1.5 KiB', '12,345')
        """
        if self.unit == "bytes":
            return _bytes_text(value)
        if self.unit == "times":
            return f"{value:.2f} ×"
        return time_text(value) if self.unit == "time" else f"{value:,}"


def _bytes_text(n: float) -> str:
    """A number of bytes as people read it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def declared(cls: type) -> Mapping[str, Figure]:
    """By name, the figures that are fields of a class: those whose annotation has a `Figure`."""
    found = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        for figure in (x for x in get_args(hint) if isinstance(x, Figure)):
            found[name] = Figure(figure.kind, figure.unit, figure.help, figure.title, name)
    return MappingProxyType(found)


__all__ = ["Figure", "declared"]
