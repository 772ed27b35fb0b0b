"""What was removed before it was read: every such entry is noticed, and no other, whatever removes it and whenever.

The reader is that of Spark's source, called here without Spark. The oracle knows every entry ever added and every one that was removed.
"""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import RecordError
from penstock.redis_client.stream_log import Gap, Position, Stream, begin, gap
from penstock.spark.sources.redis_streams import EntryReader

_names = itertools.count()

ADD = st.tuples(st.just("add"), st.integers(1, 6))
READ = st.tuples(st.just("read"), st.sampled_from(["", "again", "trim between"]))
TRIM = st.tuples(st.just("trim"), st.integers(0, 5))
DELETE = st.tuples(st.just("delete"), st.integers(0, 30))
ANEW = st.tuples(st.just("anew"), st.integers(0, 3))
STEPS = st.lists(st.one_of(ADD, ADD, READ, READ, TRIM, DELETE, ANEW), min_size=2, max_size=14)


class Log:
    """A partition on the server, and what an oracle knows of it."""

    def __init__(self, client, url, most, on_trim):
        self.name = f"gaps {next(_names)}"
        self.client, self.key, self.values = client, f"{{{self.name}:0}}", itertools.count()
        source = ps.redis_streams(url, self.name, 1, "v long", max_rows_per_epoch=most, on_trim=on_trim)
        self.reader = EntryReader(source)
        self.there, self.unread, self.lost, self.read, self.begun = {}, set(), set(), [], False

    def add(self, n):
        for _ in range(n):
            v = next(self.values)
            self.there[self.client.xadd(self.key, {"v": v})] = v
            self.unread.add(v)

    def gone(self, entries):
        for entry in entries:
            v = self.there.pop(entry)
            if v in self.unread:
                self.unread.remove(v)
                self.lost.add(v)

    def trim(self, n):
        ids = sorted(self.there, key=lambda e: tuple(map(int, e.split(b"-"))))
        self.client.xtrim(self.key, maxlen=n, approximate=False)
        self.gone(ids[: max(0, len(ids) - n)])

    def delete(self, which):
        if self.there:
            entry = sorted(self.there)[which % len(self.there)]
            self.client.xdel(self.key, entry)
            self.gone([entry])

    def epoch(self, start, end):
        found = []
        for part in self.reader.partitions(start, end):
            for batch in self.reader.read(part):
                found += [tuple(row.values()) for row in batch.select(["v", "__ps_corrupt"]).to_pylist()]
        return found


def run(client, url, steps, most, on_trim):
    """Runs the steps; gives the log, and the error that ended it."""
    log = Log(client, url, most, on_trim)
    at = json.loads(json.dumps(log.reader.initialOffset()))
    try:
        for step, how in [*steps, ("read", ""), ("read", "until the end")]:
            if step == "add":
                log.add(how)
            elif step == "trim":
                log.trim(how)
            elif step == "delete":
                log.delete(how)
            elif step == "anew":
                existed = bool(client.delete(log.key))
                log.anew = existed
                log.gone(list(log.there))
                log.add(how)
                if existed:
                    return log, "anew", at
            else:
                while True:
                    end = json.loads(json.dumps(log.reader.latestOffset(at, None)))
                    if end == at:
                        break
                    if how == "trim between":
                        log.trim(2)
                    found = log.epoch(at, end)
                    if how == "again":
                        assert log.epoch(at, end) == found
                    at = end
                    values = [v for v, _ in found if v is not None]
                    log.read += values
                    log.unread -= set(values)
                    if how != "until the end":
                        break
    except RecordError as error:
        return log, str(error), at
    return log, None, at


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(STEPS, st.sampled_from([1, 3, 100]))
@example([("add", 1), ("add", 1), ("read", ""), ("delete", 1)], 1)  # the last entries are gone
@example([("add", 6), ("read", ""), *[("delete", 5 - n) for n in range(5)]], 1)
def test_flow_stops_exactly_if_an_entry_was_removed_before_it_was_read(redis_url, client, steps, most):
    log, error, _ = run(client, redis_url, steps, most, "fail")
    if error == "anew":
        return
    assert log.read == sorted(set(log.read)), "each entry once, in order"
    if error is None:
        assert not log.lost, "an entry is missing, and nobody has noticed"
        assert not log.unread
    else:
        assert log.lost, error
        assert "Partition 0 of stream" in error
        assert 'declare on_trim="skip"' in error


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(STEPS, st.sampled_from([1, 3, 100]))
def test_flow_that_skips_reads_all_that_is_left(redis_url, client, steps, most):
    log, error, _ = run(client, redis_url, steps, most, "skip")
    if error == "anew":
        return
    assert error is None
    assert not log.unread
    assert log.read == sorted(set(log.read))


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(STEPS, st.sampled_from([3, 100]), st.sampled_from(["fail", "skip"]))
def test_stream_that_was_deleted_and_created_anew_is_never_read_on(redis_url, client, steps, most, on_trim):
    log, error, at = run(
        client, redis_url, [s for s in steps if s[0] in ("add", "read")] + [("read", ""), ("anew", 2)], most, on_trim
    )
    if error != "anew" or not log.read:
        return
    before = Position.from_json(at["0"]).added
    with pytest.raises(RecordError, match=r"start this flow anew, with another checkpoint and empty sinks|has lost"):
        log.epoch(at, log.reader.latestOffset(at, None))
    assert before


