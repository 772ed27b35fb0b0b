"""`WindowedStream`: between a window and what follows it.

Read next: `penstock.flow.keyed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import DeclarationError, SpellingError
from penstock.flow.spellings import STREAM, missing
from penstock.operators.aggregates.base import Kernel
from penstock.operators.windows import Session, Window, window_text
from penstock.sinks.base import Sink

if TYPE_CHECKING:
    from penstock.flow.keyed import KeyedStream
    from penstock.spark.column_text import Column
    from penstock.sql_text.given import Schema


class WindowedStream:
    """A keyed stream divided by windows."""

    def __init__(self, stream: KeyedStream, window: Window) -> None:
        self._stream = stream
        self._window = window

    def __repr__(self) -> str:
        stream = self._stream
        return f"<Windows {window_text(self._window)} over {stream!r}; .aggregate(…) or .stateful_map(…) follows>"

    def aggregate(
        self,
        emit: Literal["final", "update"] | Column = "final",
        *unnamed: Column,
        name: str | Kernel | None = None,
        **aggregates: Kernel | Column,
    ) -> KeyedStream:
        """Aggregates per key and window, with the columns ``window_start`` and ``window_end``.

        Args:
            emit: ``"final"``: once, when the window is complete. ``"update"``: after each epoch that changed it; the sink must
                be able to replace (``mode="upsert"``).
            *unnamed: Aggregates that have their name in them: ``F.count("*").alias("n")``.
            name: The step's name, see `KeyedStream.process`; or an aggregate for a last column of that name.
            **aggregates: Output column = aggregate; see `KeyedStream.aggregate`.

        Example:
            >>> by_plane.window(ps.tumbling("1 hour")).aggregate(flights=ps.count()).columns
            ['tail', 'window_start', 'window_end', 'flights']
        """
        return self._stream._aggregated(self._window, (emit, *unnamed), name, aggregates)

    def stateful_map(
        self,
        fn: Callable[[Any, Any, Any], tuple[Any, Any]],
        schema: Schema,
        state: Schema | None = None,
        *,
        on_error: Literal["fail", "skip"] | Sink = "fail",
        name: str | None = None,
        migrate: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] = (),
    ) -> KeyedStream:
        """As `KeyedStream.stateful_map`, with a state per key and window; events also have ``window_start`` and ``window_end``.

        Raises:
            DeclarationError: The window is a session, whose extent is not known while events come.

        Example:
            >>> def nth(key, event, state):
            ...     n = (state or 0) + 1
            ...     return (event.window_start, n), n
            >>> numbered = by_plane.window(ps.tumbling("1 day")).stateful_map(nth, "day timestamp, n bigint")
        """
        if isinstance(self._window, Session):
            raise DeclarationError(
                "stateful_map cannot follow a session window, whose extent is not known while events come; use aggregate."
            )
        return self._stream._mapped(self._window, on_error, name, fn=fn, schema=schema, state=state, migrate=migrate)

    def _missing(self, attribute: str) -> Any:
        if attribute == "match":
            raise SpellingError(
                ".match(...) cannot follow .window(...): a pattern's window is written in its query, such as WITHIN 10 MINUTES; "
                "leave .window(...) out."
            )
        if not attribute.startswith("_") and hasattr(type(self._stream), attribute):
            raise SpellingError(
                f".{attribute} cannot follow .window(...) directly; .aggregate(...) or .stateful_map(...) must come between."
            )
        raise missing("A window of a stream", attribute, STREAM, dir(type(self)))

    if not TYPE_CHECKING:
        __getattr__ = _missing  # a checker that saw it would let every name pass
