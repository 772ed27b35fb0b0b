"""What runs a flow: the port that Spark and the harness implement, and what passes through it.

`Engine` is there once for each start and `Backend`, its part of one epoch, once for each epoch.

Read next: `penstock.driver.loop`, which drives the one, and `penstock.driver.epoch`, which calls the other in its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.checkpoint.record import EpochRecord
from penstock.driver.compile import CompiledRegion
from penstock.errors import PenstockError
from penstock.flow import plan as p
from penstock.progress.lateness import Base, Chunk, ChunkId
from penstock.progress.source_state import SourceState
from penstock.protocol.commands import Command, Copied
from penstock.protocol.messages import Message
from penstock.routing.table import Routing
from penstock.sinks.base import Stager
from penstock.state.deltas import Version
from penstock.types import Refusal, visible
from penstock.worker.copying import Copy

if TYPE_CHECKING:
    from penstock.driver.loop import Loop

Frame = Any


@dataclass(frozen=True)
class Scan:
    """What a scan of one source in one epoch found.

    Attributes:
        chunks: Event times per chunk of offsets; for a source without time one chunk per partition will do.
        malformed: Records that cannot be read or have no event time.
        first_malformed: One of them, for the error: where and what.
        files: Number of files read.
        names: Names of the files, in the order of their numbers.
        rows: Number of records, if chunks do not say it and it costs nothing to know.
        order: The source's `SourceState.order` after the epoch; None: as before.
    """

    chunks: tuple[Chunk, ...] = ()
    malformed: int = 0
    first_malformed: str = ""
    files: int = 0
    rows: int = 0
    names: tuple[str, ...] = ()
    order: dict[str, Any] | None = None


@dataclass(frozen=True)
class SourceFrames:
    """A source's records of one epoch: those on time, late ones, malformed ones (None: there are none)."""

    on_time: Frame
    late: Frame | None = None
    malformed: Frame | None = None
    late_rows: int = 0


@dataclass(frozen=True)
class EpochOrders:
    """What a region's workers are to do in one epoch.

    Attributes:
        routing: Which rows belong to which worker.
        messages: By worker, from the controller.
        versions: By worker, the state to start from.
    """

    routing: Routing
    messages: tuple[tuple[Message, ...], ...]
    versions: tuple[Version, ...]

    @property
    def workers(self) -> int:
        """Number of workers that run."""
        return len(self.versions)


def shown_columns(names: Sequence[str], hidden: Sequence[str]) -> list[str]:
    """The columns that a sink is given of a frame with these: all but hidden ones, and then those of `hidden`."""
    return [*visible(names), *hidden]


class Engine(Protocol):
    """What runs a flow.

    Attributes:
        identity: Names the flow in its sinks if the checkpoint is new.
        by: Who runs it: kept with each run, for people.
        beside: Whether jobs run beside the epochs, in threads.
    """

    identity: str
    by: Mapping[str, Any]
    beside: bool

    def clock_us(self) -> int:
        """The time."""
        ...

    def schema(self, node: p.Node) -> pa.Schema:
        """The columns of a node's rows, as a sink is given them."""
        ...

    def dump(self, given: Any) -> bytes:
        """Pickle what workers are told of their regions, users' functions with it."""
        ...

    def begin(self, loop: Loop) -> None:
        """Begin to read on, so that what does not begin is raised to whoever starts the flow; `read` follows.

        Raises:
            PenstockError: The engine cannot run the flow.
        """
        ...

    def read(self, loop: Loop, available: bool) -> bool:
        """Run epochs (`Loop.epoch`) until there is nothing more to read, or one has ended the reading.

        Args:
            loop: Whose epochs.
            available: Whether to read only what there is.

        Returns:
            Whether that has come about; False: somebody else has ended the reading.

        Raises:
            PenstockError: An epoch failed.
        """
        ...

    def copy(self, copy: Copy) -> Copied:
        """Carry out a copy of a key on hold, beside the epochs if there is something beside them."""
        ...

    def has_begun(self, log: str) -> bool:
        """Whether an epoch was planned in the log of input of a folder, so that the engine knows the sources by their number."""
        ...

    def input_refusal(self, last: EpochRecord, kept: EpochRecord) -> Refusal | None:
        """Why the input between a snapshot's record and the last one's cannot be read again, if it cannot."""
        ...

    def rewrite_offset_log(self, last: EpochRecord, kept: EpochRecord, epoch: int) -> str:
        """Write the log of input anew, to end where a snapshot's does, for a going back in an epoch; gives its folder.

        Nothing refers to it yet; it is written once more if the going back is interrupted.
        """
        ...

    def translated(self, error: BaseException) -> PenstockError:
        """What failed, as an error of penstock's own."""
        ...

    def lost(self) -> PenstockError | None:
        """What to tell if the engine itself has ended, so that the reading did; None: it has not."""
        ...

    def unread(self, last: EpochRecord) -> dict[str, int]:
        """By source of files, how many of them a finished flow has not read; sources without any are left out."""
        ...


class Backend(Protocol):
    """What runs the plan in one epoch: Spark, or Arrow in this process. A frame is whatever it passes from step to step."""

    def control(self, known: Sequence[str]) -> list[tuple[str, Command]]:
        """Commands of this epoch that are not in `known`, as (name, command), in order of names."""
        ...

    def input(self) -> str:
        """Where this epoch's input ends, in the engine's own words; asked for when a snapshot is taken."""
        ...

    def scan(self, source: p.SourceNode, ordinal: int, state: SourceState) -> Scan:
        """Look at a source's records of this epoch."""
        ...

    def keep_input(self) -> None:
        """Remember, durably, which input this epoch reads, so that a re-run reads the same; all sources have been scanned."""
        ...

    def input_kept(self) -> None:
        """Wait until that is durable; called before anything is stored."""
        ...

    def check_input(self) -> None:
        """Refuse to commit if the input was changed while it was read."""
        ...

    def source(self, source: p.SourceNode, ordinal: int, candidate_chunks: dict[ChunkId, Base]) -> SourceFrames:
        """The records of a source; late ones can only be in the chunks `candidate_chunks`."""
        ...

    def late(self, source: p.SourceNode) -> int:
        """How many late records of a source were found only by the tasks that have run; asked for after these."""
        ...

    def step(self, node: p.StepNode, inputs: Sequence[Frame]) -> Frame:
        """Apply a stateless step to those of its inputs that have rows, put together."""
        ...

    def region(self, compiled: CompiledRegion, inputs: Sequence[Frame], work: EpochOrders) -> Frame:
        """A region's tasks over its inputs (one frame per port); runs when its rows are asked for."""
        ...

    def part(self, frame: Frame, compiled: CompiledRegion, out: int) -> Frame:
        """One output of a region's frame."""
        ...

    def keep(self, frame: Frame) -> Frame:
        """Compute a frame only once although it is read several times in this epoch."""
        ...

    def force(self, frame: Frame) -> None:
        """Run a frame whose rows nobody reads."""
        ...

    def collect(self, frame: Frame, hidden: Sequence[str] = ()) -> Iterable[pa.RecordBatch]:
        """The rows of a frame, hidden columns removed but those given, which come last."""
        ...

    def stage(self, frame: Frame, stager: Stager, hidden: Sequence[str] = ()) -> Iterable[bytes]:
        """Stage the rows that `collect` gives where they are; the tokens, in the order of the rows."""
        ...

    def empty(self, node: p.Node) -> Frame:
        """A frame without rows."""
        ...

    def done(self) -> None:
        """The epoch is over; forget what was kept."""
        ...
