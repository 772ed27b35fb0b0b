"""Each epoch's rows to a function of the user.

Read next: `penstock.sinks.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa

from penstock.errors import DeclarationError, FencedError, SinkError
from penstock.sinks import marks
from penstock.sinks.base import Sink
from penstock.types import Mark, Refusal


def foreach_epoch(fn: Callable[[pa.Table, int], object]) -> Sink:
    """Call a function with each epoch's rows, in the driver, in order of epochs.

    *At least once:* the function may be called again with an epoch that it has already had, with the same rows, if the process
    dies before the epoch is committed. *Exactly once* is up to the function: store the epoch's number in the same transaction as
    the rows, and do nothing if the number stored is already as high (``<=``, not ``==``). There is also no fencing across
    processes: a function that must not be called by an old run has to check that itself.

    Args:
        fn: Called as ``fn(table, epoch)``. Not called for an epoch without rows. What it returns is ignored. The output of a
            running aggregate hands over the keys that changed.

    Returns:
        A sink that is not durable.

    Raises:
        DeclarationError: `fn` cannot be called. Nothing was changed.

    Example:
        >>> import sqlite3
        >>> database = sqlite3.connect("results.db")
        >>> tables = database.executescript("CREATE TABLE progress (epoch); INSERT INTO progress VALUES (-1); CREATE TABLE results (key, n)")
        >>> def store(table, epoch):
        ...     with database:  # one transaction
        ...         if database.execute("UPDATE progress SET epoch = ? WHERE epoch < ?", (epoch, epoch)).rowcount:
        ...             database.executemany("INSERT INTO results VALUES (:key, :n)", table.to_pylist())
        >>> foreach_epoch(store)
        foreach_epoch(store)
    """
    return ForeachSink(fn)


class ForeachSink:
    """The sink that `foreach_epoch` makes."""

    durable = False

    def __init__(self, fn: Callable[[pa.Table, int], object]) -> None:
        if not callable(fn):
            raise DeclarationError(f"foreach_epoch() needs a function of (table, epoch), not {fn!r}: give it one.")
        self._fn = fn
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._target = f"foreach_epoch({self._name})"
        self._mark: Mark | None = None
        self._schema: pa.Schema | None = None

    def __repr__(self) -> str:
        return self._target

    def validate(self, schema: pa.Schema, *, updates: bool, key: tuple[str, ...]) -> None:
        """Anything can be handed over."""

    def open(self, claim: Mark, schema: pa.Schema) -> Mark | None:
        """See `Sink.open`; knows only what this object has handed over.

        Raises:
            FencedError: As in the contract.
            SinkAheadError: The function has had more than the checkpoint knows of.
        """
        held = self._mark if self._mark and (self._mark.flow, self._mark.output) == (claim.flow, claim.output) else None
        marks.refuse_claim(held, claim, target=self._target, remedy="declare a new one")
        self._schema = schema
        self._mark = replace(held or claim, run=claim.run, epoch=held.epoch if held else -1)
        return held if held and held.epoch >= 0 else None

    def held(self, output: str) -> Mark | None:
        """See `Sink.held`; knows only what this object was given."""
        return self._mark if self._mark and self._mark.output == output and self._mark.epoch >= 0 else None

    def write(self, batches: Iterable[pa.RecordBatch], mark: Mark) -> int:
        """See `Sink.write`; whether the rows are stored with the mark is up to the function.

        Raises:
            FencedError: As in the contract. The function was not called.
            SinkError: The function raised; what it did until then stays. It will be called with the epoch again.
        """
        if marks.holds_epoch(self._mark, mark, target=self._target):
            return 0
        table = pa.Table.from_batches(batches, self._schema)
        if table.num_rows:
            try:
                self._fn(table, mark.epoch)
            except FencedError:
                raise
            except Exception as raised:
                raise SinkError(
                    f"{self._target} raised {type(raised).__name__} on the {table.num_rows} rows of epoch {mark.epoch} ({raised}): "
                    "correct the function; it will be called with that epoch again."
                ) from raised
        self._mark = mark
        return table.num_rows

    def rewind_refusal(self) -> Refusal | None:
        """Nobody knows what the function did with the rows."""
        return Refusal(f"{self._target} cannot take back the rows that the function was given")

    def rewind(self, upto: int, mark: Mark) -> None:
        """See `Rewinding.rewind`: what the function did stays.

        Raises:
            FencedError: As in the contract.
            SinkError: The sink was not opened.
        """
        del upto
        if not marks.holds_epoch(self._mark, mark, target=self._target):
            self._mark = mark

    def close(self) -> None:
        """Nothing to release."""
