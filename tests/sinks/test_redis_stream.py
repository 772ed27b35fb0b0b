"""`penstock.redis_stream` beyond the contract: partitions, round trip of all types, what is refused, servers that stop."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sys
import threading
import time

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

import penstock as ps
from penstock.errors import DeclarationError, FencedError, SinkError
from penstock.redis_client.connection import connect
from servers import KINDS, url_of, valkey

_names = itertools.count()


@pytest.fixture
def name():
    return f"kept {next(_names)}"


def opened(url, name, make, partitions=1, run=1, schema=None, **options):
    sink = ps.redis_stream(url, name, partitions, **options)
    sink.open(make.mark(-1, run=run), schema or make.schema)
    return sink


def read(url, name, partitions, schema):
    """What `redis_streams` reads, in the order of partitions."""
    table = ps.redis_streams(url, name, partitions, schema, max_rows_per_epoch=10_000_000).records({})
    return [] if table is None else table.select(schema.names).to_pylist()


def lengths(url, name, partitions):
    return [connect(url).xlen(f"{{{name}:{p}}}") for p in range(partitions)]


# -- every type, through a real server

PLAIN = [
    pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"),
    pa.timestamp("us", "UTC"), pa.decimal128(38, 5), pa.list_(pa.string()), pa.map_(pa.int64(), pa.string()),
    pa.struct([("a", pa.binary()), ("b", pa.float64())]),
]  # fmt: skip


def of_kind(kind):
    from penstock.redis_client.values import countable

    t = pa.types
    if t.is_decimal128(kind):
        return st.decimals(-(10**20), 10**20, places=kind.scale)
    if t.is_struct(kind):
        return st.fixed_dictionaries({"a": st.binary(max_size=3), "b": st.floats(allow_nan=False)})
    if t.is_map(kind):
        return st.dictionaries(st.integers(-9, 9), st.text(st.characters(codec="utf-8"), max_size=3), max_size=2).map(
            lambda d: list(d.items())
        )
    if t.is_list(kind):
        return st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=3)
    if t.is_string(kind):
        return st.text(st.characters(codec="utf-8"), max_size=40)
    if t.is_binary(kind):
        return st.binary(max_size=40)
    if t.is_boolean(kind):
        return st.booleans()
    if t.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    edge = 2 ** (countable(kind).bit_width - 1)
    return st.one_of(st.sampled_from([edge - 1, -edge]), st.integers(-edge, edge - 1))


@st.composite
def tables(draw):
    from penstock.redis_client.values import countable

    kinds = draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=5))
    rows = draw(st.integers(0, 6))
    columns = [
        pa.array([draw(st.one_of(st.none(), of_kind(kind))) for _ in range(rows)], countable(kind)).cast(kind) for kind in kinds
    ]
    return pa.RecordBatch.from_arrays(columns, names=[f"c {i}" for i in range(len(kinds))])


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(tables())
def test_rows_of_every_type_come_back_from_the_stream_as_they_were(redis_url, make, batch):
    name = f"kept {next(_names)}"
    sink = opened(redis_url, name, make, schema=batch.schema)
    assert sink.write([batch], make.mark(0)) == batch.num_rows
    table = ps.redis_streams(redis_url, name, 1, batch.schema).records({})
    assert (table.num_rows if table is not None else 0) == batch.num_rows
    if table is not None:
        assert table.column("__ps_corrupt").null_count == batch.num_rows
        got = table.select(batch.schema.names).combine_chunks().to_batches()[0]
        assert got.equals(batch) or repr(got.to_pydict()) == repr(batch.to_pydict())


# -- partitions


def test_rows_of_one_key_are_in_one_partition_in_order_where_a_producer_would_put_them(redis_url, name, make):
    import xxhash

    sink = opened(redis_url, name, make, 4, key="word")
    rows = [(n, None if n % 7 == 0 else f"k{n % 5}") for n in range(200)]
    sink.write([make.batch(*rows[:90]), make.batch(*rows[90:])], make.mark(0))
    client = connect(redis_url)
    for p in range(4):
        found = [f for _, f in client.xrange(f"{{{name}:{p}}}")]
        assert [int(f[b"n"]) for f in found] == [
            n for n, word in rows if xxhash.xxh64_intdigest((word or "").encode()) % 4 == p
        ]
    assert sum(lengths(redis_url, name, 4)) == 200


def test_rows_without_a_key_are_spread_evenly(redis_url, name, make):
    sink = opened(redis_url, name, make, 3)
    for epoch in range(6):
        sink.write([make.batch((epoch, "a"))], make.mark(epoch))
    sink.write([make.batch(*((n, None) for n in range(21)))], make.mark(6))
    assert lengths(redis_url, name, 3) == [9, 9, 9]


def test_epoch_of_several_blocks_is_stored_whole_and_once(redis_url, name, make):
    sink = opened(redis_url, name, make, 2)
    rows = make.batch(*((n, "x" * (n % 40)) for n in range(25_000)))
    assert sink.write([rows, rows.slice(0, 3)], make.mark(0)) == 25_003
    assert sum(lengths(redis_url, name, 2)) == 25_003
    assert sink.write([rows], make.mark(0)) == 0
    assert sorted(row["n"] for row in read(redis_url, name, 2, make.schema)) == sorted([*range(25_000), 0, 1, 2])


# -- all or nothing


@pytest.mark.parametrize("spoilt", ["list", "no room"])
def test_partition_that_cannot_be_added_to_leaves_all_others_as_they_were(spoilt, redis_url, name, make):
    sink, client = opened(redis_url, name, make, 3), connect(redis_url)
    if spoilt == "list":
        client.rpush(f"{{{name}:2}}", "a")
    else:
        client.xadd(f"{{{name}:2}}", {"a": "b"}, id=f"{2**64 - 1}-{2**64 - 1}")
    said = "is a list, not a stream" if spoilt == "list" else "behind which there is no room"
    with pytest.raises(SinkError, match=rf"could not store epoch 0: \{{{name}:2\}} .*{said}"):
        sink.write([make.batch((1, "a"), (2, "b"), (3, "c"))], make.mark(0))
    assert lengths(redis_url, name, 2) == [0, 0]
    assert sink.held("out") is None
    with pytest.raises(SinkError, match=said):
        opened(redis_url, name, make, 3, run=2)


def test_user_who_may_not_add_is_refused_and_nothing_is_changed(redis_url, name, make):
    client = connect(redis_url)
    client.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], categories=["+@all"], commands=["-xadd"])
    url = redis_url.replace("redis://", "redis://reader:x@")
    with pytest.raises(SinkError, match="this user may not add to"):
        opened(url, name, make, 2)
    assert client.exists(f"{{{name}:0}}:mark:out") == 0


def test_server_without_memory_stores_nothing_and_the_epoch_later(name, make):
    with valkey(maxmemory_policy="noeviction") as server:
        url, client = url_of(server), connect(url_of(server))
        sink = opened(url, name, make, 2)
        client.config_set("maxmemory", 1)
        with pytest.raises(SinkError, match=r"could not store epoch 0: .*used memory"):
            sink.write([make.batch((1, "a"), (2, "b"))], make.mark(0))
        client.config_set("maxmemory", 0)
        assert lengths(url, name, 2) == [0, 0]
        assert sink.write([make.batch((1, "a"), (2, "b"))], make.mark(0)) == 2


def test_epoch_that_is_too_large_is_refused_before_anything_is_sent(redis_url, name, make, monkeypatch):
    monkeypatch.setattr(sys.modules["penstock.sinks.redis_stream"], "MOST_BYTES", 1 << 20)
    sink = opened(redis_url, name, make)
    with pytest.raises(SinkError, match="more than 1 MiB in epoch 0, which one script cannot store"):
        sink.write([make.batch((1, "a" * 700_000)), make.batch((1, "a" * 700_000))], make.mark(0))
    assert lengths(redis_url, name, 1) == [0]


# -- servers that stop


@pytest.mark.parametrize("kind", KINDS)
def test_server_that_restarts_with_its_data_goes_on_and_without_is_refused(name, make, kind):
    with valkey(keep=True, kind=kind) as server:
        url = url_of(server)
        sink = opened(url, name, make, 2)
        sink.write([make.batch((1, "a"))], make.mark(0))
        server.stop()
        server.start()
        assert sink.write([make.batch((2, "b"))], make.mark(1)) == 1
        assert sum(lengths(url, name, 2)) == 2
        connect(url).flushall()
        with pytest.raises(SinkError, match="has no mark of output 'out' though run 1 should have claimed it"):
            sink.write([make.batch((3, "c"))], make.mark(2))
        assert lengths(url, name, 2) == [0, 0]


@pytest.mark.fault
@pytest.mark.parametrize("seed", range(4))
def test_server_killed_in_the_middle_of_writes_holds_whole_epochs_and_each_once(seed, name, make):
    """A thread kills and starts the server while epochs are written; each answer that was lost is asked for again."""
    import random

    dice, partitions = random.Random(seed), 3
    with valkey(keep=True) as server:
        url = url_of(server)
        sink = opened(url, name, make, partitions)
        done, kills = threading.Event(), []

        def disturb():
            while not done.wait(dice.uniform(0.02, 0.3)):
                kills.append(1)
                os.kill(connect(url).info("server")["process_id"], signal.SIGKILL)
                time.sleep(dice.uniform(0, 0.2))
                server.stop()
                server.start()

        breaker = threading.Thread(target=disturb)
        breaker.start()
        epochs, run = 0, 1
        try:
            while epochs < 25 or len(kills) < 4:
                rows = make.batch(*((epochs * 10_000 + n, "x" * 30) for n in range(2_000)))
                try:
                    sink.write([rows], make.mark(epochs, run=run))
                    epochs += 1
                except SinkError:
                    run += 1
                    while True:
                        try:
                            sink = ps.redis_stream(url, name, partitions)
                            held = sink.open(make.mark(epochs - 1, run=run), make.schema)
                            break
                        except FencedError:
                            raise
                        except SinkError:
                            continue
                    epochs = (held.epoch if held else -1) + 1
        finally:
            done.set()
            breaker.join()
        found = sorted(row["n"] for row in read(url, name, partitions, make.schema))
        assert found == [e * 10_000 + n for e in range(epochs) for n in range(2_000)]


def test_answer_that_was_lost_is_no_second_epoch(redis_url, name, make, monkeypatch):
    from redis.exceptions import ConnectionError as LostError

    from penstock.redis_client import stored_marks

    sink, lost = opened(redis_url, name, make), []
    whole = stored_marks.StoredMark.store

    def store(self, *given):
        said = whole(self, *given)
        if not lost:
            lost.append(said)
            raise LostError("the answer is lost")
        return said

    monkeypatch.setattr(stored_marks.StoredMark, "store", store)
    assert sink.write([make.batch((1, "a"))], make.mark(0)) == 1
    assert lost == [("stored", make.mark(0).to_json())]
    assert lengths(redis_url, name, 1) == [1]


def test_run_that_is_fenced_between_look_and_script_stores_nothing(redis_url, name, make, monkeypatch):
    sink = opened(redis_url, name, make)

    def rows():
        yield make.batch((1, "old"))
        opened(redis_url, name, make, run=2)

    with pytest.raises(FencedError, match=r"run 2 .*stop this run"):
        sink.write(rows(), make.mark(0))
    assert lengths(redis_url, name, 1) == [0]


# -- what is refused


def test_cluster_is_refused_unless_there_is_one_partition(name, make):
    with socket.socket() as probe:  # the usual one, 10,000 above the server's, may be beyond 65,535
        probe.bind(("127.0.0.1", 0))
        bus = probe.getsockname()[1]
    with valkey(cluster_enabled="yes", cluster_port=bus) as server:
        client, url = connect(url_of(server)), url_of(server)
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        for _ in range(100):
            if "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO")):
                break
            time.sleep(0.1)
        with pytest.raises(SinkError, match=r"has 2 partitions, and .* is a cluster, where no script can write several"):
            opened(url, name, make, 2)
        sink = opened(url, name, make)
        assert sink.write([make.batch((1, "a"))], make.mark(0)) == 1
        assert read(url, name, 1, make.schema) == [{"n": 1, "word": "a"}]


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        ({"key": "z"}, [("n", pa.int64())], "is placed by column 'z', but the output has only n"),
        ({}, [("n", pa.time64("us"))], "has column 'n', which is of type time64"),
        ({}, [("", pa.int64())], "has column '', which has no name"),
        ({}, [(f"c{i}", pa.int64()) for i in range(2_001)], "2,000 are the most"),
    ],
)
def test_output_that_cannot_be_stored_is_refused_when_declared(options, schema, said):
    sink = ps.redis_stream("redis://localhost", "out", 2, **options)
    with pytest.raises(DeclarationError, match=said):
        sink.validate(pa.schema(schema), updates=False, key=())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": 7}, "is no address"),
        ({"stream": "a}"}, "has a brace"),
        ({"partitions": "2"}, "partitions of redis_stream must be a whole number"),
        ({"key": ""}, "The key of redis_stream must be text"),
    ],
)
def test_redis_stream_when_an_argument_is_none_is_refused(change, said):
    with pytest.raises(DeclarationError, match=said):
        ps.redis_stream(**{"url": "redis://localhost", "stream": "out", "partitions": 2, **change})


def test_entry_with_the_most_columns_is_stored(redis_url, name, make):
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(2_000)])
    sink = opened(redis_url, name, make, schema=schema)
    sink.write([make.batch(tuple(range(2_000)), schema=schema)], make.mark(0))
    assert read(redis_url, name, 1, schema) == [{f"c{i}": i for i in range(2_000)}]
    assert json.loads(connect(redis_url).get(f"{{{name}:0}}:mark:out"))["epoch"] == 0
    with pytest.raises(ResponseError):
        connect(redis_url).xlen(f"{{{name}:0}}:mark:out")
