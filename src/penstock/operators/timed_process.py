"""An operator of a user's own whose rows and timers come in one order of event time, and whose state may have a time to live.

Per key a timer fires after all rows before its time, and before those at its time or later. So rows come in turns: of each key those that no
timer can come between. A row may set a timer for the next microsecond, so without a promise (`Operator.timer_lead`) these are the rows of
one moment. All keys take their turns together: an epoch has as many as the key with the most.

A time to live divides a key's rows into bursts, and all entries of a key are deleted between two of them. A hidden entry beside them has the
time of the key's last row, and whether its state may hang on records that a replay has not read. It is due when the state has ended.

At the end of input timers fire up to the greatest time of the input; then each that is still set fires once.

Read next: `penstock.operators.base`; `penstock.operators.timed_calls` does the same for functions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import DeclarationError, OperatorError, PenstockError, raised
from penstock.operators.base import Context, KeyedState, Operator, Output, StateView
from penstock.operators.fired import Fired
from penstock.operators.migration import view_of
from penstock.rows.keys import LONGEST_SUB_KEY, Ints, biased, unbiased
from penstock.rows.rows import Emitted, Rows
from penstock.types import MAX_TIME, MIN_TIME, Duration, duration_us, seconds_text, time_text

_LIFE: Final = b"\xff" * (LONGEST_SUB_KEY + 1)
"""Sub-key of the hidden entry; longer than those of users."""
_SEEN: Final = b"\xffps"
"""What its value begins with: then the time of the key's last row (8 bytes), and whether the state is in doubt (1)."""
_HEAD: Final = 5
_NOT_IN_TURN: Final = {
    "on_frontier": "which comes once in an epoch, after its rows; do in on_timer what is due at a time",
    "on_inputs": "which need not give rows in turn; override on_data",
    "partials": "which need no order; leave it out",
    "lift": "which needs no order; leave it out",
}


def in_turns(operator: Operator, ttl: Duration | None, *, timed: bool) -> Operator:
    """The step of `KeyedStream.process`: an operator as it is, or one that gets rows and timers in turn.

    Args:
        operator: The user's.
        ttl: How long a key's state lives after its last row; None: for ever.
        timed: Whether the stream has an event time.

    Raises:
        DeclarationError: Its rows and timers cannot come in the order of event time.
    """
    has_timers = type(operator).on_timer is not Operator.on_timer
    if ttl is None and not has_timers:
        return operator
    what, name = ("ttl=" if ttl is not None else "on_timer"), operator.describe()
    lives_us = None if ttl is None else duration_us(ttl, "ttl")
    if lives_us is not None and lives_us <= 0:
        raise DeclarationError(f"process(ttl={ttl!r}) would forget everything at once; give a positive duration.")
    if not timed:
        raise DeclarationError(f"{what} needs an event time; declare it: flow.source(..., time='column').")
    if not operator.ordered:
        raise DeclarationError(
            f"{name} has ordered = False, and {what} needs its rows in the order of event time; leave it True."
        )
    for method, why in _NOT_IN_TURN.items():
        if getattr(type(operator), method) is not getattr(Operator, method):
            raise DeclarationError(f"{name} has {what} and {method}, {why}.")
    return TimedProcess(operator, lives_us, duration_us(operator.timer_lead, "timer_lead") if has_timers else MAX_TIME)


