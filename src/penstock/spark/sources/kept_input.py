"""The files of one epoch's sources, stored in the checkpoint before any row is stored, and compared when the epoch runs again.

Read next: `penstock.driver.input_files`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Final

from penstock.checkpoint.folder import Checkpoint
from penstock.driver.input_files import InputFile, Order, changed, first_difference
from penstock.errors import RecordError
from penstock.spark.internals.found_files import normal
from penstock.spark.sources.footers import look_at

_FAILED: Final = re.compile(r"^Encountered error while reading file (\S+)\. ")
"""As `penstock.spark.failures.translated` has it."""
_WRITING: Final = ThreadPoolExecutor(1, "penstock-input")  # meanwhile the epoch is computed


class KeptInput:
    """The files of one epoch.

    Args:
        checkpoint: Where they are kept.
        epoch: Number of the epoch.
        run: Number of the run.
        first: Whether this is the first epoch of a query, which may have been run before.
    """

    def __init__(self, checkpoint: Checkpoint, epoch: int, run: int, *, first: bool) -> None:
        self._checkpoint, self._epoch, self._run = checkpoint, epoch, run
        self.first = first
        self._found: dict[str, tuple[tuple[InputFile, ...], Order]] = {}
        self._written: Future[dict[str, Any]] | None = None
        self._stored = False

    @cached_property
    def _before(self) -> dict[str, Any]:
        return (self._checkpoint.kept_input(self._epoch) or {}) if self.first else {}

    @cached_property
    def _refused(self) -> set[str]:
        return self._checkpoint.refused_files(self._epoch) if self.first else set()

    def before(self, source: str) -> tuple[tuple[InputFile, ...], Order] | None:
        """The files of a source as the epoch read them before, and how far that went; None: not that far."""
        raw = self._before.get(source)
        return None if raw is None else (tuple(InputFile(*f) for f in raw["files"]), Order.from_json(raw["order"]))

    def was_refused(self, uri: str) -> bool:
        """Whether the epoch could not read a file before, so that it may be gone now."""
        return uri in self._refused

    def refuse(self, uri: str) -> None:
        """Note that the epoch cannot read a file."""
        self._checkpoint.refuse_file(self._epoch, uri)

    def add(self, source: str, files: Sequence[InputFile], order: Order) -> None:
        """Note what a source reads."""
        if files:
            self._found[source] = tuple(files), order

    def keep(self) -> None:
        """Start to write it."""
        if self._found and not self._before:
            raw = {
                name: {"files": [f.to_json() for f in files], "order": order.to_json()}
                for name, (files, order) in self._found.items()
            }
            self._written = _WRITING.submit(self._checkpoint.keep_input, self._epoch, raw, self._run)

    def wait(self) -> None:
        """Wait until it is written. From now on rows may be stored.

        Raises:
            RecordError: Another run stored other files.
        """
        if self._written is not None and not self._stored:
            for source, raw in self._written.result().items():
                now = {f.uri: f for f in self._found.get(source, ((), Order()))[0]}
                self._compare(source, [InputFile(*f) for f in raw["files"]], now)
        self._stored = True

    def check(self) -> None:
        """Check the files once more; a missing one was read, because Spark would not have skipped it.

        Raises:
            RecordError: One was changed while it was read.
        """
        for source, (files, _) in self._found.items():
            now = look_at(f.uri for f in files)
            self._compare(source, [f for f in files if f.uri in now], now, seconds=True)

    def failed(self, error: BaseException) -> None:
        """Delete it if the epoch could not read a file and has stored nothing: the file may be fixed or removed."""
        if not isinstance(error, RecordError) or self._stored or self._before:
            return
        if self._written is not None:
            self._written.exception()
            self._checkpoint.forget_input(self._epoch)
        if named := _FAILED.search(str(error)):
            self.refuse(normal(named[1]))

    def _compare(self, source: str, files: Sequence[InputFile], now: dict[str, InputFile], *, seconds: bool = False) -> None:
        found = first_difference(files, now, seconds=seconds)
        if found is not None:
            raise changed(source, self._epoch, found[0], found[1] or found[0])


__all__ = ["KeptInput"]
