"""Tables of `lookup` that are read again while the flow runs: which rows an epoch meets.

Each version is stored in the checkpoint before an epoch may use it, and the epoch notes its name before it computes anything. So a re-run meets the
same rows, whatever the table has become meanwhile. A version is removed once no epoch can be run again with it.

Read next: `penstock.driver.epoch`, decision 56.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import TableRead
from penstock.checkpoint.table_files import INSTEAD, TableFiles
from penstock.errors import CheckpointError, DeclarationError, PenstockError, TornFileError
from penstock.flow import plan as p
from penstock.flow.naming import numbered
from penstock.flow.tables import Refresh, Table


class RefreshedTables:
    """The tables of one run.

    Args:
        plan: The flow.
        checkpoint: Where versions are kept.
        run: Number of the run.
        before: The versions of the last committed epoch.
        on_step: Called with the name of each step before it.
    """

    def __init__(
        self,
        plan: p.Plan,
        checkpoint: Checkpoint,
        run: int,
        before: Mapping[str, TableRead],
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._nodes, self._on_step = refreshing(plan), on_step
        self._before, self._read = before, dict[str, TableRead]()
        self._steps: dict[str, dict[str, p.StepNode]] = {name: {} for name in self._nodes}
        self._files = TableFiles(checkpoint, run)
        self._old = self._files.versions() if self._nodes else set()

    def used(self, epoch: int, now_us: int, *, stay: bool) -> dict[str, TableRead]:
        """Read the tables that are due; gives the versions that an epoch uses, the same in a re-run.

        Args:
            epoch: Number of the epoch.
            now_us: Clock time.
            stay: Whether no table becomes another one, as while state is computed again.

        Raises:
            CheckpointError: A version with which the epoch was begun is gone, or damaged.
            FencedError: A newer run has claimed the checkpoint; it removes versions that this one knows.
        """
        if not self._nodes:
            return {}
        try:
            return self._used(epoch, now_us, stay=stay)
        except (PenstockError, OSError):
            self._files.check_owner()
            raise

    def _used(self, epoch: int, now_us: int, *, stay: bool) -> dict[str, TableRead]:
        for name, node in self._nodes.items():
            known, before = self._read.get(name), self._before.get(name)
            if known is None and stay and before is not None and self._known(name, before.version):
                known = self._read[name] = before
            if known is None or not (stay or 0 <= now_us - known.read_us < _refresh(node).every_us):
                self._read[name] = self._look(name, known or before, now_us)
        self._on_step("note tables")
        first = self._files.used(epoch, self._read)
        used = {name: first.get(name, read) for name, read in self._read.items()}
        for name, read in used.items():
            if self._known(name, read.version):
                # An open epoch may have met newer rows than the last one that was committed, and older ones than a replay's next start finds.
                if stay or self._read[name].failed:
                    self._read[name] = replace(self._read[name], version=read.version)
                continue
            if read.version not in self._files.versions():
                raise CheckpointError(
                    f"Epoch {epoch} was begun with rows of {name} that are gone, the file {self._files.path(read.version)}; {INSTEAD}."
                )
            used[name] = self._read[name]  # those are of a table that was declared otherwise
        if used != {name: first.get(name) for name in used}:
            self._files.use(epoch, used)
        return used

    def steps(self, used: Mapping[str, TableRead]) -> dict[int, p.StepNode]:
        """By id, what takes the steps' places in an epoch."""
        return {id(self._nodes[name]): self._steps[name][read.version] for name, read in used.items()}

    def _look(self, name: str, before: TableRead | None, now_us: int) -> TableRead:
        """Read a table; one that cannot be read stays as it was."""
        self._on_step(f"read {name}")
        refresh = _refresh(self._nodes[name])
        try:
            table = refresh.read()
            self._on_step(f"keep {name}")
            return TableRead(self._keep(name, table, before), now_us)
        except DeclarationError as error:
            if before is not None and self._known(name, before.version):
                return TableRead(before.version, now_us, str(error))
            return TableRead(self._keep(name, refresh.declared, None), now_us, str(error))

    def _keep(self, name: str, table: Table, before: TableRead | None) -> str:
        """Store a version unless it is that of before; gives its name."""
        if before is not None and before.version in self._steps[name] and _of(before.version) == table.fingerprint:
            return before.version  # Spark has it already
        version = self._files.write(table.fingerprint, table.rows)
        self._steps[name][version] = _with(self._nodes[name], table)
        return version

    def _known(self, name: str, version: str) -> bool:
        """Whether a version can be used; it is read from the checkpoint if need be. One of another declaration cannot.

        Raises:
            TornFileError: Its file is damaged.
        """
        if version in self._steps[name]:
            return True
        if version not in self._files.versions():
            return False
        node, rows = self._nodes[name], self._files.read(version)
        try:
            table = _refresh(node).stored(rows)
        except DeclarationError as error:
            raise TornFileError(f"The file {self._files.path(version)} is damaged ({error}); {INSTEAD}.") from error
        if table is None:
            return False
        if table.fingerprint != _of(version):
            raise TornFileError(f"The file {self._files.path(version)} is damaged (its digest differs); {INSTEAD}.")
        self._steps[name][version] = _with(node, table)
        return True

    def committed(self, used: Mapping[str, TableRead]) -> None:
        """Remove versions that no epoch needs any more."""
        needed = {read.version for read in (*used.values(), *self._read.values())}
        for name, steps in self._steps.items():
            self._old |= steps.keys()
            self._steps[name] = {version: step for version, step in steps.items() if version in needed}
        for version in self._old - needed:
            self._files.remove(version)
        self._old &= needed


def refreshing(plan: p.Plan) -> dict[str, p.StepNode]:
    """The steps whose tables are read again, by name."""
    found: dict[str, p.StepNode] = {}
    for node in p.upstream_of(p.StepNode, *p.readers(plan.regions, plan.outputs)):
        if node.step.refresh is not None:
            found[numbered(node.step.describe(), found)] = node
    return found


def today(plan: p.Plan) -> list[str]:
    """What a recomputation does about tables that are read again, if there are any."""
    names = ", ".join(refreshing(plan))
    return [f"Records that are read again meet the rows that the table of {names} has at this start."] if names else []


def _refresh(node: p.StepNode) -> Refresh:
    assert node.step.refresh is not None
    return node.step.refresh


def _with(node: p.StepNode, table: Table) -> p.StepNode:
    return replace(node, step=node.step.with_table(table))


def _of(version: str) -> str:
    return version.rpartition("-r")[0]


__all__ = ["RefreshedTables", "refreshing", "today"]
