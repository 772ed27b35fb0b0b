"""`Flow.explain`, and flows and streams as text and as pictures for notebooks."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pyarrow as pa
import pytest

import penstock as ps
from penstock.flow.explain import explained, read_inputs
from penstock.flow.picture import picture
from penstock.operators.base import Operator

SCHEMA = "k string, o string, at timestamp, v long"
EVIL = "<script>alert('1')</script>&\""


def explained_of(capsys, flow):
    flow.explain()
    return capsys.readouterr().out.removesuffix("\n")


def rows(flow, name="s", **options):
    return flow.source(name, ps.files("/data/in", SCHEMA), time="at", **options)


def test_explain_says_sources_regions_steps_state_and_outputs(capsys):
    flow = ps.Flow("delays")
    stream = rows(flow, lateness="10 minutes", idle_after="1 hour", on_error="skip")
    by = stream.where("v > 0").key_by("o", distribute=ps.Histogram(), workers=3)
    by.window(ps.tumbling("1 hour")).aggregate(n=ps.count(), m=ps.mean("v")).sink(ps.memory("explained.by"), name="by")
    stream.key_by("k").deduplicate("v", within="1 day").stateful_map(
        lambda k, e, s: (None, None), "a long", on_error="skip"
    ).sink(ps.memory("explained.k"), name="k")
    stream.late.sink(ps.memory("explained.late"))
    flow.explain()
    assert capsys.readouterr().out == (
        """\
flow delays

source s: files (path /data/in, format parquet)
  columns: k string, o string, at timestamp, v bigint
  time: at; a record 10 minutes behind the newest of its partition is late, idle after 1 hour without a record
  malformed records are skipped and counted

region o: key (o string), 3 workers, Histogram(slack=0.0)
  reads source s → where('v > 0')
  aggregate: aggregate(n, m)
    computes: n = count(), m = mean(v) of int64
    window: of 3600 s
    emit: final
    remembers: 1 hour of event time
    rows: as they come; Spark adds them up before the shuffle, one row for each key and window
    gives: o string, window_start timestamp, window_end timestamp, n bigint, m double

region k: key (k string), as many workers as the flow is started with, KeyGrouping()
  reads source s
  deduplicate: deduplicate(v)
    columns: (v int64)
    within: 86400 s
    remembers: records no more than 1 day apart, in chains of any length
    rows: in the order of event time; they wait until the frontier has passed them
    gives: k string, o string, at timestamp, v bigint
  stateful_map: stateful_map(<lambda>)
    state: any value
    remembers: without end
    rows: in the order of event time; they wait until the frontier has passed them
    gives: a bigint
    on error: the record is skipped and counted

