"""`penstock.skew`: what each strategy would make of a user's keys. The command is tested in ``tests/cli/test_skewed.py``."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import DeclarationError
from penstock.routing.skew import COMPARED


def hot_keys(rows=20_000):
    rng = np.random.default_rng(5)
    return np.where(rng.random(rows) < 0.5, 0, rng.integers(0, 300, rows))


def test_skew_equals_a_count_of_what_route_gives():
    keys = hot_keys()
    found = ps.skew(keys, workers=8, senders=3).set_index("strategy")
    assert list(found.index) == [f"{type(s).__name__}()" for s in COMPARED]
    senders = np.concatenate([np.arange(len(e)) % 3 for e in np.array_split(keys, 10)])
    epochs = np.concatenate([np.full(len(e), i) for i, e in enumerate(np.array_split(keys, 10))])
    for strategy in (s for s in COMPARED if s != ps.Isolate()):
        workers = ps.route(strategy, keys, workers=8, senders=senders, epochs=epochs)
        row = found.loc[f"{type(strategy).__name__}()"]
        loads = np.bincount(workers, minlength=8)
        sets = [{} for _ in range(10)]
        for key, worker, epoch in zip(keys.tolist(), workers.tolist(), epochs.tolist(), strict=True):
            sets[epoch].setdefault(key, set()).add(worker)
        common = [(a[k], b[k]) for a, b in pairwise(sets) for k in a.keys() & b.keys()]
        copies = {*zip(keys.tolist(), workers.tolist(), strict=True)}
        assert (row.max_load, row.mean_load) == (loads.max(), 2_500)
        assert row.imbalance == pytest.approx((loads.max() - 2_500) / 20_000)
        assert row.copies_per_key == pytest.approx(len(copies) / len(set(keys.tolist())))
        assert row.moved_between_epochs == pytest.approx(sum(a != b for a, b in common) / len(common))
    assert found.max_load["KeyGrouping()"] > 10_000
    assert found.max_load["Histogram()"] == 2_500


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: ps.skew([1], workers=0), "skew(workers=0): give a number from 1 on."),
        (lambda: ps.skew([1], workers=2, senders=True), "skew(senders=True): give a number from 1 on."),
        (lambda: ps.skew([1], "k", workers=2), "skew takes key= for a Spark DataFrame only"),
    ],
)
def test_skew_when_it_is_asked_wrongly_says_what_is_wanted(call, sentence):
    with pytest.raises(DeclarationError) as raised:
        call()
    assert sentence in str(raised.value)


def test_skew_when_there_are_no_keys_or_one_worker_is_balanced():
    for keys, workers in (([], 3), (["a"], 1), (["a"] * 7, 1)):
        found = ps.skew(pa.array(keys, pa.string()), workers=workers)
        assert (found.imbalance == 0).all()
        assert found.attrs["advice"] == (
            "0 rows are too few to judge 3 workers by." if workers == 3 else "With one worker nothing has to be balanced."
        )


@pytest.mark.parametrize("workers", [2, 8, 30])
def test_skew_by_isolate_is_what_it_is_once_hot_keys_have_workers_of_their_own(workers):
    rng = np.random.default_rng(2)
    drawn = rng.random(100_000)
    keys = np.select([drawn < 0.4, drawn < 0.6], [-1, -2], rng.integers(0, 20_000, 100_000))
    found = ps.skew(keys, workers=workers).set_index("strategy").loc["Isolate()"]
    alone = [n for n in (np.count_nonzero(keys == -1), np.count_nonzero(keys == -2)) if n > 100_000 / (workers + 1)]
    assert len(alone) == (1 if workers == 2 else 2)
    rest = (100_000 - sum(alone)) / (workers - len(alone))
    assert max(alone) <= found.max_load <= max(*alone, 1.1 * rest)
    assert (found.copies_per_key, found.moved_between_epochs) == (1, 0)


def test_skew_by_isolate_when_no_key_is_hot_or_rows_are_few_is_that_by_key():
    for keys in (np.arange(50_000), np.zeros(50, int), np.repeat(np.arange(12), 1_000)):
        found = ps.skew(keys, workers=3).set_index("strategy").drop(columns="fits")
        assert (found.loc["Isolate()"] == found.loc["KeyGrouping()"]).all()


def test_advice_is_the_default_unless_a_worker_has_much_more_than_the_others():
    rng = np.random.default_rng(4)
    even = rng.integers(0, 100_000, 50_000)
    enough = r"KeyGrouping\(\), the default, is enough: the busiest of 8 workers has 1\.\d\d times the mean\."
    skewed = (
        r"By key, the busiest of 8 workers has 4\.\d\d times the mean\. Aggregates whose rows Spark combines first, such as count and sum, need "
        r"nothing\. For session windows, quantile and aggregates of your own take Histogram\(\): 1\.00 times the mean, with 1\.0\d partial results "
        r"for each key\. For other steps take Isolate\(\): (3\.9|4\.0)\d times the mean, as (49|50)\.\d% of the rows have one key\."
    )
    for share, wanted in ((0.0, enough), (0.01, enough), (0.5, skewed)):
        keys = np.where(rng.random(50_000) < share, 7, even)
        assert re.fullmatch(wanted, ps.skew(keys, workers=8).attrs["advice"])
    three = ps.skew(np.repeat(np.arange(3), 1_000), workers=3).attrs["advice"]
    assert three.endswith(" For other steps take Isolate(): 1.00 times the mean.")
    unlucky = np.repeat(np.arange(12), 1_000)  # no key is hot, but a worker has too many of them
    assert re.fullmatch(
        r"By key, .* take Histogram\(\): 1\.00 times .* for each key\.", ps.skew(unlucky, workers=3).attrs["advice"]
    )
