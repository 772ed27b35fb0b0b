"""A function per event and one for timers: each key has at most one timer, which is part of what its state is.

Per key, events and timers come in one order of event time: a timer fires after all events before its time, and before those at its
time or later. So it does not matter when an epoch ends. A time that is not after the event's own counts as the next microsecond. At the end of
input timers fire up to the greatest time that the input had, then each key's last one: one that sets the next without end would never be done.

Read next: `penstock.operators.calls`.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import EPOCH
from penstock.errors import OperatorError, raised
from penstock.operators.base import Context, KeyedState
from penstock.operators.calls import Calls, Events, Spread
from penstock.rows.keys import Ints
from penstock.rows.returned import Unfit
from penstock.rows.rows import Emitted, Keys
from penstock.types import MAX_TIME, MIN_TIME, time_text

if TYPE_CHECKING:
    from penstock.operators.timed_map import TimedMap

_ZERO_NAIVE: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001  (times without a zone are UTC, as those of columns)
_NO_TIMER: Final = dt.datetime.max.replace(tzinfo=EPOCH.tzinfo)
_KEPT: Final = dt.datetime.max.replace(tzinfo=EPOCH.tzinfo)  # an object of its own: the timer is the stored one
_AFTER_ALL: Final = dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-1)))  # after every time that UTC has
_EARLIEST: Final = dt.datetime.min.replace(tzinfo=EPOCH.tzinfo)
_TICK: Final = dt.timedelta(microseconds=1)
_FIRST, _LAST = (_EARLIEST - EPOCH) // _TICK, (_NO_TIMER - EPOCH) // _TICK
_MOST_ROWS: Final = 1 << 16
_BEYOND: Final[int] = _LAST + 1
"""A timer after the last time that Python has fires after all events; its function is called with that last time."""
UNREAD: Final = MAX_TIME - 1
"""In place of a timer that fires neither among an entry's rows nor after them."""


@dataclass(frozen=True)
class Timers:
    """The timers of some entries (see `Calls`).

    Attributes:
        at: int64, n: each one's timer (µs) before its rows; `MAX_TIME`: none; `UNREAD`: one that fires neither among them nor after them, or none.
        upto: int64, n: up to when its timers fire after its rows.
        once: int64, n: up to when one more of them fires then; `MIN_TIME`: none.
        doubt: bool, n: whether its state may hang on records that a replay has not read.
    """

    at: Ints
    upto: Ints
    once: Ints
    doubt: Any

    @staticmethod
    def of(at: Ints, until: Ints, last: Any, doubt: Any, ttl_us: int | None, context: Context) -> Timers:
        """How far the timers of entries go.

        Args:
            at: Each one's timer.
            until: int64, n: the time of its last row, or of the last before it if it has none.
            last: bool, n: whether it is the last of its key.
            doubt: See `Timers`.
            ttl_us: How long it lives after that; None: for ever.
            context: What the step knows of its task.
        """
        lives = np.full(len(at), MAX_TIME - 1) if ttl_us is None else np.minimum(until, MAX_TIME - 1 - ttl_us) + ttl_us
        ended = context.frontier == MAX_TIME
        reached = np.maximum(until, context.latest) if ended else np.full(len(at), context.frontier - 1)
        return Timers(
            at,
            np.where(last, np.minimum(lives, reached), lives),
            np.where(last & ended, lives, MIN_TIME),
            doubt,
        )


