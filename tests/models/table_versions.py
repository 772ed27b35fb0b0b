"""Tables of random flows, and what those become that are read again while a flow runs.

Read next: `recipes`, `trails`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.flow.tables import read_table

Rows = tuple[tuple[Any, int], ...]
"""Keys and values, in the order of a table."""
TYPES = {
    "k": (pa.string(), pa.large_string()),
    "s": (pa.string(), pa.large_string()),
    "x": (pa.float64(), pa.float32()),
}


@dataclass(eq=False)
class Again:
    """How a table is read again.

    Attributes:
        every_us: After how long.
        turns: How many tables it is in turn: each attempt to read it finds the next one.
        fails: Whether it cannot be read in one turn more.
        found: What each attempt has found; None: nothing.
        declared: What declarations have found.
    """

    every_us: int = 0
    turns: int = 1
    fails: bool = False
    found: list[Rows | None] = field(default_factory=list)
    declared: list[Rows] = field(default_factory=list)

    def becomes(self, rows: Rows) -> list[Rows]:
        """What a table of some rows is in turn: keys come and go, and have other values."""
        return [tuple((k, v + 10 * n) for i, (k, v) in enumerate(rows) if not n or i % 3 != n % 3) for n in range(self.turns)]

    def next(self, rows: Rows, *, first: bool) -> Rows:
        """What the next attempt finds; the `first` one, when the flow is declared, does not fail.

        Raises:
            OSError: Nothing.
        """
        turns: list[Rows | None] = [*self.becomes(rows), *([None] if self.fails else [])]
        found = turns[(len(self.found) + len(self.declared)) % len(turns)]
        if first:
            self.declared.append(rows if found is None else found)
            return self.declared[-1]
        self.found.append(found)
        if found is None:
            raise OSError("the file is gone")
        return found


def kept(on: str, rows: Rows, *, narrow: bool) -> list[tuple[Any, int]]:
    """The rows of a table: in a narrower type whole numbers that its keys cannot hold are left out, other numbers are rounded."""
    if not narrow:
        return list(rows)
    fit = [(k, v) for k, v in rows if not isinstance(k, int) or abs(k) < 2**31]
    return [(struct.unpack("f", struct.pack("f", k))[0] if isinstance(k, float) else k, v) for k, v in fit]


def table_of(on: str, column: str, rows: Rows, *, narrow: bool) -> pa.Table:
    """What `lookup` is given."""
    kind = TYPES.get(on, (pa.int64(), pa.int32()))[narrow]
    rows_ = kept(on, rows, narrow=narrow)
    return pa.table({on: pa.array([k for k, _ in rows_], kind), column: pa.array([v for _, v in rows_], pa.int64())})


def fingerprint(on: str, column: str, rows: Rows, *, narrow: bool) -> str:
    """By what the checkpoint names a table."""
    return read_table(table_of(on, column, rows, narrow=narrow), (on,)).fingerprint
