"""Rows as entries of a partitioned stream of Redis or Valkey: an epoch's entries and its mark are stored by one script.

Partition p of stream ``orders`` is the Redis stream ``{orders:p}``. The mark is a string beside partition 0. Nothing is staged: an epoch is one
script, during which the server answers nobody else.

Read next: `penstock.redis_client.stored_marks`, `penstock.redis_client.packing`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.errors import DeclarationError, SinkError
from penstock.redis_client import library
from penstock.redis_client.connection import connect, shown, translated
from penstock.redis_client.keys import mark_key, partition_key
from penstock.redis_client.packing import blocks
from penstock.redis_client.stored_marks import MOST_COLUMNS, StoredMark
from penstock.redis_client.stream_log import agreed_partitions
from penstock.redis_client.values import refusal
from penstock.sinks import marks
from penstock.sql_text.given import as_name, spelled_in
from penstock.sql_text.schema import as_number, as_text
from penstock.types import Mark, Refusal

if TYPE_CHECKING:
    from penstock.sql_text.given import Expression

MOST_BYTES: Final = 256 << 20
_TIMEOUT_S: Final = 60.0
_SENT_AT_MOST: Final = 5


def redis_stream(url: str, stream: str, partitions: int, *, key: Expression | None = None) -> RedisStreamSink:
    """Keep an output's rows as entries of a partitioned stream of Redis or Valkey, exactly once: partition p of ``"orders"`` is the Redis stream ``{orders:p}``.

    An entry has a field for each column that is not null, written as `penstock.redis_client.values` has it, so `penstock.redis_streams` with the same
    columns reads the same rows. A row of nulls only has one field without a name.

    Entries and mark are stored by one script, all or nothing. So all partitions are on one server: a cluster is refused, unless there is one partition. The
    server answers nobody else while the script runs; keep epochs below some 100,000 rows (``max_rows_per_epoch`` of the sources). More than
    256 MiB in an epoch are refused. Entries stay until somebody trims the stream.

    Args:
        url: ``redis://[[user]:password@]host[:port][/db]``; with TLS ``rediss://…``.
        stream: Name of the stream. Several outputs, also of several flows, may share it.
        partitions: Number of its partitions.
        key: The column by which rows are placed: the same value goes to the same partition, in order. None: one after the other.

    Raises:
        DeclarationError: An argument is none.

    Example:
        >>> redis_stream("redis://localhost", "totals", 4, key="customer")
        redis_stream('redis://localhost', 'totals', 4)
    """
    connect(url)
    as_text(stream, "The stream of redis_stream")
    if "{" in stream or "}" in stream:
        raise DeclarationError(
            f"redis_stream({stream!r}) has a brace in its name, which names of keys use: choose another name."
        )
    as_number(partitions, "partitions of redis_stream")
    return RedisStreamSink(url, stream, partitions, None if key is None else as_name(key, "The key of redis_stream"))


class RedisStreamSink:
    """The sink that `redis_stream` makes."""

    durable = True

    def __init__(self, url: str, stream: str, partitions: int, key: str | None) -> None:
        self._url, self._stream, self._partitions, self._key = url, stream, partitions, key
        self._target = f"Redis stream {stream!r}"
        self._client = connect(url, timeout_s=_TIMEOUT_S)
        self._names: list[str] = []

    def __repr__(self) -> str:
        return f"redis_stream({shown(self._url)!r}, {self._stream!r}, {self._partitions})"

    def validate(self, schema: pa.Schema, *, updates: bool, key: tuple[str, ...]) -> None:
        """See `Sink.validate`.

        Raises:
            DeclarationError: The output updates, the key is no column, or a column has no name or a type without a text form.
        """
        marks.refuse_updates(updates, target=self._target, key=key)
        self._key = None if self._key is None else spelled_in(self._key, schema.names) or self._key
        if self._key is not None and self._key not in schema.names:
            raise DeclarationError(
                f"{self._target} is placed by column {self._key!r}, but the output has only {', '.join(schema.names)}."
            )
        if len(schema) > MOST_COLUMNS:
            raise DeclarationError(
                f"{self._target} would have entries of {len(schema):,} fields; {MOST_COLUMNS:,} are the most."
            )
        for column in schema:
            if why := refusal(column.type) or ("has no name" if not column.name else ""):
                raise DeclarationError(f"{self._target} has column {column.name!r}, which {why}.")

    def open(self, claim: Mark, schema: pa.Schema) -> Mark | None:
        """See `Sink.open`.

        Raises:
            FencedError: As in the contract.
            SinkAheadError: As in the contract.
            SinkError: The server cannot be used, or is one of a cluster, or the stream has another number of partitions. Nothing was changed.
        """
        self.validate(schema, updates=False, key=())
        stored = self._stored(claim.output)
        with self._reported("be opened"):
            if self._partitions > 1 and stored.in_cluster():
                raise SinkError(
                    f"{self._target} has {self._partitions} partitions, and {shown(self._url)} is a cluster, where no script can write several: "
                    "use one partition, or a server of its own."
                )
            agreed = agreed_partitions(self._client, self._stream)
            if agreed not in (None, self._partitions):
                raise SinkError(
                    f"{self._target} has {agreed} partitions, and {self._partitions} are declared: declare {agreed}."
                )
            while True:
                text = stored.read()
                held = _mark(text)
                marks.refuse_claim(
                    held, claim, target=self._target, remedy=f"delete the stream and the key {self._mark_key(claim.output)!r}"
                )
                of_flow = held if held is not None and held.flow == claim.flow else None
                claimed = Mark(claim.flow, claim.output, claim.run) if of_flow is None else replace(of_flow, run=claim.run)
                said, told = stored.store(text, claimed.to_json().encode(), ())
                if said == "stored":
                    break
                if said == "refused":
                    raise SinkError(f"{self._target} cannot be written: {told}; correct that and start again.")
        self._names = schema.names
        return of_flow if of_flow is not None and of_flow.epoch >= 0 else None

    def held(self, output: str) -> Mark | None:
        """See `Sink.held`."""
        with self._reported("give its mark"):
            mark = _mark(self._stored(output).read())
        return mark if mark is not None and mark.epoch >= 0 else None

    def write(self, batches: Iterable[pa.RecordBatch], mark: Mark) -> int:
        """See `Sink.write`. If the server is gone meanwhile, asks again what it holds, a few times.

        Raises:
            FencedError: As in the contract.
            SinkError: The sink was not opened, rows have other columns or are too many, or the server refused. Nothing was stored; if the server cannot be
                reached any more, the next `open` tells whether the epoch was.
        """
        stored = self._stored(mark.output)
        with self._reported(f"store epoch {mark.epoch}"):
            text = stored.read()
            if marks.holds_epoch(_mark(text), mark, target=self._target):
                return 0
        if not self._names:
            raise SinkError(f"{self._target} was not opened: open it before epoch {mark.epoch} is written.")
        rows, packed = self._packed(batches, mark.epoch)
        with self._reported(f"store epoch {mark.epoch}"):
            self._store(stored, text, mark, packed)
        return rows

    def _store(self, stored: StoredMark, text: bytes, mark: Mark, packed: list[bytes]) -> None:
        """Store an epoch on the mark `text`, whatever the connection does meanwhile."""
        after, sent = mark.to_json().encode(), False
        for attempt in range(_SENT_AT_MOST):
            try:
                if attempt:
                    text = stored.read()
                    if sent and text == after:
                        return  # the answer was lost, not the epoch
                    marks.holds_epoch(_mark(text), mark, target=self._target)
                sent = True
                said, told = stored.store(text, after, packed)
            except (library.LostError, library.LateError):  # it is not known whether the server has done it
                if attempt == _SENT_AT_MOST - 1:
                    raise
                continue
            if said == "stored":
                return
            if said == "refused":
                raise SinkError(f"{self._target} could not store epoch {mark.epoch}: {told}; correct that and start again.")

    def _packed(self, batches: Iterable[pa.RecordBatch], epoch: int) -> tuple[int, list[bytes]]:
        """The number of rows, and these as blocks."""
        rows = size = 0
        packed: list[bytes] = []
        for batch in batches:
            try:
                chosen = batch.select(self._names)
            except KeyError as missing:
                raise SinkError(
                    f"{self._target} was opened with other columns than these rows have ({missing}): open it again."
                ) from missing
            for n, block in blocks(chosen, self._partitions, self._key, epoch + rows):
                rows += n
                size += len(block)
                packed.append(block)
            if size > MOST_BYTES:
                raise SinkError(
                    f"{self._target} is given more than {MOST_BYTES >> 20} MiB in epoch {epoch}, which one script cannot store: read less per epoch "
                    "(max_rows_per_epoch, max_files_per_epoch of the sources), on a new checkpoint if this epoch is planned already."
                )
        return rows, packed

    def rewind_refusal(self) -> Refusal | None:
        """Somebody may have read the entries."""
        return Refusal(f"{self._target} cannot take back entries, which others may have read")

    def rewind(self, upto: int, mark: Mark) -> None:
        """See `Rewinding.rewind`: the entries stay, the mark moves.

        Raises:
            FencedError: As in the contract.
            SinkError: The sink was not opened, or the server refused.
        """
        del upto
        stored = self._stored(mark.output)
        with self._reported("move its mark"):
            text = stored.read()
            if not marks.holds_epoch(_mark(text), mark, target=self._target):
                self._store(stored, text, mark, [])

    def close(self) -> None:
        """Release connections. The mark stays."""
        self._client.close()

    def _mark_key(self, output: str) -> str:
        return mark_key(self._stream, output)

    def _stored(self, output: str) -> StoredMark:
        streams = [partition_key(self._stream, p) for p in range(self._partitions)]
        return StoredMark(self._client, self._mark_key(output), streams)

    def _reported(self, doing: str) -> AbstractContextManager[None]:
        return translated(self._url, SinkError, f"{self._target} could not {doing}: the request")


def _mark(text: bytes) -> Mark | None:
    return Mark.from_json(text.decode()) if text else None


__all__ = ["RedisStreamSink", "redis_stream"]
