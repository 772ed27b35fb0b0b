"""How many rows cross to Python at a time follows from what is known of their size."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.driver.compile import compile_flow
from penstock.spark.internals.local_files import LOCAL_LOG
from penstock.spark.options import query_settings
from penstock.spark.session.local import HANDING
from penstock.spark.session.own import offer, query_session

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
FEW = HANDING[ROWS]


def offered(
    columns, declare=lambda keyed: keyed.stateful_map(lambda key, event, state: ((key,), None), "k long"), prepare=None
):
    """What a flow offers its query's session: a source, maybe a step before the key, the key, and a step after it."""
    flow = ps.Flow("sized")
    source = flow.source("a", ps.files("a", f"at timestamp, k long{columns}"), time="at")
    declare((prepare(source) if prepare else source).key_by("k")).sink(ps.memory("sized"))
    return query_settings(compile_flow(flow.plan(), lambda node, _: node.schema, lambda *_: None), local=False)


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ("", "16384"),
        (", v double, b boolean, d date, m decimal(20, 2)", "16384"),
        # forty values, the time, the key, and the partition and offset of each row
        ("".join(f", v{i} long" for i in range(40)), str((1 << 20) // (8 * 44))),
        ("".join(f", v{i} long" for i in range(400)), FEW),
        (", v string", FEW),
        (", v binary", FEW),
        (", v array<long>", FEW),
    ],
)
def test_rows_of_numbers_cross_in_larger_batches(columns, rows):
    assert offered(columns) == {**HANDING, ROWS: rows}


def test_text_that_no_step_behind_the_key_sees_does_not_count():
    assert offered(", v string", prepare=lambda source: source.select("at", "k"))[ROWS] == "16384"


def test_text_of_any_region_counts():
    def named(keyed):
        texts = keyed.stateful_map(lambda key, event, state: ((key, "name"), None), "k long, name string")
        return texts.key_by("name").stateful_map(lambda key, event, state: ((key,), None), "name string")

    assert offered("", declare=named)[ROWS] == FEW


def test_widest_rows_of_all_regions_decide():
    wide = "".join(f", v{i} long" for i in range(40))

    def narrowed(keyed):
        first = keyed.stateful_map(lambda key, event, state: ((key,), None), "k long")
        return first.key_by("k", name="second").stateful_map(lambda key, event, state: ((key,), None), "k long")

    assert offered(wide, declare=narrowed) == offered(wide) != offered("", declare=narrowed)


@pytest.mark.parametrize("step", ["map_batches", "transform"])
def test_functions_of_the_user_before_the_key_may_make_rows_of_any_size(step):
    def prepare(source):
        return (
            source.map_batches(lambda batch: batch, "at timestamp, k long")
            if step == "map_batches"
            else source.transform(lambda df: df)
        )

    assert offered("", prepare=prepare)[ROWS] == FEW


def test_checkpoint_in_a_local_folder_brings_its_own_setting():
    flow = ps.Flow("none")
    flow.source("a", ps.files("a", "k long")).sink(ps.memory("none"))
    compiled = compile_flow(flow.plan(), lambda node, _: node.schema, lambda *_: None)
    assert query_settings(compiled, local=True).items() - query_settings(compiled, local=False).items() == LOCAL_LOG.items()


@pytest.mark.spark
@pytest.mark.parametrize(("said", "then"), [(FEW, "16384"), ("5000", "5000"), (None, "16384")])
def test_offer_is_taken_where_a_session_says_nothing_or_what_penstock_says(spark, said, then):
    session = spark.newSession()
    if said is None:
        session.conf.unset(ROWS)
    else:
        session.conf.set(ROWS, said)
    before = session.conf.getAll
    assert before.get(ROWS) == said
    ours = query_session(session)
    offer(ours, {ROWS: "16384"})
    assert ours.conf.get(ROWS) == then
    assert session.conf.getAll == before
