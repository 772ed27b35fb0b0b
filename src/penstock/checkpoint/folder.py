"""The checkpoint folder: identity, runs, control log, epoch records, files of state. No Spark.

Every file is written under a temporary name and renamed, so a reader sees it whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow.fs as pafs

from penstock.checkpoint.record import EpochRecord
from penstock.checkpoint.shape import SourceShape
from penstock.errors import CheckpointError, FencedError, TornFileError
from penstock.protocol.commands import Command, Load, decode, encode
from penstock.protocol.reports import WorkerReport, decode_report
from penstock.state.deltas import FileRef, read_ref
from penstock.state.files import (
    create_exclusive,
    delete_quietly,
    join,
    list_dir,
    location_of,
    read_bytes,
    read_json,
    read_json_if_there,
    resolve,
    write_atomic,
)

KEPT_RECORDS: Final = 8
KEPT_RUNS: Final = 8
KEPT_COMMANDS: Final = 64
IDENTITY, SOURCES, FED = "penstock.json", "sources.json", "fed.json"
GROUP: Final = "group.json"
"""What makes a folder that of a group (`penstock.checkpoint.group_folder`), which is no checkpoint itself."""
RUNS, CONTROL, EPOCHS, SNAPSHOTS, STATE = "runs", "control", "epochs", "snapshots", "state"
_DELTA, _MOVE, _BASE = ".delta", ".move", ".base"
OF_OPEN_EPOCHS: Final = (".decided", ".end", ".files", ".refused", ".tables")
"""Endings of what is kept of an epoch until it is committed."""
_NOBODYS: Final = frozenset({"lost+found"})
"""What may lie in a folder that is taken as a new checkpoint, beside what is hidden: file systems put it there."""


@contextlib.contextmanager
def reached(uri: str, done: str) -> Iterator[None]:
    """Raise an error of the file system as one sentence."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"Checkpoint {uri} cannot be {done} ({why}); give a folder that this user may read and write."
        ) from error


@dataclass(frozen=True)
class Identity:
    """A checkpoint's owner: a unique id and the flow's name."""

    flow: str
    name: str


