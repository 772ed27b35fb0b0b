"""The tests of a pattern are sent within the positions of records where these leave room: an epoch's records are the same either way."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace

import flow_runs as fr
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.flow.plan import SourceNode
from penstock.sources.base import Streaming
from penstock.spark import engine
from penstock.spark.sources.reader import Reader
from penstock.spark.sources.readers import reader_of
from penstock.types import MASK, OFFSET
from penstock.worker.spec import PACKED_BITS, Port, RegionSpec
from penstock.worker.task import _unpack

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("kind", pa.string())])
BYTES = pa.schema([("k", pa.int64()), (f"{MASK}0", pa.int8()), ("v", pa.string())])


def events(number):
    """Those of one file."""
    kinds = random.Random(number).choices(("A", "B", "C", "other"), k=90)
    return [{"k": i % 5, "at": fr.moment(number + i / 100), "kind": kind} for i, kind in enumerate(kinds)]


def run_beside_batch(spark, folder, queries, **options):
    """Six epochs of a flow with all queries, which must give what batch gives."""
    for n in range(6):
        fr.write_parquet(folder / "in", events(n), SCHEMA, n)
    flow, name = ps.Flow("sent"), str(folder)
    source = ps.files(folder / "in", SCHEMA, max_files_per_epoch=1)
    keyed = flow.source("events", source, time="at", lateness="300 milliseconds").key_by("k")
    for query in queries:
        keyed.match(query.format(""), type="kind").sink(ps.memory(name + query))
    flow.start(spark, checkpoint=folder / "c", trigger="available_now", **options).await_termination(600)
    every = spark.read.parquet(str(folder / "in"))
    for query in queries:
        batch = ps.match(every, query.format("PARTITION BY [k]"), order_by="at", type="kind").toArrow().to_pylist()
        assert len(batch) > 20
        assert sorted(map(str, ps.memory(name + query).table().to_pylist())) == sorted(map(str, batch))


@pytest.mark.spark
@pytest.mark.parametrize("ports", [1, 2])
def test_matches_do_not_depend_on_how_tests_are_sent(spark, tmp_path, monkeypatch, ports):
    sent, frame = [], engine.port_frame
    monkeypatch.setattr(engine, "port_frame", lambda spec, i, *rest: sent.append(spec.ports[i].packed) or frame(spec, i, *rest))
    left = Reader.bits_left
    monkeypatch.setattr(Reader, "bits_left", lambda reader: left(reader) * (reader._epoch % 2))
    queries = ["SELECT * WHERE A ; B ; C {} WITHIN 0.3 SECONDS", "SELECT * WHERE A : B {}"][:ports]

    run_beside_batch(spark, tmp_path, queries)
    assert set(sent) == {None, f"{MASK}0"}


@pytest.mark.spark
@pytest.mark.parametrize("ports", [1, 2])
def test_matches_do_not_depend_on_whether_rows_come_in_pages(spark, tmp_path, monkeypatch, ports):
    sent, in_pages = [], engine.in_pages
    monkeypatch.setattr(engine, "in_pages", lambda *given: sent.append(given) or in_pages(*given))
    monkeypatch.setattr("penstock.spark.patterns.match.can_be_paged", lambda *_: False)  # batch, beside it, as rows
    monkeypatch.setattr("penstock.spark.run.sources_alone", lambda _: {})  # these always come in pages
    whether, number = engine.SparkBackend._in_pages, iter(range(100))
    monkeypatch.setattr(engine, "PAGED_ROWS", 1)
    monkeypatch.setattr(engine.SparkBackend, "_in_pages", lambda *given: next(number) % 3 != 1 and whether(*given))
    # Of each event there is a match, so that none can be lost unseen.
    queries = ["SELECT * WHERE A OR B OR C OR other {}", "SELECT a[at], c[at] WHERE A AS a ; B ; C AS c {} WITHIN 0.3 SECONDS"]
    queries = queries[:ports]

    run_beside_batch(spark, tmp_path, queries, workers=3)
    assert 1 < len(sent) < next(number) - 1


@given(rows=st.lists(st.tuples(st.integers(0, 2**55 - 1), st.integers(-128, 127)), min_size=1), column=st.integers(0, 2))
def test_a_byte_and_an_offset_come_out_of_one_number_as_they_went_in(rows, column):
    fields = [BYTES.field("k"), BYTES.field("v")]
    fields.insert(column, BYTES.field(f"{MASK}0"))
    port = Port(pa.schema(fields), packed=f"{MASK}0")
    spec = RegionSpec("r", 0, pa.schema([BYTES.field("k")]), (port,), (), ())
    offset, byte = (np.array(values, np.int64) for values in zip(*rows, strict=True))
    arrays = {"k": pa.array(offset % 7), "v": pa.array(map(str, rows))}
    arrays |= {name: pa.array(offset // 3) for name in port.sent}
    arrays[OFFSET] = pa.array((offset << PACKED_BITS) + (byte & 255))
    sent = pa.record_batch([arrays[name] for name in spec.in_schema.names], schema=spec.in_schema)
    ((whole,),) = _unpack(spec, [sent.slice(0, 0), sent.slice(0, 1), sent.slice(1)])
    assert whole.schema.names == port.columns.names
    assert whole.column(f"{MASK}0").to_pylist() == byte.tolist()
    assert whole.column(OFFSET).to_pylist() == offset.tolist()
    assert whole.column("v").to_pylist() == arrays["v"].to_pylist()


def test_offsets_tell_how_much_room_they_leave():
    node = SourceNode(SCHEMA, False, name="s", connector=ps.files("s", SCHEMA), time="at")

    def left(node, epoch=0, files=()):
        reader = reader_of(node)(None, node, 0, epoch)
        reader.files = SimpleNamespace(read=dict.fromkeys("ab", 0) | {f"f{n}": n for n in files})
        return reader.bits_left()

    assert [left(node, files=[n]) for n in (0, 1, 2**22 - 1, 2**22, 2**30 - 1)] == [30, 29, 8, 7, 0]
    assert ((((2**22 - 1) << 33) + 2**33 - 1) << 8) + 255 < 2**63
    other = dataclasses.replace(node, connector=Streaming(None, SCHEMA))
    assert [left(other, epoch) for epoch in (0, 2**19 - 1, 2**19, 2**27 - 1)] == [27, 8, 7, 0]
    assert left(dataclasses.replace(node, position=("k", "k"))) == 0
    assert left(dataclasses.replace(node, connector=ps.rate(1))) == 0
