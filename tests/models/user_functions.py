"""What users' code does in random flows: functions for events, and pairs of one for events and one for timers.

Read next: `recipes`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any


def count(key: Any, event: Any, state: Any) -> Any:
    """One row per event: how many the key had."""
    n = (0 if state is None else state[0]) + 1
    return (event.k, event.j, n, event.x, _text(key)), (n, "")


def history(key: Any, event: Any, state: Any) -> Any:
    """The last events in their order; no row, one, or several; forgets the key at v = 5."""
    n, told = (0, "") if state is None else (state[0], state[1])
    told = (told + f"{event.v},{event.s};")[-30:]
    rows = [{"k": event.k, "j": event.j, "v": i, "x": event.x, "s": told} for i in range(0 if event.v is None else event.v % 4)]
    return rows, (None if event.v == 5 else (n + 1, told))


def renamed(key: Any, event: Any, state: Any) -> Any:
    """Changes the key's columns, which must not change the key; a row for every second event."""
    n = (0 if state is None else state[0]) + 1
    given = ("other", (event.j or 0) % 2, n, event.x, f"{event.s}") if n % 2 else None
    return given, (n, "") if n < 7 else None


def _text(key: Any) -> str:
    return str(key)[:20]


def quiet(key: Any, event: Any, state: Any) -> Any:
    """Says when nothing has come for two seconds; keeps the timer at v = 0, and forgets the key at v = 5."""
    n = 1 if state is None else state[0] + 1
    if event.v in (0, 5):
        return None, (None if event.v == 5 else (n, "kept"))
    return None, (n, "") if event.v != 3 else None, _time(event, n) + dt.timedelta(seconds=2)


def silence(key: Any, state: Any, at: dt.datetime) -> Any:
    """A timer of `quiet`: one row, and a shorter wait for the next one, three times."""
    n, told = (0, "none") if state is None else (state[0], state[1] + "!")
    return ("quiet", 0, n, None, told), (n, told), at + dt.timedelta(seconds=1) if len(told) < 3 else None


def often(key: Any, event: Any, state: Any) -> Any:
    """A summary every three seconds without end; at v = 2 another time, maybe one that is past; none at v = 7."""
    n = 1 if state is None else state[0] + 1
    time = _time(event, n)
    at = time + (3 - time.second % 3) * dt.timedelta(seconds=1)
    if event.v == 2:
        at = time + ((event.j or 0) % 3 - 1) * dt.timedelta(seconds=1)
    return [("event", 0, n, None, str(key)[:20])] * (n % 2), (n, ""), None if event.v == 7 else at


def summary(key: Any, state: Any, at: dt.datetime) -> Any:
    """A timer of `often`: no row, one, or two, and the next one."""
    n = 0 if state is None else state[0]
    rows = [{"k": "summary", "j": i, "v": n, "x": None, "s": str(at)} for i in range(n % 3)]
    return rows, (n + 1, "") if n % 4 else None, at + dt.timedelta(seconds=3)


def _time(event: Any, n: int) -> dt.datetime:
    """The time of an event that has its column; otherwise one of the first seconds, which are mostly past."""
    return getattr(event, "at", None) or dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n)


TIMED_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "quiet": (quiet, silence),
    "often": (often, summary),
}
FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {"count": count, "history": history, "renamed": renamed}
