"""A table that changes while a flow looks in it, and a model of which rows each epoch meets: run, crash, start again, change the code, rescale."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import penstock as ps
from penstock.testing import Crash, Harness

SCHEMA = "id int, k string, at timestamp"
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
EVERY_S = {"before": 2, "behind": 0}
"""After how many seconds the tables before and behind a region are read again."""
BROKEN = ("raises", "column", "type", "twice")
NUMBERS = itertools.count()
CRASHES = ("decide", "read lookup(k)", "note tables", "computed behind", "stored before", "commit", "committed")

rows = st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 9), min_size=1, max_size=2)
becomes = st.one_of(st.none(), rows, st.sampled_from(BROKEN))
records = st.sampled_from([["a", "b"], ["b", "a", "a"], ["a"], ["b", None, "c"]])
seconds = st.integers(0, 3)
actions = st.one_of(
    st.tuples(st.just("epoch"), st.tuples(records, seconds, becomes)),
    st.tuples(st.just("epoch"), st.tuples(records, seconds, rows)),
    st.tuples(st.just("crash"), st.tuples(records, seconds, becomes, st.sampled_from(CRASHES), becomes, st.booleans())),
    st.tuples(st.just("crash"), st.tuples(records, seconds, rows, st.sampled_from(CRASHES), becomes, st.booleans())),
    st.tuples(st.just("restart"), becomes),
    st.tuples(st.just("change"), rows),
    st.tuples(st.just("scale"), st.integers(1, 3)),
)
"""What happens, with what the table has become before it, and after a crash."""
histories = st.lists(actions, min_size=3, max_size=12)


class Table:
    """What the flow's function gives."""

    def __init__(self) -> None:
        self.now: Any = {"a": 1}
        self.declares = True

    def __call__(self) -> pa.Table:
        now = self.now
        if now == "raises":
            raise OSError("the file is gone")
        keys, values = ([*now], [*now.values()]) if isinstance(now, dict) else (["a", "a"] if now == "twice" else ["a"], [5, 6])
        made = {"k": pa.array(keys, pa.string())}
        if now != "column":
            made["c"] = pa.array(values[: len(keys)], pa.int32() if now == "type" else pa.int64())
        # A column that the flow does not know, and another order, do not matter.
        return pa.table(made if self.declares else {"more": pa.nulls(len(keys), pa.int8())} | dict(reversed(made.items())))


@dataclass
class Model:
    """Which rows each epoch meets, in plain Python."""

    read: dict[str, tuple[dict, int]] = field(default_factory=dict)
    noted: dict[int, dict[str, dict]] = field(default_factory=dict)
    last: dict[str, dict] = field(default_factory=dict)
    declared: dict = field(default_factory=dict)

    def restart(self) -> None:
        self.read = {}

    def begin(self, epoch: int, now_s: int, table: Any, upto: str | None) -> None:
        """An epoch begins, and crashes before the step `upto`."""
        if upto in ("decide", "read lookup(k)"):
            return
        found = dict(self.read)
        for name, every in EVERY_S.items():
            rows, at = found.get(name, (self.last.get(name, self.declared), None))
            if at is None or now_s - at >= every:
                if isinstance(table, dict):
                    rows = table
                elif epoch in self.noted:
                    rows = self.noted[epoch][name]
                found[name] = rows, now_s
        self.read = found
        if upto != "note tables":
            self.noted.setdefault(epoch, {name: rows for name, (rows, _) in found.items()})

    def commit(self, epoch: int) -> None:
        self.last = self.noted[epoch]


