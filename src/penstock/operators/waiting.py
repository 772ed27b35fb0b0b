"""Rows that wait for the frontier, at the start of a region.

Rows that the frontier has not passed are stored as columns: per epoch a few chunks, each a span of event time, sorted by time.
When the frontier enters a chunk's span its due part is read; a chunk that lies wholly before the frontier is deleted. Which rows
of a chunk are still waiting follows from the frontier alone, so releasing writes nothing but deletions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from penstock.operators.base import StateView
from penstock.operators.keys import WORKER_BIN, places
from penstock.types import TIME

OPERATOR: Final = 255
_SPANS: Final = 8


class Waiting:
    """The waiting rows of one input of a region.

    Args:
        view: The worker's state.
        port: The input's index.
        schema: The rows' columns, hidden ones included.
    """

    def __init__(self, view: StateView, port: int, schema: pa.Schema) -> None:
        self._view = view
        self._prefix = WORKER_BIN + bytes([OPERATOR, port])
        self._schema = schema

    def keep(self, epoch: int, rows: pa.RecordBatch) -> None:
        """Store rows that the frontier has not passed.

        Args:
            epoch: Number of this epoch; it makes the chunks' names.
            rows: The rows, in any order.
        """
        if not rows.num_rows:
            return
        times = rows.column(self._schema.get_field_index(TIME)).to_numpy()
        index = np.argsort(times, kind="stable")
        times = times[index]
        rows = rows.take(places(index))
        edges = times[0] + (int(times[-1]) - int(times[0])) // _SPANS * np.arange(1, _SPANS)
        cuts = np.unique(np.concatenate(([0], np.searchsorted(times, edges), [len(times)])))
        names, values, timers = [], [], []
        for i, (a, b) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
            names.append(self._prefix + epoch.to_bytes(8, "big") + bytes([i]))
            values.append(int(times[b - 1]).to_bytes(8, "big", signed=True) + _to_bytes(rows.slice(a, b - a)))
            timers.append(int(times[a]))
        self._view.put_many(names, values, np.array(timers, np.int64))

    def release(self, before: int, frontier: int) -> list[pa.RecordBatch]:
        """Take out the rows with ``before <= time < frontier``.

        Args:
            before: The frontier of the epoch before, in µs; earlier rows have been taken out already.
            frontier: The frontier now.
        """
        out, gone = [], []
        for name, value in self._view.due(OPERATOR, frontier):
            if not name.startswith(self._prefix):
                continue
            rows = _from_bytes(value[8:])
            times = rows.column(self._schema.get_field_index(TIME)).to_numpy()
            a, b = np.searchsorted(times, [before, frontier])
            if b > a:
                out.append(rows.slice(int(a), int(b - a)))
            if int.from_bytes(value[:8], "big", signed=True) < frontier:
                gone.append(name)
        if gone:
            self._view.delete_many(gone)
        return out


def _to_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _from_bytes(raw: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(raw).read_next_batch()
