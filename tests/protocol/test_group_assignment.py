"""Sticky assignment: within one, no more moves than there must be, and the same in every process."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from random import Random

import numpy as np
import pytest

from penstock.protocol.group.assignment import assign, moves


def fewest_moves(partitions, held):
    """The obvious, slow way: whatever the members' quotas are, each keeps as much of what it has as its quota lets it."""
    least, larger = divmod(partitions, len(held))
    most_kept = np.full(larger + 1, -1_000_000)  # by how many of the larger quotas have been given out
    most_kept[0] = 0
    for each in held.values():
        small, large = min(len(each), least), min(len(each), least + 1)
        most_kept = np.maximum(most_kept + small, np.concatenate([[-1_000_000], most_kept[:-1] + large]))
    return partitions - int(most_kept[larger])


def problems(partitions, held, shares):
    """What is wrong with an assignment."""
    sizes = [len(each) for each in shares.values()]
    found = (
        [] if sorted(p for each in shares.values() for p in each) == list(range(partitions)) else ["not each partition once"]
    )
    found += ["not within one"] if max(sizes) - min(sizes) > 1 else []
    found += ["too many moves"] if moves(held, shares) > fewest_moves(partitions, held) else []
    found += ["depends on the order"] if assign(partitions, dict(reversed(held.items()))) != shares else []
    return found


def walk(partitions, steps, seed):
    """Members join until there is one for each partition, and then join and leave at random."""
    rng = Random(seed)
    held, names = {}, (f"m{i}" for i in itertools.count())
    for step in range(partitions + steps):
        grows = step < partitions or (rng.random() < 0.5 and len(held) <= partitions + 2)
        changes = 1 if step < partitions else rng.choice([1, 1, 2, 5])
        for _ in range(changes):
            if grows or len(held) == 1:
                held = {**held, f"{rng.choice('abcxyz')}{next(names)}": ()}
            else:
                del held[rng.choice(list(held))]
        shares = assign(partitions, held)
        if found := problems(partitions, held, shares):
            return f"walk({partitions}, {steps}, {seed}) at step {step}: {found}: {held} to {shares}"
        held = shares
    return None


@pytest.mark.parametrize("seed", range(4))
def test_shares_are_within_one_and_as_few_as_possible_move_when_members_join_and_leave(seed):
    for partitions in range(1, 65):
        wrong = walk(partitions, 50, seed)
        assert wrong is None, wrong


@pytest.mark.soak
def test_shares_are_within_one_and_as_few_as_possible_move_when_thousands_join_and_leave():
    for partitions in range(1, 65):
        for seed in range(100, 105):
            wrong = walk(partitions, 1_000, seed)
            assert wrong is None, wrong


def test_no_assignment_moves_fewer_when_all_of_them_are_tried():
    for partitions, members in itertools.product(range(6), (1, 2, 3)):
        names = "abc"[:members]
        every = [dict(enumerate(owners)) for owners in itertools.product(names, repeat=partitions)]
        shared = [{n: tuple(p for p, o in owners.items() if o == n) for n in names} for owners in every]
        within = [s for s in shared if max(map(len, s.values())) - min(map(len, s.values())) <= 1]
        for owners in itertools.product([*names, "gone", ""], repeat=partitions):
            held = {n: tuple(p for p, o in enumerate(owners) if o == n) for n in names}
            fewest = min(moves(held, s) for s in within)
            assert moves(held, assign(partitions, held)) == fewest == fewest_moves(partitions, held)


@pytest.mark.parametrize(
    ("partitions", "members", "least", "most"),
    [(1_000, 50, 19, 19), (1_000, 51, 19, 20), (8, 1, 4, 4), (8, 8, 0, 0), (3, 5, 0, 0), (0, 2, 0, 0)],
)
def test_joiner_moves_its_own_share_only_when_it_joins(partitions, members, least, most):
    held = assign(partitions, {f"m{i:02}": () for i in range(members)})
    after = assign(partitions, {**held, "late": ()})
    assert least <= moves(held, after) == len(after["late"]) <= most


def test_oldest_of_51_moves_its_own_20_when_it_leaves():
    held = assign(1_000, {f"m{i:02}": () for i in range(51)})
    share = len(held.pop("m00"))
    assert moves(held, assign(1_000, held)) == share
    assert share in {19, 20}


def test_member_has_the_same_share_when_it_comes_again():
    held = assign(64, {f"m{i}": () for i in range(7)})
    assert assign(64, held) == held


def test_there_are_no_shares_when_there_is_no_member():
    assert assign(8, {}) == {}


def test_assignment_is_the_same_when_the_process_has_another_hash_seed():
    ask = "from penstock.protocol.group.assignment import assign; print(assign(37, {n: set(range(i)) if n == 'q' else () for i, n in enumerate('axbqd')}))"
    path = os.pathsep.join(sys.path)
    outputs = {
        subprocess.run(
            [sys.executable, "-c", ask], env={"PYTHONHASHSEED": salt, "PYTHONPATH": path}, capture_output=True, check=True
        ).stdout
        for salt in ("1", "2", "3")
    }
    assert len(outputs) == 1
