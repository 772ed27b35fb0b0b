"""The oracle of operators with several timers per key.

Read next: `oracle`, `own_operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import recipes as r
from own_operators import NEVER, deadline_fired, deadline_of_row, further


def deadlines(
    node: r.Process,
    rows: Sequence[Any],
    latest: int,
    fired: Callable[[int, Any, int], Any],
    then: r.Process | None = None,
    edge: int = NEVER,
) -> list[Any]:
    """What `Deadlines` gives for the rows of a key: several timers, which fire in their order; those of one moment together.

    Args:
        node: The step.
        rows: In order.
        latest: The greatest time of the input.
        fired: Makes a row of the time, the data and the number that a timer's row has.
        then: The step from a time on.
        edge: That time.
    """
    last, migrates = rows[0].time, then is not None and then.migrated and not node.migrated
    out: list[Any] = []
    entries: dict[str, list[int]] = {}
    left: set[str] | None = None  # at the end, whose timers have not fired once more; those that are set then may lie behind

    def migrate(at: int) -> None:
        nonlocal migrates
        if migrates and at >= edge:
            migrates = False
            for entry in entries.values():
                entry[0] = further(entry[0])

    def fire(at: int, subs: Iterable[str]) -> None:
        migrate(at)
        for sub in subs:
            entries[sub][1] = NEVER
        given = [data for sub in subs for data in deadline_fired(entries, sub, at)]
        assert all(t > at for sub, (_, t) in entries.items() if left is None or sub in left)
        out.extend(fired(at, data, n) for n, data in enumerate(given))

    def fire_upto(upto: int) -> None:
        while due := sorted((t, sub) for sub, (_, t) in entries.items() if t <= min(upto, lives())):
            fire(due[0][0], [sub for t, sub in due if t == due[0][0]])

    def lives() -> int:
        return NEVER - 1 if node.ttl_us is None else last + node.ttl_us

    for row in rows:
        fire_upto(row.time)
        if node.ttl_us is not None and row.time - last >= node.ttl_us:
            entries.clear()
        migrate(row.time)
        lead = int((then if then is not None and row.time >= edge else node).operator == "deadlines")
        out.append(row.child(0, deadline_of_row(entries, row.data, row.time, lead)))
        for entry in entries.values():
            entry[1] = max(entry[1], row.time + 1)
        last = row.time
    fire_upto(max(last, latest))
    left = {sub for sub, (_, t) in entries.items() if t != NEVER}
    while due := sorted((t, sub) for sub, (_, t) in entries.items() if sub in left and t <= lives()):
        subs = [sub for t, sub in due if t == due[0][0]]
        left -= set(subs)
        fire(due[0][0], subs)
    return out
