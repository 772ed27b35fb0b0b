"""The one contract of all sinks: rows and mark are stored together, or not at all.

A sink holds its own `Mark`. The engine asks for it when a run starts (`open`), and hands it back with every epoch's rows
(`write`). That is what makes a flow exactly once: an epoch that is run again after a crash is skipped by the sink that
already holds it, and a run that has been replaced by a newer one is refused (fencing).

Sinks know nothing of Spark: rows arrive as Arrow record batches, in the driver, or, if the sink offers `Staging`, where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

import pyarrow as pa

from penstock.types import Mark, Refusal


@runtime_checkable
class Sink(Protocol):
    """The engine's interface to a sink. One instance serves one output of one flow.

    Before it is opened it can be copied by `copy.copy`: the copy serves another output, as of another partition of a flow in a group.
    """

    durable: bool
    """Whether the mark outlives the process. A sink that is not durable (memory, console) may be behind the checkpoint."""

    def validate(self, schema: pa.Schema, *, updates: bool, key: tuple[str, ...]) -> None:
        """Refuse, when the flow is declared, what can never work.

        Args:
            schema: The output's columns as far as they are known; a column of unknown type has type ``pa.null()``.
            updates: True if the output replaces earlier rows of the same key (a running aggregate), so that appending
                would store every intermediate value and depend on the epoch boundaries.
            key: The columns that identify a row of an updating output; empty if not known.

        Raises:
            DeclarationError: The mode cannot work, a key column is missing, a type cannot be stored.
        """
        ...

    def open(self, claim: Mark, schema: pa.Schema) -> Mark | None:
        """Claim the sink for a run: create what is missing, store the run's token, return the mark found.

        Args:
            claim: ``flow``, ``output`` and ``run`` of the run that starts; its ``epoch`` is the last one the checkpoint
                has committed (−1 for none).
            schema: The output's columns, exact.

        Returns:
            The mark that the sink held, or None if this output was never written. After `open`, every older run is fenced.

        Raises:
            FencedError: A newer run (higher ``run`` of the same flow) has claimed it.
            SinkAheadError: The sink's mark has an epoch more than one ahead of ``claim.epoch``, or is from another flow.
            SinkError: The storage cannot be used (not reachable, table with other columns, another output there that would lose rows…).
                Nothing was changed.
        """
        ...

    def held(self, output: str) -> Mark | None:
        """The mark of an output, read from the storage itself; claims, changes and creates nothing.

        May be called before `open`, after `close`, and beside a run that writes: then it is the mark of the last finished write.

        Args:
            output: Name of the output, as in `Mark`.

        Returns:
            The mark, also if it is another flow's; `Mark.run` is that of the last run that claimed it. None: the output was never
            written, though a run may have claimed it, or nothing is there.

        Raises:
            SinkError: As `open`: the storage cannot be used, or has lost what the mark says it held.
        """
        ...

    def write(self, batches: Iterable[pa.RecordBatch], mark: Mark) -> int:
        """Store an epoch's rows and its mark atomically.

        Args:
            batches: The rows, in order; may be empty. Consumed at most once, and not at all if the sink holds the epoch.
            mark: The mark after this epoch. ``mark.epoch`` at or below the one held: nothing is stored (``<=``, never ``==``).
                All of its fields are stored, `Mark.trail` up to some 100 KB.

        Returns:
            Number of rows stored now (0 if the epoch was held already).

        Raises:
            FencedError: A newer run has claimed the sink. Nothing was stored.
            SinkError: The storage refused. Nothing was stored.
        """
        ...

    def close(self) -> None:
        """Release connections. The mark stays."""
        ...


Stager = Callable[[Iterable[pa.RecordBatch], int], Iterator[bytes]]
"""Stages the rows of one attempt of a task: rows, number of the attempt → tokens."""


@runtime_checkable
class Staging(Protocol):
    """Optional methods of a sink whose rows can be stored where they are, out of sight of readers, and committed by the driver.

    A sink without them gets the rows in the driver, by `Sink.write`.
    """

    def stager(self, mark: Mark) -> Stager:
        """What the tasks of an epoch call with their rows; called in the driver, then pickled.

        A task may fail half-way, be retried, or run twice at a time, each time with another number of its attempt. Only a finished
        attempt gives tokens, and only those of one attempt per task reach `commit`. Tokens pass through the driver, so they
        should be small; a task without rows gives none.

        Args:
            mark: The mark that `commit` will be given.
        """
        ...

    def commit(self, tokens: Iterable[bytes], mark: Mark) -> int:
        """Store what was staged and the mark atomically; else as `Sink.write`. What no token names is removed, now or later.

        Args:
            tokens: Those of all tasks, in the order of the rows; may be empty.
            mark: As in `Sink.write`.
        """
        ...


@runtime_checkable
class Positioned(Protocol):
    """What a sink says besides, if it wants to know where its rows come from."""

    wants_positions: bool
    """If true, schemas and rows have four columns more, the last ones, int64 and never null: those of `penstock.types.ORDER`.

    They are the event time (µs; 0 without one), the source and its partition, the offset there, and which of the rows it is that this
    record triggered. A row that the frontier triggers, such as a window's, has a negative partition and its key's hash as offset. No two
    rows of an output that replaces none have the same four, and these do not depend on epochs, workers or rescales.
    """


@runtime_checkable
class Sharing(Protocol):
    """Optional method of a sink that may share its place with other outputs, but not in every way."""

    def sharing_refusal(self, other: Sink) -> Refusal | None:
        """Why this output cannot be kept where another one of the flow is, if it cannot. None: it can, or it is elsewhere.

        Asked when the flow is declared, after both were validated. What shows only where the rows are (one place by two names) is
        refused by `Sink.open`.
        """
        ...


@runtime_checkable
class Rewinding(Protocol):
    """Optional methods of a sink, so that its flow can go back to a snapshot.

    A sink without them cannot take rows back; its flow goes back only if the command keeps the output.
    """

    def rewind_refusal(self) -> Refusal | None:
        """Why stored rows cannot be taken back, if they cannot. Asked before anything is changed.

        A sink in which later rows replace earlier ones may accept although it removes nothing: the rows that the flow emits
        when it processes its input again replace the earlier ones.
        """
        ...

    def rewind(self, upto: int, mark: Mark) -> None:
        """Take back the rows of every epoch after a given one, and move the mark, atomically.

        Called between two epochs, after `open` and in place of a `write`. Epoch numbers continue: ``mark.epoch`` is greater
        than any epoch that the sink holds, while frontier and positions fall back. If the command keeps the output, a sink that
        cannot take back rows is called, too; then only the mark moves.

        Args:
            upto: The last epoch whose rows stay.
            mark: The mark afterwards. ``mark.epoch`` at or below the one held: it was done before, and nothing is changed.

        Raises:
            FencedError: A newer run has claimed the sink. Nothing was changed.
            SinkError: The storage refused. It can be called again.
        """
        ...