class TimedCalls(Calls):
    """The calls of both functions, by entry.

    Attributes:
        fired: Rows that timers gave.
        firing: The entry and the time (µs) that gave each of them; ascending.
        at: int64: each entry's timer afterwards; `MAX_TIME`: none; `UNREAD`: the one before.
    """

    def __init__(
        self, step: TimedMap, keys: list[Any], spread: Spread, events: Events, held: Sequence[Any], timers: Timers
    ) -> None:
        super().__init__(step, keys, spread, events.rows, held)
        self._on_timer = step.timer_fn
        self._time: Any = spread.order.time
        self._moments = events.moments(spread.order.time)
        self._timers = timers
        self._untold: dict[tuple[int, int], tuple[str, str, str, str]] = {}
        self._unfit: set[tuple[int, int]] = set()
        self.fired: list[Any] = []
        self.firing: list[tuple[int, int]] = []
        self.at: Any = timers.at
        self._given: Any = None

    @cached_property
    def _bounds(self) -> tuple[list[int], list[int]]:
        """Of each entry: up to when its timers fire after its rows, and up to when one more does."""
        return self._timers.upto.tolist(), self._timers.once.tolist()

    def run(self) -> tuple[pa.RecordBatch, list[Any]]:
        batch, after = super().run()
        self._step.context.skipped += [about for _, about in sorted(self._untold.items())]
        return batch, after

    def emit(self, keys: Keys, state: KeyedState) -> Emitted | None:
        """The rows that timers gave; tells the context of those that hang on records that are missing."""
        if not self.fired:
            return None
        entry, time = np.array(self.firing, np.int64).T
        context = self._step.context
        context.unsure |= bool((self._timers.doubt[entry] & (time >= context.needed)).any())
        first = np.flatnonzero(np.concatenate(([True], (np.diff(entry) != 0) | (np.diff(time) != 0))))
        nth = np.arange(len(time)) - np.repeat(first, np.diff(np.append(first, len(time))))
        return state.emit(self._given, keys, time, self._spread.owner[entry], nth)

    def _call(self) -> None:
        """Times are compared as Python has them, and become numbers all at once. What fails is run again with care, which finds out why."""
        fn, settle, rows, load = self._step.fn, self._codec.settle, self._returned.rows, self._codec.load
        keys, owner, starts, events, never = self._keys, self._owner, self._starts, self._events, _NO_TIMER
        moments, out, trigger, plain = self._moments, self.out, self.trigger, self._returned.plain
        late, moment = np.maximum(self._timers.upto, self._timers.once), dt.datetime
        since: list[Any] = []  # a timer becomes a number soon after it is made: later it is far away in memory
        kept: list[int] = []
        gone: list[int] = []
        self.at = self._timers.at.copy()
        for g, (raw, stored, last) in enumerate(zip(self.held, self._stored_timers(late), as_moments(late), strict=True)):
            key, now, begin, fired = keys[owner[g]], load(raw) if raw else None, len(out), len(self.fired)
            timer: Any = stored
            try:
                for i in range(starts[g], starts[g + 1]):
                    # One comparison per event: a timer that is not after the event that set it is not after the next one either.
                    try:
                        early = timer <= moments[i]
                    except TypeError:  # only without a zone: to ask each timer for its zone takes as long as this comparison
                        timer = in_utc(timer)
                        early = timer <= moments[i]
                    if early:
                        now, timer = self._fire_before(g, key, now, timer, i)
                    result = fn(key, events[i], now)
                    if len(result) == 3:
                        outputs, now, timer = result
                        if type(timer) is not moment:
                            timer = never if timer is None else a_time(timer)
                    else:
                        outputs, now = result
                        if now is None:
                            timer = never
                    if now is not None:
                        now = settle(now)
                    if plain and type(outputs) is tuple:
                        out.append(outputs)
                        trigger.append(i)
                    elif given := rows(outputs):
                        out += given
                        trigger += [i] * len(given)
                if timer is not _KEPT and timer is not never:
                    try:
                        early = last is never or timer <= last
                    except TypeError:
                        timer = in_utc(timer)
                        early = timer <= last
                    if early or type(timer) is not moment:
                        now, timer = self._fire_after(g, key, now, timer)
            except Exception:  # noqa: BLE001  (the user's code may raise anything; it may have changed its state before)
                del out[begin:], trigger[begin:], self.fired[fired:], self.firing[fired:]
                more, now = self._with_care(g)
                out += [row for _, row in more]
                trigger += [i for i, _ in more]
                timer = _KEPT
            if timer is _KEPT:
                kept.append(g)
            elif timer is never:
                gone.append(g)
            since.append(timer - EPOCH)
            self._after.append(now)
        numbers: Any = pa.array(since, pa.duration("us")).cast(pa.int64()).to_numpy().copy()
        np.minimum(numbers, _BEYOND, out=numbers)
        numbers[kept], numbers[gone] = self.at[kept], MAX_TIME
        self.at = numbers

    def _stored_timers(self, late: Ints) -> list[Any]:
        """The timer that each entry begins with, as Python has it; `_KEPT`: it fires neither among the entry's rows nor after them.

        Args:
            late: int64, n: up to when timers fire after the rows.
        """
        timers: list[Any] = [_KEPT] * len(late)
        soon = np.flatnonzero(self._timers.at <= late)
        for g, timer in zip(soon.tolist(), as_moments(self._timers.at[soon]), strict=True):
            timers[g] = _AFTER_ALL if timer is _NO_TIMER else timer
        return timers

    def _fire_before(self, g: int, key: Any, now: Any, timer: Any, i: int) -> tuple[Any, Any]:
        """Fire an entry's timers before row `i`; the state and the timer after them."""
        if timer is _NO_TIMER or timer is _KEPT:  # the row is of the last moment of all
            return now, timer
        now, at = self._fire(g, key, now, self._not_before(g, timer, i), int(self._time[i]))
        return now, _as_moment(at)

    def _fire_after(self, g: int, key: Any, now: Any, timer: Any) -> tuple[Any, Any]:
        """Fire an entry's timers after its rows; the state and the timer after them."""
        at = self._not_before(g, timer, self._starts[g + 1])
        upto, once = self._bounds[0][g], self._bounds[1][g]
        if at <= upto:
            now, at = self._fire(g, key, now, at, upto)
        if at <= once:
            now, at = self._fire(g, key, now, at, at)[0], MAX_TIME
        return now, _as_moment(at)

    def _not_before(self, g: int, timer: Any, i: int) -> int:
        """An entry's timer (µs) before row `i`; one that is not after the row before it counts as the next microsecond."""
        return wanted((timer,), int(self._time[i - 1]) if i > self._starts[g] else MIN_TIME)

    def _fire(self, g: int, key: Any, now: Any, at: int, upto: int) -> tuple[Any, int]:
        """Fire an entry's timers up to a time; the state and the timer after them."""
        while at <= upto:
            given, after, later = self._of_timer(key, now, at)
            now = None if after is None else self._codec.settle(after)
            self.fired += given
            self.firing += [(g, at)] * len(given)
            at = later
        return now, at

    def _of_timer(self, key: Any, now: Any, at: int) -> tuple[Sequence[Any], Any, int]:
        """What the function for timers gives: rows, state, the next timer."""
        outputs, after, *timer = self._on_timer(key, now, _as_moment(min(at, _LAST)))
        given, later = self._returned.rows(outputs), wanted(timer, MIN_TIME)
        if later <= at:
            raise Unfit(f"set the next timer to {_shown(later)}, which is not after the one that fired, {_shown(at)}")
        if len(given) > _MOST_ROWS:
            raise Unfit(f"returned {len(given):,} rows, more than {_MOST_ROWS:,}")
        return given, after, later

    def _batch(self) -> pa.RecordBatch:
        for attempt in range(3):
            batch = super()._batch()
            if not self.fired:
                return batch
            try:
                self._given = self._returned.batch(self.fired)
            except Unfit:
                places = {self.firing[i] for i in self._returned.unfit(self.fired)}
            else:
                return batch
            self._unfit |= places
            for g in sorted({g for g, _ in places}):
                self._again(g, everything=attempt > 0)
        return super()._batch()

    def _again(self, g: int, *, everything: bool) -> None:
        a, b = bisect_left(self.firing, (g, MIN_TIME)), bisect_left(self.firing, (g + 1, MIN_TIME))
        fired, firing = self.fired[b:], self.firing[b:]
        del self.fired[a:], self.firing[a:]
        super()._again(g, everything=everything)
        self.fired += fired
        self.firing += firing

    def _with_care(self, g: int, *, everything: bool = False) -> tuple[list[tuple[int, Any]], Any]:
        """As that of `Calls`; appends what timers give, and notes the timer."""
        key, held, out, codec = self._keys[self._owner[g]], self.held[g], [], self._codec
        for place in [p for p in self._untold if p[0] == g]:
            del self._untold[place]

        def fire(held: Any, at: int) -> tuple[Any, int]:
            try:
                given, after, later = self._of_timer(key, codec.load(held) if held else None, at)
                if everything or (g, at) in self._unfit:
                    self._returned.batch(given)
                held = None if after is None else codec.dump(after)
            except Exception as error:  # noqa: BLE001
                self._timer_failed(g, at, error)
                return held, MAX_TIME
            self.fired += given
            self.firing += [(g, at)] * len(given)
            return held, later

        at = int(self._timers.at[g])
        for i in range(self._starts[g], self._starts[g + 1]):
            self._skipped.pop(i, None)
            time = int(self._time[i])
            while at <= time:
                held, at = fire(held, at)
            try:
                outputs, after, *timer = self._step.fn(key, self._events[i], codec.load(held) if held else None)
                given = self._returned.rows(outputs)
                if everything or i in self._suspects:
                    self._returned.batch(given)
                now = None if after is None else codec.dump(after)
                at = wanted(timer, time) if timer or after is None else at
            except Exception as error:  # noqa: BLE001
                self._failed(i, error)
                continue
            held = now
            out += [(i, row) for row in given]
        while at <= self._bounds[0][g]:
            held, at = fire(held, at)
        if at <= self._bounds[1][g]:
            held, at = fire(held, at)[0], MAX_TIME
        self.at[g] = at
        return out, codec.load(held) if held else None

    def _timer_failed(self, g: int, at: int, error: Exception) -> None:
        """Raise a timer's error, or leave the timer out."""
        key, step = repr(self._keys[self._owner[g]]), self._step
        text = f"it {error}" if isinstance(error, Unfit) else raised(error) if step.on_error == "fail" else ""
        if step.on_error == "fail":
            raise OperatorError(
                f"{step.name} of region {step.context.region!r} failed on key {key} at its timer of {_shown(at)}: "
                f'{text}; fix on_timer, or leave such timers out with on_error="skip".'
            ) from error
        self._untold[g, at] = key, f"timer of {_shown(at)}", text or f"{type(error).__name__}: {error}", ""


