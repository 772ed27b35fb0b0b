"""`ConsistentGrouping` with workers of unequal speed: virtual workers are handed over by measured times."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.routing.consistent_grouping import hand_over


def begun(workers, virtual=10):
    return np.arange(workers * virtual) % workers, np.full(workers, 1_000_000)


def run(speeds, epochs, *, noise=0.0, interrupted=0.0, seed=0, virtual=10):
    """Epochs in which a virtual worker takes `speeds` of its worker; the owners after each of them."""
    rng, n = np.random.default_rng(seed), len(speeds)
    owners, costs = begun(n, virtual)
    history = []
    for _ in range(epochs):
        times = np.array(speeds) * np.bincount(owners, minlength=n) * rng.uniform(1 - noise, 1 + noise, n)
        times[rng.integers(n)] *= 10 if rng.random() < interrupted else 1
        owners, costs = hand_over(owners, costs, times)
        history.append(owners)
    return history


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 9),
    virtual=st.sampled_from([1, 2, 10]),
    epochs=st.lists(st.lists(st.sampled_from([0.0, 1e-9, 1.0, 7.0, 1e9]), min_size=9, max_size=9), max_size=60),
    longer=st.integers(1, 5),
)
@example(n=2, virtual=10, epochs=[[1.0, 7.0] + [0.0] * 7], longer=5)
def test_hand_over_whatever_the_times_keeps_a_worker_for_each_virtual_one_and_one_at_least_for_each_worker(
    n, virtual, epochs, longer
):
    owners, costs = begun(n, virtual)
    for times in epochs * longer:
        kept = owners.copy(), costs.copy()
        after = hand_over(owners, costs, times[:n])
        assert (owners == kept[0]).all()
        assert (costs == kept[1]).all()
        assert all((a == b).all() for a, b in zip(after, hand_over(owners, costs, times[:n]), strict=True))
        changed = np.flatnonzero(after[0] != owners)
        assert len({*owners[changed].tolist()} | {*after[0][changed].tolist()}) == 2 * len(
            changed
        )  # one for each worker at most
        owners, costs = after
        assert owners.dtype == costs.dtype == np.int64
        assert len(owners) == n * virtual
        assert (np.bincount(owners, minlength=n) >= 1).all()
        assert len(np.bincount(owners, minlength=n)) == n


@pytest.mark.parametrize(("n", "virtual"), [(2, 10), (8, 10), (100, 10), (3, 100)])
@pytest.mark.parametrize("factor", [2, 4])
def test_hand_over_when_a_worker_is_slower_leaves_it_its_part(n, virtual, factor):
    for slow in (0, n - 1):
        speeds = np.ones(n)
        speeds[slow] = factor
        has = np.bincount(run(speeds, 150, virtual=virtual)[-1], minlength=n)
        part = n * virtual / (factor * (n - 1) + 1)  # with which all would take equally long
        assert 0.75 * part - 1 <= has[slow] <= 1.3 * part + 1
        times = speeds * has
        assert times.max() <= 1.3 * times.mean()
        assert np.delete(has, slow).max() - np.delete(has, slow).min() <= 0.2 * virtual


@pytest.mark.parametrize("n", [2, 8, 100])
@pytest.mark.parametrize("slow", [1, 2])
def test_hand_over_when_times_are_noisy_soon_hands_nothing_over_any_more(n, slow):
    for seed in range(5):
        owners = run([slow, *[1] * (n - 1)], 400, noise=0.1, interrupted=0.05, seed=seed)
        late = sum((a != b).sum() for a, b in pairwise(owners[200:]))
        assert late <= 3
        if slow == 1:
            assert (np.bincount(owners[-1]) >= 9).all()


def test_hand_over_when_a_worker_becomes_as_fast_as_the_others_gives_it_its_part_back():
    owners, costs = begun(4)
    for speeds in ([8, 1, 1, 1], [1, 1, 1, 1]):
        for _ in range(200):
            owners, costs = hand_over(owners, costs, np.array(speeds) * np.bincount(owners))
        has = np.bincount(owners)
        assert has[0] <= 3 if speeds[0] == 8 else has[0] >= 8


def test_hand_over_when_a_worker_seemed_to_need_no_time_for_long_soon_sees_that_it_does():
    owners, costs = begun(2)
    for _ in range(1_000):
        owners, costs = hand_over(owners, costs, [0.0, 5.0])
    assert np.bincount(owners).tolist() == [19, 1]
    for _ in range(100):
        owners, costs = hand_over(owners, costs, np.bincount(owners))
    assert np.bincount(owners).min() >= 8


def test_hand_over_when_times_are_all_zero_or_there_is_one_worker_changes_nothing():
    for n, times in ((3, [0, 0, 0]), (1, [5.0])):
        owners, costs = begun(n)
        after = hand_over(owners, costs, times)
        assert (after[0] == owners).all()
        assert (after[1] == costs).all()


@pytest.mark.parametrize("times", [[1.0], [1.0, 2.0, 3.0], [1.0, -1.0], [1.0, float("nan")], [float("inf"), 1.0]])
def test_hand_over_when_times_are_none_says_so(times):
    with pytest.raises(ValueError, match="are not those of 2 workers"):
        hand_over(*begun(2), times)


def test_router_when_a_worker_is_slow_sends_it_less_and_a_copy_with_its_memory_routes_alike():
    rng = np.random.default_rng(3)
    router = ps.ConsistentGrouping().router(4)
    for epoch in range(150):
        hashes = {s: np.where(rng.random(2_000) < 0.5, 7, rng.integers(0, 1 << 40, 2_000)) for s in (-1, 3)}
        copy = ps.ConsistentGrouping().router(4)
        copy.memory = {s: {name: a.copy() for name, a in arrays.items()} for s, arrays in router.memory.items()}
        routed, again = router.route(hashes), copy.route(hashes)
        assert all((routed[s] == again[s]).all() for s in hashes)
        loads = sum(np.bincount(w, minlength=4) for w in routed.values())
        if epoch == 0:
            assert loads.max() <= 1.05 * loads.mean()
        router.finished(loads * [1, 1, 3, 1])
    assert loads[2] <= 0.5 * loads[0]
    assert max(loads * [1, 1, 3, 1]) <= 1.4 * min(loads * [1, 1, 3, 1])


def test_router_that_does_not_care_for_times_routes_as_before():
    keys = {0: np.arange(1_000)}
    for strategy in (ps.PartialKeyGrouping(), ps.WChoices(), ps.Histogram(), ps.KeyGrouping(), ps.Shuffle()):
        heard, deaf = strategy.router(3), strategy.router(3)
        heard.finished([1.0, 100.0, 1.0])
        assert (heard.route(keys)[0] == deaf.route(keys)[0]).all()
