"""What an operator's `on_timer` gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.base import KeyedState
from penstock.rows.keys import Ints
from penstock.rows.rows import Emitted, Keys


@dataclass(frozen=True)
class Fired:
    """Timers that fire: entries of state, those of a key beside one another and at one time.

    Attributes:
        names: n names of entries, as `KeyedState.names` gave them.
        at: int64, n: the time of each (µs).
        state: Where they are.
    """

    names: list[bytes]
    at: Ints
    state: KeyedState

    @cached_property
    def _places(self) -> tuple[Keys, list[bytes]]:
        return self.state.keys_of(self.names)

    @property
    def keys(self) -> Keys:
        """The key of each timer, n keys; one with several timers is there several times."""
        return self._places[0]

    @property
    def subs(self) -> list[bytes]:
        """The sub-key of each timer."""
        return self._places[1]

    def emit(self, data: pa.RecordBatch | Mapping[str, Any], timer: Ints | None = None) -> Emitted:
        """Output rows, which have the time of their timers.

        Args:
            data: The output's columns, m rows.
            timer: int64, m, ascending: which timer each row is of; None: row i is of timer i.
        """
        batch = data if isinstance(data, pa.RecordBatch) else pa.RecordBatch.from_pydict(dict(data))
        which = np.arange(len(self.names)) if timer is None else np.asarray(timer, np.int64)
        keys = [name[: len(name) - len(sub)] for name, sub in zip(self.names, self.subs, strict=True)]
        one = np.cumsum([a != b for a, b in zip(keys, keys[:1] + keys, strict=False)])[which]  # which key
        first = np.flatnonzero(np.concatenate((np.ones(min(1, len(one)), bool), one[1:] != one[:-1])))
        nth = np.arange(len(one)) - np.repeat(first, np.diff(np.append(first, len(one))))
        return self.state.emit(batch, self.keys, self.at[which], which, nth)


__all__ = ["Fired"]