class History:
    """A flow on one checkpoint that lives through actions."""

    def __init__(self, folder: str) -> None:
        self.folder, self.number = folder, next(NUMBERS)
        self.changed = self.now = 0
        self.table, self.model = Table(), Model(declared={"a": 1})
        self.crash_at: str | None = None
        self.harness, self.ids = self._start(), itertools.count()
        self.pushed: list[tuple[int, str | None]] = []
        self.read_in: dict[int, tuple[str | None, int]] = {}

    def _start(self) -> Harness:
        self.table.declares = True
        flow = ps.Flow("refreshed")
        source = flow.source("s", ps.files("none", SCHEMA))
        for n in range(self.changed % 3):
            source = source.where(f"{n} = {n}")
        before = source.lookup(self.table, "k", refresh="2 seconds")
        totals = before.key_by("k", name="totals").stateful_map(added, "id int, c long, total long", "total long", name="added")
        totals.sink(ps.memory(f"before {self.number}"), name="before")
        behind = (
            source.key_by("k", name="behind").deduplicate("id", name="once").local().lookup(self.table, "k", "inner", refresh=0)
        )
        behind.select("id", "c").sink(ps.memory(f"behind {self.number}"), name="behind")
        self.table.declares = False
        return Harness(flow, checkpoint=self.folder, workers=2, on_step=self._step)

    def _step(self, step: str) -> None:
        if step == self.crash_at:
            self.crash_at = None
            raise Crash

    def _epoch(self, advance: int, *commands: Any) -> None:
        epoch = self.harness.record.epoch + 1
        self.read_in |= {i: (key, epoch) for i, key in self.pushed}
        self.pushed = []
        self.now += advance
        crash, now = self.crash_at, self.now
        self.model.begin(epoch, now, self.table.now, self._first_of(crash, now))
        try:
            self.harness.epoch(*commands, advance_us=advance * 1_000_000)
        except Crash:
            if crash == "committed":
                self.model.commit(epoch)
            raise
        self.model.commit(epoch)

    def _first_of(self, crash: str | None, now: int) -> str | None:
        """The crash, if it comes before the versions are noted: a table that is not due is not read."""
        due = "before" not in self.model.read or now - self.model.read["before"][1] >= EVERY_S["before"]
        return None if crash == "read lookup(k)" and not due else crash

    def do(self, what: str, value: Any) -> None:
        if what == "epoch":
            keys, advance, table = value
            self._push(keys)
            self._becomes(table)
            self._epoch(advance)
        elif what == "restart":
            self._becomes(value)
            self._restart()
        elif what == "scale":
            self._epoch(1, {"command": "scale", "region": "totals", "workers": value})
        elif what == "change":
            self._change(value)
        else:
            keys, advance, table, step, after, changes = value
            self._push(keys)
            self._becomes(table)
            self.crash_at, read, epoch = step, self.pushed, self.harness.record.epoch + 1
            try:
                self._epoch(advance)
            except Crash:
                self._becomes(after)
                # With an epoch in a sink that is not committed, another flow is refused.
                if changes and isinstance(self.table.now, dict) and step not in ("stored before", "computed behind", "commit"):
                    self._change(self.table.now)
                    if step != "committed":
                        self._push_rows(read)
                        self._epoch(0)
                else:
                    self._restart()
                if self.harness.record.epoch < epoch:
                    self.model.begin(epoch, self.now, self.table.now, None)
                    self.harness.resume()
                    self.model.commit(epoch)
            self.crash_at = None

    def _push(self, keys: list[str | None]) -> None:
        self._push_rows([(next(self.ids), key) for key in keys])

    def _push_rows(self, new: list[tuple[int, str | None]]) -> None:
        self.harness.push("s", [{"id": i, "k": key, "at": BEGIN} for i, key in new])
        self.pushed += new

    def _becomes(self, table: Any) -> None:
        self.table.now = self.table.now if table is None else table

    def _restart(self) -> None:
        self.model.restart()
        self.harness.restart()

    def _change(self, rows: dict) -> None:
        """Start other code on the checkpoint."""
        self.table.now = self.model.declared = rows
        self.changed += 1
        self.now = 0  # a harness has a clock of its own
        self.harness.close()
        self.model.restart()
        self.harness = self._start()

    def finish(self) -> tuple[dict[str, list], dict[str, list]]:
        """What the sinks hold, and what the model says they hold."""
        while any(r.control.goal is not None for r in self.harness.record.regions.values()):
            self._epoch(1, *self.harness.copy())
        self._epoch(1)
        self.harness.close()
        found = {name: [tuple(row.values()) for row in ps.memory(f"{name} {self.number}").rows()] for name in EVERY_S}
        totals: dict[str | None, int] = {}
        wanted: dict[str, list] = {name: [] for name in EVERY_S}
        for i, (key, epoch) in sorted(self.read_in.items()):
            before, behind = (self.model.noted[epoch][name] for name in EVERY_S)
            totals[key] = totals.get(key, 0) + before.get(key, 0)
            wanted["before"].append((i, before.get(key), totals[key]))
            wanted["behind"] += [(i, behind[key])] if key in behind else []
        return {n: sorted(rows, key=str) for n, rows in found.items()}, {n: sorted(rows, key=str) for n, rows in wanted.items()}


def added(key: Any, event: Any, state: Any) -> Any:
    total = (0 if state is None else state[0]) + (event.c or 0)
    return (event.id, event.c, total), (total,)
