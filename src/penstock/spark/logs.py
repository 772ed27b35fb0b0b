"""The log of input, as files of Spark's own: read and write where an epoch's input ends, and write a log that ends at a snapshot's.

::

    spark/offsets/<epoch>               a version, a line about the batch, then a line per source: where its input ends
    spark/sources/<n>/<batch>           of a file source: a version, then a line per file; <batch>.compact has those of all before, too
    spark/sources/<n>/0                 of others: whatever they keep

Batches of a file source are its own count, which an epoch's line names as ``logOffset``. Nothing here is ever changed in place: going back
makes a new folder, and the epoch record that commits it names that one. The new log has no commit of its last epoch, so Spark calls
for that epoch once more; the driver finds it committed.

Read next: `penstock.driver.rollback`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from typing import Any, Final

import pyarrow.fs as pafs

from penstock.checkpoint.folder import CONTROL, Checkpoint
from penstock.checkpoint.record import EpochRecord
from penstock.driver.input_files import InputFile
from penstock.errors import CheckpointError
from penstock.state.files import create_exclusive, delete_quietly, list_dir, read_bytes, resolve, write_atomic
from penstock.types import Refusal

COMPACT_INTERVAL: Final = "spark.sql.streaming.fileSource.log.compactInterval"
COMPACT_EVERY: Final = 10
"""Spark's default of it."""