class TimedProcess(Operator):
    """A user's operator, called in turns.

    Args:
        operator: The user's.
        ttl_us: How long after a key's last row its state is forgotten; None: never.
        lead_us: Rows of a key that are less apart come together; `MAX_TIME`: there are no timers.
    """

    migrates_itself = True

    def __init__(self, operator: Operator, ttl_us: int | None, lead_us: int) -> None:
        self._user, self.ttl_us, self.lead_us = operator, ttl_us, lead_us
        self.schema, self.updates, self.output_key = operator.schema, operator.updates, operator.output_key
        self.reads_only, self.typed, self.worded, self.migrate, self.passes = (
            operator.reads_only, operator.typed, operator.worded, operator.migrate, operator.passes,
        )  # fmt: skip
        self.name, self.kind = operator.describe(), operator.kind_name()

    def meaning(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        lives = {} if self.ttl_us is None else {"time to live": seconds_text(self.ttl_us)}
        return {**self._user.meaning(inputs, keys), **lives}

    def facts(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        return {**self._user.facts(inputs, keys), **self.meaning(inputs, keys)}

    def layout(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        return self._user.layout(inputs, keys)

    def fixed(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Sequence[str]:
        return self._user.fixed(inputs, keys)

    def reads(self) -> Sequence[str]:
        return self._user.reads()

    def span(self) -> int | None:
        return self._user.span()

    def link(self) -> int | None:
        return self._user.link() if self.ttl_us is None else self.ttl_us

    def sure(self, state: KeyedState) -> bool:
        if self.ttl_us is None:
            return self._user.sure(self._seen(state, None))
        return not any(value[-1] for name, value in state.due(MAX_TIME) if _is_hidden(name))

    def user_functions(self) -> Iterable[Any]:
        return self._user.user_functions()

    def java_expressions(self) -> tuple[str, Iterable[str]]:
        return self._user.java_expressions()

    def output_schema(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> pa.Schema:
        return self._user.output_schema(inputs, keys)

    def start(self, context: Context) -> None:
        super().start(context)
        self._user, self._done = copy.copy(self._user), False
        self._user.start(context)

    def on_data(self, rows: Rows, state: KeyedState) -> Output:
        self._done = True
        return Turns(self, self._user, rows, state).run()

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        return None if self._done else Turns(self, self._user, None, state).run()

    def on_interrogate(self, bins: Sequence[int], state: KeyedState) -> None:
        self._user.on_interrogate(bins, self._seen(state, None))

    def on_collect(self, keys: Any, state: KeyedState) -> None:
        self._user.on_collect(keys, self._seen(state, None))

    def on_acquire(self, keys: Any, state: KeyedState) -> None:
        self._user.on_acquire(keys, self._seen(state, None))

    def on_barrier(self, epoch: int, state: KeyedState) -> None:
        self._user.on_barrier(epoch, self._seen(state, None))

    def on_shutdown(self, state: KeyedState) -> None:
        self._user.on_shutdown(self._seen(state, None))

    def show_state(self, value: bytes) -> Any:
        if len(value) == len(_SEEN) + 9 and value.startswith(_SEEN):
            return {"last row": time_text(int(unbiased([value[-9:-1]])[0]))}
        return self._user.show_state(value)

    def _seen(self, state: KeyedState, turns: Turns | None) -> KeyedState:
        """The state as the user's operator sees it."""
        return KeyedState(view_of(_Seen(state.view, turns), self._user), self.context)


class Turns:
    """The turns of one epoch: those of the keys that have rows, a timer that has come, or state that has ended.

    Arrays have an entry per key, those with rows first.
    """

    def __init__(self, step: TimedProcess, user: Operator, rows: Rows | None, state: KeyedState) -> None:
        self._user, self._rows, self._view, self.context = user, rows, state.view, step.context
        self._state = state
        self._ttl, self._lead = step.ttl_us, step.lead_us
        self._slot, self._frontier = state.slot, step.context.frontier
        self._heads = [] if rows is None else rows.keys.state_keys(self._slot)
        self._index = {head: g for g, head in enumerate(self._heads)}
        due = [name for name, _ in state.due(self._frontier)]
        for name in due:
            if self._lead < MAX_TIME or _is_hidden(name):
                self._key(name)
        n, more = len(self._heads), len(self._index) - len(self._heads)
        self._heads = list(self._index)
        self._pending: dict[int, dict[bytes, int]] = {}
        self._next, self._least = np.full(n + more, MAX_TIME), np.full(n + more, MIN_TIME)
        if self._lead < MAX_TIME:
            self._note_due([name for name in due if not _is_hidden(name)])
        none = np.zeros(more, np.int64)
        starts = np.zeros(1, np.int64) if rows is None else rows.starts
        self._at, self._stop = np.concatenate((starts[:-1], none)), np.concatenate((starts[1:], none))
        self._time = none[:0] if rows is None else rows.order.time
        self._last = np.full(n + more, MIN_TIME)
        self._alive, self.doubt = np.zeros(n + more, bool), np.zeros(n + more, bool)
        if self._ttl is not None:
            self._read_lives(n, self._ttl)
        self._bursts = self._stop if self._ttl is None else self.ends_of_bursts(self._ttl)
        self._firing = False
        self.state = step._seen(state, self)  # noqa: SLF001  (one class in two parts)

    def _key(self, name: bytes) -> int:
        return self._index.setdefault(_head(name), len(self._index))

    def _note_due(self, names: list[bytes]) -> None:
        """Timers that have come."""
        hashes = self._state.keys_of(names)[0].hashes if self.context.released else np.zeros(len(names), np.int64)
        at = self.context.not_past(self._view.get_timed(names)[1], hashes).tolist()
        for name, t in zip(names, at, strict=True):
            g = self._key(name)
            self._pending.setdefault(g, {})[name] = t
            self._next[g] = min(self._next[g], t)

    def _read_lives(self, with_rows: int, ttl_us: int) -> None:
        """When the keys were last seen. One that was not, near where a replay began, is in doubt."""
        values = self._view.get_many([head + _LIFE for head in self._heads])
        there = [g for g, value in enumerate(values) if value is not None]
        found = [value for value in values if value is not None]
        self._last[there], self._alive[there] = unbiased([value[-9:-1] for value in found]), True
        self.doubt[there] = [value[-1] != 0 for value in found]
        if self.context.missing > MIN_TIME:
            begins = self._time[self._at[:with_rows]]
            self.doubt[:with_rows] |= ~self._alive[:with_rows] & (begins < self.context.missing + ttl_us)

    def ends_of_bursts(self, ttl_us: int) -> Ints:
        """int64: where bursts of rows end, ascending."""
        if self._rows is None:
            return np.empty(0, np.int64)
        gaps = np.flatnonzero(self._time[1:] - self._time[:-1] >= ttl_us) + 1
        return np.union1d(gaps, self._rows.starts[1:])

    def run(self) -> Iterator[Emitted]:
        """Rows and timers in turn, until there are none before the frontier."""
        ended = self._frontier == MAX_TIME
        open_keys = np.arange(len(self._heads))
        while True:
            waiting = self._at[open_keys] < self._stop[open_keys]
            going = waiting | (self._next[open_keys] < MAX_TIME)
            open_keys, waiting = open_keys[going], waiting[going]
            row = np.full(len(open_keys), MAX_TIME)
            row[waiting] = self._time[self._at[open_keys[waiting]]]
            ends, timer = self.ends(open_keys), self._next[open_keys]
            upto = np.maximum(self._last[open_keys], self.context.latest) if ended else np.full(len(row), self._frontier - 1)
            fires = (timer <= np.minimum(row, ends)) & (waiting | (timer <= upto)) & (timer < MAX_TIME)
            if fires.any():
                yield from self.fire(open_keys[fires].tolist(), self._pending)
            given = open_keys[waiting & ~fires]
            if len(given):
                yield from self._give(given, row[waiting & ~fires], ends[waiting & ~fires])
            elif not fires.any():
                break
        if ended:
            yield from self.fire_once()
        if self._ttl is not None:
            self._write_lives(self._ttl)

    def ends(self, keys: Ints) -> Ints:
        """When the state of keys ends; `MAX_TIME`: never, or there is none."""
        if self._ttl is None:
            return np.full(len(keys), MAX_TIME)
        return np.where(self._alive[keys], np.minimum(self._last[keys], MAX_TIME - 1 - self._ttl) + self._ttl, MAX_TIME)

    def _give(self, keys: Ints, row: Ints, ends: Ints) -> Iterator[Emitted]:
        """The next rows of some keys, up to a timer, another that they may set, and the end of their burst."""
        assert self._rows is not None
        ended = row >= ends
        if ended.any():
            over, edge = keys[ended], self.context.missing + (self._ttl or 0)
            self.forget(over.tolist())
            self.doubt[over] = row[ended] < edge  # records between the last row and this one are perhaps missing
        whole = self._rows
        begin, stop = self._at.copy(), self._at.copy()
        stop[keys] = (
            self._stop[keys] if self._ttl is None else self._bursts[np.searchsorted(self._bursts, begin[keys], "right")]
        )
        if self._lead < MAX_TIME:
            lead = max(self._lead, 1)
            self._least[keys] = np.minimum(row, MAX_TIME - lead) + lead
            bound = np.minimum(self._next[keys], self._least[keys])
            far = np.flatnonzero(self._time[stop[keys] - 1] >= bound)
            for g, until in zip(keys[far].tolist(), bound[far].tolist(), strict=True):
                stop[g] = begin[g] + np.searchsorted(self._time[begin[g] : stop[g]], until)
        n = len(whole.keys)
        everything = (begin[:n] == whole.starts[:-1]).all() and (stop[:n] == whole.starts[1:]).all()
        rows = whole if everything else whole.between(begin[:n], stop[:n])
        self._at[keys] = stop[keys]
        self._last[keys], self._alive[keys] = self._time[stop[keys] - 1], True
        self.context.unsure |= bool((self.doubt[keys] & (self._last[keys] >= self.context.needed)).any())
        yield from _parts(self._user.on_data(rows, self.state))

    def fire(self, keys: list[int], pending: Mapping[int, Mapping[bytes, int]]) -> Iterator[Emitted]:
        """The earliest timers of some keys; `pending`: which of them count."""
        names: list[bytes] = []
        at: list[int] = []
        for g in keys:
            first = min(pending[g].values())
            mine = sorted(name for name, t in pending[g].items() if t == first)
            names += mine
            at += [first] * len(mine)
            self._least[g] = first + 1
            self.context.unsure |= bool(self.doubt[g] and first >= self.context.needed)
        values = self._view.get_many(names)
        self.take_timers(names, values)
        self._firing = True
        fired = Fired(names, np.array(at, np.int64), self.state)
        try:
            given = list(_parts(self._user.on_timer(fired, self.state)))
        except PenstockError:
            raise
        except Exception as error:
            where = f"Operator {self._user.describe()} of region {self.context.region!r}"
            raise OperatorError(f"{where} failed in on_timer: {raised(error)}; fix the operator.") from error
        self._firing = False
        yield from given

    def take_timers(self, names: list[bytes], values: Sequence[bytes | None]) -> None:
        """Take the timers of entries away."""
        self._view.put_many(names, [value for value in values if value is not None])
        self.note(names, None)

    def fire_once(self) -> Iterator[Emitted]:
        """At the end of input: each timer that is set fires once more, in order, and what it sets does not."""
        left = {g: set(found) for g, found in self._pending.items()}
        while True:
            ends = dict(zip(left, self.ends(np.array(list(left), np.int64)).tolist(), strict=True))
            pending = {
                g: {name: t for name, t in self._pending[g].items() if name in names and t <= ends[g]}
                for g, names in left.items()
            }
            pending = {g: found for g, found in pending.items() if found}
            if not pending:
                break
            for g, found in pending.items():
                first = min(found.values())
                left[g] -= {name for name, t in found.items() if t == first}
            yield from self.fire(list(pending), pending)
        if names := [name for found in self._pending.values() for name in found]:
            self.take_timers(names, self._view.get_many(names))

    def forget(self, keys: Iterable[int]) -> None:
        """Delete all entries of keys."""
        self._view.delete_many([name for g in keys for name, _, _ in self._view.entries(self._heads[g])])
        for g in keys:
            self._pending.pop(g, None)
            self._next[g] = MAX_TIME

    def _write_lives(self, ttl_us: int) -> None:
        """Forget state that has ended, and note when the others do."""
        every = np.arange(len(self._heads))
        over = self._alive & (self.ends(every) < self._frontier)
        self.forget(np.flatnonzero(over).tolist())
        kept = np.flatnonzero(self._alive & ~over)
        kept = kept[kept < (0 if self._rows is None else len(self._rows.keys))]
        values = [
            _SEEN + last + bytes([d]) for last, d in zip(biased(self._last[kept]), self.doubt[kept].tolist(), strict=True)
        ]
        self._view.put_many([self._heads[g] + _LIFE for g in kept.tolist()], values, self._last[kept] + ttl_us)

    def note(self, names: Sequence[bytes], timers: Ints | None) -> Ints | None:
        """Entries are put with timers, or without; gives the timers that they get.

        Raises:
            OperatorError: A timer is too early. Nothing was put.
        """
        at = np.full(len(names), MAX_TIME) if timers is None else np.array(timers, np.int64)
        checked = at < (MAX_TIME if self._lead else self._frontier)
        if self._lead == MAX_TIME or not (checked.any() or self._pending):
            return timers
        for i, (name, wanted) in enumerate(zip(names, at.tolist(), strict=True)):
            if not checked[i] and not self._pending:
                continue
            g = self._index.get(_head(name))
            if g is None:
                continue
            mine = self._pending.setdefault(g, {})
            early = wanted < self._least[g] and mine.get(name) != wanted
            at[i] = t = self.too_early(g, name, wanted) if early else wanted
            if t < self._frontier:
                mine[name] = t
            else:
                mine.pop(name, None)
            self._next[g] = min(mine.values(), default=MAX_TIME)
        return None if timers is None else at

    def too_early(self, g: int, name: bytes, t: int) -> int:
        """What becomes of a timer that is set too early."""
        least = int(self._least[g])
        if not self._firing and not self._lead:
            return least
        if self._view.get_timed([name])[1][0] == t:
            return t  # it was there before
        what = f"Operator {self._user.describe()} of region {self.context.region!r} set a timer to {time_text(t)}"
        if self._firing:
            raise OperatorError(
                f"{what} in on_timer, which is not after the one that fired, {time_text(least - 1)}; set it to a later time, or to none."
            )
        raise OperatorError(
            f"{what}, which is less than its timer_lead of {seconds_text(self._lead)} after a row that was given with others; give a smaller timer_lead."
        )


class _Seen:
    """State as the user's operator sees it: without hidden entries; timers that are set are noted."""

    def __init__(self, view: StateView, turns: Turns | None) -> None:
        self._view, self._turns = view, turns

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return self._view.get_many(keys)

    def get_timed(self, keys: list[bytes], due: tuple[int, int] | None = None) -> tuple[list[bytes | None], Ints]:
        return self._view.get_timed(keys, due)

    def put_many(self, keys: list[bytes], values: list[bytes], timers: Ints | None = None) -> None:
        self._view.put_many(keys, values, timers if self._turns is None else self._turns.note(keys, timers))

    def delete_many(self, keys: list[bytes]) -> None:
        self._view.delete_many(keys)
        if self._turns is not None:
            self._turns.note(keys, None)

    def entries(self, prefix: bytes) -> list[tuple[bytes, bytes, int]]:
        return [entry for entry in self._view.entries(prefix) if not _is_hidden(entry[0])]

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return [(name, value) for name, value, _ in self.entries(prefix)]

    def due(self, operator: int, upto_us: int) -> list[tuple[bytes, bytes]]:
        return [entry for entry in self._view.due(operator, upto_us) if not _is_hidden(entry[0])]


def _head(name: bytes) -> bytes:
    """An entry's name without its sub-key."""
    return name[: _HEAD + int.from_bytes(name[3:_HEAD], "big")]


def _is_hidden(name: bytes) -> bool:
    return name.endswith(_LIFE) and len(name) == len(_head(name)) + len(_LIFE)


def _parts(given: Output) -> Iterator[Any]:
    """What an operator gives, part by part."""
    if given is None or isinstance(given, Emitted) or not isinstance(given, Iterable):
        yield from () if given is None else (given,)
    else:
        yield from given


__all__ = ["TimedProcess", "Turns", "in_turns"]
