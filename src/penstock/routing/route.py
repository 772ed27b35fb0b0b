"""`penstock.route`: which worker each message of a stream would go to.

Read next: `penstock.routing.strategy`, `penstock.routing.skew`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.routing.hashing import spark_xxhash64
from penstock.routing.strategy import Hashes, Strategy, Workers, routed, told


def route(strategy: Strategy, keys: Any, *, workers: int, senders: Any = None, epochs: Any = None) -> Workers:
    """The worker of each message of a stream, by the same code as in a flow.

    Args:
        strategy: A distribution strategy.
        keys: By message, in order, its key: a NumPy or Arrow array; for keys of several columns an Arrow struct array, record batch or table.
        workers: Number of workers, from 1 on.
        senders: By message, who sends it (integers, n): what a strategy remembers is each sender's own. None: one sender.
        epochs: By message, its epoch (integers, n). An epoch with a greater number comes later, wherever it stands. None: one epoch.

    Returns:
        int32 array (n,) of workers, from 0 on.

    Raises:
        DeclarationError: No strategy, fewer workers than one, keys of a type that has no hash, or arrays of other lengths.
        OperatorError: A strategy of one's own failed, or gave something else than workers.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> hot = np.zeros(1000, np.int64)
        >>> np.bincount(ps.route(ps.KeyGrouping(), hot, workers=4), minlength=4)
        array([   0, 1000,    0,    0])
        >>> np.bincount(ps.route(ps.Histogram(), hot, workers=4))
        array([250, 250, 250, 250])
    """
    if not isinstance(strategy, Strategy):
        raise DeclarationError(f"route needs a distribution strategy, such as ps.Histogram(), not {strategy!r}.")
    if isinstance(workers, bool) or not isinstance(workers, (int, np.integer)) or workers < 1:
        raise DeclarationError(f"route(workers={workers!r}): give a number of workers from 1 on.")
    hashes = hashes_of(keys)
    sender, epoch = (_numbers(a, name, len(hashes)) for a, name in ((senders, "senders"), (epochs, "epochs")))
    order = np.lexsort((sender, epoch))
    with told(strategy):
        router = strategy.router(int(workers))
    names = np.unique(sender)
    out = np.empty(len(hashes), np.int32)
    for of_epoch in _runs(order, epoch):
        parts = dict(zip(names.tolist(), np.split(of_epoch, np.searchsorted(sender[of_epoch], names[1:])), strict=True))
        by_sender = {name: hashes[rows] for name, rows in parts.items()}
        for name, to in routed(strategy, router, int(workers), by_sender).items():
            out[parts[name]] = to
    return out


def hashes_of(keys: Any) -> Hashes:
    """Keys' hashes, as Spark computes them.

    Args:
        keys: A NumPy or Arrow array, or for several columns an Arrow struct array, record batch or table.
    """
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    columns: list[Any]
    if isinstance(keys, (pa.RecordBatch, pa.Table)):
        columns = list(keys.columns)
    elif isinstance(keys, pa.StructArray):
        columns = keys.flatten()
    elif isinstance(keys, pa.Array):
        columns = [keys]
    else:
        try:
            columns = [pa.array(keys)]
        except (pa.ArrowException, TypeError) as error:
            raise DeclarationError(f"These keys cannot be read as an array: {error}.") from error
    if not columns:
        raise DeclarationError("Keys need at least one column.")
    return spark_xxhash64(columns)


def _numbers(values: Any, name: str, length: int) -> npt.NDArray[np.int64]:
    if values is None:
        return np.zeros(length, np.int64)
    numbers = np.asarray(values)
    if numbers.ndim != 1 or len(numbers) != length or (numbers.dtype.kind not in "iu" and length):
        raise DeclarationError(f"route({name}=...) needs an array of {length} integers, one for each message.")
    return numbers.astype(np.int64)


def _runs(order: Any, values: Any) -> list[Any]:
    """An order cut where a value changes."""
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1) if len(order) else []
