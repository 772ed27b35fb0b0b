"""Which member works on which partition: sticky, within one, and with as few moves as there can be. A pure function.

A1  Shares differ by at most one.
A2  No assignment within one leaves more partitions where they are.
A3  The result depends on nothing but the arguments: no clock, no order of joining, no hash seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def assign(partitions: int, held: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Share partitions among members.

    Args:
        partitions: How many there are.
        held: By member, what it has had until now; a partition that nobody has had is free. Not modified.

    Returns:
        By member in order of their names, its partitions, ascending; nothing if there are no members.

    Cost: O(partitions + members × log members).

    Why there are no fewer moves: a member keeps the smaller of what it has and its quota. One of the larger quotas saves a move only
    at a member that has more than the smaller quota, and those get them first.

    Example:
        >>> assign(4, {"a": [0, 1, 2, 3], "b": []})
        {'a': (0, 1), 'b': (2, 3)}
    """
    if not held:
        return {}
    names = sorted(held)
    least, larger = divmod(partitions, len(names))
    first = sorted(names, key=lambda n: len(held[n]) <= least)  # stable: the names' order decides among equals
    quota = {n: least + (i < larger) for i, n in enumerate(first)}
    kept = {n: sorted(held[n])[: quota[n]] for n in names}
    free = iter(sorted(set(range(partitions)).difference(*kept.values())))
    return {n: tuple(sorted([*kept[n], *(next(free) for _ in range(quota[n] - len(kept[n])))])) for n in names}


def moves(before: Mapping[str, Sequence[int]], after: Mapping[str, Sequence[int]]) -> int:
    """How many partitions another member has after a change, or a member for the first time."""
    owner = {p: n for n, each in before.items() for p in each}
    return sum(owner.get(p) != n for n, each in after.items() for p in each)


__all__ = ["assign", "moves"]
