"""The declaration of `stateful_map`: what its functions look like, and the step made of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from penstock.errors import DeclarationError
from penstock.operators.migration import as_migrations
from penstock.operators.stateful_map import StatefulMap
from penstock.operators.timed_map import TimedMap
from penstock.operators.windows import Spans
from penstock.sql_text.schema import as_function, as_schema
from penstock.types import duration_us

Mapped = tuple[Any, Any] | tuple[Any, Any, dt.datetime | None]
"""Outputs, state, and with `on_timer` the key's timer."""
Mapper = Callable[[Any, Any, Any], Mapped]
"""``fn(key, event, state)``"""
OnTimer = Callable[[Any, Any, dt.datetime], Mapped]
"""``on_timer(key, state, at)``"""


def mapping(
    *,
    fn: Mapper,
    schema: Any,
    state: Any,
    migrate: Any,
    window: Spans | None,
    skips: bool,
    timed: bool,
    ttl: Any = None,
    on_timer: OnTimer | None = None,
) -> StatefulMap:
    """The step of a `stateful_map`.

    Args:
        fn: See `KeyedStream.stateful_map`. Likewise ``schema``, ``state``, ``migrate``, ``ttl`` and ``on_timer``.
        schema: See there.
        state: See there.
        migrate: See there.
        window: The window that it follows.
        skips: Whether what a function raises on is left out.
        timed: Whether the stream has an event time.
        ttl: See there.
        on_timer: See there.

    Raises:
        DeclarationError: See there.
    """
    as_function(fn, "stateful_map", "fn(key, event, state)", 3)
    out = as_schema(schema, "the schema of stateful_map")
    kept = None if state is None else as_schema(state, "the state of stateful_map")
    lives_us = None if ttl is None else duration_us(ttl, "ttl")
    if lives_us is not None and lives_us <= 0:
        raise DeclarationError(f"stateful_map(ttl={ttl!r}) would forget everything at once; give a positive duration.")
    if lives_us is not None and not timed:
        raise DeclarationError("ttl= needs an event time; declare it: flow.source(..., time='column').")
    about = (fn, out, kept, window, "skip" if skips else "fail", as_migrations(migrate), lives_us)
    if on_timer is None:
        return StatefulMap(*about)
    as_function(on_timer, "on_timer", "on_timer(key, state, at)", 3)
    if not timed:
        raise DeclarationError("on_timer= needs an event time; declare it: flow.source(..., time='column').")
    return TimedMap(*about, on_timer)


__all__ = ["Mapped", "Mapper", "OnTimer", "mapping"]