_HEAD: Final = ("v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}))
_FOLDER: Final = re.compile(r"spark(-\d{12})?")
_BATCH: Final = re.compile(r"(\d+)(\.compact)?")

Entry = dict[str, Any]


def has_begun(checkpoint: Checkpoint, log: str, epoch: int = 0) -> bool:
    """Whether an epoch, or a later one, has been planned; then Spark knows the sources by number."""
    return any(name.isdigit() and int(name) >= epoch for name in list_dir(checkpoint.fs, checkpoint.path(log, "offsets")))


def has_moved(checkpoint: Checkpoint, log: str) -> bool:
    """Whether Spark has seen commands in another folder than the checkpoint has them in now: it was moved, is a copy, or was reached by a link."""
    folders = {entry["path"].rpartition("/")[0] for entry in _entries(checkpoint, log, 0) or ()}
    return any(resolve(folder)[1] != checkpoint.path(CONTROL) for folder in folders)


def input_of(checkpoint: Checkpoint, log: str, epoch: int) -> str:
    """The end of an epoch's input, as Spark wrote it."""
    return read_bytes(checkpoint.fs, checkpoint.path(log, "offsets", str(epoch))).decode()


def rewrite_offset_log(
    checkpoint: Checkpoint, last: EpochRecord, kept: EpochRecord, epoch: int, every: int = COMPACT_EVERY
) -> str:
    """Write a log that ends where a snapshot's input does.

    Args:
        checkpoint: The checkpoint.
        last: The last committed epoch's record; it names the log that is now.
        kept: The snapshot's record.
        epoch: Number that the log's last epoch is to have.
        every: Spark's interval of compaction.

    Returns:
        The folder. Nothing refers to it yet.

    Raises:
        CheckpointError: The log that is now does not reach as far as the snapshot.
    """
    folder = f"spark-{epoch:012d}"
    for name in list_dir(checkpoint.fs, checkpoint.root):
        if _FOLDER.fullmatch(name) and name != last.log:  # of a going back that was interrupted, or left over from one
            delete_quietly(checkpoint.fs, checkpoint.path(name))
    ends = ends_of(kept.input)
    for source, end in enumerate(ends):
        for name, data in _cut(checkpoint, last.log, source, end, every).items():
            write_atomic(checkpoint.fs, checkpoint.path(folder, "sources", str(source), name), data)
    if "metadata" in list_dir(checkpoint.fs, checkpoint.path(last.log)):
        about = read_bytes(checkpoint.fs, checkpoint.path(last.log, "metadata"))
        write_atomic(checkpoint.fs, checkpoint.path(folder, "metadata"), about)
    for number in (epoch - 1, epoch):  # Spark asks of the last two where the input between them begins and ends
        write_atomic(checkpoint.fs, checkpoint.path(folder, "offsets", str(number)), kept.input.encode())
    return folder


def again(checkpoint: Checkpoint, log: str, epoch: int) -> str:
    """Write a log after which an epoch's input counts as not given; returns its folder. Nothing refers to it yet."""
    kept = EpochRecord(input=input_of(checkpoint, log, epoch - 1))
    return rewrite_offset_log(checkpoint, EpochRecord(log=log), kept, epoch)


def begin(checkpoint: Checkpoint, read: Sequence[Sequence[InputFile]], epoch: int) -> str:
    """Write a log of input that begins after an epoch; returns its folder. Nothing refers to it yet.

    Args:
        checkpoint: The checkpoint.
        read: By source, the files that count as given; empty: it begins with what it still has.
        epoch: The epoch, of which Spark is to believe that it has run.
    """
    folder = f"spark-{epoch:012d}"
    delete_quietly(checkpoint.fs, checkpoint.path(folder))
    ends = ["-"]  # the control log: what was obeyed is not obeyed again
    for number, files in enumerate(read, 1):
        ends.append(json.dumps({"logOffset": 0}) if files else "-")
        entries = [{"path": f.uri, "timestamp": f.mtime_ms, "batchId": 0} for f in files]
        if entries:
            lines = [b"v1", *(json.dumps(e, separators=(",", ":")).encode() for e in entries)]
            write_atomic(checkpoint.fs, checkpoint.path(folder, "sources", str(number), "0"), b"\n".join(lines))
    write_atomic(checkpoint.fs, checkpoint.path(folder, "metadata"), json.dumps({"id": str(uuid.uuid4())}).encode())
    text = "\n".join([*_HEAD, *ends])
    for number in (epoch - 1, epoch):
        write_atomic(checkpoint.fs, checkpoint.path(folder, "offsets", str(number)), text.encode())
    return folder


def planned_epochs(checkpoint: Checkpoint, log: str) -> list[int]:
    """The epochs whose input was planned, as far as the log still has them."""
    return [int(name) for name in list_dir(checkpoint.fs, checkpoint.path(log, "offsets")) if name.isdigit()]


def plan(checkpoint: Checkpoint, log: str, epoch: int, ends: Sequence[Any]) -> None:
    """Store where an epoch's input ends, by source, unless that is stored already: by a run that has this one's place, or had it."""
    text = "\n".join([*_HEAD, "-", *("-" if end is None else json.dumps(end) for end in ends)])
    create_exclusive(checkpoint.fs, checkpoint.path(log, "offsets", str(epoch)), text.encode())


def forget(checkpoint: Checkpoint, log: str, epoch: int) -> None:
    """Remove the plan of an epoch that nobody runs again."""
    delete_quietly(checkpoint.fs, checkpoint.path(log, "offsets", str(epoch)))


def refusal(checkpoint: Checkpoint, last: EpochRecord, kept: EpochRecord) -> Refusal | None:
    """Why the files that arrived since a snapshot cannot be read again, if they cannot."""
    try:
        ends = ends_of(kept.input)
    except ValueError:
        return Refusal(
            "What Spark wrote of its input when the snapshot was taken cannot be read; the snapshot can only be read."
        )
    for source, end in enumerate(ends[1:], 1):  # the first is the control log; what was obeyed is not read again
        entries = _entries(checkpoint, last.log, source)
        again = [e["path"] for e in entries or () if e["batchId"] > _number(end)]
        lost = _missing(again)
        if lost:
            return Refusal(
                f"The file {lost} was read after the snapshot and is gone, so it could not be read again; restore it first."
            )
    return None


def files_read(checkpoint: Checkpoint, last: EpochRecord) -> set[str]:
    """The files that sources of files have read up to the last epoch, as URIs. Spark may have planned to read more."""
    ends = ends_of(input_of(checkpoint, last.log, last.epoch))
    found: set[str] = set()
    for source, end in enumerate(ends[1:], 1):  # the first is the control log
        found |= {e["path"] for e in _entries(checkpoint, last.log, source) or () if e["batchId"] <= _number(end)}
    return found


def ends_of(text: str) -> list[Any]:
    """By source, the end of its input, from Spark's text; None: it had none."""
    lines = text.strip().split("\n")[len(_HEAD) :]
    return [None if line == "-" else json.loads(line) for line in lines]


def _number(end: Any) -> int:
    """A file source's last batch."""
    return int(end["logOffset"]) if isinstance(end, dict) and "logOffset" in end else -1


def _files(checkpoint: Checkpoint, log: str, source: int) -> dict[str, bytes]:
    folder = checkpoint.path(log, "sources", str(source))
    names = [n for n in list_dir(checkpoint.fs, folder) if _BATCH.fullmatch(n)]
    return {n: read_bytes(checkpoint.fs, f"{folder}/{n}") for n in names}


def _entries(checkpoint: Checkpoint, log: str, source: int) -> list[Entry] | None:
    """The files that a file source has read, in order; None if it is no file source."""
    found: dict[tuple[int, str], Entry] = {}
    for data in _files(checkpoint, log, source).values():
        for line in data.decode().split("\n")[1:]:
            try:
                entry = json.loads(line) if line else None
            except ValueError:
                return None
            if entry is None:
                continue
            if not isinstance(entry, dict) or not {"path", "timestamp", "batchId"} <= entry.keys():
                return None
            found[entry["batchId"], entry["path"]] = entry
    return sorted(found.values(), key=lambda e: e["batchId"])


def _cut(checkpoint: Checkpoint, log: str, source: int, end: Any, every: int) -> dict[str, bytes]:
    """Files of a source's log up to where a snapshot's input ends, by name."""
    files = _files(checkpoint, log, source)
    entries = _entries(checkpoint, log, source)
    if entries is None:
        return files
    upto = _number(end)
    kept = [e for e in entries if e["batchId"] <= upto]
    if {e["batchId"] for e in kept} != set(range(upto + 1)):
        raise CheckpointError(
            f"Spark's log of source {source} in {checkpoint.uri} lacks files that were read before the snapshot; restore the folder {log}/sources."
        )
    version = next((d.split(b"\n", 1)[0] for d in files.values()), b"v1")
    compact = (upto + 1) // every * every - 1
    names = {f"{compact}.compact": [e for e in kept if e["batchId"] <= compact]} if compact >= 0 else {}
    names |= {str(n): [e for e in kept if e["batchId"] == n] for n in range(compact + 1, upto + 1)}
    return {
        name: b"\n".join([version, *(json.dumps(e, separators=(",", ":")).encode() for e in chosen)])
        for name, chosen in names.items()
    }


def _missing(uris: list[str]) -> str:
    """The first of some files that is missing."""
    by_system: dict[str, tuple[Any, list[str]]] = {}
    for uri in uris:
        system, path = resolve(uri)
        by_system.setdefault(system.type_name, (system, []))[1].append(path)
    for system, paths in by_system.values():
        for info in system.get_file_info(paths):
            if info.type == pafs.FileType.NotFound:
                return str(info.path)
    return ""
