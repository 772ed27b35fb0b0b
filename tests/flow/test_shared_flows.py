"""A flow in a group: what it may consist of, and how it is made the flow of one partition."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import DeclarationError
from penstock.flow.shared import of_partition, shared_by
from penstock.sources.base import Shared, Source
from penstock.testing import Harness

SCHEMA = pa.schema([("p", pa.int64()), ("o", pa.int64()), ("k", pa.string())])


@dataclass(frozen=True)
class Stream(Source):
    schema: pa.Schema = SCHEMA
    partitions: int = 4
    part: int | None = None
    position = ("p", "o")

    def shared(self):
        return Shared("orders", self.partitions)

    def only(self, partition):
        return replace(self, part=partition)


class Counting:
    """A user's object that cannot be copied."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, key, event, state):
        with self.lock:
            return count(key, event, state)


def count(key, event, state):
    n = (state or 0) + 1
    return (key, n), n


def flow_of(*sources, distribute=None, sink=None, fn=None):
    flow = ps.Flow("shop")
    streams = [flow.source(f"s{i}", source) for i, source in enumerate(sources)]
    keyed = streams[0].union(*streams[1:]).key_by("k", distribute=distribute or ps.ByPartition())
    keyed.stateful_map(fn or count, "k string, n long").sink(sink or ps.noop(), name="counts")
    return flow


def test_flow_of_a_partition_reads_that_partition_and_has_outputs_and_strategies_of_its_own():
    flow = flow_of(Stream(), Stream(), fn=(fn := Counting()), sink=(sink := ps.noop()))
    mine = of_partition(flow, 3).plan()
    assert [s.connector.part for s in mine.sources] == [3, 3]
    assert [o.name for o in mine.outputs] == ["counts@3"]
    assert mine.regions[0].distribute == ps.KeyGrouping()
    assert mine.regions[0].steps[0].operator.fn is fn
    assert mine.outputs[0].sink is not sink
    other = of_partition(flow, 1).plan()  # the flow itself was not changed
    assert ([s.connector.part for s in other.sources], [o.name for o in other.outputs]) == ([1, 1], ["counts@1"])


def test_flow_whose_keys_lie_in_one_partition_is_shared_by_its_stream():
    assert shared_by(flow_of(Stream())) == Shared("orders", 4)


@pytest.mark.parametrize(
    ("flow", "sentence"),
    [
        (
            lambda: flow_of(ps.files("in", SCHEMA)),
            r"Source 's0' \(.*\) has no partitions that applications of a group could share",
        ),
        (lambda: flow_of(Stream(), Stream(partitions=5)), "source 's0' has 4 partitions and source 's1' has 5"),
        (
            lambda: flow_of(Stream(), distribute=ps.KeyGrouping()),
            r"Region 'k' gathers rows of a key from all partitions.*ByPartition\(\).*second",
        ),
        (lambda: flow_of(Stream(), distribute=ps.Isolate()), "Region 'k' gathers rows of a key from all partitions"),
        (
            lambda: flow_of(Stream(), sink=ps.memory("x")),
            "Output 'counts' cannot be written by the applications of a group: Memory sink 'x'",
        ),
        (lambda: flow_of(Stream(), sink=ps.sql("sqlite:///x.db", "t", mode="replace")), "Output 'counts' cannot be written"),
        (lambda: ps.Flow("empty"), "has no source"),
    ],
)
def test_flow_that_cannot_be_shared_is_refused_with_the_way_out(flow, sentence):
    with pytest.raises(DeclarationError, match=sentence):
        shared_by(flow())


def test_flow_with_keys_by_partition_outside_of_a_group_is_refused_where_a_step_needs_whole_keys():
    with pytest.raises(DeclarationError, match=r"cannot work on a part of a key's rows, and ByPartition\(\) divides them"):
        Harness(flow_of(Stream()))


def test_sinks_of_two_partitions_have_connections_of_their_own(tmp_path):
    flow = flow_of(Stream(), sink=ps.sql(f"sqlite:///{tmp_path}/x.db", "t"))
    first, second = (Harness(of_partition(flow, n)) for n in (0, 1))
    for number, harness in enumerate((first, second)):
        harness.push("s0", [{"p": number, "o": 0, "k": "a"}])
        harness.epoch()
    first.finish()
    second.push("s0", [{"p": 1, "o": 1, "k": "a"}])
    second.finish()
    held = ps.sql(f"sqlite:///{tmp_path}/x.db", "t")
    assert {n: held.held(n).positions for n in ("counts@0", "counts@1")} == {"counts@0": {"s0/0": 0}, "counts@1": {"s0/1": 1}}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": {"other": 2}}, "other"),
        ({"recover": "snapshot"}, "recover"),
        ({"trigger": "available_now"}, "A flow in a group reads on"),
        ({"audit": -1}, "audit"),
    ],
)
def test_option_that_cannot_be_is_refused_before_the_group_is_joined(tmp_path, options, sentence):
    nobody = ps.Group("redis://127.0.0.1:1", "eu")
    with pytest.raises(DeclarationError, match=sentence):
        flow_of(Stream()).start(checkpoint=str(tmp_path / "group"), group=nobody, **options)
    assert not (tmp_path / "group").exists()