class Checkpoint:
    """A checkpoint folder.

    Args:
        uri: Local path or URI.

    Raises:
        CheckpointError: It is a file, or cannot be reached.
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self.uri = location_of(uri)
        self.fs: pafs.FileSystem
        self.root: str
        self.fs, self.root = resolve(self.uri)
        with reached(self.uri, "read"):
            if self.fs.get_file_info(self.root).is_file:
                raise CheckpointError(f"Checkpoint {self.uri} is a file; give a folder.")

    def path(self, *parts: str) -> str:
        """A path below the checkpoint."""
        return join(self.root, "/".join(parts))

    def identity(self) -> Identity | None:
        """The checkpoint's owner; None if it has none yet."""
        if IDENTITY not in self._names(""):
            return None
        raw = read_json(self.fs, self.path(IDENTITY), "flow", "name")
        return Identity(raw["flow"], raw["name"])

    def of_group(self) -> bool:
        """Whether the folder is that of a group, and no checkpoint itself."""
        return GROUP in self._names("")

    def create(self, identity: Identity) -> Identity:
        """Make `identity` the checkpoint's owner unless it has one; returns the owner.

        Raises:
            CheckpointError: The folder cannot be written, or holds something else. Nothing was changed.
        """
        data = json.dumps({"format": 1, "flow": identity.flow, "name": identity.name}).encode()
        with reached(self.uri, "written"):
            there = self._names("")
            if IDENTITY not in there:
                self.refuse_others(there)
            if create_exclusive(self.fs, self.path(IDENTITY), data):
                return identity
            found = self.identity()
            assert found is not None
            return found

    def refuse_others(self, there: Sequence[str]) -> None:
        """Refuse a folder that holds what is not penstock's.

        Args:
            there: Names in it.

        Raises:
            CheckpointError: It does.
        """
        writing = (".", "_", f"{IDENTITY}.", f"{GROUP}.")  # another start at the same time
        others = [name for name in there if not name.startswith(writing) and name not in _NOBODYS]
        if GROUP in others:
            raise CheckpointError(
                f"{self.uri} is the folder of a group, which has a checkpoint for each partition; start the flow with group=, or give another folder."
            )
        if others:
            raise CheckpointError(
                f"The folder {self.uri} is not a checkpoint of penstock and holds other files ({', '.join(map(repr, others[:3]))}"
                f"{', …' if len(others) > 3 else ''}); give a folder of its own as checkpoint, new or empty."
            )

    def adopt(self, identity: Identity) -> Identity:
        """Make `identity` the owner of a checkpoint without state, whatever it had; returns it."""
        data = json.dumps({"format": 1, "flow": identity.flow, "name": identity.name}).encode()
        with reached(self.uri, "written"):
            write_atomic(self.fs, self.path(IDENTITY), data)
        return identity

    def claim(self, about: dict[str, Any], above: int = 0) -> int:
        """Claim the checkpoint for a new run, which fences every older run.

        Args:
            about: The run's description for `penstock status` (host, process, start).
            above: The run's number is greater than this.

        Returns:
            The run's number.

        Raises:
            CheckpointError: The folder cannot be written. Nothing was changed.
        """
        while True:
            run = 1 + max([above, *self._numbers(RUNS)])
            with reached(self.uri, "written"):
                created = create_exclusive(self.fs, self.path(RUNS, f"{run:06d}.json"), json.dumps(about).encode())
            if created:
                for old in self._numbers(RUNS)[:-KEPT_RUNS]:
                    for ending in (".json", ".spec", ".end"):
                        delete_quietly(self.fs, self.path(RUNS, f"{old:06d}{ending}"))
                return run

    def keep_sources(self, sources: Sequence[SourceShape]) -> None:
        """Store what the positions in the engine's log of input refer to, before the first epoch is committed."""
        write_atomic(self.fs, self.path(SOURCES), json.dumps([asdict(s) for s in sources]).encode())

    def sources(self) -> list[SourceShape]:
        """What `keep_sources` kept."""
        return [SourceShape(**raw) for raw in read_json(self.fs, self.path(SOURCES))]

    def keep_fed(self, fed: Mapping[str, str]) -> None:
        """Store what feeds each output, by its name, in the run that is about to emit rows."""
        write_atomic(self.fs, self.path(FED), json.dumps(dict(fed)).encode())

    def fed(self) -> dict[str, str]:
        """What `keep_fed` stored for the last run that emitted rows; empty: there was none."""
        return dict(read_json(self.fs, self.path(FED))) if FED in self._names("") else {}

    def keep_specs(self, run: int, data: bytes) -> None:
        """Store a run's regions, so that their state can be read without the flow's code."""
        write_atomic(self.fs, self.path(RUNS, f"{run:06d}.spec"), data, f"r{run}")

    def run_with_specs(self, run: int) -> int:
        """The run, or the newest one if the specs of that one have been removed."""
        return run if f"{run:06d}.spec" in self._names(RUNS) else self.newest_run()

    def specs(self, run: int) -> bytes:
        """What `keep_specs` kept."""
        return read_bytes(self.fs, self.path(RUNS, f"{run:06d}.spec"))

    def keep_end(self, run: int, end: Mapping[str, Any]) -> None:
        """Store how a run has ended."""
        write_atomic(self.fs, self.path(RUNS, f"{run:06d}.end"), json.dumps(dict(end)).encode(), f"r{run}")

    def end_of(self, run: int) -> dict[str, Any] | None:
        """What `keep_end` stored; None: the run has not ended, or could not note it."""
        try:
            return dict(read_json(self.fs, self.path(RUNS, f"{run:06d}.end")))
        except (OSError, ValueError, CheckpointError):
            return None

    def check_owner(self, run: int) -> None:
        """Refuse to continue if a newer run has claimed the checkpoint.

        Raises:
            FencedError: It has. Nothing was changed.
        """
        newest = max(self._numbers(RUNS), default=run)
        if newest > run:
            about = self.about(newest)
            raise FencedError(
                f"Run {run} of this checkpoint was replaced by run {newest}, started {about.get('started', '?')} by process "
                f"{about.get('pid', '?')} on {about.get('host', '?')}; this run stops and has written nothing since."
            )

    def about(self, run: int) -> dict[str, Any]:
        """A run's description of itself."""
        try:
            return dict(json.loads(read_bytes(self.fs, self.path(RUNS, f"{run:06d}.json"))))
        except (OSError, ValueError, CheckpointError):
            return {}

    def newest_run(self) -> int:
        """The number of the newest run; 0 if there was none."""
        return max(self._numbers(RUNS), default=0)

    def newest_epoch(self) -> int:
        """The number of the newest record, whatever is in it; −1: there is none."""
        return max(self._numbers(EPOCHS), default=-1)

    def last(self) -> EpochRecord:
        """The last committed epoch's record, or an empty one.

        Raises:
            TornFileError: The newest record is damaged. An older one is not used silently: sinks may hold more than it knows.
        """
        numbers = self._numbers(EPOCHS)
        if not numbers:
            return EpochRecord()
        path = self.path(EPOCHS, epoch_name(numbers[-1]))
        return EpochRecord.from_bytes(read_bytes(self.fs, path), path)

    def commit(self, record: EpochRecord, run: int) -> None:
        """Commit an epoch: one atomic rename.

        Raises:
            FencedError: A newer run owns the checkpoint. Nothing was committed.
        """
        self.check_owner(run)
        write_atomic(self.fs, self.path(EPOCHS, epoch_name(record.epoch)), record.to_bytes(), f"r{run}")

    def snapshot(self, name: str, record: EpochRecord) -> None:
        """Store a record under a name; its state files are kept as long as the snapshot is."""
        write_atomic(self.fs, self.path(SNAPSHOTS, f"{name}.json"), record.to_bytes())

    def renew_snapshots(self) -> None:
        """Write snapshots of the format before in the present one, so that the next version can read them.

        One that is damaged stays as it is: whoever wants it is told.
        """
        for name in self.snapshot_names():
            with contextlib.suppress(TornFileError):
                data = read_bytes(self.fs, path := self.path(SNAPSHOTS, f"{name}.json"))
                if (record := EpochRecord.from_bytes(data, path)).to_bytes() != data:
                    self.snapshot(name, record)

    def snapshot_names(self, upto: int | None = None) -> list[str]:
        """Names of the snapshots; with `upto`, of those of epochs up to that one, which have been committed."""
        names = sorted(n[:-5] for n in self._names(SNAPSHOTS) if n.endswith(".json"))
        return names if upto is None else [n for n in names if self.read_snapshot(n).epoch <= upto]

    def read_snapshot(self, name: str) -> EpochRecord:
        """The record of a snapshot.

        Raises:
            CheckpointError: There is no such snapshot.
            TornFileError: It is damaged.
        """
        if name not in self.snapshot_names():
            raise CheckpointError(f"There is no snapshot {name!r}; there are {', '.join(self.snapshot_names()) or 'none'}.")
        path = self.path(SNAPSHOTS, f"{name}.json")
        return EpochRecord.from_bytes(read_bytes(self.fs, path), path)

    def remove_snapshot(self, name: str) -> None:
        """Remove a snapshot; files that only it needs go with the next removal of old files.

        Raises:
            CheckpointError: There is no such snapshot, or a rollback to it is pending. Nothing was changed.
        """
        if name not in self.snapshot_names():
            raise CheckpointError(f"There is no snapshot {name!r}; there are {', '.join(self.snapshot_names()) or 'none'}.")
        last = self.last()
        ahead = [self.read_command(n) for n in self.control_names() if n not in last.control]
        if any(c.name == name for c in (last.rollback_pending, *ahead) if isinstance(c, Load)):
            raise CheckpointError(f"The flow is on its way back to snapshot {name!r}; remove it when it is there.")
        delete_quietly(self.fs, self.path(SNAPSHOTS, f"{name}.json"))

    def snapshots(self) -> list[EpochRecord]:
        """The records of all snapshots."""
        return [self.read_snapshot(name) for name in self.snapshot_names()]

    def decided(self, epoch: int, found: dict[str, Any], run: int) -> dict[str, Any]:
        """Store what an epoch found outside of its input (clock time, commands), so that a re-run decides alike.

        Args:
            epoch: Number of the epoch.
            found: What it found now.
            run: Number of the run.

        Returns:
            What was found first.
        """
        return self.kept_first(epoch, ".decided", found, run)

    def keep_input(self, epoch: int, found: dict[str, Any], run: int) -> dict[str, Any]:
        """Store which files an epoch reads, so that a re-run reads the same or refuses; arguments and result as `decided`."""
        return self.kept_first(epoch, ".files", found, run)

    def kept_input(self, epoch: int) -> dict[str, Any] | None:
        """What `keep_input` stored for an uncommitted epoch; None: nothing yet."""
        return self._kept(epoch, ".files")

    def forget_input(self, epoch: int) -> None:
        """Let a re-run read other files, because nothing of the epoch was stored."""
        delete_quietly(self.fs, self.path(EPOCHS, epoch_name(epoch, ".files")))

    def refuse_file(self, epoch: int, uri: str) -> None:
        """Note that an epoch could not read a file, so that it may be removed."""
        found = self.refused_files(epoch) | {uri}
        write_atomic(self.fs, self.path(EPOCHS, epoch_name(epoch, ".refused")), json.dumps({"files": sorted(found)}).encode())

    def refused_files(self, epoch: int) -> set[str]:
        """What `refuse_file` noted."""
        return set((self._kept(epoch, ".refused") or {}).get("files", ()))

    def kept_first(self, epoch: int, ending: str, found: dict[str, Any], run: int) -> dict[str, Any]:
        """Store something of an epoch, in a file of this ending; the others as `decided`."""
        path = self.path(EPOCHS, epoch_name(epoch, ending))
        if create_exclusive(self.fs, path, json.dumps(found).encode(), f"r{run}"):
            return found
        return dict(read_json(self.fs, path))

    def give_end(self, epoch: int, run: int) -> None:
        """Note that an epoch's rows are given to a sink as those of the end of the input."""
        create_exclusive(self.fs, self.path(EPOCHS, epoch_name(epoch, ".end")), b"", f"r{run}")

    def gave_end(self, epoch: int) -> bool:
        """Whether any run may have emitted rows of an epoch as those of the end of the input."""
        return epoch_name(epoch, ".end") in self._names(EPOCHS)

    def _kept(self, epoch: int, ending: str) -> dict[str, Any] | None:
        return read_json_if_there(self.fs, self.path(EPOCHS, epoch_name(epoch, ending)))  # type: ignore[no-any-return]

    def read_command(self, name: str) -> Command:
        """A command of the control log; `Unknown` if it is none."""
        text = read_bytes(self.fs, self.path(CONTROL, name))
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        return decode(found if isinstance(found, dict) else text[:40].decode(errors="replace").strip())

    def tidy(self, record: EpochRecord) -> None:
        """Remove old records and commands."""
        names = sorted(self._names(EPOCHS))
        records = [n for n in names if n.endswith(".json") and n < epoch_name(record.epoch - KEPT_RECORDS, "")]
        decided = [n for n in names if n.endswith(OF_OPEN_EPOCHS) and n < epoch_name(record.epoch, "")]
        for name in records + decided:
            delete_quietly(self.fs, self.path(EPOCHS, name))
        for name in sorted(record.control)[:-KEPT_COMMANDS]:  # obeyed long ago; no epoch reads them again
            delete_quietly(self.fs, self.path(CONTROL, name))

    def control_names(self) -> list[str]:
        """Names of the control files, in order."""
        return sorted(n for n in self._names(CONTROL) if n.endswith(".json") and not n.startswith((".", "_")))

    def command(self, command: Command, name: str) -> None:
        """Append a command to the control log.

        Args:
            command: The command.
            name: Its file name, unique and ascending.

        Raises:
            CheckpointError: The folder cannot be written. The command was not submitted.
        """
        with reached(self.uri, "written"):
            write_atomic(self.fs, self.path(CONTROL, name), json.dumps(encode(command)).encode() + b"\n")

    def deltas_of(self, region: str, epoch: int, run: int) -> dict[int, tuple[FileRef, WorkerReport]]:
        """The delta files that workers of a run wrote in an epoch, with their reports; one per worker, of any attempt."""
        found: dict[int, tuple[FileRef, WorkerReport]] = {}
        for name in sorted(self._names(state_path(region))):
            tag = parse_delta_name(name)
            if tag is not None and tag[1:3] == (epoch, run) and tag[0] not in found:
                ref, metadata = read_ref(self.fs, self.root, state_path(region, name))
                found[tag[0]] = (ref, decode_report(metadata.report))
        return found

    def lost_state(self, record: EpochRecord) -> str:
        """A state file that a record needs and that is not there; empty: there is none."""
        for region, state in record.regions.items():
            if lost := state.files() - {state_path(region, name) for name in self.state_files(region)}:
                return min(lost)
        return ""

    def state_files(self, region: str) -> list[str]:
        """Names of all files of a region's state."""
        return sorted(self._names(state_path(region)))

    def _names(self, folder: str) -> list[str]:
        return list_dir(self.fs, self.path(folder) if folder else self.root)

    def _numbers(self, folder: str) -> list[int]:
        return sorted(int(n[:-5]) for n in self._names(folder) if n.endswith(".json") and n[:-5].isdigit())


