"""Flows under `penstock.Isolate` in the harness: their rows are those under `KeyGrouping`, whatever happens; and what users see of it."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoint.record import progress_of
from penstock.driver.inspect import view_region
from penstock.protocol.messages import Answer
from penstock.protocol.reports import WorkerReport, decode_report, encode_report
from penstock.protocol.rescale import ALL_AT_ONCE, Limits
from penstock.routing.hashing import spark_xxhash64
from penstock.routing.loads import HotKey
from penstock.serve.terminal import status_lines
from penstock.testing import Crash, Harness
from penstock.worker.task import MOST_TEXT

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
STEPS = Limits(first_bytes=500, least_bytes=200, most_bytes=4_000, hold_bytes=2_000, measure_entries=50)
REGIONS = ("mapped", "matched", "joined")


@dataclass(frozen=True)
class Hasty(ps.Isolate):
    """Decides after each round."""

    rounds: ClassVar[int] = 1


def counted(key, event, state):
    n, total, body = state or (0, 0, b"")
    return (key, n + 1, total + event.v), (n + 1, total + event.v, (body + b"x" * (event.v % 90))[:3_000])


def flow_of(out, distribute):
    flow = ps.Flow("isolated")
    schema = "k string, at timestamp, v long, id long"
    a = flow.source("a", ps.files("none", schema), time="at", lateness="5 seconds")
    b = flow.source("b", ps.files("none", schema), time="at", lateness="2 seconds")
    mapped = a.key_by("k", name="mapped", distribute=distribute)
    mapped.stateful_map(counted, "k string, n long, total long").sink(out("counted"), name="counted")
    mapped.deduplicate("v", within="20 seconds").sink(out("fresh"), name="fresh")
    mapped.window(ps.session("4 seconds")).aggregate(n=ps.count(), all=ps.collect("v")).sink(out("sessions"), name="sessions")
    matched = a.key_by("k", name="matched", distribute=distribute)
    matched.match("SELECT x, y WHERE (A AS x ; B AS y) WITHIN 8 seconds", {"A": "v < 300", "B": "v > 700"}).sink(
        out("matches"), name="matches"
    )
    left = a.key_by("k", name="joined", distribute=distribute)
    left.join(b.key_by("k", name="other", distribute=distribute), within="3 seconds").sink(out("pairs"), name="pairs")
    return flow


def records(dice, epochs):
    """Epochs in which one key or two are hot, others after a while; some epochs are empty."""
    out, number, skew, lasts = [], 0, dice.uniform(0.2, 0.95), dice.randint(2, 9)
    for epoch in range(epochs):
        hot = [f"hot{epoch // lasts}", f"warm{epoch // (2 * lasts)}"]
        rows = {"a": [], "b": []}
        for source in "ab" if dice.random() < 0.9 else "":
            for _ in range(dice.randint(0, 25)):
                key = hot[dice.random() < 0.3] if dice.random() < skew else dice.choice([None, *(f"key{n}" for n in range(20))])
                at = BEGIN + dt.timedelta(seconds=2 * epoch + dice.uniform(0, 5))
                rows[source].append({"k": key, "at": at, "v": dice.randrange(1000), "id": number})
                number += 1
        out.append(rows)
    return out


def play(data, distribute, plan=None, seed=0, **options):
    """Everything that the sinks hold in the end, and the harness's record; `plan` draws what else happens in an epoch."""
    sinks, crashes, happened = {}, [], set()

    def before(step):
        if crashes and step.startswith(crashes[0]):
            crashes.pop()
            raise Crash

    with Harness(
        flow_of(lambda n: sinks.setdefault(n, ps.memory(f"isolated.{n}")), distribute), on_step=before, **options
    ) as harness:
        dice = random.Random(seed)
        for rows in data:
            for source, part in rows.items():
                harness.push(source, part)
            commands = [*harness.copy(), *(plan(dice, harness, happened) if plan else ())]
            if plan and dice.random() < 0.25:
                crashes[:] = [dice.choice(["decide", "compute", "during", "stored", "commit"])]
            try:
                harness.epoch(*commands)
            except Crash:
                harness.restart(forget_local_state=dice.random() < 0.5)
                harness.resume()
                happened.add("crash")
            happened |= {"isolated" for r in harness.record.regions.values() if r.control.watch.own}
            happened |= {"hold" for r in harness.record.regions.values() if r.control.held}
        harness.settle()
        check_placement(harness)
        harness.finish()
        return {name: sorted(map(repr, sink.rows())) for name, sink in sinks.items()}, happened


