"""An operator that penstock does not know, over Spark: partial results in SQL, and users' functions that only it can name."""

from __future__ import annotations

import importlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import QueryError
from penstock.operators.base import Partials

pytestmark = pytest.mark.spark


class Peak(ps.Operator):
    """The greatest value per key, made by functions of a tuple."""

    ordered = False
    updates = True

    def __init__(self, *functions):
        self.functions = functions

    def output_schema(self, inputs, keys):
        return pa.schema([*keys, pa.field("v", pa.int64())])

    def partials(self, source):
        return Partials(("max(v)",))

    def user_functions(self):
        return [*super().user_functions(), *self.functions]

    def on_data(self, rows, state):
        raise AssertionError("rows came in place of partial results")

    def on_partials(self, batch, keys, group, state):
        values = batch.column(1).to_pylist()
        for function in self.functions:
            values = [function(value) for value in values]
        data = pa.RecordBatch.from_arrays([*keys.columns, pa.array(values)], schema=self.context.output)
        return state.emit(data, keys, np.zeros(len(values), np.int64))


def test_operator_from_outside_when_run_over_spark_merges_partial_results_and_finds_its_functions(spark, tmp_path, monkeypatch):
    (tmp_path / "of_a_user.py").write_text("def doubled(value):\n    return 2 * value\n")
    monkeypatch.syspath_prepend(tmp_path)  # of this process, not of the workers
    doubled = importlib.import_module("of_a_user").doubled
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"k": ["a", "b", "a"], "v": [1, 5, 3]}), tmp_path / "in" / "1.parquet")
    out = ps.memory(f"{tmp_path}-peaks")
    flow = ps.Flow("peaks")
    flow.source("events", ps.files(str(tmp_path / "in"), "k string, v long")).key_by("k").process(Peak(doubled)).sink(out)
    run = flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now")
    assert len(set(run.routing("k"))) == 2
    assert run.await_termination(300)
    assert {(r["k"], r["v"]) for r in out.rows()} == {("a", 6), ("b", 10)}


def test_operator_from_outside_when_java_cannot_read_its_expression_is_refused_at_the_start(spark, tmp_path):
    class Liking(ps.Operator):
        def java_expressions(self):
            return "k LIKE '(a'", ["(a"]

    (tmp_path / "in").mkdir()
    flow = ps.Flow("liking")
    source = flow.source("events", ps.files(str(tmp_path / "in"), "k string, v long"))
    source.key_by("k").process(Liking()).sink(ps.noop())
    with pytest.raises(QueryError, match=r"LIKE '\(a' is not a regular expression: Unclosed group"):
        flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now")
