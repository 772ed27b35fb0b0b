"""What runs a flow: the port that Spark and the harness implement, and its values.

There is one `Engine` per start, and one `Backend`, its part of one epoch, per epoch.

Read next: `penstock.driver.loop`, which drives the former, and `penstock.driver.epoch`, which calls the latter in its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.checkpoint.record import EpochRecord
from penstock.driver.compile import CompiledRegion
from penstock.driver.input_files import InputFile
from penstock.errors import PenstockError
from penstock.flow import plan as p
from penstock.progress.lateness import Base, Chunk, ChunkId
from penstock.progress.source_state import SourceState
from penstock.protocol.commands import Command, Copied
from penstock.protocol.messages import Acquire, Collect, Message, Release
from penstock.routing.loads import HotKey
from penstock.routing.memory import Remembered
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
    """The scan of one source in one epoch.

    Attributes:
        chunks: Event times per chunk of offsets; a source without time may have one chunk per partition.
        malformed: Records that cannot be read or have no event time.
        first_malformed: One of them, for the error: where and what.
        files: Number of files read.
        names: Names of the files, in the order of their numbers.
        rows: Number of records, if chunks do not say it and it costs nothing to know.
        order: The source's `SourceState.order` after the epoch; None: unchanged.
        places: Of a source of files each file's place (time in ms, URI), in the order of their numbers.
        sizes: Likewise, their bytes.
        left: Whether there are records behind the bounds that were given.
        ahead: How many records are ahead; their times are not in the chunks (`penstock.progress.ahead`).
    """

    chunks: tuple[Chunk, ...] = ()
    malformed: int = 0
    first_malformed: str = ""
    files: int = 0
    rows: int = 0
    names: tuple[str, ...] = ()
    order: dict[str, Any] | None = None
    places: tuple[tuple[int, str], ...] = ()
    sizes: tuple[int, ...] = ()
    left: bool = False
    ahead: int = 0


@dataclass(frozen=True)
class Bounds:
    """Which records of a source a replay reads in an epoch.

    Attributes:
        partitions: By name, the offset after which it reads, and up to which.
        others: Whether it reads partitions that are not named.
        files: Of a source of files, up to how many it has read after the epoch; None: all.
    """

    partitions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    others: bool = False
    files: int | None = None


@dataclass(frozen=True)
class SourceFrames:
    """A source's records of one epoch: those on time, late ones, malformed ones, those ahead (None: there are none), as `AsideNode.kind` names them."""

    on_time: Frame
    late: Frame | None = None
    malformed: Frame | None = None
    late_rows: int = 0
    ahead: Frame | None = None


@dataclass(frozen=True)
class EpochOrders:
    """The orders of a region's workers for one epoch.

    Attributes:
        routing: The routing table.
        messages: By worker, from the controller.
        versions: By worker, the state to start from.
        routers: By slot of an input whose keys are divided, what its router remembers.
    """

    routing: Routing
    messages: tuple[tuple[Message, ...], ...]
    versions: tuple[Version, ...]
    routers: Mapping[int, Remembered] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """Number of workers that run."""
        return len(self.versions)

    @property
    def releases(self) -> bool:
        """Whether a key on hold is released."""
        return self._has(Release)

    @property
    def moves(self) -> bool:
        """Whether state is given up or acquired."""
        return self._has(Collect, Acquire)

    def _has(self, *kinds: type[Message]) -> bool:
        return any(isinstance(message, kinds) for told in self.messages for message in told)


@dataclass(frozen=True)
class Divided:
    """What a split stage did in an epoch.

    Attributes:
        rows: By worker, the rows that it handled.
        router: What its router remembers.
        cpu_ms: By worker, the CPU time that it took; empty: not known.
        hot: By worker, its hottest keys.
    """

    rows: tuple[int, ...]
    router: Remembered
    cpu_ms: tuple[float, ...] = ()
    hot: tuple[tuple[HotKey, ...], ...] = ()


def shown_columns(names: Sequence[str], hidden: Sequence[str]) -> list[str]:
    """The columns of a frame that a sink gets: all but hidden ones, then those of `hidden`."""
    return [*visible(names), *hidden]