def check_placement(harness):
    """Every entry of state is at the worker that the table names, and nowhere else."""
    for name, region in harness.record.regions.items():
        view, seen = view_region(harness.checkpoint, name), set()
        for worker in range(region.workers):
            for batch in view.rows(worker):
                if not batch.num_rows:
                    continue
                hashes = spark_xxhash64([batch.column(k) for k in view.spec.keys.names]).tolist()
                assert {region.control.routing.worker_of(h) for h in hashes} == {worker}
                assert not seen & set(hashes)
                seen |= set(hashes)


def anything(dice, harness, happened):
    """Commands: scales, moves of keys that are isolated and of others."""
    for region in REGIONS:
        control, kind = harness.record.regions[region].control if region in harness.record.regions else None, dice.random()
        if control is None or kind > 0.12:
            continue
        workers = control.goal.workers if control.goal else control.workers
        own, keys = list(control.watch.own), harness.keys(region)
        if kind < 0.05:
            happened.add("scale")
            yield {"command": "scale", "region": region, "workers": dice.randint(1, 5)}
        elif own or keys:
            chosen = dice.choice(own or keys)
            happened.add("own moved" if own else "moved")
            to = dice.choice([None, dice.randrange(workers)])
            yield {"command": "move", "region": region, "keys": [chosen], "worker": to}


def case(seed):
    """Rows under KeyGrouping, under Isolate with anything happening, and what happened."""
    dice = random.Random(seed)
    data = records(dice, 24)
    wanted, _ = play(data, ps.KeyGrouping(), workers=2)
    distribute = Hasty(dice.uniform(0.1, 0.6), dice.randint(1, 8))
    limits = dice.choice([STEPS, STEPS, ALL_AT_ONCE, Limits()])
    found, happened = play(data, distribute, anything, seed, workers=dice.randint(1, 4), limits=limits)
    return wanted, found, happened


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 80), marks=pytest.mark.soak)], ids=str)
def test_rows_when_hot_keys_are_isolated_and_anything_happens_are_those_under_key_grouping(seeds):
    happened = set()
    for seed in seeds:
        wanted, found, what = case(seed)
        assert {n: len(rows) for n, rows in found.items()} == {n: len(rows) for n, rows in wanted.items()}, f"case({seed})"
        assert found == wanted, f"case({seed})"
        assert all(wanted.values()), "each output has rows"
        happened |= what
    assert happened == {"isolated", "hold", "crash", "scale", "moved", "own moved"}


def skewed(distribute, rows_of_hot=60, **options):
    """A flow of which a key has most of the rows, after six epochs."""
    flow = ps.Flow("skewed")
    source = flow.source("s", ps.files("none", "k string, d date, v long"))
    keyed = source.key_by("k", "d", name="k", distribute=distribute)
    keyed.stateful_map(lambda k, e, s: ((k[0], (s or 0) + 1), (s or 0) + 1), "k string, n long").sink(ps.memory("skewed"))
    harness = Harness(flow, **{"workers": 4, **options})
    for epoch in range(6):
        rows = [{"k": f"key{n}", "d": dt.date(2024, 1, 1), "v": n} for n in range(40)]
        harness.push("s", rows + [{"k": "hot", "d": None, "v": epoch}] * rows_of_hot)
        harness.epoch()
    return harness


def test_progress_when_a_key_is_isolated_names_it_with_its_share_and_its_worker():
    with skewed(Hasty(rows=10)) as harness:
        progress = progress_of(harness.record)
        region = progress["regions"]["k"]
        hot = region["hot_keys"][0]
        assert (hot["key"], hot["share"], hot["isolated"]) == ("hot, null", 0.6, True)
        assert region["worker_rows"][hot["worker"]] == 60
        assert (region["pinned_keys"], region["strategy"]) == (1, "Hasty(above=0.5, rows=10)")
        assert harness.record.regions["k"].control.routing.pinned_keys == {hot["hash"]: hot["worker"]}
        lines = status_lines(progress, {"flow": "skewed", "run": 1}, alive=True, now=BEGIN)
        said = f"Hasty(above=0.5, rows=10); busiest worker {60 * 4 / 100:.2f} × the mean; key hot, null has 60% of the rows"
        assert f"region k: {said}, alone on worker {hot['worker']}" in lines
        harness.push("s", [{"k": f"key{n % 6}", "d": None, "v": 1} for n in range(54)] + [{"k": "hot", "d": None, "v": 1}] * 6)
        harness.epoch()
        cooler = progress_of(harness.record)["regions"]["k"]["hot_keys"]
        assert [k["share"] for k in cooler] == [0.15] * 5 + [0.1]
        harness.push("s", [{"k": "key1", "d": None, "v": 1}])
        harness.epoch()
        unseen = progress_of(harness.record)["regions"]["k"]["hot_keys"]
        assert [(k["key"], k["share"]) for k in unseen] == [("key1, null", 1.0), ("hot, null", 0.0)]


