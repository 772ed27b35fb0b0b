"""The workers' half of a rescale: which messages are an epoch, in which order they are carried out, what is chosen to leave."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.protocol.messages import (
    KINDS,
    Acquire,
    Answer,
    Barrier,
    BinSizes,
    Collect,
    Frontier,
    Hold,
    Interrogate,
    Item,
    Release,
    Shutdown,
)
from penstock.protocol.rescale import Limits, Placement, messages, scaled
from penstock.protocol.rescale.worker import WorkerEpoch
from penstock.routing.table import SUBS, Routing, sub_of

EPOCH = 7
BINS = 8


class Noting:
    """Notes what it is told; its keys have the bytes that it was given."""

    bins = BINS

    def __init__(self, sizes=()):
        self.sizes = dict(sizes)
        self.heard = []

    def _note(name, answer=None):  # noqa: N805  (makes methods)
        def method(self, *args):
            self.heard.append((name, *args))
            return answer

        return method

    hold = _note("hold", {1: 10})
    release = _note("release")
    process = _note("process")
    interrogate = _note("interrogate", BinSizes(((0, 5),), BINS))
    hear = _note("hear")
    give_up = _note("give_up", (0, 0))

    def bytes_of(self, at):
        return sum(self.keys_of(at).values())

    def keys_of(self, at):
        return {k: n for k, n in self.sizes.items() if k % BINS == at}


few_keys = st.lists(st.integers(0, 3), max_size=2).map(tuple)
one = st.one_of(
    st.builds(Hold, few_keys),
    few_keys.map(lambda keys: Release(keys, keys)),
    st.just(Acquire(("a.move",))),
    st.just(Frontier(0, 5)),
    st.just(Interrogate(0, 10)),
    st.builds(Barrier, st.sampled_from([EPOCH, EPOCH, EPOCH, EPOCH - 1])),
    st.just(Shutdown()),
    st.builds(lambda keys, stay: Collect(tuple(Item(1, key=k) for k in keys), 10, 10, stay), few_keys, few_keys),
    st.sampled_from(["stop", None, Answer()]),
)
any_messages = st.lists(one, max_size=7)
in_order = any_messages.map(lambda found: sorted((m for m in found if type(m) in KINDS), key=lambda m: KINDS.index(type(m))))


def is_epoch(found):
    """Whether messages are those of an epoch, said another way."""
    kinds = [type(m) for m in found]
    if not {Frontier, Barrier} <= set(kinds) <= set(KINDS):
        return False
    held = {k for m in found if type(m) is Hold for k in m.keys}
    freed = {k for m in found if type(m) is Release for k in m.keys}
    collects = [m for m in found if type(m) is Collect]
    return (
        all(KINDS.index(a) < KINDS.index(b) for a, b in pairwise(kinds))
        and all(m.epoch == EPOCH for m in found if type(m) is Barrier)
        and not held & freed
        and all(held <= set(m.pinned_keys) and not held & {i.key for i in m.items if i.bin < 0} for m in collects)
    )


@given(
    st.one_of(any_messages, in_order, st.builds(lambda m: sorted([Frontier(0, 5), Barrier(EPOCH), *m], key=_rank), in_order))
)
@example([Frontier(0, 5), Barrier(EPOCH)])
@example([Frontier(0, 5), Barrier(EPOCH - 1)])
@example([Barrier(EPOCH), Frontier(0, 5)])
@example([Frontier(0, 5), Barrier(EPOCH), Barrier(EPOCH)])
@example([Hold((1,)), Release((1,), (0,)), Frontier(0, 5), Barrier(EPOCH)])
@example([Hold((1,)), Frontier(0, 5), Barrier(EPOCH), Collect((Item(1, key=1),), 10, 10, (1,))])
@example([Hold((1,)), Frontier(0, 5), Barrier(EPOCH), Collect((Item(1, bin=1),), 10, 10)])
def test_messages_when_they_are_no_epoch_are_refused_and_else_carried_out_in_order(found):
    task = Noting()
    if not is_epoch(found):
        with pytest.raises(PenstockError, match=r"^Worker 3 was given .*\.$"):
            WorkerEpoch(3, EPOCH, found)
        return
    answer = WorkerEpoch(3, EPOCH, found).run(task)
    names = ("hold", "release", "hear", "process", "interrogate", "hear", "hear", "give_up")
    assert [h[0] for h in task.heard] == [names[KINDS.index(type(m))] for m in found]
    assert [h[1] for h in task.heard if h[0] == "hear"] == [m for m in found if type(m) in (Acquire, Barrier, Shutdown)]
    kinds = {type(m) for m in found}
    assert (answer.sized is not None, answer.taken is not None) == (Interrogate in kinds, Collect in kinds)
    assert answer.queued == (((1, 10),) if Hold in kinds else ())


def _rank(message):
    return KINDS.index(type(message))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([Frontier(0, 5), "stop"], r"^Worker 3 was given 'stop', which is no message that this version knows\.$"),
        ([], r"^Worker 3 was given what is no epoch: nothing\.$"),
        ([Barrier(EPOCH), Frontier(0, 5)], r"^Worker 3 was given what is no epoch: Barrier, Frontier\.$"),
        ([Frontier(0, 5), Barrier(6)], r"^Worker 3 was given Barrier\(epoch=6\) in epoch 7\.$"),
        (
            [Hold((4,)), Release((4,), (0,)), Frontier(0, 5), Barrier(EPOCH)],
            r"^Worker 3 was given Release\(keys=\(4,\), since=\(0,\)\), of a key on hold\.$",
        ),
    ],
)
def test_refusal_of_messages_says_what_was_given(found, why):
    with pytest.raises(PenstockError, match=why):
        WorkerEpoch(3, EPOCH, found)


@given(st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_messages_that_the_controller_makes_are_an_epoch(before, after, last):
    control = scaled(Placement.fresh(before, Routing.even(before, BINS)), after, Limits(), 0)
    told = messages(control, Limits(), EPOCH, Frontier(0, 5), acquired={0: ["a.move"]}, last=last)
    assert len(told) == control.workers
    for worker, each in enumerate(told):
        assert is_epoch(WorkerEpoch(worker, EPOCH, each).messages)
        assert (Acquire in map(type, each)) == (worker == 0)
        assert (Shutdown in map(type, each)) == last


hashes = st.integers(0, 2**40)


@given(
    st.dictionaries(hashes, st.integers(1, 100), max_size=12),
    st.lists(st.integers(0, BINS - 1), unique=True, max_size=BINS),
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(0, 3),
)
def test_what_is_chosen_when_bins_are_collected_fits_the_budget_and_is_said_exactly(sizes, bins, budget, hold, stay):
    pinned = tuple(sorted(sizes)[:stay])
    task = Noting(sizes)
    message = Collect(tuple(Item(1 + at % 2, bin=at) for at in bins), budget, hold, pinned)
    machine = WorkerEpoch(0, EPOCH, [Frontier(0, 5), Barrier(EPOCH), message])
    taken = machine.run(task).taken
    leaving = task.heard[-1][1]
    assert (taken.bins, taken.splits, taken.too_large) == (leaving.bins, leaving.splits, leaving.too_large)
    whole = {at for at, _ in leaving.bins}
    gone = [k for k in sizes if k % BINS in whole]
    assert not set(pinned) & set(gone)
    lost = {k for k, _, _ in taken.too_large}
    for at, _, upto in leaving.splits:
        gone += [k for k in task.keys_of(at) if sub_of(k) < upto and k not in lost and k not in pinned]
    cut = [sub_of(k) for k in gone if k % BINS not in whole]
    assert sum(sizes[k] for k in gone if k % BINS in whole or sub_of(k) != max(cut)) <= budget, "one part may exceed the budget"
    assert all(sizes[k] > max(hold, budget) for k in lost)
    assert not lost & {*gone, *pinned}
    if bins:
        assert leaving.bins or leaving.splits, "rule C7: something leaves, or is named"
        assert all(0 < upto <= SUBS for *_, upto in leaving.splits)
    if sum(n for k, n in sizes.items() if k % BINS in bins) <= budget and not pinned:
        assert whole == set(bins)


@given(st.dictionaries(hashes, st.integers(1, 100), max_size=8), st.integers(1, 200), st.integers(1, 200))
@example({1: 60, 2: 60, 3: 1}, 100, 100)
def test_single_keys_when_collected_leave_in_turn_until_the_budget_is_spent_and_those_too_large_are_named(sizes, budget, hold):
    task = Noting(sizes)
    message = Collect(tuple(Item(1, key=k) for k in sizes), budget, hold, tuple(sizes))
    taken = WorkerEpoch(0, EPOCH, [Frontier(0, 5), Barrier(EPOCH), message]).run(task).taken
    large = [k for k, n in sizes.items() if n > max(hold, budget)]
    others = [k for k in sizes if k not in large]
    gone = [k for k, _ in taken.keys]
    assert gone == others[: len(gone)]
    assert sum(sizes[k] for k in gone[1:]) <= max(0, budget - sum(sizes[k] for k in gone[:1]))
    if len(gone) < len(others):
        assert gone, "rule C7: one goes, whatever the budget"
        assert sum(sizes[k] for k in others[: len(gone) + 1]) > budget
    else:
        assert [k for k, _, _ in taken.too_large] == large
