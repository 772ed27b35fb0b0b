"""Sinks that penstock does not know: one of the first contract, and one that stages; rows and mark are stored once, whatever crashes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import DeclarationError
from penstock.testing import Crash, Harness
from penstock.types import Refusal

FILES = ps.files("none", "k string, v long")


@dataclass
class Kept:
    """What outlives the process: rows by epoch, the mark, and staged rows by token."""

    rows: dict = field(default_factory=dict)
    mark: object = None
    staged: dict = field(default_factory=dict)


KEPT: dict[str, Kept] = {}


@dataclass(eq=False)
class Plain:
    """A sink of the first contract, with no base class."""

    name: str
    durable = True

    def validate(self, schema, *, updates, key):
        if updates:
            raise DeclarationError("it can only append")

    def open(self, claim, schema):
        kept = KEPT[self.name]
        held, kept.mark = kept.mark, kept.mark or replace(claim, epoch=-1)
        return held

    def held(self, output):
        return KEPT[self.name].mark

    def write(self, batches, mark):
        return self._store((r for b in batches for r in b.to_pylist()), mark)

    def _store(self, rows, mark):
        kept = KEPT[self.name]
        if mark.epoch <= kept.mark.epoch:
            return 0
        found = list(rows)
        kept.rows[mark.epoch], kept.mark = found, mark
        return len(found)

    def close(self):
        pass


class Staged(Plain):
    """One that stores rows where they are and is given their tokens."""

    def stager(self, mark):
        return partial(_stage, self.name)

    def commit(self, tokens, mark):
        staged = KEPT[self.name].staged
        stored = self._store((r for token in tokens for r in staged.pop(token)), mark)
        staged.clear()
        return stored

    def write(self, batches, mark):
        assert not list(batches), "rows came in place of tokens"
        return self.commit((), mark)


def _stage(name, batches, attempt):
    token = f"{attempt} {uuid.uuid4().hex}".encode()
    KEPT[name].staged[token] = pa.Table.from_batches(batches).to_pylist()
    yield token


class Alone(Plain):
    """One that cannot share its place."""

    def sharing_refusal(self, other):
        return Refusal(f"{self.name} is one file") if isinstance(other, Plain) and other.name == self.name else None


def numbered(sink):
    flow = ps.Flow("outside")
    keyed = flow.source("s", FILES).key_by("k")
    keyed.stateful_map(lambda _, event, n: ({"v": event.v, "n": (n or 0) + 1}, (n or 0) + 1), "v long, n long").sink(
        sink, name="out"
    )
    return flow


def run(kind, folder, crash=None):
    """Two epochs, of which one crashes at a step and is run again by another run."""
    name = str(folder)
    KEPT[name] = Kept()
    steps = []

    def on_step(step):
        steps.append(step)
        if step == crash and steps.count(step) == 1:
            raise Crash

    with Harness(numbered(kind(name)), workers=3, checkpoint=f"{folder}/c", on_step=on_step) as harness:
        harness.push("s", [{"k": f"k{i % 5}", "v": i} for i in range(20)])
        try:
            harness.epoch()
        except Crash:
            harness.restart()
        harness.push("s", [{"k": f"k{i % 5}", "v": i} for i in range(20, 30)])
        harness.finish()
    return KEPT[name], steps


@pytest.mark.parametrize("kind", [Plain, Staged])
@pytest.mark.parametrize("crash", [None, "compute out", "during out", "stored out", "commit"])
def test_sink_from_outside_when_an_epoch_crashes_holds_every_row_once(kind, crash, tmp_path):
    kept, steps = run(kind, tmp_path, crash)
    assert crash is None or crash in steps
    rows = [row for epoch in sorted(kept.rows) for row in kept.rows[epoch]]
    assert sorted((r["v"], r["n"]) for r in rows) == [(i, i // 5 + 1) for i in range(30)]
    assert not kept.staged
    assert kept.mark.output == "out"
    assert kept.mark.epoch >= 1


def test_sink_from_outside_when_it_refuses_the_output_is_heard_at_the_declaration():
    counted = ps.Flow("f").source("s", FILES).key_by("k").aggregate(n=ps.count())
    with pytest.raises(DeclarationError, match="it can only append"):
        counted.sink(Plain("refusing"))


def test_sink_from_outside_when_its_place_is_taken_is_refused_in_its_own_words():
    stream = ps.Flow("f").source("s", FILES)
    stream.sink(Plain("shared"), name="first")
    with pytest.raises(DeclarationError, match=r"shared is one file \(outputs 'first' and 'second'\)"):
        stream.sink(Alone("shared"), name="second")


def test_sink_from_outside_when_a_method_is_missing_is_none():
    class Short:
        def open(self, claim, schema): ...

    with pytest.raises(DeclarationError, match="is not a sink"):
        ps.Flow("f").source("s", FILES).sink(Short())
