"""Keep the first of equal records.

A record is dropped if an equal one that was *kept* lies at most `within` before it. So the result depends only on the order of
records, never on epochs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import lexicographic, to_indices
from penstock.errors import DeclarationError
from penstock.operators.base import KeyedState, Operator, Output
from penstock.operators.layouts import NONE_ADDED, NONE_DROPPED, columns_text
from penstock.rows.keys import LONGEST_SUB_KEY, Ints, KeyCodec, biased, unbiased
from penstock.rows.rows import Emitted, Rows
from penstock.types import MAX_TIME, MIN_TIME, seconds_text, time_text

_DOUBT: Final = b"?"


def _short(value: bytes) -> bytes:
    """A sub-key of bounded length: long values become a digest of 256 bits."""
    return value if len(value) <= LONGEST_SUB_KEY else hashlib.blake2b(value, digest_size=32).digest()


@dataclass
class Deduplicate(Operator):
    """Drops records whose `columns` equal those of an earlier one of the same key.

    Attributes:
        columns: The columns that make records equal; none: the key alone.
        within_us: How long an earlier record counts (µs, inclusive); None: for ever.
    """

    columns: tuple[str, ...]
    within_us: int | None = None
    kind = "deduplicate"
    migrate = None
    typed = "columns"
    passes = True

    def __post_init__(self) -> None:
        self.name = f"deduplicate({', '.join(self.columns)})"

    def output_schema(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> pa.Schema:
        del keys
        for column in self.columns:
            if column not in inputs[0].names:
                raise DeclarationError(
                    f"{self.name} names column {column!r}, which does not exist; there are {', '.join(inputs[0].names)}."
                )
        return inputs[0]

    def meaning(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        columns = columns_text(pa.schema([inputs[0].field(c) for c in self.columns]))
        return {"columns": columns, "within": "for ever" if self.within_us is None else seconds_text(self.within_us)}

    def fixed(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Sequence[str]:
        """Whole numbers and floats have the same sub-keys in a wider type; decimals have not."""
        return [NONE_ADDED, NONE_DROPPED, *(c for c in self.columns if pa.types.is_decimal(inputs[0].field(c).type))]

    def reads(self) -> Sequence[str]:
        return self.columns

    def on_data(self, rows: Rows, state: KeyedState) -> Output:
        group, subs = rows.group, None
        if self.columns:
            codec = KeyCodec(pa.schema([rows.data.schema.field(c) for c in self.columns]))
            encoded = codec.bodies([rows.column(c) for c in self.columns])
            codes = np.unique(np.array(encoded, object), return_inverse=True)[1]
            index = lexicographic([group, codes])
            new = np.flatnonzero(np.concatenate(([True], (np.diff(group[index]) != 0) | (np.diff(codes[index]) != 0))))
            subs = [_short(encoded[i]) for i in index[new].tolist()]
        else:
            index, new = np.arange(len(rows)), rows.starts[:-1]
        names = state.names(rows.keys, group[index[new]], subs)
        stored = state.get(names)
        held = np.fromiter((v is not None for v in stored), bool, len(names))
        last = np.full(len(names), 0, np.int64)
        last[held] = unbiased([v[:8] for v in stored if v is not None])
        times, starts = rows.order.time[index], np.append(new, len(rows))
        kept = self._kept(times, starts, held, last)
        doubt = self._doubt(times, starts, stored, last, kept) if self.context.missing > MIN_TIME else None
        chosen = np.flatnonzero(kept)
        entry = np.searchsorted(new, chosen, "right") - 1
        last[entry] = times[chosen]  # ascending within an entry, so the latest stays
        changed = np.unique(entry)
        values = biased(last[changed])
        within = self.within_us or 0
        timers = None if self.within_us is None else np.minimum(last[changed], MAX_TIME - within - 1) + within
        if doubt is not None and timers is not None:
            values = [v + _DOUBT if d else v for v, d in zip(values, doubt[changed], strict=True)]
            longer = np.maximum(np.minimum(timers, MAX_TIME - within) + within, self.context.missing + within)
            timers = np.where(doubt[changed], longer, timers)
        state.put([names[i] for i in changed.tolist()], values, timers)
        out = np.sort(index[chosen])
        return Emitted(rows.data.take(to_indices(out)), rows.order.take(out), rows.group[out], rows.keys)  # kept rows stay kept

    def show_state(self, value: bytes) -> Any:
        return time_text(int(unbiased([value[:8]])[0]))

    def _kept(self, times: Ints, starts: Ints, held: Any, last: Ints) -> Any:
        """Which rows to keep; rows of an entry are adjacent and in order."""
        kept = np.zeros(len(times), bool)
        first = starts[:-1]
        if self.within_us is None:
            kept[first] = ~held
            return kept
        kept[first] = ~held | (times[first] - last > self.within_us)
        for e in np.flatnonzero(np.diff(starts) > 1).tolist():  # only entries with several rows in one epoch
            a, b = int(starts[e]), int(starts[e + 1])
            before = int(times[a]) if kept[a] else int(last[e])
            for i in range(a + 1, b):
                if times[i] - before > self.within_us:
                    kept[i], before = True, int(times[i])
        return kept

    def _doubt(self, times: Ints, starts: Ints, stored: Sequence[bytes | None], last: Ints, kept: Any) -> Any:
        """Of each entry, whether another record may have been kept last if older ones were not missing; notes decisions that hang on these.

        The first record less than `within` after what is missing is in doubt, and so is all that follows, until nothing came for so long that
        whatever was kept is forgotten.
        """
        within = self.within_us or 0
        edge = self.context.missing + within
        doubt = np.array([v is not None and len(v) > 8 for v in stored], bool)
        held = np.array([v is not None for v in stored], bool)
        for e in np.flatnonzero(doubt | (~held & (times[starts[:-1]] < edge))).tolist():
            before = int(last[e]) if held[e] else None
            for i in range(int(starts[e]), int(starts[e + 1])):
                t = int(times[i])
                unsure = t < edge or (bool(doubt[e]) and before is not None and t - before <= 2 * within)
                if kept[i]:
                    doubt[e], before = unsure, t
                self.context.unsure |= unsure and t >= self.context.needed
        return doubt

    def link(self) -> int | None:
        return self.within_us

    def sure(self, state: KeyedState) -> bool:
        return all(len(value) == 8 for _, value in state.due(MAX_TIME))

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        if self.within_us is not None:
            state.delete([n for n, _ in state.due(t)])
        return None
