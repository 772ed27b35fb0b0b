"""What a consumer has in hand of each of its partitions: a lane. One thread reads entries into all lanes; each lane is worked on in order.

L1  A lane's entries are handed out in order, and at most two batches are read ahead.
L2  Entries are handed out, and tried again, only while the partition is this member's by its own clock.
L3  Before a lane is read, first and after each read that gave entries, what was removed unread is counted, by how many entries the stream was ever
    given. What cannot be known at once shows later: the count stays behind.
L4  A lane that is to stop hands out nothing more; it has ended when what was handed out is done.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.redis_client.connection import is_refused
from penstock.redis_client.entry_ids import parsed
from penstock.redis_client.group_server import Unanswered
from penstock.redis_client.partition_streams import PartitionStreams
from penstock.redis_client.stream_log import Position, begun_at, gap

_LOOK_S: Final = 0.02
_LINGER_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a stream, as a handler gets it.

    Attributes:
        id: Its id at the server: milliseconds and a number; ids rise within a partition.
        fields: Its fields, as text. Bytes that are no UTF-8 are kept as in file names (``surrogateescape``).
    """

    id: str
    fields: dict[str, str]


@dataclass(eq=False)
class Lane:
    """A partition that is this consumer's.

    Attributes:
        partition: Its number.
        token: Its fencing token.
        read: Id up to which entries were read.
        added: How many entries the stream had been given until there; None: that is not known.
        waiting: Entries that were read and not handed out.
        worked: Whether a thread takes from it.
        in_hand: Whether entries were handed out that are not done.
        stopping: Whether it is to end after what is in hand.
        abandoned: Whether it is not this consumer's any more.
        unchecked: Whether to look for removed entries before the next read.
        begun: Whether that was done before.
        changed: For its thread to wait; one for each lane, so that nothing wakes a thousand threads.
    """

    partition: int
    token: int
    read: str
    changed: threading.Condition
    waiting: deque[Entry] = field(default_factory=deque)
    worked: bool = False
    in_hand: bool = False
    stopping: bool = False
    abandoned: bool = False
    added: int | None = None
    unchecked: bool = True
    begun: bool = False

    @property
    def ending(self) -> bool:
        """Whether nothing more is handed out."""
        return self.stopping or self.abandoned


