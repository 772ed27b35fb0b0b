"""Which bins go where when the number of workers changes: the fewest moves that balance the measured bytes.

Growing takes bins only from workers that have more than their share and gives them only to workers that are new; shrinking moves
only the bins of workers that go. So no bin moves that could stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def spread(
    owners: Sequence[int],
    bytes_by_bin: Sequence[int],
    workers: int,
    base: int,
    opened: Collection[int] = (),
    closed: Collection[int] = (),
) -> tuple[int, ...]:
    """`place` where some workers are to have no bins.

    Args:
        owners: As for `place`.
        bytes_by_bin: As for `place`.
        workers: As for `place`.
        base: As for `place`.
        opened: Workers below `base` that had none and get some again.
        closed: Workers that are to have none; not all of them.

    Example:
        >>> spread([0, 0, 0, 1, 1, 2, 2], [1] * 7, workers=3, base=3, closed=[0])
        (1, 2, 1, 1, 1, 2, 2)
        >>> spread([1, 2, 1, 1, 1, 2, 2], [1] * 7, workers=3, base=3, opened=[0])
        (1, 2, 1, 0, 0, 2, 0)
    """
    if not opened and not closed:
        return place(owners, bytes_by_bin, workers, base)
    new = [w for w in range(workers) if w not in closed and (w >= base or w in opened)]
    order = [*(w for w in range(min(base, workers)) if w not in closed and w not in opened), *new]
    numbers = {w: n for n, w in enumerate(order)}
    numbered = [numbers.get(w, len(order)) for w in owners]
    return tuple(order[n] for n in place(numbered, bytes_by_bin, len(order), len(order) - len(new)))


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
    share, giants = _share(weights, workers)
    loads = [0] * workers
    homeless = []
    for at, worker in enumerate(owners):
        if worker < workers:
            loads[worker] += weights[at]
        else:
            homeless.append(at)
    new = range(min(base, workers), workers)
    if new:
        room = sum(max(0.0, share - loads[w]) for w in new) - sum(weights[b] for b in homeless)
        homeless += _surplus(owners, weights, loads, share, giants, room)
    for at in sorted(homeless, key=lambda b: (-weights[b], b)):
        among = [w for w in new if loads[w] < share] or ([owners[at]] if owners[at] < workers else range(workers))
        target[at] = min(among, key=lambda w: (loads[w], w))
        loads[target[at]] += weights[at]
    return tuple(target)


def _share(weights: Sequence[int], workers: int) -> tuple[float, set[int]]:
    """What a worker should have, and the bins that weigh more than that by themselves: each has a worker of its own, at best."""
    left, heaviest, giants = sum(weights), sorted(range(len(weights)), key=lambda b: (-weights[b], b)), set[int]()
    for at in heaviest[: workers - 1]:
        if weights[at] * (workers - len(giants)) <= left:
            break
        left -= weights[at]
        giants.add(at)
    return left / (workers - len(giants)), giants


def _surplus(
    owners: Sequence[int], weights: Sequence[int], loads: list[int], share: float, giants: set[int], room: float
) -> list[int]:
    """Bins that workers with more than their share give to new ones, the heaviest first; takes them off `loads`.

    A giant stays where it is, and everything else leaves it; of several at one worker the heaviest stays.
    """
    by_worker: dict[int, list[int]] = {}
    for at in sorted(range(len(owners)), key=lambda b: (-weights[b], -b)):
        if owners[at] < len(loads):
            by_worker.setdefault(owners[at], []).append(at)
    out: list[int] = []
    over: dict[int, float] = {}
    for worker, bins in by_worker.items():
        here = [b for b in bins if b in giants]
        for at in here[1:]:
            out.append(at)
            loads[worker] -= weights[at]
        over[worker] = loads[worker] - max(share, *(weights[b] for b in here[:1]), 0.0)
    total = sum(max(0.0, o) for o in over.values())
    for worker, surplus in sorted(over.items()):
        if surplus <= 0 or room <= 0:
            continue
        give = surplus * min(1.0, room / total)
        for at in by_worker[worker]:
            if at not in giants and weights[at] <= give + weights[at] / 2:
                out.append(at)
                give -= weights[at]
                loads[worker] -= weights[at]
    return out
