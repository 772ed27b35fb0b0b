"""A group as people see it: its members, and of each partition who has it and how far it is."""

from __future__ import annotations

from penstock.errors import GroupError
from penstock.group.figures import GroupFigures, MemberFigures, PartitionFigures
from penstock.protocol.group.document import Document
from penstock.redis_client.connection import shown
from penstock.redis_client.group_view import GroupView, Lock


def describe(url: str, group: str, stream: str | None = None) -> GroupFigures:
    """Look at a group; nothing is changed.

    Args:
        url: The server's address.
        group: The group's name.
        stream: The stream that it shares; None: the only one.

    Raises:
        GroupError: There is no such group, or the server cannot be asked.
    """
    view = GroupView(url)
    try:
        stream = stream or _only(view.streams(group), group, url)
        partitions = view.partitions(stream)
        seen = view.look(stream, group, partitions or 0)
    finally:
        view.close()
    if seen.document is None:
        raise GroupError(
            f"There is no group {group!r} of stream {stream!r} at {shown(url)}; `penstock group consume` joins one."
        )
    try:
        document = Document.from_json(seen.document)
    except ValueError as error:
        raise GroupError(f"Group {group!r} of stream {stream!r} cannot be shown: {error}") from error
    target = document.target
    rows = [_partition(n, lock, target.get(n), seen.changed_ms) for n, lock in enumerate(seen.locks)]
    members = [
        MemberFigures(
            name,
            entry.joined,
            len(entry.partitions),
            sum(lock.incarnation == entry.incarnation for lock in seen.locks),
            seen.left_ms.get(entry.incarnation),
            entry.leaving,
        )
        for name, entry in document.members.items()
    ]
    last = max((lock.taken for lock in seen.locks), default=0)
    pauses = [
        row.rebalance_ms
        for row, lock in zip(rows, seen.locks, strict=True)
        if lock.taken == last and row.rebalance_ms is not None
    ]
    return GroupFigures(group, stream, document.epoch, sum(row.lag for row in rows), max(pauses, default=None), members, rows)


def partitions_of(url: str, stream: str) -> int | None:
    """How many partitions a stream has; None: nobody has used it.

    Raises:
        GroupError: The server cannot be asked.
    """
    view = GroupView(url)
    try:
        return view.partitions(stream)
    finally:
        view.close()


def _only(streams: list[str], group: str, url: str) -> str:
    if len(streams) == 1:
        return streams[0]
    if not streams:
        raise GroupError(f"There is no group {group!r} at {shown(url)}; `penstock group consume` joins one.")
    raise GroupError(f"Groups named {group!r} share the streams {', '.join(streams)}; say which with --stream.")


def _partition(number: int, lock: Lock, target: str | None, changed_ms: dict[int, int]) -> PartitionFigures:
    since = changed_ms.get(lock.taken)
    pause = None if since is None or not lock.taken_ms else max(0, lock.taken_ms - since)
    owner = "(a key that is not penstock's)" if lock.foreign else lock.member or None
    return PartitionFigures(number, target, owner, lock.token, lock.position, lock.lag, pause)


__all__ = ["describe", "partitions_of"]
