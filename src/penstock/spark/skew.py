"""``penstock.skew``: what each distribution strategy would make of the keys of a DataFrame or an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from penstock.errors import DeclarationError
from penstock.routing.route import hashes_of
from penstock.routing.skew import MOST, advice, count_keys, measure
from penstock.sql_text.schema import quoted, unknown_column

if TYPE_CHECKING:
    from penstock.routing.strategy import Hashes


def skew(df_or_keys: Any, key: str | Sequence[str] | None = None, *, workers: int, senders: int = 1) -> pd.DataFrame:
    """What each distribution strategy would make of a stream's keys.

    Args:
        df_or_keys: A Spark DataFrame, or keys as for `penstock.route`: a NumPy or Arrow array, for several columns an Arrow struct array.
            The rows of a DataFrame count in the order in which Spark gives them; of more than ten million rows a sample is taken.
        key: The key columns of a DataFrame.
        workers: Number of workers, from 1 on.
        senders: Number of senders, for example partitions of the source, to which the rows are dealt in turn.

    Returns:
        A row for each strategy: ``strategy``; ``imbalance``: messages that the busiest worker has more than the mean, as a share of all;
        ``max_load`` and ``mean_load`` of a worker, in messages; ``copies_per_key``: workers with messages of a key, on average over keys;
        ``moved_between_epochs``: of the keys in two successive tenths of the rows, the share whose workers differ; ``fits``: for which steps it is.
        Its ``attrs["advice"]`` says which one to take.

    Raises:
        DeclarationError: No key column, an unknown one, one that has no hash, or fewer workers or senders than one.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> found = ps.skew(np.repeat([1, 2, 3, 4], [700, 100, 100, 100]), workers=2)
        >>> dict(zip(found.strategy, found.max_load.tolist()))["Histogram()"]
        500
    """
    for name, number in (("workers", workers), ("senders", senders)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise DeclarationError(f"skew({name}={number!r}): give a number from 1 on.")
    keys = count_keys(_hashes(df_or_keys, key))
    found = measure(keys, workers, senders)
    table = pd.DataFrame([one.figures() for one in found])
    table.attrs["advice"] = advice(found, keys.hottest)
    return table


def _hashes(rows: Any, key: str | Sequence[str] | None) -> Hashes:
    if not hasattr(rows, "sparkSession"):
        if key is not None:
            raise DeclarationError(
                "skew takes key= for a Spark DataFrame only; an array of keys has no columns to choose from."
            )
        return hashes_of(rows)
    names = [key] if isinstance(key, str) else list(key or ())
    if not names:
        raise DeclarationError("skew needs key=, the columns by which the DataFrame's rows are keyed.")
    for name in names:
        if name not in rows.columns:
            raise unknown_column(name, rows.columns, "skew's key")
    keys = rows.select(*(quoted(name) for name in names))
    count = keys.count()
    if count > MOST:
        keys = keys.sample(fraction=MOST / count, seed=1)
    return hashes_of(keys.toArrow())
