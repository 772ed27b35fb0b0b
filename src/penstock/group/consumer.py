"""A consumer: a plain Python worker in a group. Its partitions' entries are handled in order, at least once, and acked with fencing.

C1  An entry is acked after its handler has returned, in one step that also checks that the partition is still this consumer's.
C2  Each partition has a thread of its own, so a handler that takes long delays only its partition.
C3  A consumer that leaves finishes the batches that are in hand, within the grace period; what is not finished, another one gets again.

Read next: `penstock.group.lanes`, `penstock.group.agent`.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import Any, Final, Literal, get_args

from penstock.errors import DeclarationError, GroupError, OperatorError, PenstockError, RecordError, raised
from penstock.group.agent import LOG, Agent
from penstock.group.figures import ConsumerFigures
from penstock.group.lanes import Entry, Lane, Lanes
from penstock.group.settings import Group
from penstock.redis_client.connection import is_refused, why
from penstock.redis_client.group_server import Unanswered
from penstock.redis_client.partition_streams import PartitionStreams

Handler = Callable[[int, list[Entry]], object]
OnError = Literal["stop", "retry", "dead_letters"]
OnTrim = Literal["fail", "skip"]

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0
_ACK_PAUSE_S: Final = 0.05
_WAIT_S: Final = 0.2


class Consumer:
    """A member of a group that handles the entries of its partitions.

    Args:
        group: The group.
        stream: The stream.
        partitions: How many partitions the stream has.
        batch: At most so many entries are given to the handler at a time.
        on_error: What follows when the handler raises. ``"stop"``: this consumer leaves and raises `OperatorError`; others get the entries again.
            ``"retry"``: the same entries again, after pauses of 0.1 seconds to half a minute, while the partition is this consumer's; only this
            partition waits. ``"dead_letters"``: after `retries` such tries each entry by itself, and what fails then is put into the Redis stream
            ``{stream:partition}:group:dead`` with the error, in one step with the ack.
        retries: How often the handler is tried again before entries become dead letters.
        on_trim: What follows when entries were removed (XTRIM, MAXLEN, XDEL, DEL) before they were handled. ``"fail"``: this consumer leaves and raises
            `RecordError`, and so does the next one that gets the partition. ``"skip"``: they are counted (`figures`) and logged. A server counts entries
            since Redis 7.0; of an older one this is not noticed. Entries behind the gap may be handled before it shows.

    Raises:
        DeclarationError: An argument is not of its kind.

    Example:
        A function, until the process gets SIGTERM or `leave` is called from elsewhere:

        >>> with ps.Producer("redis://localhost:6379", "orders", 2) as producer:
        ...     sent = producer.send_many({"amount": n} for n in range(4))
        >>> group = ps.Group("redis://localhost:6379", "billing")
        >>> consumer = ps.Consumer(group, "orders", 2)
        >>> def bill(partition, entries):
        ...     threading.Thread(target=consumer.leave).start()  # enough for an example
        >>> consumer.run(bill)

        Or a loop, with acks at hand:

        >>> consumer = ps.Consumer(ps.Group("redis://localhost:6379", "statistics"), "orders", 2, batch=1)
        >>> for partition, entries in consumer:
        ...     acked = consumer.ack(partition, entries)
        ...     shown = partition in consumer.owned, consumer.epoch, consumer.figures["owned"]
        ...     break
        >>> acked, shown, consumer.last_rebalance_ms >= 0
        (True, (True, 1, 2), True)
    """

    def __init__(
        self,
        group: Group,
        stream: str,
        partitions: int,
        *,
        batch: int = 100,
        on_error: OnError = "stop",
        retries: int = 3,
        on_trim: OnTrim = "fail",
    ) -> None:
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise DeclarationError(f"A consumer's batch is {batch!r}; give a whole number from 1.")
        if on_error not in get_args(OnError):
            raise DeclarationError(f"A consumer's on_error is {on_error!r}; give 'stop', 'retry' or 'dead_letters'.")
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise DeclarationError(f"A consumer's retries are {retries!r}; give a whole number from 0.")
        if on_trim not in get_args(OnTrim):
            raise DeclarationError(f"A consumer's on_trim is {on_trim!r}; give 'fail' or 'skip'.")
        self._on_error, self._retries, self._on_trim, self._stream = on_error, retries, on_trim, stream
        self._lanes = Lanes(
            PartitionStreams(group.url, stream),
            group.name,
            batch,
            self._holds,
            self._stopped,
            self._lane_begun,
            self._missed,
            self._refused,
        )
        self._agent = Agent(group, stream, partitions, self._lanes)
        self._handler: Handler | None = None
        self._given: dict[int, tuple[Lane, list[Entry]]] = {}
        self._trimmed = 0
        self._error: PenstockError | None = None
        self._begun = False
        self._signals = 0

    # -- what is shown

    @property
    def owned(self) -> set[int]:
        """The partitions that are this consumer's now."""
        return set(self._agent.owned)

    @property
    def epoch(self) -> int:
        """The group's epoch: it rises whenever a member comes or goes."""
        return self._agent.epoch

    @property
    def last_rebalance_ms(self) -> float | None:
        """How long it took, at the last change, until this consumer had what is its own; None: it has not had it yet."""
        return self._agent.last_rebalance_ms

    @property
    def figures(self) -> dict[str, Any]:
        """This consumer's membership in figures: epoch, members, partitions owned, rebalances and fences; see the reference, "Figures", of an application."""
        return asdict(ConsumerFigures(**self._agent.figures, trimmed=self._trimmed))

    # -- working

    def run(self, handler: Handler) -> None:
        """Handle entries until the process gets SIGTERM or Ctrl-C, `leave` is called, or the handler fails.

        SIGTERM leaves within the grace period; a second one at once. Only the main thread hears signals.

        Args:
            handler: Called with a partition and entries, in a thread of the partition; they are acked when it returns. After a failure, or the
                loss of a process, entries come again: at least once.

        Raises:
            OperatorError: The handler raised, and `on_error` is ``"stop"``. Its entries are not acked.
            RecordError: Entries were removed before they were handled, and `on_trim` is ``"fail"``.
            GroupError: The group cannot be joined, or this member cannot stay in it.
        """
        self._handler = handler
        with self._joined():
            self._wait()

    def __iter__(self) -> Iterator[tuple[int, list[Entry]]]:
        """Partition by partition, entries to handle here, in this thread; `ack` them. The end of the loop, also by ``break``, leaves the group.

        What was given is taken to be done when the next is asked for, acked or not; what is not acked comes again at another start.
        """
        with self._joined():
            last = -1
            while (found := self._lanes.take_any(last, lambda: self._agent.wait(0))) is not None:
                lane, entries = found
                last = lane.partition
                self._given[last] = lane, entries
                try:
                    yield last, entries
                finally:
                    self._given.pop(last, None)
                    self._lanes.done(lane)

    def ack(self, partition: int, entries: Sequence[Entry]) -> bool:
        """Commit that entries of a partition, and all before them, are done.

        Args:
            partition: The partition.
            entries: What the loop gave of it, or the first of them.

        Returns:
            False: the partition is not this consumer's any more; nothing was committed, and another one has the entries.

        Raises:
            DeclarationError: These are not the entries of the partition that are in hand. Nothing was committed.
        """
        lane, given = self._given.get(partition, (None, []))
        if lane is None or not entries or _order(entries[-1].id) > _order(given[-1].id):
            raise DeclarationError(
                f"There are no such entries of partition {partition!r} in hand; ack what the loop has just given."
            )
        behind = sum(_order(each.id) > _order(entries[-1].id) for each in given)
        done = self._commit(lane, entries[-1].id, behind=behind)
        if not behind:
            self._given.pop(partition)
            self._lanes.done(lane)
        return done

    def leave(self, grace: float | None = None) -> None:
        """Leave the group; returns when this consumer is out of it.

        Args:
            grace: Seconds for finishing what is in hand; None: the group's; 0: at once.
        """
        self._agent.leave(grace)

    # -- joining and leaving

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """From joining to leaving, with signals where this is the main thread."""
        if self._begun:
            raise DeclarationError("This consumer has run already; make another one for another run.")
        self._begun = True
        self._agent.start()
        threading.Thread(target=self._lanes.read, name="penstock-reader", daemon=True).start()
        in_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, self._on_signal) if in_main else None
        try:
            yield
        finally:
            self._agent.leave()
            self._lanes.close()
            self._agent.close()
            if in_main:
                signal.signal(signal.SIGTERM, before)
        error = self._error or self._agent.error
        if error is not None:
            raise error

    def _wait(self) -> None:
        asked = 0
        while True:
            try:
                if self._agent.wait(_WAIT_S):
                    return
            except KeyboardInterrupt:
                asked += 1
                self._agent.request_leave(None if asked == 1 else 0.0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._signals += 1
        self._agent.request_leave(None if self._signals == 1 else 0.0)

    # -- the partitions' threads

    def _holds(self, partition: int) -> bool:
        return self._agent.holds(partition)

    def _stopped(self, partition: int) -> None:
        self._agent.stopped(partition)

    def _missed(self, lane: Lane, lost: int, why: str) -> bool:
        """Entries of a lane were removed before they were read; whether to go on."""
        about = f"Partition {lane.partition} of stream {self._stream!r}, read up to entry {lane.read}, {why}"
        if self._on_trim == "skip":
            self._trimmed += lost
            LOG.warning("%s.", about)
            return True
        self._error = self._error or RecordError(f'{about}; declare on_trim="skip" to go on without.')
        self._agent.request_leave()
        return False

    def _refused(self, error: Exception) -> None:
        """The server does not let this user read."""
        self._error = self._error or GroupError(f"Stream {self._stream!r} cannot be read: {why(error)}.")
        self._agent.request_leave(0.0)

    def _lane_begun(self, lane: Lane) -> None:
        if self._handler is not None:
            threading.Thread(
                target=self._work, args=(lane, self._handler), name=f"penstock-{lane.partition}", daemon=True
            ).start()

    def _work(self, lane: Lane, handler: Handler) -> None:
        """Handle a lane's entries until it ends."""
        while entries := self._lanes.take(lane):
            done = False
            try:
                letters = self._handled(lane, entries, handler)
                done = letters is not None and self._commit(lane, entries[-1].id, letters)
            except PenstockError as error:
                self._error = self._error or error
                self._agent.request_leave()
            finally:
                self._lanes.done(lane, end=not done)

    def _handled(self, lane: Lane, entries: list[Entry], handler: Handler) -> list[list[str]] | None:
        """Handle entries, by the policy for failures; the dead letters, or None if the lane ended meanwhile.

        Raises:
            OperatorError: The handler raised, and the policy is to stop.
        """
        tries = 0
        while True:
            error = _called(handler, lane.partition, entries)
            if error is None:
                return []
            if self._on_error == "stop":
                about = f"{entries[0].id} to {entries[-1].id}" if len(entries) > 1 else entries[0].id
                failed = OperatorError(
                    f"The handler failed at partition {lane.partition}, entries {about}: {raised(error)}; they are not acked and come again."
                )
                raise failed from error
            tries += 1
            LOG.warning(
                "The handler failed at partition %d, entry %s, try %d: %s", lane.partition, entries[0].id, tries, raised(error)
            )
            if self._on_error == "dead_letters" and tries > self._retries:
                return self._one_by_one(lane, entries, handler)
            pause_s = random.uniform(0.5, 1.0) * min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(tries - 1, 20))  # noqa: S311  (jitter)
            if self._lanes.wait_in(lane, pause_s):
                return None

    @staticmethod
    def _one_by_one(lane: Lane, entries: list[Entry], handler: Handler) -> list[list[str]]:
        letters = []
        for entry in entries:
            error = _called(handler, lane.partition, [entry])
            if error is not None:
                words = [word for pair in entry.fields.items() for word in pair]
                letters.append([*words, "penstock:id", entry.id, "penstock:error", raised(error)])
        return letters

    def _commit(self, lane: Lane, position: str, letters: Sequence[Sequence[str]] = (), *, behind: int = 0) -> bool:
        """Ack, again while no answer comes and the partition is this consumer's; so many entries were handed out behind it."""
        added = self._lanes.added_at(lane, behind)
        encoded = [[word.encode(errors="surrogateescape") for word in letter] for letter in letters]
        while True:
            try:
                return not lane.abandoned and self._agent.ack(lane.partition, position, encoded, added)
            except Unanswered as error:
                if is_refused(error):
                    raise GroupError(f"An ack of stream {self._stream!r} is refused: {why(error)}.") from error
                LOG.info("Ack of partition %d was not answered: %s", lane.partition, error)
                time.sleep(_ACK_PAUSE_S)


def _called(handler: Handler, partition: int, entries: list[Entry]) -> Exception | None:
    try:
        handler(partition, entries)
    except Exception as error:  # noqa: BLE001  (a user's function; the policy decides)
        return error
    return None


def _order(entry: str) -> tuple[int, int]:
    ms, _, sequence = entry.partition("-")
    return int(ms), int(sequence or 0)


__all__ = ["Consumer", "Entry"]
