"""How often an epoch of few rows calls Java: each call takes a fraction of a millisecond, and one that looks for a class several."""

from __future__ import annotations

from collections import Counter

import flow_runs as fr
import pyarrow as pa
import pytest
from py4j.clientserver import JavaClient

import penstock as ps

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
EPOCHS, STEADY = 9, 4
"""So many epochs have a file each; from the fifth on what is made once has been made."""
KINDS = {"u": "class", "m": "member"}


def aggregate(events):
    return events.key_by("k").window(ps.tumbling("1 second")).aggregate(n=ps.count())


def stateful_map(events):
    return events.key_by("k").stateful_map(lambda key, event, n: ((key, (n or 0) + 1), (n or 0) + 1), "k long, n long")


def stateless(events):
    return events.where("k > 0").map_batches(lambda batch: batch.select(["k"]), "k long")


def kind_of(command):
    """What py4j asks: to forget an object (as Python collects garbage, so not counted by epoch), for a name, or to do something."""
    first, second, *_ = command.split("\n")
    if first == "m":
        return "forget"
    return KINDS.get(second[:1], "name") if first == "r" else "call"


@pytest.mark.parametrize(("steps", "most"), [(aggregate, 95), (stateful_map, 92), (stateless, 90)])
def test_calls_to_java_in_a_steady_epoch_of_few_rows_are_few(spark, tmp_path, monkeypatch, steps, most):
    for i in range(EPOCHS):
        fr.write_parquet(tmp_path / "in", [{"k": k, "at": i * 1_000_000} for k in (1, 2)], SCHEMA, i)
    sent, calls, begins = JavaClient.send_command, Counter(), []

    def counted(client, command, *others, **named):
        calls[kind_of(command)] += 1
        return sent(client, command, *others, **named)

    def on_step(step):
        if step == "decide":
            begins.append(calls.copy())

    flow, sink = ps.Flow(f"calls {steps.__name__}"), ps.memory(f"calls {steps.__name__} {tmp_path}")
    files = ps.files(str(tmp_path / "in"), "k long, at timestamp", max_files_per_epoch=1)
    steps(flow.source("events", files, time="at")).sink(sink)
    monkeypatch.setattr(JavaClient, "send_command", counted)
    run = flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now", workers=1, on_step=on_step)
    run.await_termination(600)
    epochs = [after - before for before, after in zip(begins[STEADY:EPOCHS], begins[STEADY + 1 : EPOCHS], strict=False)]
    assert len(epochs) == EPOCHS - STEADY - 1
    found = [(sum(epoch.values()) - epoch["forget"], epoch["class"], epoch["member"]) for epoch in epochs]
    assert all(given <= most for given, _, _ in found), found
    assert all((classes, members) == (0, 0) for _, classes, members in found), found
    assert len(sink.rows()) == 2 * EPOCHS
