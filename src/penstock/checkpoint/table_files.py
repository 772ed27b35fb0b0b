"""Versions of tables that are refreshed, as files of a checkpoint, and which of them an epoch that is open uses.

A version's file is written before an epoch names it. It is named by a digest of the rows and the run that wrote it, so a run that was replaced
removes no file that its successor wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from penstock.checkpoint.folder import EPOCHS, Checkpoint, epoch_name
from penstock.checkpoint.record import TableRead
from penstock.errors import TornFileError
from penstock.state.files import delete_quietly, list_dir, read_bytes, write_atomic

_TABLES: Final = "tables"
_USED: Final = ".tables"
INSTEAD: Final = 'restore it from a copy, or start with recover="recompute"'


class TableFiles:
    """The versions of one checkpoint.

    Args:
        checkpoint: The checkpoint.
        run: Number of the run.
    """

    def __init__(self, checkpoint: Checkpoint, run: int) -> None:
        self._checkpoint, self._run = checkpoint, run

    def check_owner(self) -> None:
        """Refuse to continue if a newer run has claimed the checkpoint; see `Checkpoint.check_owner`."""
        self._checkpoint.check_owner(self._run)

    def path(self, version: str) -> str:
        """The file of a version."""
        return self._checkpoint.path(_TABLES, version)

    def versions(self) -> set[str]:
        """The versions that are there."""
        return set(list_dir(self._checkpoint.fs, self._checkpoint.path(_TABLES)))

    def write(self, fingerprint: str, rows: pa.Table) -> str:
        """Store a version; gives its name."""
        version, out = f"{fingerprint}-r{self._run}", pa.BufferOutputStream()
        with pa.ipc.new_file(out, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(rows)
        write_atomic(self._checkpoint.fs, self.path(version), out.getvalue().to_pybytes(), f"r{self._run}")
        return version

    def read(self, version: str) -> pa.Table:
        """The rows of a version.

        Raises:
            TornFileError: Its file is damaged.
        """
        data = read_bytes(self._checkpoint.fs, self.path(version))
        try:
            return pa.ipc.open_file(pa.BufferReader(data)).read_all()
        except (pa.ArrowException, OSError) as error:
            raise TornFileError(f"The file {self.path(version)} is damaged ({error}); {INSTEAD}.") from error

    def remove(self, version: str) -> None:
        """Remove a version."""
        delete_quietly(self._checkpoint.fs, self.path(version))

    def used(self, epoch: int, found: Mapping[str, TableRead]) -> dict[str, TableRead]:
        """Store which version of each table an epoch uses, unless that is stored already; gives what was stored first."""
        first = self._checkpoint.kept_first(epoch, _USED, _plain(found), self._run)
        return {name: TableRead(**raw) for name, raw in first.items()}

    def use(self, epoch: int, found: Mapping[str, TableRead]) -> None:
        """Store it in place of what was stored before."""
        path = self._checkpoint.path(EPOCHS, epoch_name(epoch, _USED))
        write_atomic(self._checkpoint.fs, path, json.dumps(_plain(found)).encode(), f"r{self._run}")


def _plain(found: Mapping[str, TableRead]) -> dict[str, Any]:
    return {name: asdict(read) for name, read in found.items()}


__all__ = ["INSTEAD", "TableFiles"]
