"""What Spark has found of a source's files and not given yet, from its Java objects.

| call | for | without it |
|---|---|---|
| `LogicalRelation.location`, `allFiles`, `inputFiles` | size and time of each file of an epoch, as Spark saw them | a flow that reads files does not run |
| fields `unreadFiles`, `allFilesForTriggerAvailableNow`, `seenFiles` of Spark's source | an epoch that is full takes the first files of its last moment | Spark's order stands: of files with one time it may take any |

Read next: `penstock.driver.input_files`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from penstock.driver.input_files import InputFile
from penstock.spark.internals.plans import Branch, plan_of

_STATUS: Final = re.compile(r".*; isDirectory=\w+; length=(\d+); .*?modification_time=(-?\d+);")
_PLAIN: Final = re.compile(
    r"\w+\{path=([\w./:=,+@-]+); isDirectory=", re.ASCII
)  # a path that is its URI: nothing in it is escaped
_ENTRY: Final = re.compile(r"NewFileEntry\((.*),(\d+),(-?\d+)\)")
_FEW: Final = 256
_fields: WeakKeyDictionary[SparkContext, dict[str, Any]] = WeakKeyDictionary()
_wrapping: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()


@dataclass(frozen=True)
class Found:
    """A source's files of one epoch.

    Attributes:
        files: Existing files, as they are, each once.
        gone: URIs of files in Spark's log that are missing.
        stream: Spark's source (its Java object); None: unknown.
        doubled: Whether Spark would read some of them twice.
    """

    files: tuple[InputFile, ...] = ()
    gone: tuple[str, ...] = ()
    stream: Any = None
    doubled: bool = False


def normal(uri: str) -> str:
    """A URI as files are known by: Spark writes ``file:/`` too."""
    return re.sub("^file:/+", "file:///", uri)


def listed(frame: DataFrame) -> Found:
    """The files of a DataFrame that reads files of one format and does no more."""
    return found_in(frame.sparkSession, Branch(plan_of(frame)))


def found_in(spark: SparkSession, branch: Branch) -> Found:
    """The files of a plan that reads files and does no more.

    Args:
        spark: A session.
        branch: Its kind is `FILES`.
    """
    index, stream = branch.relation.location(), branch.stream
    each = _files_of(spark, index)
    files = tuple({f.uri: f for f in each}.values())  # beside a name with a wildcard in it a stream has all others twice
    roots = index.rootPaths()
    lost: tuple[str, ...] = ()
    if int(roots.size()) != len(files):  # a path that is not there is left out when Spark lists it
        every = [normal(str(roots.apply(i).toUri().toString())) for i in range(int(roots.size()))]
        there = {f.uri for f in files}
        lost = tuple(uri for uri in every if uri not in there)
    return Found(files, lost, stream.get() if stream.isDefined() else None, len(each) > len(files))


def _files_of(spark: SparkSession, index: Any) -> tuple[InputFile, ...]:
    """What Spark saw of each file when it listed them for this epoch, in one call to Java."""
    every = index.allFiles()
    lines = str(every.mkString("\n")).split("\n")
    if lines == [""]:
        return ()
    told, paths = [_STATUS.match(line) for line in lines], [_PLAIN.match(line) for line in lines]
    uris = [path[1] for path in paths if path] if all(paths) else _uris_of(spark, index)
    if len(told) != len(uris) or not all(told):  # a name has a line break, or a store tells it otherwise
        status = [every.apply(i) for i in range(len(uris))]
        return tuple(
            InputFile(normal(uri), int(s.getLen()), int(s.getModificationTime())) for uri, s in zip(uris, status, strict=True)
        )
    return tuple(InputFile(normal(uri), int(t[1]), int(t[2])) for uri, t in zip(uris, told, strict=True) if t is not None)


def _uris_of(spark: SparkSession, index: Any) -> list[str]:
    context = spark.sparkContext
    if context not in _wrapping:
        jvm: Any = context._jvm
        _wrapping[context] = jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray
    return str(_wrapping[context](index.inputFiles()).mkString("\n")).split("\n")


def unread(
    spark: SparkSession, stream: Any, mtime_ms: int, after: tuple[int, str], known: Collection[str], most: int, *, listed: bool
) -> list[InputFile]:
    """The first files of one moment that Spark has found and not given yet, in order.

    Args:
        spark: A session.
        stream: Spark's source.
        mtime_ms: The moment, that of the last file given.
        after: Only files behind this place.
        known: URIs of files that are not wanted.
        most: At most so many.
        listed: Whether this query has listed files itself, so that what it has left is known; otherwise they are listed once more.
    """
    left, all_unread = _field(spark, stream, "unreadFiles"), True
    if left is None:
        left, all_unread = _field(spark, stream, "allFilesForTriggerAvailableNow"), False
    if left is None and not listed:
        fetch = stream.getClass().getDeclaredMethod("fetchAllFiles", None)
        fetch.setAccessible(True)
        left = fetch.invoke(stream, None)
    if left is None:
        return []
    begin, end = 0, int(left.size())
    if end > _FEW:  # otherwise they are all read at once, which is quicker than a search
        begin = 0 if all_unread else _first(left, mtime_ms)
        end = _first(left, mtime_ms + 1)
    if begin >= end:
        return []
    entries = [_ENTRY.fullmatch(line) for line in str(left.slice(begin, end).mkString("\n")).split("\n")]
    group = {
        normal(e[1]): (i, InputFile(normal(e[1]), int(e[2]), int(e[3])))
        for i, e in enumerate(entries, begin)
        if e and (int(e[3]) == mtime_ms or (all_unread and int(e[3]) < mtime_ms))
    }
    found: list[InputFile] = []
    seen = None if all_unread else stream.seenFiles()
    for i, file in sorted(group.values(), key=lambda entry: entry[1].place):
        if len(found) == most:
            break
        if file.uri in known or file.place <= after:
            continue
        if seen is None or bool(seen.isNewFile(left.apply(i).path(), file.mtime_ms)):
            found.append(file)
    return found


def _first(files: Any, mtime_ms: int) -> int:
    """Index of the first file of a sorted list that is not older than a moment."""
    low, high = 0, int(files.size())
    while low < high:
        middle = (low + high) // 2
        if int(files.apply(middle).timestamp()) < mtime_ms:
            low = middle + 1
        else:
            high = middle
    return low


def _field(spark: SparkSession, stream: Any, name: str) -> Any:
    fields = _fields.setdefault(spark.sparkContext, {})
    if name not in fields:
        field = stream.getClass().getDeclaredField(name)
        field.setAccessible(True)
        fields[name] = field
    return fields[name].get(stream)


__all__ = ["Found", "found_in", "listed", "normal", "unread"]
