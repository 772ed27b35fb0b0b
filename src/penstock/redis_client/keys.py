"""Names of keys. The braces are part of a name: in a cluster all keys with the same text in braces are on one server.

What belongs to one partition has that partition's braces, so that one script can check and change all of it.
"""

from __future__ import annotations


def partition_key(stream: str, partition: int) -> str:
    """The Redis stream that holds a partition's entries.

    Example:
        >>> partition_key("orders", 3)
        '{orders:3}'
    """
    return f"{{{stream}:{partition}}}"
