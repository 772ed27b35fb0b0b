"""A recomputation over Spark that is stopped at every step, and at two, and begun again: the sinks hold what a clean run gives."""

from __future__ import annotations

import itertools

import pytest
import recomputed

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def broken(spark, tmp_path_factory):
    """A folder with a log, what a clean run gives, and sinks one epoch apart whose checkpoint is lost."""
    folder = tmp_path_factory.mktemp("broken")
    data = recomputed.records(1, 10)
    recomputed.write(folder / "in", data[:7])
    flow = recomputed.chained(folder / "in", recomputed.sqlite(folder / "half.db"), most=2)
    stop = recomputed.stop_at(("stored short", 3))
    assert (
        recomputed.run(flow, spark, folder / "lost", drain=False, on_step=stop) is None
    )  # in its third epoch, between two sinks
    recomputed.write(folder / "in", data[7:], 7)
    clean = recomputed.chained(folder / "in", recomputed.sqlite(folder / "clean.db"), most=None)
    assert recomputed.run(clean, spark, folder / "checkpoint")
    return folder


def check(broken, spark, place, *stops, forget=()):
    """Recompute until one comes to its end, stopped before at `stops`, and compare; how many of them were come to.

    Args:
        broken: The fixture.
        spark: The session.
        place: A folder of the case.
        stops: One for each attempt, see `recomputed.stop_at`.
        forget: After which attempts the checkpoint is lost again.
    """
    place.mkdir()
    recomputed.copied(broken / "half.db", place / "half.db")
    checkpoint = place / "0"
    for number, stop in enumerate([*stops, None]):
        flow = recomputed.chained(broken / "in", recomputed.sqlite(place / "half.db"), most=3 if number % 2 else None)
        hook = {} if stop is None else {"on_step": recomputed.stop_at(stop)}
        ended = recomputed.recompute(flow, spark, checkpoint, **hook)
        if ended is not None:
            break
        checkpoint = place / str(number + 1) if number in forget else checkpoint
    assert recomputed.held(place / "half.db") == recomputed.held(broken / "clean.db"), stops
    assert ended.recovery is None or not ended.recovery["active"]
    return number


def test_recomputation_when_stopped_again_and_again_gives_each_row_once(broken, spark, tmp_path):
    stops = [
        "recompute: claim",
        "recompute: claimed long",
        "recompute: log",
        "recompute: commit",
        "recompute: committed",
        "read again",
        "stored long",
        "committed",
    ]
    assert check(broken, spark, tmp_path / "case", *((name, 1) for name in stops), forget={6}) == len(stops)


@pytest.mark.soak
def test_recomputation_when_stopped_at_each_of_its_steps_gives_each_row_once(broken, spark, tmp_path):
    for at in itertools.count(1):
        if not check(broken, spark, tmp_path / str(at), at, forget={0} if at % 3 == 0 else ()):
            break
        print("stopped at step", at, flush=True)
    assert at > 45


@pytest.mark.soak
def test_recomputation_when_its_recovery_is_stopped_too_gives_each_row_once(broken, spark, tmp_path):
    cases = [(first, second) for first in (2, 6, 9, 14, 19, 25, 33) for second in (1, 5, 8, 17)]
    for first, second in cases:
        found = check(broken, spark, tmp_path / f"{first}-{second}", first, second, forget={0} if (first + second) % 2 else ())
        print("stopped at steps", first, second, found, flush=True)
        assert found == 2
