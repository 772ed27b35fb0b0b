"""A sink that stores nothing: everything is computed, no row leaves the workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import pyarrow as pa

from penstock.types import Mark, Refusal


class Noop:
    """Rows are computed where they are and thrown away; for measuring, and for flows wanted for their state alone."""

    durable = False
    wants_rows: ClassVar[bool] = False

    def __repr__(self) -> str:
        return "noop()"

    def validate(self, schema: pa.Schema, *, updates: bool, key: tuple[str, ...]) -> None:
        """Anything goes."""

    def open(self, claim: Mark, schema: pa.Schema) -> Mark | None:
        """Nothing is held."""
        del claim, schema
        return None

    def held(self, output: str) -> Mark | None:
        """Nothing is held."""
        del output
        return None

    def write(self, batches: Iterable[pa.RecordBatch], mark: Mark) -> int:
        """Nothing is stored."""
        del batches, mark
        return 0

    def rewind_refusal(self) -> Refusal | None:
        """Nothing is stored, so nothing stands in the way."""
        return None

    def rewind(self, upto: int, mark: Mark) -> None:
        """Nothing is stored."""
        del upto, mark

    def close(self) -> None:
        """Nothing is open."""


def noop() -> Noop:
    """A sink that stores nothing.

    Example:
        >>> stored = by_plane.deduplicate().sink(noop())
    """
    return Noop()
