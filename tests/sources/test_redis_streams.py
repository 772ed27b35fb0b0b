"""`penstock.redis_streams` in this process, from a real server: what is read, what is refused, what is malformed."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import DeclarationError, RecordError
from penstock.redis_client.connection import connect
from penstock.testing import Harness
from servers import KINDS, url_of, valkey

SCHEMA = "k string, v long"


def key(stream, partition):
    return f"{{{stream}:{partition}}}"


def add(client, stream, partition, *rows, entry="*"):
    return [client.xadd(key(stream, partition), row, id=entry).decode() for row in rows]


def flow_of(source, name, **options):
    flow = ps.Flow("read")
    kept = ps.memory(name)
    flow.source("orders", source, **options).sink(kept)
    return flow, kept


@pytest.mark.parametrize("kind", KINDS)
def test_entries_of_all_partitions_are_read_once_and_later_ones_in_the_next_epoch(stream, kind):
    with valkey(kind=kind) as server:
        entries_are_read_once(url_of(server), stream)


def entries_are_read_once(url, stream):
    flow, kept = flow_of(ps.redis_streams(url, stream, 2, SCHEMA), f"{stream} {url}")
    client = connect(url)
    with Harness(flow) as harness:
        harness.epoch()  # nothing is there yet
        add(client, stream, 0, {"k": "a", "v": 1}, {"k": "b", "v": 2})
        add(client, stream, 1, {"k": "ö", "v": -3})
        harness.epoch()
        assert sorted(row["v"] for row in kept.rows()) == [-3, 1, 2]
        harness.restart()
        add(client, stream, 1, {"v": 4})
        harness.epoch()
        harness.epoch()
    assert sorted((row["v"], row["k"]) for row in kept.rows()) == [(-3, "ö"), (1, "a"), (2, "b"), (4, None)]
    states = harness.record.sources["orders"].partitions
    assert {n: state.part for n, state in states.items()} in ({}, {"0": 0, "1": 1})


def test_only_reads_one_partition_under_its_own_number(redis_url, client, stream):
    source = ps.redis_streams(redis_url, stream, 3, "k string, v long, at timestamp")
    for partition in range(3):
        add(client, stream, partition, {"k": "a", "v": partition, "at": f"2024-01-01 00:00:0{partition}Z"})
    flow, kept = flow_of(source.only(2), stream, time="at")
    with Harness(flow) as harness:
        harness.epoch()
        assert list(harness.record.sources["orders"].partitions) == ["2"]
        assert harness.record.sources["orders"].partitions["2"].part == 2
    assert [row["v"] for row in kept.rows()] == [2]
    with pytest.raises(DeclarationError, match="has partitions 0 to 2, not 3"):
        source.only(3)


def test_an_epoch_reads_at_most_the_share_of_each_partition(redis_url, client, stream):
    add(client, stream, 0, *({"k": "a", "v": v} for v in range(25)))
    add(client, stream, 1, {"k": "b", "v": 100})
    flow, kept = flow_of(ps.redis_streams(redis_url, stream, 2, SCHEMA, max_rows_per_epoch=20), stream)
    read = []
    with Harness(flow) as harness:
        for _ in range(4):
            harness.epoch()
            read.append(len(kept.rows()))
    assert read == [11, 21, 26, 26]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"k": b"\xff", "v": "1"}, r"its field 'k' is '\\\\xff', which is no string"),
        ({"v": "1.5"}, r"its field 'v' is '1.5', which is no int64"),
        ({"v": "0x1F"}, "its field 'v' is '0x1F', which is no int64"),
        ({"v": str(2**63)}, "which is no int64"),
        ({"v": "1", "w": "2"}, "it has a field 'w', and there is no such column"),
    ],
)
def test_malformed_entry_stops_the_flow_or_is_kept_with_partition_and_id(redis_url, client, stream, fields, why):
    add(client, stream, 1, {"k": "a", "v": 1})
    (entry,) = add(client, stream, 1, fields)
    source = ps.redis_streams(redis_url, stream, 2, SCHEMA)
    flow, kept = flow_of(source, f"{stream} stops")
    with Harness(flow) as harness, pytest.raises(RecordError, match=rf"1 @ {entry}: .*{why}"):
        harness.epoch()
    bad = ps.memory(f"{stream} bad")
    flow, kept = flow_of(source, f"{stream} keeps", on_error=bad)
    with Harness(flow) as harness:
        harness.epoch()
    assert [row["v"] for row in kept.rows()] == [1]
    ((source_name, position, error),) = [(row["source"], row["position"], row["error"]) for row in bad.rows()]
    assert (source_name, position, error) == ("orders", f"1 @ {entry}", "malformed")


def test_other_fields_are_passed_over_if_so_declared(redis_url, client, stream):
    add(client, stream, 0, {"k": "a", "v": 1, "w": b"\xff"})
    flow, kept = flow_of(ps.redis_streams(redis_url, stream, 1, SCHEMA, other_fields="ignore"), stream)
    with Harness(flow) as harness:
        harness.epoch()
    assert kept.rows() == [{"k": "a", "v": 1}]


def test_id_that_is_no_position_is_refused_and_not_wrapped(redis_url, client, stream):
    flow, kept = flow_of(ps.redis_streams(redis_url, stream, 1, SCHEMA), stream)
    with Harness(flow) as harness:
        add(client, stream, 0, {"k": "a", "v": 1}, entry=f"5-{2**20 - 1}")
        harness.epoch()
        add(client, stream, 0, {"k": "a", "v": 2}, entry=f"5-{2**20}")
        with pytest.raises(RecordError, match=rf"Entry 5-{2**20} of stream \{{{stream}:0\}} has an id that is no position"):
            harness.epoch()
        add(client, stream, 0, {"k": "a", "v": 2}, entry=f"{2**43}-0")
        with pytest.raises(RecordError, match=rf"Entry {2**43}-0 of"):
            harness.epoch()
    assert [row["v"] for row in kept.rows()] == [1]


def test_server_that_is_not_there_is_named(stream):
    flow, _ = flow_of(ps.redis_streams("redis://:secret@127.0.0.1:1", stream, 1, SCHEMA), stream)
    with Harness(flow) as harness, pytest.raises(RecordError, match=r"Reading stream .* failed at redis://:…@127.0.0.1:1"):
        harness.epoch()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": "localhost"}, "is no address of a Redis server"),
        ({"stream": ""}, "must be text"),
        ({"stream": "a{b"}, "has a brace in its name"),
        ({"partitions": 0}, "partitions of redis_streams must be a whole number from 1, not 0"),
        ({"max_rows_per_epoch": 0}, "max_rows_per_epoch of redis_streams must be a whole number"),
        ({"on_trim": "count"}, 'use "fail" or "skip"'),
        ({"other_fields": "keep"}, 'use "malformed" or "ignore"'),
    ],
)
def test_redis_streams_when_an_argument_is_none_is_refused(change, said):
    given = {"url": "redis://localhost", "stream": "orders", "partitions": 2, "schema": SCHEMA}
    with pytest.raises(DeclarationError, match=said):
        ps.redis_streams(**{**given, **change})