def epoch_name(epoch: int, ending: str = ".json") -> str:
    """File name of an epoch's record, or of what else is kept of it."""
    return f"{epoch:012d}{ending}"


def state_path(region: str, name: str = "") -> str:
    """The folder of a region's state, or a file in it."""
    return f"{STATE}/{region}/{name}" if name else f"{STATE}/{region}"


def delta_path(region: str, worker: int, epoch: int, run: int, attempt: int) -> str:
    """A worker's delta; each attempt of a task has its own, so none can overwrite one that counts."""
    return state_path(region, f"{_stem(worker, epoch, run)}-t{attempt}{_DELTA}")


def move_path(region: str, worker: int, epoch: int, run: int, attempt: int, to: int) -> str:
    """State that a worker gives up to another; `to` is −1 for names of entries that are only dropped."""
    return state_path(region, f"{_stem(worker, epoch, run)}-t{attempt}-{'held' if to < 0 else f'to{to:04d}'}{_MOVE}")


def copy_path(region: str, worker: int, epoch: int, run: int, key: int) -> str:
    """The copied state of a key (its hash) that a worker has put on hold in an epoch."""
    return state_path(region, f"{_stem(worker, epoch, run)}{copy_tag(key)}{_MOVE}")


def copy_tag(key: int) -> str:
    """The part of a `copy_path` that identifies the key."""
    return f"-k{key & (2**64 - 1):016x}"


