"""The trail of a source: enough of the way that it came to start again in the middle of its log, and to know the log again.

    waypoint    a position, with the greatest event time and the number of records until there; of files their number and a digest
    floor       from which offset on a decision that was no function of the log (an idle partition that came back) made records late

A partition has one trail, a source of files one for all. Waypoints lie dense near the end and thin out by octaves, so that a trail of n epochs
has about 8 log₂ n of them, and a start from the last waypoint before a time reads at most a quarter more than it must.

A sink keeps the trail with its mark (`penstock.types.Mark.trail`): what a replay needs outlives the checkpoint.

Read next: `penstock.driver.recovery`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import xxhash

from penstock.progress.lateness import Chunk, print_after
from penstock.progress.source_state import PartitionState, SourceState, Waypoint
from penstock.types import MIN_TIME, ROW_BITS, Mark, from_plain, plain

MOST_STRAYS: Final = 256
_OF_ONE_EPOCH: Final = 64
_DENSITY: Final = 3  # 4 to 8 waypoints per octave


def thinned(points: Sequence[Waypoint]) -> list[Waypoint]:
    """Those that are kept. The last one always is; an older one if its number has as many zeros at its end as its age has octaves.

    Example:
        >>> [w.number for w in thinned([Waypoint(n) for n in range(1, 41)])]
        [8, 12, 16, 20, 24, 26, 28, 30, 32, 33, 34, 35, 36, 37, 38, 39, 40]
    """
    if not points:
        return []
    last = points[-1].number
    return [w for w in points if w.number % (1 << max(0, (last - w.number).bit_length() - _DENSITY)) == 0]


def extended(points: Sequence[Waypoint], new: Sequence[Waypoint]) -> list[Waypoint]:
    """A trail with what an epoch adds: at most 64 points, the last of them always.

    Args:
        points: The trail before.
        new: What an epoch adds, numbered anew here.
    """
    every = -(-len(new) // _OF_ONE_EPOCH) if new else 1
    chosen = [w for i, w in enumerate(new, 1) if i == len(new) or i % every == 0]
    first = points[-1].number + 1 if points else 1
    return thinned([*points, *(replace(w, number=n) for n, w in enumerate(chosen, first))])


def of_chunks(before: PartitionState | None, chunks: Iterable[Chunk]) -> list[Waypoint]:
    """A waypoint for the end of each chunk of a partition.

    Args:
        before: The partition before the epoch; None: it is new.
        chunks: The epoch's chunks of it, in order of their numbers.
    """
    point = Waypoint(0) if before is None else Waypoint(0, before.offset, before.latest, before.rows, print=before.print)
    found = []
    for chunk in chunks:
        latest, rows, offset = max(point.latest, chunk.greatest), point.rows + chunk.rows, max(point.offset, chunk.last_offset)
        point = Waypoint(0, offset, latest, rows, print=print_after(point, chunk))
        found.append(point)
    return found


def of_files(before: SourceState, chunks: Iterable[Chunk], prints: Sequence[str]) -> list[Waypoint]:
    """A waypoint for the end of each file of an epoch.

    Args:
        before: The source before the epoch.
        chunks: The epoch's chunks.
        prints: What tells each file from another one, in the order of their numbers (`file_print`).
    """
    latest = max((p.latest for p in before.partitions.values()), default=MIN_TIME)
    rows = sum(p.rows for p in before.partitions.values())
    greatest: dict[int, int] = {}
    counts: dict[int, int] = {}
    for chunk in chunks:
        number = chunk.last_offset >> ROW_BITS
        greatest[number] = max(greatest.get(number, MIN_TIME), chunk.greatest)
        counts[number] = counts.get(number, 0) + chunk.rows
    digest, found = before.digest, []
    for number, text in enumerate(prints, before.files):
        latest, rows = max(latest, greatest.get(number, MIN_TIME)), rows + counts.get(number, 0)
        digest = chained(digest, text)
        found.append(Waypoint(0, ((number + 1) << ROW_BITS) - 1, latest, rows, number + 1, digest))
    return found


def file_print(uri: str, size: int, mtime_ms: int) -> str:
    """What tells a file from another one: name, size and time."""
    return f"{uri} {size} {mtime_ms}"


def chained(digest: str, text: str) -> str:
    """The digest of a log of files with one file more."""
    return xxhash.xxh3_64_hexdigest(f"{digest}\n{text}".encode())


def placed(before: SourceState, places: Sequence[tuple[int, str]]) -> tuple[list[Any], list[list[Any]]]:
    """The greatest place of a file read, and the files read behind one of a greater place, after an epoch.

    Args:
        before: The source before the epoch.
        places: The places of its files, in the order of their numbers.
    """
    reached, strays = tuple(before.reached), list(before.strays)
    for number, place in enumerate(places, before.files):
        if place < reached:
            strays.append([number, place[1]])
        reached = max(reached, place)
    return list(reached), strays[-MOST_STRAYS:]


@dataclass(frozen=True)
class Trail:
    """What a mark carries for a replay.

    Attributes:
        name: The flow's name.
        finished: Whether the end of the input was given out.
        sources: By name, the sources after the mark's epoch, without what only people need.
        held: By region, the hashes of keys that were on hold.
        outputs: Names of the flow's outputs.
    """

    name: str
    finished: bool = False
    sources: dict[str, SourceState] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def to_text(self) -> str:
        """One line of JSON."""
        return json.dumps(plain(self), default=plain, separators=(",", ":"))

    @staticmethod
    def of(
        name: str, sources: Mapping[str, SourceState], held: Mapping[str, list[int]], outputs: Iterable[str], *, finished: bool
    ) -> Trail:
        """That of an epoch's mark; see the class."""
        bare = {n: replace(s, names=[], order={}) for n, s in sources.items()}
        return Trail(name, finished, bare, dict(held), list(outputs))

    @staticmethod
    def from_text(text: str) -> Trail | None:
        """Read what `to_text` gave; None: a version wrote the mark that knew no trails."""
        if not text:
            return None
        found: Trail = from_plain(Trail, json.loads(text))
        return found


def same_input(first: Mark, second: Mark) -> bool:
    """Whether two marks have come equally far in one log, as far as they say it."""
    one, other = Trail.from_text(first.trail), Trail.from_text(second.trail)
    if one is None or other is None:
        return first.positions == second.positions
    return _extent(one) == _extent(other)


def _extent(trail: Trail) -> list[Any]:
    sources = sorted(trail.sources.items())
    return [(name, s.files, s.digest, sorted((k, p.offset, p.rows) for k, p in s.partitions.items())) for name, s in sources]


__all__ = [
    "Trail",
    "chained",
    "extended",
    "file_print",
    "of_chunks",
    "of_files",
    "placed",
    "same_input",
    "thinned",
]
