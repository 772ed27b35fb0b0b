"""`penstock.Isolate` as a pure policy: which keys it pins, for how long, and what that makes of the load. Rows are rates here, and state is nothing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import DeclarationError
from penstock.protocol.commands import Move
from penstock.protocol.controller import MOST_PLACED, refusal
from penstock.protocol.rescale import STANDARD, Placement, pinned, scaled
from penstock.protocol.rescale.interrogate import aimed
from penstock.protocol.rescale.own_pins import watched
from penstock.routing.isolate import MOST_PINNED
from penstock.routing.loads import MOST_COUNTED, MOST_REPORTED, HotKey, Watch, hottest
from penstock.routing.table import Routing
from penstock.types import from_plain, plain

BINS = 64


class Region:
    """A region whose rescales take one epoch."""

    def __init__(self, workers, strategy=None, bins=BINS):
        self.control = Placement.fresh(workers, Routing.even(workers, bins))
        self.strategy = strategy or ps.Isolate(rows=100)
        self.changes = 0

    def loads(self, rates):
        out = Counter(dict.fromkeys(range(self.control.workers), 0))
        for key, n in rates.items():
            out[self.control.routing.worker_of(key)] += n
        return out

    def epoch(self, rates, *, strategy=None):
        during = self.control
        hot = [HotKey(k, n, f"key {k}") for k, n in rates.items()]
        self.control = watched(during, during, strategy or self.strategy, self.loads(rates), hot, STANDARD, 7)
        self.settle()
        return self

    def settle(self):
        goal = self.control.goal
        if goal is None:
            return
        self.changes += 1
        target = goal.target or tuple(b % goal.workers for b in range(BINS))
        routing = Routing(target, {}, dict(self.control.pins))
        self.control = replace(self.control, routing=routing, workers=goal.workers, goal=None)

    def round(self, rates, times=1, **options):
        """Epochs with enough rows for so many rounds."""
        for _ in range(times):
            times_more = self.strategy.rows * self.control.workers // sum(rates.values()) + 1
            self.epoch({k: n * times_more for k, n in rates.items()}, **options)
        return self

    @property
    def own(self):
        return {k: self.control.pins[k] for k in self.control.watch.own}


def cold(n, rows=10):
    """Keys of one bin each, all alike."""
    return dict.fromkeys(range(n), rows)


def test_key_when_it_has_half_of_the_rows_is_alone_at_its_worker_after_three_rounds():
    rates = {**cold(BINS), 5: 10 * BINS}
    region = Region(4).round(rates, 2)
    assert not region.own
    region.round(rates)
    assert region.own == {5: 0}
    loads = region.loads(rates)
    assert loads[0] == 10 * BINS
    assert max(loads[w] for w in (1, 2, 3)) <= 10 * BINS // 3 + 20
    assert 0 not in region.control.routing.owners
    region.round(rates, 20)
    assert region.changes == 1


def test_keys_when_two_hot_ones_meet_at_a_worker_get_one_each_and_the_hotter_stays():
    rates = {**cold(BINS), 1: 400, 2: 700}
    region = Region(4).round(rates, 3)
    assert region.own.keys() == {1, 2}
    assert region.own[2] == 0
    assert region.own[1] != 0
    assert {0, region.own[1]}.isdisjoint(region.control.routing.owners)


def test_key_when_it_cools_goes_home_after_three_rounds_and_its_worker_gets_bins_again():
    region = Region(4).round({**cold(BINS), 5: 640}, 3)
    region.round(cold(BINS), 2)
    assert region.own == {5: 0}
    region.round(cold(BINS))
    assert (region.own, region.control.pins) == ({}, {})
    assert max(region.loads(cold(BINS)).values()) <= 10 * (BINS // 4 + 2)
    region.round(cold(BINS), 9)
    assert region.changes == 2


def test_key_when_it_is_hot_and_cool_in_turn_does_not_move():
    region = Region(4)
    for _ in range(10):
        region.round({**cold(BINS), 5: 640}, 2).round(cold(BINS))
    assert not region.changes
    region.round({**cold(BINS), 5: 640}, 3)
    for _ in range(10):
        region.round(cold(BINS), 2).round({**cold(BINS), 5: 640})
    assert region.changes == 1


def test_key_when_it_is_neither_hot_nor_cool_stays_where_it_is():
    lukewarm = {**cold(BINS), 5: 100}  # at home it would have 100 of 100 + 160 rows
    assert not Region(4).round(lukewarm, 9).changes
    region = Region(4).round({**cold(BINS), 5: 640}, 3).round(lukewarm, 9)
    assert (region.own, region.changes) == ({5: 0}, 1)


def test_key_when_epochs_are_small_is_judged_once_there_are_rows_enough():
    region = Region(4)
    for _ in range(299):
        region.epoch({5: 3, 6: 1})  # a round is 400 rows
    assert not region.changes
    assert region.epoch({5: 3, 6: 1}).own == {5: 0, 6: 1}


def test_key_when_a_rescale_is_under_way_is_not_judged_and_the_evidence_begins_anew():
    rates = {**cold(BINS), 5: 640}
    region = Region(4).round(rates, 2)
    during = scaled(region.control, 5, STANDARD, 3)
    hot = [HotKey(5, 10_000, "")]
    after = watched(during, during, region.strategy, {0: 20_000}, hot, STANDARD, 4)
    assert (after.goal, after.watch.workers, after.watch.streaks) == (during.goal, {}, {})
    settled = replace(after, goal=None, workers=5)
    assert watched(settled, during, region.strategy, {0: 20_000}, hot, STANDARD, 5).watch == Watch()


def test_key_when_a_user_has_pinned_it_is_the_users():
    rates = {**cold(BINS), 5: 640}
    region = Region(4)
    region.control = pinned(region.control, [5], 2, STANDARD, 0)
    region.settle()
    region.round(rates, 9)
    assert (region.own, dict(region.control.pins)) == ({}, {5: 2})


def test_key_when_a_user_moves_it_from_its_own_worker_is_the_users_and_the_worker_gets_bins_again():
    rates = {**cold(BINS), 5: 640}
    region = Region(4).round(rates, 3)
    region.control = pinned(region.control, [5], 2, STANDARD, 0)
    region.settle()
    region.round(rates, 9)
    assert (region.own, dict(region.control.pins)) == ({}, {5: 2})
    assert set(region.control.routing.owners) == {0, 1, 2, 3}


def test_key_when_a_user_sends_it_home_stays_there_until_it_has_cooled():
    rates = {**cold(BINS), 5: 640}
    region = Region(4).round(rates, 3)
    region.control = pinned(region.control, [5], None, STANDARD, 0)
    region.settle()
    region.round(rates, 9)
    assert (region.own, region.control.pins) == ({}, {})
    assert set(region.control.routing.owners) == {0, 1, 2, 3}
    region.round(cold(BINS))
    assert region.round(rates, 3).own.keys() == {5}


def test_key_when_the_region_is_scaled_below_its_worker_is_pinned_anew_and_otherwise_stays():
    rates = {**cold(BINS), 60: 640}
    region = Region(4).round(rates, 3)
    assert region.own == {60: 3}
    region.control = scaled(region.control, 3, STANDARD, 0)
    region.settle()
    assert (region.control.workers, region.own) == (3, {})
    region.round(rates, 3)
    assert region.own.keys() == {60}
    assert region.own[60] < 3


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_when_a_region_with_isolated_keys_is_scaled_are_left_alone_if_another_one_remains(workers):
    region = Region(3).round({**cold(BINS), 1: 640, 30: 500}, 3)
    assert region.own == {1: 0, 30: 1}
    control = scaled(region.control, workers, STANDARD, 0)
    assert control.watch.closed == {1: (), 2: (), 5: (0, 1)}[workers]
    assert control.goal.opened == {1: (0,), 2: (0, 1), 5: ()}[workers]


def test_key_when_a_rescale_replaces_what_opens_its_former_worker_is_followed_by_bins_anyway():
    region = Region(4).round({**cold(BINS), 5: 640}, 3)
    during, rates = region.control, cold(BINS)
    for _ in range(3):
        hot = [HotKey(k, 10 * n, "") for k, n in rates.items()]
        loads = {w: 10 * n for w, n in region.loads(rates).items()}
        region.control = watched(region.control, during, region.strategy, loads, hot, STANDARD, 7)
    assert region.control.goal.opened == (0,)
    again = scaled(region.control, 6, STANDARD, 8)
    assert (again.goal.opened, again.goal.base, again.watch.closed) == ((0,), 4, ())
    assert 0 in aimed(again, replace(again.goal, bytes_by_bin=(1,) * BINS)).target
    assert from_plain(Placement, json.loads(json.dumps(again, default=plain))) == again


def test_bins_when_they_leave_an_isolated_key_go_where_rows_are_few():
    rates = {k: 30 if 21 < k < 43 else 10 for k in range(BINS)}
    region = Region(3).round({**rates, 5: 5_000}, 3)
    assert region.own == {5: 0}
    assert Counter(region.control.routing.owners)[1] == 21, "worker 1 has three times the rows of worker 2"


def test_key_when_it_heats_up_beside_an_isolated_one_is_isolated_too():
    rates = {**cold(BINS, 4), 5: 640}
    region = Region(4).round(rates, 3)
    assert region.own == {5: 0}
    region.round({**rates, 40: 160}, 3)  # it would not be hot if the rows of the other hot key were spread
    assert region.own.keys() == {5, 40}


def test_key_when_its_own_worker_would_help_the_others_little_stays_at_home():
    rates = dict.fromkeys(range(64), 10) | {5: 345}  # of two workers; it is hot: 345 of 345 + 315
    assert not Region(2).round(rates, 5).changes


def test_keys_when_a_worker_for_each_would_crowd_the_others_are_isolated_as_far_as_it_helps():
    rates = {**dict.fromkeys(range(1, 64), 350), 100: 31_500, 40: 9_450}
    region = Region(3, ps.Isolate(0.3, rows=100)).round(rates, 5)
    assert region.own.keys() == {100}


def test_worker_of_a_hot_key_when_a_users_key_is_there_is_the_idlest_without_one():
    rates = {**cold(BINS), 5: 640, 20: 50}  # worker 1 has more rows than worker 2
    region = Region(4)
    for key, worker in ((1, 0), (50, 3)):
        region.control = pinned(region.control, [key], worker, STANDARD, 0)
        region.settle()
    assert region.round(rates, 3).own == {5: 2}


def test_room_for_hot_keys_when_a_users_key_is_hotter_is_not_taken_by_it():
    region = Region(2)
    region.control = pinned(region.control, [5], 0, STANDARD, 0)
    region.settle()
    rates = {**cold(BINS), 5: 15_000, 40: 14_000, 50: 7_000}
    assert region.round(rates, 3).own == {40: 1}


def test_key_when_it_is_hot_in_every_other_epoch_is_found_by_what_workers_report():
    strategy, control = ps.Isolate(rows=100), Placement.fresh(4)
    rng = np.random.default_rng(1)
    for epoch in range(60):
        hashes = np.where(rng.random(200) < (0.95, 0.1)[epoch % 2], 5, rng.integers(0, 4096, 200))
        homes = control.routing.workers_of(hashes)
        mine = {w: hashes[homes == w] for w in range(4)}
        hot = [HotKey(k, n, "") for found in mine.values() for k, n, _ in hottest(found, strategy.report_above)]
        control = watched(control, control, strategy, {w: len(h) for w, h in mine.items()}, hot, STANDARD, epoch)
        if control.goal is not None:
            break
    assert control.watch.own == (5,)


def test_keys_when_another_strategy_takes_over_go_home_and_users_keys_stay():
    region = Region(4).round({**cold(BINS), 5: 640}, 3)
    region.control = pinned(region.control, [30], 2, STANDARD, 0)
    region.settle()
    region.epoch(cold(BINS), strategy=ps.KeyGrouping())
    assert dict(region.control.pins) == {30: 2}
    assert (region.control.watch, set(region.control.routing.owners)) == (Watch(), {0, 1, 2, 3})
    again = region.control
    assert region.epoch(cold(BINS), strategy=ps.KeyGrouping()).control is again


def test_keys_when_more_are_hot_than_can_be_pinned_are_pinned_in_the_order_of_their_heat():
    workers = MOST_PINNED + 100
    region = Region(workers, ps.Isolate(rows=1), bins=2048)
    region.control = pinned(region.control, [2047], 5, STANDARD, 0)
    region.settle()
    strategy, control = region.strategy, region.control
    rows = {w: 1_000_000 if w < MOST_PINNED else 1_000 for w in range(workers)}
    keys = [HotKey(k, 1_000_000 - k, "") for k in range(MOST_PINNED)]
    for _ in range(3):
        control = watched(control, control, strategy, rows, keys, STANDARD, 7)
    assert {*control.watch.own} == set(range(MOST_PINNED - 1)), "one is a user's"


def test_watch_when_keys_are_many_counts_the_hottest_and_forgets_values_of_others():
    watch = Watch(own=(7,), texts={7: "seven"})
    for first in range(0, 3 * MOST_COUNTED, MOST_REPORTED):
        hot = [HotKey(k, 1 + k, f"key {k}") for k in range(first, first + MOST_REPORTED)]
        watch = watch.plus({0: 1}, hot)
    last = first + MOST_REPORTED
    assert watch.keys == {k: 1 + k for k in range(last - MOST_COUNTED, last)}
    assert watch.texts == {7: "key 7", **{k: f"key {k}" for k in watch.keys}}
    assert watch.anew({}).texts == {7: "key 7"}


def test_move_when_the_strategy_has_pinned_many_keys_may_pin_as_many_as_without_it():
    own = {k: k for k in range(900)}
    control = replace(Placement.fresh(1000), pins=own, watch=Watch(own=tuple(own)))
    control = replace(control, routing=control.routing.with_pinned(own))
    most = tuple(range(800, 800 + MOST_PLACED))
    assert refusal(Move("r", most, 3), {"r": control}, []) is None
    assert "not 1001" in refusal(Move("r", (*most, -1), 3), {"r": control}, []).sentence


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 12), st.sampled_from([0.0, 0.8, 1.2, 1.6, 2.5]), st.integers(0, 2**32), st.sampled_from([0.2, 0.5, 0.8]))
def test_load_when_keys_are_skewed_is_never_worse_than_before_and_the_strategy_comes_to_rest(workers, z, seed, above):
    rng = np.random.default_rng(seed)
    shares = np.arange(1, 121) ** -z
    hashes = rng.choice(1 << 40, 120, replace=False).tolist()
    rates = {k: int(n) + 1 for k, n in zip(hashes, 100_000 * shares / shares.sum(), strict=True)}
    users = {int(k): int(rng.integers(workers)) for k in rng.choice(hashes[:20], int(rng.integers(3)), replace=False)}
    region = Region(workers, ps.Isolate(above, rows=100))
    for key, worker in users.items():
        region.control = pinned(region.control, [key], worker, STANDARD, 0)
        region.settle()
    region.changes = 0
    before, total = max(region.loads(rates).values()), sum(rates.values())
    region.round(rates, 20)
    changes, own, loads = region.changes, region.own, region.loads(rates)
    assert region.round(rates, 8).changes == changes <= 4, "it comes to rest"
    assert len({*own.values()}) == len(own) < workers or not own
    assert users.items() <= region.control.pins.items()
    assert own.keys().isdisjoint(users)
    rest = total - sum(rates[k] for k in own)
    hottest_left = max(n for k, n in rates.items() if k not in own)
    fair = max(rest / (workers - len(own)) + hottest_left, *(rates[k] for k in own), 0)
    if changes:
        assert max(loads.values()) <= max(before, fair), "it does not make things worse"
    for key, worker in own.items():
        assert worker not in region.control.routing.owners
        assert region.control.routing.worker_of(key) == worker


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([0, 1, 2, 1_000, 70_000, 200_000]),
    st.integers(0, 2**32),
    st.sampled_from([0.02, 0.1, 0.5, 1.0]),
    st.booleans(),
)
def test_hottest_when_counted_one_by_one_are_the_same(rows, seed, share, near):
    rng = np.random.default_rng(seed)
    names = rng.integers(-(2**63), 2**63 - 1, 50)
    if near:
        names = names[0] + np.arange(50)  # of one bucket
    weights = rng.random(50) ** 8
    hashes = rng.choice(names, rows, p=weights / weights.sum())
    counts = Counter(hashes.tolist())
    wanted = sorted(((k, n) for k, n in counts.items() if n >= max(1, share * rows)), key=lambda k: (-k[1], k[0]))
    found = hottest(hashes, share)
    assert [k[:2] for k in found] == wanted[:MOST_REPORTED]
    assert all(hashes[at] == key and not (hashes[:at] == key).any() for key, _, at in found)


def test_hottest_when_many_have_the_share_are_as_many_as_are_reported():
    assert hottest(np.arange(100, 200), 0.01) == [(100 + i, 1, i) for i in range(MOST_REPORTED)]


@pytest.mark.parametrize(("wrong", "why"), [({"above": 0}, "above=0"), ({"above": 1.5}, "above=1.5"), ({"rows": 0}, "rows=0")])
def test_isolate_when_a_number_makes_no_sense_is_refused(wrong, why):
    with pytest.raises(DeclarationError, match=why):
        ps.Isolate(**wrong)
