"""An expression that fails on a record, and a folder that is not there, are told with step, source and what to do."""

from __future__ import annotations

import re
import traceback

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import DeclarationError, OperatorError, PenstockError, RecordError
from penstock.spark.failures import translated

OUT = "leave such records out with a where(…) before it. The epoch was not committed."


def kept(key, event, state):
    return (event.w,), state


FAILING = {
    "with_columns": (
        lambda s: s.with_columns(w="10 / v"),
        "with_columns(w='10 / v')",
        "division by zero; write try_divide(…), which gives null, or ",
    ),
    "guarded": (
        lambda s: s.where("k != 'b'").with_columns(w="if(k = 'd', 1, 10 div (v - 1))"),
        "with_columns(w=\"if(k = 'd', 1, 10 div (v - 1))\")",
        "division by zero; write try_divide(…), which gives null, or ",
    ),
    "where": (
        lambda s: s.where("v > 0 or  10 / v > 1").select("k"),
        "where('v > 0 or 10 / v > 1')",
        "division by zero; write try_divide(…), which gives null, or ",
    ),
    "select before a region": (
        lambda s: s.select("k", "cast(k as int) AS w").key_by("k").stateful_map(kept, "w int"),
        "select(w='CAST(k AS INT)')",
        (
            'the value \'a\' of the type "STRING" cannot be cast to "INT" because it is malformed; write try_cast(… AS …), which gives '
            "null, or "
        ),
    ),
    "error of the user's own": (
        lambda s: s.select("k", "if(v = 0, raise_error('v is nothing'), v) AS w"),
        "select(w=\"IF(v = 0, RAISE_ERROR('v is nothing'), v)\")",
        "v is nothing; ",
    ),
}


def start(spark, tmp_path, declare, path="in"):
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / "1.csv").write_text("k,v\na,1\nb,0\n")
    flow = ps.Flow("f")
    stream = declare(flow.source("s", ps.files(str(tmp_path / path), "k string, v long", "csv")))
    stream.sink(ps.memory(f"failing {tmp_path}"))
    flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now").await_termination(600)


@pytest.mark.spark
@pytest.mark.parametrize("case", FAILING)
def test_expression_when_it_fails_on_a_record_is_told_with_its_step_and_source(spark, tmp_path, case):
    declare, step, why = FAILING[case]
    with pytest.raises(RecordError) as caught:
        start(spark, tmp_path, declare)
    record = {
        "error of the user's own": "a record of source 's'",
        "with_columns": "the record at s: 1.csv row 2",
        "where": "the record at s: 1.csv row 2",
    }
    assert str(caught.value) == f"{step} failed on {record.get(case, 'the record at s: 1.csv row 1')}: {why}{OUT}"


def dividing(key, event, state):
    return (10 // event.v,), state


@pytest.mark.spark
def test_function_that_raises_is_told_with_its_line_and_without_the_tracebacks_of_engines(spark, tmp_path):
    with pytest.raises(OperatorError) as caught:
        start(spark, tmp_path, lambda s: s.key_by("k").stateful_map(dividing, "w long"))
    error = caught.value
    line = dividing.__code__.co_firstlineno + 1
    assert f"ZeroDivisionError: integer division or modulo by zero (test_failing_steps.py, line {line}); fix" in str(error)
    shown = "".join(traceback.format_exception(error))
    assert len(shown.splitlines()) < 20
    assert not re.search("py4j|pyspark|java", shown)
    assert "in run_region_task" in "".join(traceback.format_exception(error.cause))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda frame: None, "transform(<lambda>) gave NoneType; it must give a DataFrame."),
        (
            lambda frame: {}["k"],
            "transform(<lambda>) failed: KeyError: 'k' (test_failing_steps.py, line N); fix the function.",
        ),
    ],
    ids=["nothing", "raises"],
)
def test_function_of_transform_when_it_fails_is_told_with_its_line(spark, tmp_path, fn, said):
    with pytest.raises(DeclarationError) as caught:
        start(spark, tmp_path, lambda s: s.transform(fn))
    assert re.sub(r"line \d+", "line N", str(caught.value)) == said


@pytest.mark.spark
def test_folder_of_a_source_when_it_is_not_there_is_told_with_the_source(spark, tmp_path):
    with pytest.raises(DeclarationError) as caught:
        start(spark, tmp_path, lambda s: s, path="nowhere")
    path = f"{tmp_path}/nowhere"
    assert str(caught.value) == (f"Source 's' reads {path!r}, but there is no {path}; create the folder, or correct the path.")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("[SOMETHING_ELSE] It did not work. SQLSTATE: XX000", "The flow failed: It did not work."),
        ("[USER_RAISED_EXCEPTION] penstock: Source 's' has a record. SQLSTATE: P0001", "Source 's' has a record."),
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", "The flow failed: Division by zero."),
        (
            "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: It did not work. SQLSTATE: XXKST",
            "The flow failed: It did not work.",
        ),
        (
            "Job aborted: \nError from python worker:\n  Traceback (most recent call last):\n  AttributeError: no 'loads'\nPYTHONPATH was:\n  /x\n\tat java",
            "The flow failed: Spark's Python workers do not start: AttributeError: no 'loads'.",
        ),
        (
            "Error from python worker:\n  /usr/bin/python3: No module named pyspark\nPYTHONPATH was:\n  /x\n",
            "The flow failed: Spark's Python workers do not start: /usr/bin/python3: No module named pyspark.",
        ),
    ],
)
def test_words_of_spark_when_nothing_better_is_known_come_without_its_codes(said, told):
    error = translated(RuntimeError(said))
    assert isinstance(error, PenstockError)
    assert str(error) == told


@pytest.mark.spark
@pytest.mark.parametrize(("kind", "declared", "wider"), [("uint32", "int", "bigint"), ("uint64", "bigint", "decimal(20,0)")])
def test_numbers_without_a_sign_are_told_with_the_type_to_declare_and_read_as_that(spark, tmp_path, kind, declared, wider):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"v": pa.array([2**31], kind)}), tmp_path / "in" / "1.parquet")

    def run(schema):
        flow, out = ps.Flow("unsigned"), ps.memory(f"{schema} {tmp_path}")
        flow.source("s", ps.files(tmp_path / "in", f"v {schema}")).sink(out)
        flow.start(spark, checkpoint=tmp_path / schema, trigger="available_now").await_termination(600)
        return [int(r["v"]) for r in out.rows()]

    with pytest.raises(RecordError, match=rf"{kind} as {re.escape(wider)}"):
        run(declared)
    assert run(wider) == [2**31]


@pytest.mark.spark
def test_log_when_a_stop_interrupts_a_query_says_nothing_of_what_it_was_storing(spark):
    loggers = spark._jvm.org.apache.logging.log4j.LogManager
    levels = {
        name: str(loggers.getLogger(f"org.apache.spark.{name}").getLevel())
        for name in ("broadcast.TorrentBroadcast", "scheduler")
    }
    assert levels == {"broadcast.TorrentBroadcast": "OFF", "scheduler": "ERROR"}