@pytest.mark.parametrize(
    ("position", "stream", "there", "found"),
    [
        # a server that does not count: 6.2
        (Position((5, 0), None, None), Stream((5, 0), (9, 0), (9, 0), 3, None, None), True, None),
        (Position((5, 0), None, None), Stream((4, 0), (9, 0), (9, 0), 3, None, None), True, None),
        (
            Position((5, 0), None, None),
            Stream((6, 0), (9, 0), (9, 0), 3, None, None),
            False,
            "lacks entry 5-0, and perhaps more",
        ),
        (Position((5, 0), None, None), Stream((4, 0), (9, 0), (9, 0), 3, None, None), False, None),
        (Position((9, 0), None, None), Stream(None, None, (9, 0), 0, None, None), False, None),
        # one that counts
        (Position((5, 0), 10, 0), Stream((6, 0), (9, 0), (9, 0), 3, 13, (0, 0)), False, None),
        (
            Position((5, 0), 10, 0),
            Stream((7, 0), (9, 0), (9, 0), 2, 13, (0, 0)),
            False,
            "has lost 1 entries that were not read: the first one there is 7-0",
        ),
        (Position((5, 0), 10, 0), Stream((6, 0), (9, 0), (9, 0), 4, 13, (0, 0)), False, "created anew"),
        (Position((5, 0), 10, 0), Stream((4, 0), (9, 0), (9, 0), 4, 13, (0, 0)), False, "does not have entry 5-0"),
        (Position((5, 0), 10, 0), Stream((4, 0), (9, 0), (9, 0), 4, 13, (5, 0)), False, None),
        (Position((5, 0), 10, 0), Stream((1, 0), (4, 0), (4, 0), 4, 4, (0, 0)), False, "was given no entry after 4-0"),
        (
            Position((5, 0), 10, 0),
            Stream(None, None, (9, 0), 0, 12, (0, 0)),
            False,
            "has lost 2 entries that were not read: there is none",
        ),
        (Position((5, 0), 10, 0), None, False, "is gone"),
        (begin(None), None, False, None),
    ],
)
def test_gap_is_told_from_what_the_server_says(position, stream, there, found):
    told = gap(position, stream, there=there)
    if found is None:
        assert told is None
    else:
        assert isinstance(told, Gap)
        assert found in told.sentence


def test_first_epoch_that_runs_again_after_a_trim_is_refused_also_in_another_process(redis_url, client, stream):
    source = ps.redis_streams(redis_url, stream, 1, "v long")
    ids = [client.xadd(f"{{{stream}:0}}", {"v": v}) for v in range(5)]
    client.xtrim(f"{{{stream}:0}}", minid=ids[1], approximate=False)
    first = EntryReader(source)
    start = first.initialOffset()
    end = first.latestOffset(start, None)
    client.xtrim(f"{{{stream}:0}}", minid=ids[2], approximate=False)
    second = EntryReader(source)
    (part,) = second.partitions(second.initialOffset(), end)
    with pytest.raises(RecordError, match=r"read up to entry 0-0, lacks 1 of 4 entries"):
        list(second.read(part))


def test_number_of_partitions_that_others_have_settled_on_holds(redis_url, stream):
    ps.Producer(redis_url, stream, 3).close()
    with pytest.raises(RecordError, match="has 3 partitions, and 2 are declared: declare 3"):
        ps.redis_streams(redis_url, stream, 2, "v long").records({})
    with pytest.raises(RecordError, match="has 3 partitions, and 4 are declared"):
        EntryReader(ps.redis_streams(redis_url, stream, 4, "v long")).initialOffset()
    assert ps.redis_streams(redis_url, stream, 3, "v long").records({}) is None


def test_available_now_reads_what_there_was_when_it_began(redis_url, client, stream):
    def add(*values):
        for v in values:
            client.xadd(f"{{{stream}:0}}", {"v": v})

    reader = EntryReader(ps.redis_streams(redis_url, stream, 1, "v long", max_rows_per_epoch=2))
    at, read = reader.initialOffset(), []
    add(1, 2, 3)
    reader.prepareForTriggerAvailableNow()
    while True:
        add(9)
        end = reader.latestOffset(at, None)
        if end == at:
            break
        (part,) = reader.partitions(at, end)
        read.append([v for batch in reader.read(part) for v in batch.column("v").to_pylist()])
        at = end
    assert read == [[1, 2], [3]]
