"""Ids of entries, ``ms-seq``, and the whole number that is their offset: it has the same order, and the id follows from it.

The lower `SEQUENCE_BITS` bits are the sequence, so ids fit until the year 2248, with a million entries in a millisecond.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import RecordError

SEQUENCE_BITS: Final = 20
_MS_BITS: Final = 63 - SEQUENCE_BITS

Id = tuple[int, int]
"""Milliseconds, sequence."""
FIRST: Final[Id] = (0, 0)
"""Before every entry: no entry has this id."""


def parsed(text: bytes | str) -> Id:
    """An id of its text.

    Example:
        >>> parsed(b"1700-3")
        (1700, 3)
    """
    ms, _, sequence = (text.decode() if isinstance(text, bytes) else text).partition("-")
    return int(ms), int(sequence or 0)


def written(entry: Id) -> str:
    """The text of an id.

    Example:
        >>> written((1700, 3))
        '1700-3'
    """
    return f"{entry[0]}-{entry[1]}"


def to_offset(entry: Id, key: str) -> int:
    """The offset of an entry.

    Args:
        entry: Its id.
        key: The key of its stream, for the error.

    Raises:
        RecordError: It is beyond what an offset can tell.

    Example:
        >>> to_offset((1, 0), "{orders:0}") - to_offset((0, 7), "{orders:0}")
        1048569
    """
    if entry[0] >> _MS_BITS or entry[1] >> SEQUENCE_BITS:
        raise RecordError(
            f"Entry {written(entry)} of stream {key} has an id that is no position: milliseconds must be below 2^{_MS_BITS}, the sequence below "
            f"2^{SEQUENCE_BITS}; let the server give ids (XADD with *), or write the entries to another stream. The epoch was not committed."
        )
    return entry[0] << SEQUENCE_BITS | entry[1]


def of_offset(offset: int) -> Id:
    """The id of an offset; of −1, with which a partition begins, `FIRST`.

    Example:
        >>> of_offset(to_offset((1700, 3), "{orders:0}"))
        (1700, 3)
    """
    return FIRST if offset < 0 else (offset >> SEQUENCE_BITS, offset & ((1 << SEQUENCE_BITS) - 1))


__all__ = ["FIRST", "SEQUENCE_BITS", "Id", "of_offset", "parsed", "to_offset", "written"]
