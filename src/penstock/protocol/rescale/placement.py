"""Which bins go where when the number of workers changes: the fewest moves that balance the measured bytes.

Growing takes bins only from workers that have more than their share and gives them only to workers that are new; shrinking moves
only the bins of workers that go. So no bin moves that could stay.
"""

from __future__ import annotations

from collections.abc import Sequence


def place(owners: Sequence[int], bytes_by_bin: Sequence[int], workers: int, base: int) -> tuple[int, ...]:
    """The worker of every bin at another number of workers.

    Args:
        owners: By bin, its worker now.
        bytes_by_bin: By bin, its measured bytes.
        workers: Number of workers wanted.
        base: Number of workers when the region was last settled; workers from here on are new.

    Returns:
        By bin, its worker then; below `workers`.

    Example:
        >>> place([0, 0, 0, 1, 1, 1], [1] * 6, workers=3, base=2)
        (0, 0, 2, 1, 1, 2)
    """
    least = max(1, sum(bytes_by_bin) // (100 * len(owners)))  # an empty bin gets keys one day
    weights = [b + least for b in bytes_by_bin]
    target = list(owners)
    loads = [0] * workers
    homeless = []
    for at, worker in enumerate(owners):
        if worker < workers:
            loads[worker] += weights[at]
        else:
            homeless.append(at)
    share = sum(weights) / workers
    new = range(min(base, workers), workers)
    if new:
        homeless += _surplus(owners, weights, loads, share, sum(max(0.0, share - loads[w]) for w in new), homeless)
    for at in sorted(homeless, key=lambda b: (-weights[b], b)):
        among = [w for w in new if loads[w] < share] or ([owners[at]] if owners[at] < workers else range(workers))
        target[at] = min(among, key=lambda w: (loads[w], w))
        loads[target[at]] += weights[at]
    return tuple(target)


def _surplus(
    owners: Sequence[int], weights: Sequence[int], loads: list[int], share: float, room: float, homeless: Sequence[int]
) -> list[int]:
    """Bins that workers with more than their share give to new ones, the last ones of each first; takes them off `loads`."""
    room -= sum(weights[b] for b in homeless)
    total = sum(max(0.0, load - share) for load in loads)
    out = []
    for worker, load in enumerate(loads):
        if load <= share or room <= 0:
            continue
        give = (load - share) * min(1.0, room / total)
        for at in sorted((b for b, w in enumerate(owners) if w == worker), key=lambda b: (-weights[b], -b)):
            if weights[at] <= give + weights[at] / 2:
                out.append(at)
                give -= weights[at]
                loads[worker] -= weights[at]
    return out