class Lanes:
    """The lanes of a consumer; a `penstock.group.agent.Work`.

    Args:
        streams: Where entries are read.
        group: The group's name.
        batch: At most so many entries are handed out at a time.
        holds: Whether a partition is this member's at this moment.
        stopped: Called when a lane has ended.
        begun: Called in the reading thread for a lane that has entries and that nobody takes from; to start a thread, which ends when `take` gives
            nothing. So a partition without entries costs no thread, and a thousand partitions that come at once do not wait for a thousand threads.
        missed: Called in the reading thread with a lane, how many of its entries were removed unread, and the rest of a sentence that says so; whether to
            go on behind them.
        failed: Called in the reading thread, which ends then, if the server does not let this user read.
    """

    def __init__(
        self,
        streams: PartitionStreams,
        group: str,
        batch: int,
        holds: Callable[[int], bool],
        stopped: Callable[[int], None],
        begun: Callable[[Lane], None],
        missed: Callable[[Lane, int, str], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        self._streams, self._group, self._batch, self._holds, self._stopped = streams, group, batch, holds, stopped
        self._begun, self._missed, self._failed = begun, missed, failed
        self._lanes: dict[int, Lane] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for those who look at all lanes
        self._closed = threading.Event()

    # -- what the agent says; see `penstock.group.agent.Work`

    def start(self, partition: int, token: int, position: str) -> None:
        """The partition is this consumer's."""
        lane = Lane(partition, token, position, threading.Condition(self._lock))
        with self._changed:
            self._lanes[partition] = lane
            self._changed.notify_all()
        self._streams.wake()

    def stop(self, partition: int, within_s: float) -> None:
        """Another member is to have it; the agent says so if that takes longer than `within_s`."""
        del within_s
        self._end(partition, abandoned=False)

    def abandon(self, partition: int) -> None:
        """It is another member's, perhaps."""
        self._end(partition, abandoned=True)

    def _end(self, partition: int, *, abandoned: bool) -> None:
        with self._changed:
            lane = self._lanes.get(partition)
            if lane is None:
                return
            lane.stopping, lane.abandoned = True, lane.abandoned or abandoned
            lane.waiting.clear()
            lane.changed.notify_all()
        self._settle(lane)

    def _settle(self, lane: Lane) -> None:
        """Take a lane out that is to end and has nothing in hand."""
        with self._changed:
            if not lane.ending or lane.in_hand or self._lanes.get(lane.partition) is not lane:
                return
            del self._lanes[lane.partition]
        self._stopped(lane.partition)

    # -- handing out

    def take(self, lane: Lane) -> list[Entry]:
        """The next entries of a lane, which are in hand then; waits for them. Nothing when it has ended, or has had no entries for a while."""
        while True:
            with self._lock:
                lane.changed.wait_for(lambda: lane.waiting or lane.ending or self._closed.is_set(), _LINGER_S)
                if lane.ending or self._closed.is_set() or not lane.waiting:
                    lane.worked = False
                    return []
                if self._holds(lane.partition):
                    return self._handed(lane)
                lane.changed.wait(_LOOK_S)  # the lease is over, or not yet begun

    def take_any(self, after: int, ended: Callable[[], bool]) -> tuple[Lane, list[Entry]] | None:
        """The next entries of any lane without entries in hand, in turn; None when `ended`.

        Args:
            after: The partition that had its turn last.
            ended: Looked at while there is nothing.
        """
        while not ended():
            with self._changed:
                ready = [n for n, lane in self._lanes.items() if lane.waiting and not lane.ending and self._holds(n)]
                if ready:
                    number = min(ready, key=lambda n: (n <= after, n))
                    return self._lanes[number], self._handed(self._lanes[number])
                self._changed.wait(_LOOK_S)
        return None

    def _handed(self, lane: Lane) -> list[Entry]:
        full = len(lane.waiting) > self._batch
        taken = [lane.waiting.popleft() for _ in range(min(self._batch, len(lane.waiting)))]
        lane.in_hand = True
        if full and len(lane.waiting) <= self._batch:
            self._changed.notify_all()
        return taken

    def done(self, lane: Lane, *, end: bool = False) -> None:
        """What was handed out of a lane is done. `end`: nothing more of it is handed out, as something went wrong."""
        with self._changed:
            lane.in_hand = False
            if end:
                lane.stopping = True
                lane.waiting.clear()
        self._settle(lane)

    def wait_in(self, lane: Lane, seconds: float) -> bool:
        """Wait so long, and until the partition is this member's by its own clock, or the lane is to end; whether it is."""
        with self._lock:
            while not lane.changed.wait_for(lambda: lane.ending or self._closed.is_set(), seconds):
                if self._holds(lane.partition):
                    return False
                seconds = _LOOK_S
            return True

    # -- the reading thread

    def read(self) -> None:
        """Read entries into all lanes until `close`."""
        tries = 0
        while not self._closed.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._closed.is_set() or self._hungry())
                wakes, after = self._streams.wakes, {lane.partition: lane.read for lane in self._hungry()}
            if self._closed.is_set():
                break
            try:
                self._check(after)
                found = self._streams.read(after, self._batch, wakes=wakes, short=len(after) < len(self._lanes))
                tries = 0
            except Unanswered as error:
                if is_refused(error):
                    self._failed(error)
                    break
                tries += 1
                with self._changed:
                    pause_s = random.uniform(0.5, 1.5) * min(_LONGEST_PAUSE_S, _LOOK_S * 2 ** min(tries, 6))  # noqa: S311  (jitter)
                    self._changed.wait_for(self._closed.is_set, pause_s)
                continue
            begun = []
            with self._changed:
                for partition, entries in found.items():
                    lane = self._lanes.get(partition)
                    if entries and lane is not None and lane.read == after[partition] and not lane.ending:
                        lane.waiting.extend(
                            Entry(_text(entry), {_text(n): _text(v) for n, v in each.items()}) for entry, each in entries
                        )
                        lane.read = lane.waiting[-1].id
                        lane.added = None if lane.added is None else lane.added + len(entries)
                        lane.unchecked = True
                        lane.changed.notify_all()
                        begun += [] if lane.worked else [lane]
                        lane.worked = True
                self._changed.notify_all()
            for lane in begun:
                self._begun(lane)
        self._streams.close()

    def _check(self, after: Mapping[int, str]) -> None:
        """Look for entries that were removed unread, in the lanes that are to be read and not checked."""
        with self._lock:
            lanes = {n: self._lanes[n] for n in after if n in self._lanes and self._lanes[n].unchecked}
        for number, (stream, note) in self._streams.look(list(lanes), self._group).items() if lanes else ():
            lane = lanes[number]
            if lane.ending or self._lanes.get(number) is not lane or self._closed.is_set():
                continue  # by now it may be another's, who counts what is missing
            if not lane.begun:
                noted, _, added = note.partition(" ")
                lane.added = int(added) if noted == lane.read else None
            lane.begun = True
            found = gap(Position(parsed(lane.read), lane.added, None), stream, there=True)
            lost = 0 if found is None or found.another else found.lost or 0
            if found is not None and lost and not self._missed(lane, lost, found.sentence):
                self._end(number, abandoned=False)
                continue
            if found is not None or lane.added is None:
                lane.added = begun_at(parsed(lane.read), stream)
        for lane in lanes.values():
            lane.unchecked = False

    def added_at(self, lane: Lane, behind: int) -> int | None:
        """How many entries the stream had been given up to one that was handed out; None: that is not known.

        Args:
            lane: The lane.
            behind: How many entries were handed out behind it.
        """
        with self._lock:
            return None if lane.added is None else lane.added - len(lane.waiting) - behind

    def _hungry(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if len(lane.waiting) <= self._batch and not lane.ending]

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
            for lane in self._lanes.values():
                lane.changed.notify_all()
        self._streams.wake()


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


__all__ = ["Entry", "Lane", "Lanes"]
