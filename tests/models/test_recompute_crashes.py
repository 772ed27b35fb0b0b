"""Every named step of a run, of a recomputation and of what comes after it as the place of a crash, singly and in pairs: nothing is lost or doubled.

The flow has windows over windows, late records, two partitions and four sinks. A life is: a run that loses its checkpoint, and a recomputation to
the end. Its steps are counted without a crash, and then it crashes at each of them. At least 512 lives: about 140 with
one crash, the others with two, in the recomputation and in the start after it, which finds the checkpoint lost again or as it was left. Of those
with two, a fourth is always run, and all in `make soak`.

Read next: `recomputing`.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter

import oracle
import pytest
import recipes as r
from recomputing import Store
from test_against_oracle import compare

from penstock.testing import Crash, Harness

NUMBERS = itertools.count()
LIVES = 512
NEVER = 0
TWICE = 3
"""So long is what names the crashes of a life that has two: none in the run that is lost, one in each of the starts after it."""


def a_flow() -> r.Recipe:
    """Windows over windows, a running aggregate, late records."""
    source = r.Source("a", lateness_us=2 * r.SECOND, partitions=(0, 1))
    keyed = r.KeyBy(source, ("k",), "first")
    small = r.Totals(
        keyed, (("v", "sum", "v"), ("j", "max", "j"), ("x", "max", "x"), ("s", "max", "s")), r.Window("tumbling", 3 * r.SECOND)
    )
    again = r.KeyBy(small, ("k",), "second")
    large = r.Totals(again, (("v", "sum", "v"), ("j", "count", None)), r.Window("sliding", 6 * r.SECOND, 3 * r.SECOND))
    running = r.Totals(keyed, (("v", "count", None),), None, "update")
    late = r.Late(source)
    return r.Recipe([source, keyed, small, again, large, running, late], [small, large, running, late])


def a_log() -> list[dict]:
    times = [(0, 1), (1, 2), (0, 4), (1, 3), (0, 9), (1, 8), (0, 5), (1, 12), (0, 13), (1, 7), (0, 17), (1, 18)]
    offsets = {0: itertools.count(), 1: itertools.count()}
    return [
        {"p": p, "o": next(offsets[p]), "k": "ab"[i % 2], "j": i, "v": i, "x": 0.5, "s": "a", "at": r.moment(at * r.SECOND)}
        for i, (p, at) in enumerate(times)
    ]


FLOW = a_flow()


class Steps:
    """Crashes at given steps, counted from the beginning of each start."""

    def __init__(self, crashes: list[int]) -> None:
        self.crashes, self.seen, self.names = crashes, 0, []

    def begin(self) -> None:
        """A start begins; what the one before has not come to is left out."""
        if self.crashes and self.names and self.crashes[0] == NEVER:
            self.crashes.pop(0)
        self.seen, self.names = 0, []

    def __call__(self, name: str) -> None:
        self.names.append(name)
        self.seen += 1
        if self.crashes and self.seen == self.crashes[0]:
            self.crashes.pop(0)
            raise Crash(name)


def live(crashes: list[int], *, kept: bool) -> tuple[dict[r.Node, Counter], list[list[str]]]:
    """One life; after a crash the next start finds a lost checkpoint, or (`kept`) what there is of it."""
    recipe, name, log = FLOW, f"crashing {next(NUMBERS)}", a_log()
    sinks: dict[r.Node, Store] = {}
    steps, told, starts = Steps(crashes), [], 0

    def sink(table: str, node: r.Node) -> Store:
        sinks[node] = Store(table)
        return sinks[node]

    with tempfile.TemporaryDirectory(prefix="penstock-crashing-") as folder:
        checkpoint = f"{folder}/c0"
        while True:
            steps.begin()
            first = starts == 0
            starts += 1
            try:
                built = r.build(recipe, name, sink)
                harness = Harness(built.flow, checkpoint=checkpoint, recover="recompute", on_step=steps)
                due, size = (log[:8], 4) if first else (log, 6)
                if harness.record.recovery is None:
                    known = (
                        {k: p.offset for k, p in harness.record.sources["a"].partitions.items()}
                        if harness.record.sources
                        else {}
                    )
                    due = [x for x in due if x["o"] > known.get(str(x["p"]), -1)]
                for at in range(0, len(due), size):
                    if not harness.record.finished:
                        harness.push("a", r.table(recipe.sources()[0], due[at : at + size]))
                        harness.epoch()
                if not first and not harness.record.finished:
                    harness.finish()
                told.append(steps.names)
                if not first:
                    break
                checkpoint = f"{folder}/c{starts}"
            except Crash:
                told.append(steps.names)
                checkpoint = checkpoint if kept and not first else f"{folder}/c{starts}"
    return {node: oracle.multiset(s.rows()) for node, s in sinks.items()}, told


def lives() -> list[tuple[tuple[int, ...], bool]]:
    """Where they crash: in the run that is lost, in the recomputation, and in the start after that one; and whether its checkpoint is kept."""
    _, (first, second) = live([], kept=True)
    singly = [((at,), True) for at in range(1, len(first) + 1)]
    again = [((NEVER, at), kept) for at in range(1, len(second) + 1) for kept in (True, False)]
    lost = [((NEVER, at, then), False) for at in range(1, len(second) + 1) for then in range(1 + at % 7, len(second) - 1, 7)]
    left = [((NEVER, at, then), True) for at in range(1, len(second) + 1, 2) for then in range(1 + at % 5, len(second) - at, 5)]
    return [*singly, *again, *lost, *left]


def check(some: list[tuple[tuple[int, ...], bool]]) -> int:
    """Compare what lives leave with one sequential pass; in how many of them every crash came."""
    whole = oracle.Oracle(FLOW, {"a": [(0, x) for x in a_log()]}, {})
    fired = 0
    for crashes, kept in some:
        left = [*crashes]
        found, told = live(left, kept=kept)
        fired += not left
        for node, content in found.items():
            compare(
                f"crashes at {[names[-1:] for names in told]}, {'kept' if kept else 'lost'}: {type(node).__name__}",
                content,
                whole.content(node),
            )
    return fired


@pytest.mark.slow
@pytest.mark.parametrize("half", range(2))
def test_crash_at_any_step_and_some_of_the_start_after_it_lose_and_double_nothing(half):
    every = lives()
    pairs = [life for life in every if len(life[0]) == TWICE]
    some = [*(life for life in every if life not in pairs), *pairs[::4]][half::2]
    assert check(some) >= len(some) * 3 // 4 > 100


@pytest.mark.soak
@pytest.mark.parametrize("eighth", range(8))
def test_crash_at_any_step_and_at_any_of_the_start_after_it_loses_and_doubles_nothing(eighth):
    assert check(lives()[eighth::8]) >= LIVES // 8