output by: region o, aggregate → memory('explained.by')
output k: region k, stateful_map → memory('explained.k')
output s.late: late records of source s → memory('explained.late')
"""
    )


def test_explain_shows_a_pattern_as_it_was_written_and_no_column_of_penstocks_own():
    flow = ps.Flow("f")
    rows(flow).key_by("k").match("SELECT * WHERE (a ; b+) WITHIN 2 HOURS", define={"a": "v = 1", "b": "v > 1"}).sink(
        ps.memory("explained.match")
    )
    text = explained(flow.plan())
    assert "    query: SELECT * WHERE (a ; b+) WITHIN 2 HOURS\n" in text
    assert "    remembers: 2 hours of event time\n" in text
    assert "  reads source s\n" in text
    assert "__ps_" not in text + picture(flow.plan()) + repr(flow.plan().regions[0].inputs[-1].schema.names[:2])


def test_explain_of_a_chain_a_union_and_a_stage_names_what_each_reads(capsys):
    flow = ps.Flow("f")
    a, b = rows(flow, "a"), rows(flow, "b")
    both = a.union(b.where("v > 1"))
    first = both.key_by("k").window(ps.tumbling("1 minute")).aggregate(n=ps.count())
    first.key_by("k", name="second").join(a.key_by("k", name="third"), within="1 minute")
    staged = a.distribute(ps.Shuffle(), workers=2).map_batches(lambda batch: batch, SCHEMA).local()
    staged.sink(ps.memory("explained.stage"))
    text = explained_of(capsys, flow)
    assert "region k: key (k string), as many workers as the flow is started with, KeyGrouping()\n" in text
    assert "  reads (source a and source b → where('v > 1'))\n" in text
    assert "  reads region k, aggregate\n  reads source a\n  join: inner join\n" in text
    assert "stage stage: 2 workers, Shuffle()\n  reads source a\n" in text
    assert "output stage: stage stage → map_batches(<lambda>) → memory('explained.stage')" in text


def test_explain_works_on_flows_that_are_not_complete(capsys):
    flow = ps.Flow("f")
    assert explained_of(capsys, flow) == "flow f\n\nno sink yet: end a stream with .sink(...)"
    rows(flow).key_by("k")
    assert "region k:" in explained_of(capsys, flow)
    assert flow._repr_html_().startswith("<svg")


class Broken(Operator):
    schema = "a long"

    def meaning(self, inputs, keys):
        raise RuntimeError("not yet")

    def span(self):
        raise RuntimeError("nor this")


def test_explain_of_an_operator_that_fails_leaves_out_what_it_does_not_say():
    flow = ps.Flow("f")
    rows(flow).key_by("k").process(Broken(), name="mine").sink(ps.memory("explained.broken"))
    assert "  mine: Broken\n    remembers: without end\n    rows: in" in explained(flow.plan())
    assert "Broken" in flow._repr_html_()


def test_inputs_that_only_another_region_reads_are_shown():
    flow = ps.Flow("f")
    stream = rows(flow).key_by("k").where("v > 1")
    stream.key_by("o").aggregate(n=ps.count()).sink(ps.memory("explained.inputs"))
    plan = flow.plan()
    assert list(read_inputs(plan, plan.regions[0])) == [plan.regions[0].inputs[1]]


def test_names_are_escaped_in_pictures_and_tables():
    flow = ps.Flow(EVIL)
    stream = flow.source(EVIL, ps.files("/data", pa.schema([("k", pa.string()), (EVIL, pa.int64())])))
    keyed = stream.where(f"k <> '{EVIL}'".replace("alert('1')", "x")).key_by("k", name="r" + EVIL.replace("/", ""))
    keyed.aggregate(n=ps.count()).sink(ps.memory(EVIL), name=EVIL)
    shown = flow._repr_html_() + keyed._repr_html_() + stream._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    ET.fromstring(f"<all>{shown}</all>")


def test_picture_has_a_box_for_each_part_and_an_arrow_for_each_way():
    flow = ps.Flow("f")
    stream = rows(flow)
    keyed = stream.where("v > 1").key_by("k").window(ps.session("1 minute")).aggregate(n=ps.count())
    keyed.sink(ps.memory("pictured.1"))
    stream.late.sink(ps.memory("pictured.2"))
    image = ET.fromstring(flow._repr_html_())
    space = {"s": "http://www.w3.org/2000/svg"}
    assert len(image.findall(".//s:rect", space)) == 5  # source, where, region, two outputs
    assert len(image.findall(".//s:path", space)) == 2 * 4  # a line and its head
    places = [(r.get("x"), float(r.get("y"))) for r in image.findall(".//s:rect", space)]
    assert len(set(places)) == 5
    assert all(
        float(r.get("y")) + float(r.get("height")) <= float(image.get("height")) for r in image.findall(".//s:rect", space)
    )


def test_picture_of_a_flow_with_very_many_parts_is_text():
    flow = ps.Flow("f")
    stream = rows(flow)
    for i in range(201):
        stream = stream.where(f"v > {i}")
    assert flow._repr_html_().startswith("<svg")  # nothing reads them
    stream.sink(ps.memory("pictured.many"))
    assert flow._repr_html_() == "<div>flow f: 1 sources, 0 regions, 1 outputs</div>"


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (lambda s: s, "<Stream of flow 'f': source s; columns k string, o string, at timestamp, v bigint>"),
        (
            lambda s: s.where("v > 1").key_by("k").select("k", "v"),
            "<KeyedStream of flow 'f': region k; columns k string, v bigint>",
        ),
        (
            lambda s: s.key_by("k").window(ps.tumbling("1 hour")),
            "<Windows of 3600 s over <KeyedStream of flow 'f': region k; columns k string, o string, at timestamp, v bigint>; .aggregate(…) or .stateful_map(…) follows>",
        ),
    ],
)
def test_representation_says_what_it_is(made, shown):
    assert repr(made(rows(ps.Flow("f")))) == shown


def test_representation_of_a_flow_and_of_its_plan_is_short():
    flow = ps.Flow("f")
    rows(flow).sink(ps.memory("explained.short"), name="out")
    assert repr(flow) == "<Flow 'f': 1 source, 0 regions, 1 output>"
    assert repr(flow.plan()) == (
        "<Plan of flow f\n  source s (Files, time at, lateness 0 s)\n  sink out: memory('explained.short')>"
    )