def as_moments(times: Ints) -> list[Any]:
    """Times (µs) as Python has them; beyond what it has, its first or last one."""
    if len(times) > 1 and (times == times[0]).all():
        return as_moments(times[:1]) * len(times)
    inside = (times >= _FIRST) & (times <= _LAST)
    moments: list[Any] = list(map(EPOCH.__add__, np.where(inside, times, 0).astype("timedelta64[us]").tolist()))
    for i in np.flatnonzero(~inside).tolist():
        moments[i] = _NO_TIMER if times[i] > 0 else _EARLIEST
    return moments


def a_time(timer: Any) -> Any:
    """A time of another class than Python's own; raises `TypeError` for what is no time."""
    if not isinstance(timer, dt.datetime) or timer != timer:  # noqa: PLR0124  (pandas' NaT)
        raise TypeError
    return timer


def in_utc(timer: Any) -> Any:
    """A time without a zone, which is UTC."""
    return timer.replace(tzinfo=EPOCH.tzinfo)


def _as_moment(at: int) -> Any:
    """A timer (µs) as Python has it."""
    if at > _LAST:
        return _NO_TIMER if at == MAX_TIME else _AFTER_ALL
    return EPOCH + at * _TICK


def _shown(at: int) -> str:
    return time_text(min(at, _LAST))


def wanted(timer: Sequence[Any], time: int) -> int:
    """The timer (µs) that a function asks for; `MAX_TIME`: none.

    Args:
        timer: What it returned after outputs and state: nothing, None, or a time.
        time: When it was called; an earlier timer counts as the next microsecond.

    Raises:
        Unfit: It is not a time, or there are several.
    """
    if not timer:
        return MAX_TIME
    at, *more = timer
    if more:
        raise Unfit(f"returned {2 + len(timer)} values; return (outputs, state), or (outputs, state, timer)")
    if at is None:
        return MAX_TIME
    try:
        since = at - (EPOCH if at.tzinfo else _ZERO_NAIVE)
        us: Any = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    except (AttributeError, TypeError) as error:
        raise Unfit(
            f"returned the timer {at!r}, which is not a datetime; return event time + datetime.timedelta(...)"
        ) from error
    if not isinstance(us, int):  # pandas' NaT
        raise Unfit(f"returned the timer {at!r}, which is no time; return None for none")
    return min(max(us, time + 1), _BEYOND)


__all__ = ["UNREAD", "TimedCalls", "Timers", "wanted"]