def test_value_of_a_hot_key_when_it_is_long_is_cut():
    flow = ps.Flow("long")
    keyed = flow.source("s", ps.files("none", "k string")).key_by("k", name="k", distribute=ps.Isolate())
    keyed.stateful_map(lambda k, e, s: ((k,), s), "k string").sink(ps.noop())
    with Harness(flow) as harness:
        harness.push("s", [{"k": "x" * MOST_TEXT}, {"k": "y" * (MOST_TEXT + 1)}])
        harness.epoch()
        shown = {k["key"] for k in progress_of(harness.record)["regions"]["k"]["hot_keys"]}
    assert shown == {"x" * MOST_TEXT, "y" * (MOST_TEXT - 1) + "…"}


def test_value_of_a_hot_key_when_it_comes_by_another_input_is_that_inputs():
    flow = ps.Flow("two inputs")
    a, b = (flow.source(n, ps.files("none", "k string, at timestamp"), time="at") for n in "ab")
    left = a.key_by("k", name="k", distribute=ps.Isolate())
    left.join(b.key_by("k", name="other", distribute=ps.Isolate()), within="3 seconds").sink(ps.noop())
    with Harness(flow) as harness:
        harness.push("a", [{"k": k, "at": BEGIN} for k in "xyz"])
        harness.push("b", [{"k": k, "at": BEGIN} for k in "pqrs"])
        harness.epoch()
        shown = harness.record.regions["k"].control.watch.texts
    assert {int(spark_xxhash64([pa.array([text])])[0]): text for text in "xyzpqrs"} == shown


def test_workers_when_nobody_asks_for_hot_keys_report_none():
    with skewed(ps.KeyGrouping()) as harness:
        region = progress_of(harness.record)["regions"]["k"]
        assert (region["hot_keys"], region["pinned_keys"], sum(region["worker_rows"])) == ((), 0, 100)
        assert not harness.record.regions["k"].control.watch.keys


def test_strategy_when_its_flow_ends_pins_nothing_more():
    with skewed(Hasty(rows=1_000)) as harness:
        harness.push("s", [{"k": "hot", "d": None, "v": 1}] * 5_000)
        assert harness.finish().regions["k"].control.goal is None


def test_isolated_keys_when_the_flow_goes_back_to_a_snapshot_are_what_they_were_then():
    with skewed(Hasty(rows=10), rows_of_hot=0) as harness:
        before = harness.snapshot("calm").regions["k"].control
        for _ in range(4):
            harness.push("s", [{"k": "hot", "d": None, "v": 1}] * 90 + [{"k": "key1", "d": None, "v": 1}] * 9)
            harness.epoch()
        harness.settle()
        assert harness.record.regions["k"].control.watch.own
        back = harness.load("calm").regions["k"].control
        assert (back.routing, back.pins, back.watch.own) == (before.routing, {}, ())


def test_report_when_the_version_before_wrote_it_names_no_hot_keys():
    report = WorkerReport(1, 2, 3, 4, {}, "", 0, 0, (), Answer(), (HotKey(5, 6, "a"),))
    raw = encode_report(report)
    assert decode_report(raw) == report
    del raw["hot"]
    assert decode_report(raw).hot == ()


def test_isolated_keys_when_another_strategy_takes_over_come_home_and_rows_are_the_same(tmp_path):
    runs = [Hasty(rows=10), ps.KeyGrouping(), Hasty(0.3, rows=5), ps.Isolate()]
    out, number, owns = ps.memory("taken over"), 0, []
    for strategy in runs:
        flow = ps.Flow("taken over")
        source = flow.source("s", ps.files("none", "k string, v long"))
        keyed = source.key_by("k", name="k", distribute=strategy)
        keyed.stateful_map(lambda k, e, s: ((k, (s or 0) + 1), (s or 0) + 1), "k string, n long").sink(out)
        with Harness(flow, workers=4, checkpoint=str(tmp_path / "checkpoint")) as harness:
            for _ in range(6):
                rows = [{"k": "hot" if n % 2 else f"key{n}", "v": n} for n in range(80)]
                harness.push("s", rows)
                harness.epoch()
                number += len(rows)
            harness.settle()
            check_placement(harness)
            control = harness.record.regions["k"].control
            owns.append(len(control.watch.own))
            assert control.pins.keys() == {*control.watch.own}
            assert (set(control.routing.owners) == {0, 1, 2, 3}) == (not owns[-1])
    assert owns[:3] == [1, 0, 1]
    assert sorted(r["n"] for r in out.rows() if r["k"] == "hot") == [*range(1, number // 2 + 1)]