def base_path(region: str, worker: int, epoch: int, run: int) -> str:
    """A worker's base."""
    return state_path(region, f"{_stem(worker, epoch, run)}{_BASE}")


def parse_delta_name(name: str) -> tuple[int, int, int, int] | None:
    """Worker, epoch, run and attempt in a delta's file name; None if it is no delta."""
    if not name.endswith(_DELTA):
        return None
    worker, epoch, run, attempt = (int(part[1:]) for part in name.removesuffix(_DELTA).split("-"))
    return worker, epoch, run, attempt


def parse_state_name(name: str) -> tuple[int, int, bool] | None:
    """Worker and epoch of a state file, and whether it is a base; None if it is no such file."""
    parts = name.split("-")
    if not name.endswith((_BASE, _DELTA, _MOVE)) or len(parts) < 3 or not (parts[0][1:].isdigit() and parts[1][1:].isdigit()):
        return None
    return int(parts[0][1:]), int(parts[1][1:]), name.endswith(_BASE)


def _stem(worker: int, epoch: int, run: int) -> str:
    return f"w{worker:04d}-e{epoch:012d}-r{run:06d}"


def open_checkpoint(uri: str | os.PathLike[str]) -> tuple[Checkpoint, Identity]:
    """A checkpoint that must exist.

    Raises:
        CheckpointError: There is none.
    """
    checkpoint = Checkpoint(uri)
    uri = checkpoint.uri
    try:
        identity = checkpoint.identity()
    except (OSError, TornFileError) as error:
        raise CheckpointError(f"{uri} cannot be read as a checkpoint: {error}.") from error
    if identity is None and checkpoint.of_group():
        raise CheckpointError(
            f"{uri} is the folder of a group, which has a checkpoint for each partition; give one of them, such as {uri.rstrip('/')}/partitions/0."
        )
    if identity is None:
        raise CheckpointError(f"{uri} is not a checkpoint of penstock; give the folder that the flow was started with.")
    return checkpoint, identity