class Engine(Protocol):
    """What runs a flow.

    Attributes:
        identity: Names the flow in its sinks if the checkpoint is new.
        by: Who runs it: kept with each run, for people.
        beside: Whether jobs run beside the epochs, in threads.
        divides_from: In an epoch with fewer records all keys stay whole, whatever the strategy.
        inserts: Whether input that is read again comes by itself; otherwise reading must begin anew (`Backend.read_again`).
    """

    identity: str
    by: Mapping[str, Any]
    beside: bool
    divides_from: int
    inserts: bool

    def clock_us(self) -> int:
        """The time."""
        ...

    def schema(self, node: p.Node) -> pa.Schema:
        """The columns of a node's rows, as a sink gets them."""
        ...

    def dump(self, given: Any) -> bytes:
        """Pickle the regions' specs, with users' functions."""
        ...

    def begin(self, loop: Loop) -> None:
        """Begin to read on, so that an error at the beginning is raised to whoever starts the flow; `read` follows.

        Raises:
            PenstockError: The engine cannot run the flow.
        """
        ...

    def read(self, loop: Loop, available: bool) -> bool:
        """Run epochs (`Loop.epoch`) until there is nothing more to read, or one has ended the reading.

        Args:
            loop: Runs the epochs.
            available: Whether to read only the present input.

        Returns:
            Whether that has happened; False: somebody else has ended the reading.

        Raises:
            PenstockError: An epoch failed.
        """
        ...

    def interrupt(self) -> None:
        """End the reading at once; an epoch under way is not committed."""
        ...

    def copy(self, copy: Copy) -> Copied:
        """Carry out a copy of a key on hold, beside the epochs if there is something beside them."""
        ...

    def has_begun(self, log: str, epoch: int = 0) -> bool:
        """Whether an epoch, or a later one, was planned in the log of input of a folder; then the engine knows the sources by number."""
        ...

    def input_refusal(self, last: EpochRecord, kept: EpochRecord) -> Refusal | None:
        """Why the input between a snapshot's record and the last one's cannot be read again, if it cannot."""
        ...

    def rewrite_offset_log(self, last: EpochRecord, kept: EpochRecord, epoch: int) -> str:
        """Write the log of input anew for a rollback in an epoch, to end where a snapshot's does; returns its folder.

        Nothing refers to it yet; it is written once more if the rollback is interrupted.
        """
        ...

    def files_of(self, source: p.SourceNode) -> Sequence[InputFile] | None:
        """The files that a source of files finds now, in any order; None: it is no source of files.

        Raises:
            RecoveryError: The source cannot be read again from a position.
        """
        ...

    def begin_log(self, read: Mapping[str, Sequence[InputFile]], epoch: int) -> str:
        """Write a log of input for a replay that begins with an epoch; returns its folder. Nothing refers to it yet.

        Args:
            read: By source of files, the files that count as read; others begin with what they still have.
            epoch: The last epoch before it.
        """
        ...

    def translated(self, error: BaseException) -> PenstockError:
        """An error as one of penstock's own."""
        ...

    def lost(self) -> PenstockError | None:
        """The error if the engine itself has ended, and with it the reading; None: it has not."""
        ...

    def unread(self, last: EpochRecord) -> dict[str, int]:
        """By file source, how many files a finished flow has not read; sources without any are left out."""
        ...


class Backend(Protocol):
    """What runs the plan in one epoch: Spark, or Arrow in this process. A frame is whatever it passes from step to step."""

    def control(self, known: Sequence[str]) -> list[tuple[str, Command]]:
        """Commands of this epoch that are not in `known`, as (name, command), in order of names."""
        ...

    def input(self) -> str:
        """The end of this epoch's input, in the engine's terms; requested for a snapshot."""
        ...

    def describe(self, *what: str) -> None:
        """What that which is computed from now on is for, for people who look at the engine: ``"region k", "output totals"``."""
        ...

    def scan(self, source: p.SourceNode, ordinal: int, state: SourceState, bounds: Bounds | None = None) -> Scan:
        """Scan a source's records of this epoch; within bounds, if there are any, as all that follows."""
        ...

    def read_again(self) -> str:
        """See to it that the next epoch is given the same input once more, and more if there is more; gives the new folder of the engine's
        own log of input. Nothing refers to it yet.
        """
        ...

    def keep_input(self) -> None:
        """Store which input this epoch reads, so that a re-run reads the same; all sources have been scanned."""
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
        """The number of a source's late records that only the finished tasks have found."""
        ...

    def step(self, node: p.StepNode, inputs: Sequence[Frame]) -> Frame:
        """Apply a stateless step to those of its inputs that have rows, put together."""
        ...

    def split(self, compiled: CompiledRegion, step: int, frame: Frame, work: EpochOrders) -> tuple[Frame, Frame]:
        """Divide hot keys of a step's input over the region's workers, by its strategy.

        Args:
            compiled: The region.
            step: The step, which has `penstock.worker.spec.Step.parts`.
            frame: The rows of its input.
            work: The orders of the region's workers.

        Returns:
            The rows of keys that stay whole, and the partial results of the others (`penstock.operators.base.parts_schema`); None for
            these: there are none.
        """
        ...

    def divided(self, compiled: CompiledRegion) -> Mapping[int, Divided]:
        """By slot of an input, what `split` did, if it did anything; called when the region's tasks have ended."""
        ...

    def region(self, compiled: CompiledRegion, inputs: Sequence[Frame], work: EpochOrders) -> Frame:
        """A region's tasks over its inputs, one frame per port (None: a split stage gave no partial results); they run when their
        rows are requested.
        """
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
        """The rows of a frame, without hidden columns except the given ones, which come last."""
        ...

    def stage(self, frame: Frame, stager: Stager, hidden: Sequence[str] = ()) -> Iterable[bytes]:
        """Stage the rows of `collect` where they are; the tokens, in the order of the rows."""
        ...

    def empty(self, node: p.Node) -> Frame:
        """A frame without rows."""
        ...

    def done(self) -> None:
        """The epoch is over; release what was kept."""
        ...
