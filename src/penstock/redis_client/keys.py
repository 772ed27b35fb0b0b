"""Names of keys. The braces are part of a name: in a cluster all keys with the same text in braces are on one server.

What belongs to one partition has that partition's braces, so that one script can check and change all of it.
"""

from __future__ import annotations

from typing import Final

NO_VALUES: Final = b""
"""Name of the field of an entry whose row has no values: an entry without fields cannot be."""


def partition_key(stream: str, partition: int) -> str:
    """The Redis stream that holds a partition's entries.

    Example:
        >>> partition_key("orders", 3)
        '{orders:3}'
    """
    return f"{{{stream}:{partition}}}"


def settings_key(stream: str) -> str:
    """Hash: what all who use the stream must agree on, such as the number of its partitions."""
    return f"{{{stream}}}"


def group_partition_key(stream: str, partition: int, group: str) -> str:
    """Hash: who owns a partition in a group, its fencing token and the position up to which entries are acked."""
    return f"{partition_key(stream, partition)}:{group}"


def dead_letters_key(stream: str, partition: int, group: str) -> str:
    """Stream: entries of a partition that a consumer of the group could not handle."""
    return f"{group_partition_key(stream, partition, group)}:dead"


def members_key(stream: str, group: str) -> str:
    """Hash: the membership document of a group, and its epoch."""
    return f"{settings_key(stream)}:{group}"


def alive_key(stream: str, group: str) -> str:
    """Sorted set: until when each member of a group counts as alive, by the server's clock."""
    return f"{members_key(stream, group)}:alive"


def changes_key(stream: str, group: str) -> str:
    """Stream: the announcements of a group."""
    return f"{members_key(stream, group)}:changes"


def mark_key(stream: str, output: str) -> str:
    """The mark of an output that writes the stream, beside partition 0.

    Example:
        >>> mark_key("orders", "out")
        '{orders:0}:mark:out'
    """
    return f"{partition_key(stream, 0)}:mark:{output}"
