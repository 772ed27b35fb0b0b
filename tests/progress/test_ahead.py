"""Records that are too far ahead, judged all at once, are those of the rule applied record by record; and what a source with `ahead` shows of them."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import DeclarationError
from penstock.progress.ahead import in_question, is_aside, put_aside
from penstock.progress.lateness import chunks_of
from penstock.progress.source_state import PartitionState, SourceState
from penstock.testing import Harness
from penstock.types import MAX_TIME, MIN_TIME

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
TIMES = st.one_of(st.integers(0, 30), st.integers(0, 30), st.sampled_from([MIN_TIME, MIN_TIME + 1, MAX_TIME]))
ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 14), TIMES), max_size=40)


def one_by_one(rows, tops, ahead_us):
    found = []
    for part, offset, time in sorted(rows):
        top = tops.get(part, MIN_TIME)
        if top != MIN_TIME and time > top + ahead_us:
            found.append((part, offset, time))
        else:
            tops[part] = max(top, time)
    return found, tops


@settings(max_examples=1_000)
@given(
    ROWS,
    st.dictionaries(st.integers(0, 1), st.one_of(st.integers(0, 20), st.just(MIN_TIME))),
    st.sampled_from([0, 1, 5, 40, 1 << 62]),
)
def test_records_ahead_when_found_together_are_those_found_one_by_one(rows, tops, ahead_us):
    before = SourceState(partitions={str(part): PartitionState(part, latest=top) for part, top in tops.items()})
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(3)]
    part, offset, time = columns
    chunks = chunks_of(part, offset // 4, offset, time, str)
    asked, some = in_question(before, chunks, ahead_us)
    here = np.array([(p, o // 4) in asked for p, o, _ in rows], bool)
    kept, asides, number = put_aside(before, chunks, ahead_us, [c[here] for c in columns], 4)
    mask = is_aside(asides, part, offset, time)
    wanted, reached = one_by_one(rows, dict(tops), ahead_us)
    assert sorted(row for row, aside in zip(rows, mask.tolist(), strict=True) if aside) == wanted
    assert number == len(wanted)
    assert some or not wanted
    for name in {c.partition for c in kept}:
        greatest = max(c.greatest for c in kept if c.partition == name)
        assert max(tops.get(int(name), MIN_TIME), greatest) == reached[int(name)]
    assert [(c.last_offset, c.rows) for c in kept] == [
        (c.last_offset, c.rows) for c in sorted(chunks, key=lambda c: (c.partition, c.number))
    ]


def test_chunks_that_are_wholly_ahead_are_one_range_and_none_of_their_records_is_asked_for():
    before = SourceState(partitions={"0": PartitionState(0, latest=10)})
    offset = np.arange(400)
    chunks = chunks_of(offset * 0, offset // 4, offset, offset + 1_000, str)
    assert in_question(before, chunks, 5) == (set(), True)
    nothing = [np.empty(0, np.int64)] * 3
    _, asides, number = put_aside(before, chunks, 5, nothing, 4)
    assert [(a.first, a.last, a.bound) for a in asides] == [(0, 399, 15)]
    assert number == 400


class Sources:
    """A harness over counts per ten seconds of a source with `ahead="1 minute"`. Times are seconds."""

    def __init__(self, folder, **options):
        flow = ps.Flow("ahead")
        self.counts, self.late, self.far = (ps.memory(f"{folder} {name}") for name in ("counts", "late", "far"))
        source = ps.files("none", "at timestamp, v long")
        rows = flow.source("a", source, time="at", **{"ahead": "1 minute", **options})
        rows.key_by("v % 1 AS k", name="r").window(ps.tumbling("10 seconds")).aggregate(n=ps.count()).sink(self.counts)
        rows.late.sink(self.late)
        if "ahead" not in options:
            rows.ahead.sink(self.far)
        self.harness = Harness(flow)

    def epoch(self, *times, partition=0):
        rows = [{"at": BEGIN + dt.timedelta(seconds=t), "v": t} for t in times]
        if rows:
            self.harness.push("a", rows, partition)
        return self.harness.epoch()

    def of(self, sink):
        return [row["v"] for row in sink.rows()]


YEAR_2999 = 30_000_000_000


def test_one_record_of_another_century_is_put_aside_and_counted_and_nothing_else_is_late(tmp_path):
    flow = Sources(tmp_path)
    flow.epoch(1, 2, YEAR_2999, 3)
    record = flow.epoch(11, 21)
    assert [row["n"] for row in flow.counts.rows()] == [3, 1]
    assert (flow.of(flow.late), flow.of(flow.far)) == ([], [YEAR_2999])
    assert (record.sources["a"].ahead, record.sources["a"].late, record.sources["a"].rows) == (1, 0, 6)
    assert flow.harness.finish().sources["a"].partitions["0"].latest == int(BEGIN.timestamp() + 21) * 1_000_000


def test_without_ahead_one_record_of_another_century_makes_all_others_late(tmp_path):
    flow = Sources(tmp_path, ahead=None)
    flow.epoch(1, 2, YEAR_2999, 3)
    flow.epoch(11, 21)
    assert flow.of(flow.late) == [3, 11, 21]


def test_first_record_of_a_partition_is_never_ahead_and_what_comes_after_a_longer_silence_is(tmp_path):
    flow = Sources(tmp_path)
    flow.epoch(100)
    flow.epoch(1_000, partition=1)
    flow.epoch(160)
    flow.epoch(221, 250, 220)
    assert flow.of(flow.far) == [221, 250]


def test_record_is_judged_by_its_own_partition_alone(tmp_path):
    flow = Sources(tmp_path)
    flow.epoch(1, 2, partition=0)
    flow.epoch(500, 501, partition=1)
    flow.epoch(100, partition=0)
    assert flow.of(flow.far) == [100]


def test_more_time_ahead_in_changed_code_lets_a_partition_go_on_that_had_put_all_aside(tmp_path):
    sinks = [ps.memory(f"{tmp_path} {i}") for i in range(2)]
    checkpoint = str(tmp_path / "c")

    def declared(ahead):
        flow = ps.Flow("changed")
        rows = flow.source("a", ps.files("none", "at timestamp, v long"), time="at", ahead=ahead)
        rows.key_by("v % 1 AS k", name="r").stateful_map(lambda _, e, s: ((e.v,), s), "v long").sink(sinks[0], name="near")
        rows.ahead.sink(sinks[1], name="far")
        return Harness(flow, checkpoint=checkpoint)

    def push(harness, *times):
        harness.push("a", [{"at": BEGIN + dt.timedelta(seconds=t), "v": t} for t in times])
        harness.epoch()

    push(declared("1 minute"), 0, 100, 110)
    again = declared("2 minutes")
    push(again, 120, 200)
    again.finish()
    assert [[row["v"] for row in sink.rows()] for sink in sinks] == [[0, 120, 200], [100, 110]]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, r"has ahead='1 day' and no event time; declare time=, or leave ahead= out\."),
        (
            {"time": "at"},
            r"has ahead='1 day' and positions that are local to an epoch, so what is ahead would depend on epochs; declare position=, or .*\.",
        ),
    ],
)
def test_ahead_without_event_time_or_lasting_positions_is_refused(options, wrong):
    class Unsteady(type(ps.files("none", "at timestamp"))):
        steady = False

    source = (
        Unsteady("none", ps.files("none", "at timestamp").schema, "parquet") if options else ps.files("none", "at timestamp")
    )
    with pytest.raises(DeclarationError, match=f"^Source 'a' {wrong}$"):
        ps.Flow("refused").source("a", source, ahead="1 day", **options)


def test_records_ahead_of_a_source_that_puts_none_aside_are_refused():
    rows = ps.Flow("refused").source("a", ps.files("none", "at timestamp"), time="at")
    with pytest.raises(
        DeclarationError, match=r"^Only a source with ahead= has records that are ahead; use flow\.source\(.*, ahead="
    ):
        _ = rows.ahead
