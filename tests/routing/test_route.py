"""`penstock.route` against the strategies written plainly, and against what is known of their balance."""

from __future__ import annotations

import decimal
import math

import numpy as np
import pyarrow as pa
import pytest
import slow_strategies as slow
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import DeclarationError
from penstock.routing.route import hashes_of

KINDS = {
    ps.PartialKeyGrouping(): slow.PartialKeyGrouping,
    ps.DChoices(): slow.HotKeys,
    ps.WChoices(): lambda n: slow.HotKeys(n, d=n),
    ps.ConsistentGrouping(): slow.ConsistentGrouping,
}
SPLITTING = [*KINDS, ps.Histogram()]
ALL = [ps.KeyGrouping(), *SPLITTING, ps.ByPartition(), ps.Shuffle(), ps.PowerOfTwoChoices()]


def zipf(z, messages, seed, keys=10_000):
    shares = np.arange(1, keys + 1) ** -float(z)
    rng = np.random.default_rng(seed)
    return rng.choice(rng.integers(0, 1 << 40, keys), messages, p=shares / shares.sum())


def imbalance(workers, n):
    loads = np.bincount(workers, minlength=n)
    return (loads.max() - loads.mean()) / max(len(workers), 1)


@st.composite
def streams(draw):
    """Keys of a few hundred to a few thousand messages, evenly or unevenly spread, with their senders and epochs."""
    messages = draw(st.sampled_from([0, 1, 2, 50, 700, 5_000, 9_000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    keys = draw(st.sampled_from([1, 2, 30, 1_000]))
    shares = np.arange(1, keys + 1) ** -draw(st.sampled_from([0.0, 0.8, 1.5, 3.0]))
    names = rng.integers(-(2**63), 2**63 - 1, keys)
    senders = rng.integers(-1, draw(st.integers(0, 3)), messages)
    epochs = rng.integers(0, draw(st.integers(1, 4)), messages)
    return rng.choice(names, messages, p=shares / shares.sum()), senders, epochs


@pytest.mark.parametrize("strategy", KINDS, ids=lambda s: type(s).__name__)
@settings(max_examples=25, deadline=None)
@given(stream=streams(), n=st.sampled_from([1, 2, 3, 7, 20]))
def test_route_when_messages_come_one_by_one_equals_the_plain_algorithm(strategy, stream, n):
    keys, senders, epochs = stream
    plain = {sender: KINDS[strategy](n) for sender in senders.tolist()}
    hashes = hashes_of(keys).tolist()
    wanted = np.zeros(len(keys), np.int32)
    for at in np.argsort(epochs, kind="stable").tolist():
        wanted[at] = plain[senders[at]](hashes[at])
    assert ps.route(strategy, keys, workers=n, senders=senders, epochs=epochs).tolist() == wanted.tolist()


@settings(max_examples=100, deadline=None)
@given(stream=streams(), n=st.sampled_from([1, 2, 3, 7, 20]), slack=st.sampled_from([0.0, 0.1, 5.0]))
def test_route_by_histogram_equals_the_plain_algorithm_epoch_by_epoch(stream, n, slack):
    keys, senders, epochs = stream
    routed = ps.route(ps.Histogram(slack), keys, workers=n, senders=senders, epochs=epochs)
    hashes = hashes_of(keys)
    for epoch in np.unique(epochs):
        rows = np.flatnonzero(epochs == epoch)
        rows = rows[np.argsort(senders[rows], kind="stable")]
        assert routed[rows].tolist() == slow.histogram(hashes[rows].tolist(), n, slack)


@settings(max_examples=50, deadline=None)
@given(stream=streams(), n=st.sampled_from([1, 2, 3, 7]))
def test_route_when_keys_do_not_matter_equals_the_plain_algorithm(stream, n):
    keys, senders, epochs = stream
    order = np.argsort(epochs, kind="stable")
    names = np.unique(senders).tolist()
    drawn = {sender: slow.PowerOfTwoChoices(n, sender) for sender in names}
    wanted = [drawn[sender](None) for sender in senders[order].tolist()]
    assert ps.route(ps.PowerOfTwoChoices(), keys, workers=n, senders=senders, epochs=epochs)[order].tolist() == wanted
    turns = {sender: sender for sender in names}
    for at, worker in zip(order, ps.route(ps.Shuffle(), keys, workers=n, senders=senders, epochs=epochs)[order], strict=True):
        assert worker == turns[senders[at]] % n
        turns[senders[at]] += 1
    assert (ps.route(ps.ByPartition(), keys, workers=n, senders=senders, epochs=epochs) == senders % n).all()


@settings(max_examples=60, deadline=None)
@given(stream=streams(), n=st.sampled_from([1, 2, 3, 20]), cut=st.floats(0, 1))
@example(stream=(np.zeros(4_000, np.int64), np.zeros(4_000, np.int64), np.zeros(4_000, np.int64)), n=2, cut=0.5)
def test_route_when_an_epoch_is_cut_in_two_or_senders_are_mixed_otherwise_is_the_same(stream, n, cut):
    keys, senders, _ = stream
    epochs = (np.arange(len(keys)) >= cut * len(keys)).astype(int)
    by_sender = np.argsort(senders, kind="stable")
    for strategy in [*KINDS, ps.KeyGrouping(), ps.ByPartition(), ps.Shuffle(), ps.PowerOfTwoChoices()]:
        routed = ps.route(strategy, keys, workers=n, senders=senders)
        assert (ps.route(strategy, keys, workers=n, senders=senders, epochs=epochs) == routed).all()
        assert (ps.route(strategy, keys[by_sender], workers=n, senders=senders[by_sender]) == routed[by_sender]).all()
        assert routed.dtype == np.int32
        assert ((routed >= 0) & (routed < n)).all()


MESSAGES = 500_000
GRID = [(z, n) for z in (0.4, 0.8, 1.2, 1.6, 2.0) for n in (5, 10, 50, 100)]


@pytest.fixture(scope="module")
def balance():
    """Imbalance by (strategy, z, n), of messages from five senders."""
    found = {}
    senders = np.arange(MESSAGES) % 5
    for z in {z for z, _ in GRID}:
        keys = zipf(z, MESSAGES, 7)
        for n in {n for _, n in GRID}:
            for strategy in [ps.KeyGrouping(), *SPLITTING]:
                found[strategy, z, n] = imbalance(ps.route(strategy, keys, workers=n, senders=senders), n)
    return found


def share(z):
    return 1 / (np.arange(1, 10_001) ** -float(z)).sum()


@pytest.mark.parametrize(("z", "n"), GRID)
def test_imbalance_is_what_is_known_of_each_strategy(z, n, balance):
    p1 = share(z)
    noise = 3 / math.sqrt(MESSAGES)
    assert balance[ps.KeyGrouping(), z, n] >= p1 - 1 / n - noise
    bound = p1 / 2 - 1 / n
    if bound > 0.01:
        assert balance[ps.PartialKeyGrouping(), z, n] >= bound - noise
    if bound > 0.1:  # then nothing but the hottest key decides
        assert balance[ps.PartialKeyGrouping(), z, n] <= bound + 0.01
    assert balance[ps.WChoices(), z, n] <= (2 * 5 + 10) / MESSAGES
    assert balance[ps.ConsistentGrouping(), z, n] <= 0.01 / n + 10 * 5 / MESSAGES
    assert balance[ps.Histogram(), z, n] <= 1 / MESSAGES
    if n >= 50:
        assert balance[ps.DChoices(), z, n] <= 1e-3


def test_imbalance_of_d_choices_with_many_workers_is_what_it_aims_at_in_the_median(balance):
    assert np.median([balance[ps.DChoices(), z, n] for z, n in GRID if n >= 50]) <= 1e-4


@pytest.mark.parametrize("strategy", [ps.DChoices(), ps.WChoices()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(("z", "n"), [(1.2, 50), (1.6, 100), (2.0, 100)])
def test_imbalance_when_other_keys_become_hot_is_soon_as_if_they_had_always_been(strategy, z, n):
    messages = 2_000_000
    keys, others = zipf(z, messages, 1), zipf(z, messages, 2)  # the same shares, other names
    last = messages // 4

    def of_last_window(*parts):
        return imbalance(ps.route(strategy, np.concatenate(parts), workers=n)[-last:], n)

    stays = max(of_last_window(keys, keys), of_last_window(others, others))
    assert of_last_window(keys, others) <= 2 * stays + 1e-4


def test_routes_of_histogram_when_keys_are_skewed_make_few_copies_of_state():
    for z in (0.8, 1.2, 1.6, 2.0):
        keys = zipf(z, 10_000, 3)
        pairs = {*zip(keys.tolist(), ps.route(ps.Histogram(), keys, workers=5).tolist(), strict=True)}
        assert len(pairs) / len(set(keys.tolist())) <= 1.06


VALUES = [
    pa.array([0.0, -0.0, float("nan"), -float("nan"), None, 1.5]),
    pa.array(["a", None, "", "ä"]),
    pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-0.01")], pa.decimal128(38, 2)),
    pa.array([0, None, -1], pa.timestamp("us", "UTC")),
    pa.array([True, False, None]),
]


@pytest.mark.parametrize("keys", VALUES, ids=lambda a: str(a.type))
def test_route_when_keys_are_of_any_type_sends_equal_keys_to_one_worker_and_takes_columns_of_several(keys):
    doubled = pa.concat_arrays([keys, keys])
    routed = ps.route(ps.KeyGrouping(), doubled, workers=7)
    assert (routed[: len(keys)] == routed[len(keys) :]).all()
    if pa.types.is_floating(keys.type):
        assert routed[0] == routed[1]
        assert routed[2] == routed[3]
    both = pa.RecordBatch.from_arrays([doubled, doubled], names=["a", "b"])
    for strategy in ALL:
        of_struct = ps.route(strategy, pa.StructArray.from_arrays(both.columns, both.schema.names), workers=7)
        assert (of_struct == ps.route(strategy, both, workers=7)).all()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: ps.route("Histogram", [1], workers=2), "route needs a distribution strategy, such as ps.Histogram(), not 'Histogram'."),
        (lambda: ps.route(ps.Shuffle(), [1], workers=0), "route(workers=0): give a number of workers from 1 on."),
        (lambda: ps.route(ps.Shuffle(), [1, 2], workers=2, senders=[1]), "route(senders=...) needs an array of 2 integers"),
        (lambda: ps.route(ps.Shuffle(), [1, 2], workers=2, epochs=[0.5, 1]), "route(epochs=...) needs an array of 2 integers"),
        (lambda: ps.route(ps.Shuffle(), [[1]], workers=2), "A key column cannot be of type list<item: int64>"),
        (lambda: ps.route(ps.Shuffle(), [1, "a"], workers=2), "These keys cannot be read as an array"),
        (lambda: ps.WChoices(theta=0), "WChoices(theta=0): give a number between 0 and 1."),
        (lambda: ps.DChoices(epsilon=2), "DChoices(epsilon=2): give a number between 0 and 1."),
        (lambda: ps.ConsistentGrouping(virtual=0), "ConsistentGrouping(virtual=0): give a number from 1 to 1000."),
        (lambda: ps.Histogram(slack=-1), "Histogram(slack=-1): give a number from 0 on."),
        (lambda: ps.Histogram(slack="1%"), "Histogram(slack='1%'): give a number from 0 on."),
        (lambda: ps.WChoices(theta="1%"), "WChoices(theta='1%'): give a number between 0 and 1."),
        (lambda: ps.Isolate(above="half"), "Isolate(above='half'): give a number between 0 and 1."),
        (lambda: ps.Isolate(rows="many"), "Isolate(rows='many'): give a number of rows, 1 or more."),
        (lambda: ps.Histogram(slack=float("nan")), "Histogram(slack=nan): give a number from 0 on."),
    ],
)  # fmt: skip
def test_route_when_it_is_asked_wrongly_says_what_is_wanted(call, sentence):
    with pytest.raises(DeclarationError) as raised:
        call()
    assert sentence in str(raised.value)


def steps_for_whole_keys(flow, strategy):
    """Steps that cannot work on a part of a key's rows, to be declared one by one."""
    source, other = (flow.source(name, ps.files(name, "k string, at timestamp, v long"), time="at") for name in "st")
    stream = source.key_by("k", distribute=strategy)
    return [
        lambda: stream.stateful_map(lambda k, e, s: (None, s), "v long"),
        lambda: stream.deduplicate("v"),
        lambda: stream.match("SELECT * FROM S WHERE A ; B", define={"A": "v = 1", "B": "v = 2"}),
        lambda: stream.join(other.key_by("k", name="other"), within="1 minute"),
        lambda: stream.process(ps.Operator()),
    ]


NOT_FOR_PARTS = r"cannot work on a part of a key's rows, and .* divides them .*Isolate\(\)"


@pytest.mark.parametrize("strategy", SPLITTING, ids=lambda s: type(s).__name__)
def test_step_that_does_not_merge_when_the_strategy_splits_keys_is_refused(strategy):
    for step in steps_for_whole_keys(ps.Flow("f"), strategy):
        with pytest.raises(DeclarationError, match=NOT_FOR_PARTS):
            step()


@pytest.mark.parametrize("which", range(5))
def test_step_that_does_not_merge_by_partition_is_refused_when_the_flow_starts_outside_of_a_group(which):
    flow = ps.Flow("f")
    steps_for_whole_keys(flow, ps.ByPartition())[which]().sink(ps.noop())
    with pytest.raises(DeclarationError, match=NOT_FOR_PARTS):
        flow.plan()


@pytest.mark.parametrize("strategy", [ps.Shuffle(), ps.PowerOfTwoChoices()], ids=lambda s: type(s).__name__)
def test_key_by_when_the_strategy_knows_no_keys_is_refused(strategy):
    flow = ps.Flow("f")
    with pytest.raises(DeclarationError, match=r"that is for steps without state"):
        flow.source("s", ps.files("in", "k string")).key_by("k", distribute=strategy)
