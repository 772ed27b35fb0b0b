"""The machine of live rescaling, part by part: the table of its transitions, placement, cuts, routing."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.protocol import controller
from penstock.protocol.rescale import TRANSITIONS, Limits, Phase, Placement, ended_hold, pinned, scaled, transfer
from penstock.protocol.rescale.bin_plan import place
from penstock.protocol.rescale.collect import KeySize, cut
from penstock.routing.table import SUBS, Routing, Split, sub_of
from penstock.testing import simulator
from penstock.testing.simulator import simulate
from penstock.types import from_plain, plain

hashes = st.integers(-(2**63), 2**63 - 1)


# ----------------------------------------------------------------------------------------------------------- transitions


def after_scaled(before, after, *_):
    measured_anew = before.phase is Phase.MOVE and after.phase is Phase.INTERROGATE
    return "scale asked, bins never measured" if measured_anew else "scale asked"


def after_pinned(*_):
    return "move asked"


def after_watched(*_):
    return "keys pinned or released by the strategy"


def after_ended_hold(before, after, *_):
    return "key copied"


def after_advanced(before, after, answers, *_):
    if before.phase is Phase.INTERROGATE:
        if after.phase is Phase.INTERROGATE:
            return "bins measured, some left"
        return "all bins measured" if after.phase is Phase.MOVE else "all bins measured, nothing to move"
    too_large = any(a.taken and a.taken.too_large for a in answers.values())
    return "key too large" if too_large else "step collected, something left"


@pytest.fixture
def observed(monkeypatch):
    """(phase, what happened, phase after) of every step of a few thousand simulated runs, counted."""
    seen = Counter()

    def recording(module, name, told):
        step = getattr(module, name)

        def recorded(control, *args):
            result = step(control, *args)
            after = result[0] if name == "ended_hold" else result
            counted_only = name == "watched" and after.phase is control.phase
            if after is not control and not counted_only and (control.phase, after.phase) != (Phase.SETTLED, Phase.SETTLED):
                ended = control.phase is Phase.MOVE and after.phase is Phase.SETTLED
                seen[control.phase, "nothing left" if ended else told(control, after, *args), after.phase] += 1
            return result

        monkeypatch.setattr(module, name, recorded)

    recording(controller, "scaled", after_scaled)
    recording(controller, "pinned", after_pinned)
    recording(controller, "ended_hold", after_ended_hold)
    recording(transfer, "advanced", after_advanced)
    monkeypatch.setattr(simulator.World, "watched", simulator.watched)
    recording(simulator.World, "watched", after_watched)
    monkeypatch.setattr(simulator.World, "watched", staticmethod(simulator.World.watched))
    for seed in range(3_000):
        simulate(seed)
    return seen


def test_table_of_transitions_is_what_happens_when_thousands_of_runs_are_watched(observed):
    assert set(observed) == {row[:3] for row in TRANSITIONS}


def test_every_transition_is_listed_once_with_its_rule_when_read():
    assert len({row[:3] for row in TRANSITIONS}) == len(TRANSITIONS)
    assert all(rule[0] in "ICHNS" and rule[1:].isdigit() for *_, rule in TRANSITIONS)


# ------------------------------------------------------------------------------------------------------------- placement

SIZES = {
    "all the same": lambda at: 1_000,
    "skewed": lambda at: 100_000 // (1 + at * 7919 % 1024),
    "mostly empty": lambda at: 5_000 if at % 16 == 0 else 0,
    "empty": lambda at: 0,
}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("before", "after"), list(product(range(1, 9), repeat=2)))
def test_bins_move_only_from_or_to_workers_that_come_or_go_when_scaled(before, after, sizes):
    bins = 1_024
    weights = [SIZES[sizes](at) for at in range(bins)]
    owners = [at * before // bins for at in range(bins)]
    target = place(owners, weights, after, before)
    moved = [(was, to) for was, to in zip(owners, target, strict=True) if was != to]
    assert max(target) < after
    assert all(to >= before if after > before else was >= after for was, to in moved)
    if before == after:
        assert not moved


@given(
    st.lists(st.integers(0, 10_000), min_size=8, max_size=200),
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
    st.integers(1, 8),
)
@example([1] * 8, [3], 4)
def test_no_bin_moves_between_workers_that_stay_when_scaled_again_and_again(sizes, workers, first):
    owners, now = tuple(at * first // len(sizes) for at in range(len(sizes))), first
    for wanted in workers:
        target = place(owners, sizes, wanted, now)
        for was, to in zip(owners, target, strict=True):
            assert was == to or was >= wanted or to >= now
        owners, now = target, wanted


@pytest.mark.parametrize(("before", "after"), [pair for pair in product(range(1, 9), repeat=2) if pair[0] != pair[1]])
def test_loads_are_balanced_within_one_bin_when_bins_are_alike(before, after):
    bins = 4_096
    loads = Counter(place([at * before // bins for at in range(bins)], [1_000] * bins, after, before))
    assert max(loads.values()) - min(loads.values()) <= 1 + max(before, after) // 4
    assert len(loads) == after


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 8), (8, 3), (5, 4), (2, 1)])
def test_loads_are_balanced_within_the_heaviest_bins_when_sizes_differ(before, after):
    bins = 4_096
    weights = [1 + (at * 2654435761 % 4096) for at in range(bins)]
    loads = Counter()
    for worker, weight in zip(place([at * before // bins for at in range(bins)], weights, after, before), weights, strict=True):
        loads[worker] += weight
    share = sum(weights) / after
    assert max(loads.values()) <= 1.01 * share + max(weights)  # an empty bin counts as a hundredth of a bin


# ------------------------------------------------------------------------------------------------------------------ cuts

key_sizes = st.lists(
    st.builds(KeySize, st.one_of(st.integers(0, 5), st.integers(0, SUBS - 1)), hashes, st.integers(0, 300)),
    max_size=20,
    unique_by=lambda s: s.key,
)


@given(key_sizes, st.integers(0, 6), st.integers(1, 400), st.integers(0, 400))
def test_cut_gives_up_exactly_what_is_below_it_when_any_keys_are_here(sizes, start, budget, hold):
    hold = max(hold, budget)
    done = cut(sizes, start, budget, hold)
    below = [s for s in sizes if start <= s.sub < done.upto]
    assert sorted(done.keys) == sorted(s.key for s in below if s.bytes <= hold)
    assert {s.key for s in done.too_large} == {s.key for s in below if s.bytes > hold}
    assert start < done.upto <= SUBS
    if done.upto < SUBS:
        assert below, "something is always given up"
        assert any(s.sub >= done.upto for s in sizes), "a bin that is wholly gone is not split"


@given(key_sizes, st.integers(1, 400))
def test_cut_exceeds_the_budget_by_less_than_its_last_part_when_parts_cannot_be_divided(sizes, budget):
    done = cut(sizes, 0, budget, 400)
    taken = [s for s in sizes if s.key in done.keys]
    last = max((s.sub for s in taken), default=0)
    assert sum(s.bytes for s in taken if s.sub != last) <= budget or len({s.sub for s in taken}) == 1


@given(key_sizes, st.integers(1, 400))
def test_cuts_end_when_repeated_until_nothing_is_left(sizes, budget):
    upto, gone = 0, []
    for _ in range(len(sizes) + 1):
        done = cut(sizes, upto, budget, 250)
        gone += [*done.keys, *(s.key for s in done.too_large)]
        upto = done.upto
        if upto == SUBS:
            break
    assert upto == SUBS
    assert sorted(gone) == sorted(s.key for s in sizes)


# --------------------------------------------------------------------------------------------------------------- routing


@st.composite
def tables(draw):
    bins = draw(st.sampled_from([8, 12, 16]))
    owners = draw(st.lists(st.integers(0, 5), min_size=bins, max_size=bins))
    splits = draw(
        st.dictionaries(st.integers(0, bins - 1), st.builds(Split, st.integers(0, 5), st.integers(0, SUBS)), max_size=3)
    )
    return Routing(tuple(owners), splits, draw(st.dictionaries(hashes, st.integers(0, 5), max_size=3)))


@given(tables(), st.lists(hashes, max_size=30))
def test_scalar_and_vectorised_routing_agree_when_bins_are_split_and_keys_apart(table, keys):
    keys += list(table.pinned_keys)
    workers = table.workers_of(np.array(keys, np.int64))
    assert workers.tolist() == [table.worker_of(key) for key in keys]
    assert all(worker < table.used for worker in workers)


@given(hashes)
def test_part_of_a_hash_is_the_same_when_vectorised(key):
    assert sub_of(np.array([key], np.int64)).tolist() == [sub_of(key)]
    assert 0 <= sub_of(key) < SUBS


@given(tables())
def test_routing_is_the_same_when_written_as_json_and_read(table):
    assert Routing.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_routing_keeps_what_used_when_hashed_keys_move():
    table = Routing.even(2, 8).with_split(0, Split(3, 10)).with_pinned({5: 7})
    assert table.used == 8
    assert table.with_owners({0: 1}).splits == {}


# -------------------------------------------------------------------------------------------------------------- controls


@given(st.integers(0, 200))
def test_control_is_the_same_when_written_as_json_and_read(seed):
    kept = []

    class Keeping(simulator.World):
        def commit(self, epoch, after, showed):
            kept.extend(a.control for a in after)
            super().commit(epoch, after, showed)

    simulate(seed, Keeping)
    for control in kept:
        assert from_plain(Placement, json.loads(json.dumps(control, default=plain))) == control


def test_nothing_happens_when_scaled_to_what_is():
    control = Placement.fresh(3, Routing.even(3, 8))
    assert scaled(control, 3, Limits(), 0) == control


def test_nothing_happens_when_a_key_is_asked_for_where_it_is():
    control = pinned(Placement.fresh(2, Routing.even(2, 8)), [0], 0, Limits(), 0)
    assert control.phase is Phase.SETTLED
    assert control.routing.pinned_keys == {0: 0}
    assert pinned(control, [0], None, Limits(), 1).routing.pinned_keys == {}


def test_report_of_a_copy_is_ignored_when_its_key_is_not_on_hold():
    control = Placement.fresh(2, Routing.even(2, 8))
    assert ended_hold(control, 1, 2) == (control, None)
