"""Mistakes that used to be taken, or told in somebody else's words."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import penstock as ps
from penstock.driver.commands import hashes_of
from penstock.errors import DeclarationError, OperatorError
from penstock.spark.options import workers_of
from penstock.testing import Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
COLUMNS = "k string, at timestamp, v long, `a b` long"


def events(name="f"):
    flow = ps.Flow(name)
    return flow, flow.source("s", ps.files("none", COLUMNS), time="at")


def sinking():
    flow, stream = events()
    stream.sink(ps.noop())
    return flow


def keeps(_, event, state):
    return (event.v,), state


def run(declare, tmp_path, n=3):
    """What a flow with a stream of three rows gives: of the keys a, b and a."""
    out = ps.memory(f"{tmp_path}")
    flow, stream = events()
    declare(stream).sink(out)
    with Harness(flow) as harness:
        harness.push("s", [{"k": "aba"[i], "at": BEGIN + dt.timedelta(minutes=i), "v": i, "a b": i} for i in range(n)])
        harness.finish()
    return out.rows()


DECLARATIONS = {
    "other flow": (lambda s: s.union(events("g")[1]), "union needs streams of the same flow"),
    "no stream": (lambda s: s.union(None), "union needs streams of the same flow"),
    "key twice": (lambda s: s.key_by("k", "k"), "key_by names column 'k' twice"),
    "all columns as a key": (
        lambda s: s.key_by("*"),
        "key_by must be one value, and '\\*' means all columns; name one of k, at, v",
    ),
    "all columns as one": (lambda s: s.with_columns(a="*"), "with_columns a must be one value, and '\\*' means all columns"),
    "key replaced": (lambda s: s.key_by("k").with_columns(k="'x'"), "'k' is the key of region 'k' and cannot be replaced"),
    "key selected": (
        lambda s: s.key_by("k").select("upper(k) AS k", "v"),
        "'k' is the key of region 'k' and cannot be replaced",
    ),
    "left the region": (
        lambda s: s.key_by("k").deduplicate("v").where("v > 0").stateful_map(keeps, "v long"),
        r"have left region 'k'; key them again: .key_by\('k', name='…'\).stateful_map",
    ),
    "left a stage that has no key": (
        lambda s: s.distribute(ps.Shuffle()).where("v > 0").stateful_map(keeps, "v long"),
        r"have left region 'stage'; key them again: .key_by\('column', name='…'\).stateful_map",
    ),
    "window function": (
        lambda s: s.select("row_number() over (order by v) AS r"),
        "depends on other rows, and an epoch has only some of them",
    ),
    "aggregate function": (lambda s: s.where("v > avg(v)"), "depends on other rows"),
    "subquery": (lambda s: s.where("v in (select 1)"), "depends on other rows"),
    "chance": (lambda s: s.with_columns(r="v + rand()"), "has another value whenever an epoch runs again"),
    "clock": (lambda s: s.where("at < now()"), "has another value whenever an epoch runs again"),
    "clock in seconds": (lambda s: s.select("unix_timestamp() AS t"), "has another value whenever an epoch runs again"),
    "several rows": (lambda s: s.select("explode(array(v, v)) AS e"), "returns several rows per row; use map_batches"),
    "negative": (lambda s: s.key_by("k").join(s, within=-dt.timedelta(minutes=1)), "is -60 s, which is negative"),
    "eternity": (lambda _: ps.tumbling("99999999999 days"), "is longer than 100,000 days"),
    "skipping": (lambda s: s.key_by("k").process(ps.Operator(), on_error="skip"), "only it can tell which of them to skip"),
    "own columns": (lambda _: ps.files("none", "__ps_time long"), "names that start with __ps_ are penstock's own"),
    "same name to SQL": (
        lambda _: ps.files("none", "k string, K string"),
        "names columns 'k' and 'K', which are the same to SQL",
    ),
    "same name": (
        lambda s: s.map_batches(lambda b: b, pa.schema([("k", pa.string()), ("k", pa.int64())])),
        "the schema of map_batches names column 'k' twice",
    ),
    "mode of the reader": (
        lambda _: ps.files("none", COLUMNS, "json", Mode="DROPMALFORMED"),
        r"files\(Mode=...\) cannot be chosen: penstock finds malformed records itself, and on_error= of the source says what",
    ),
    "old files of the reader": (
        lambda _: ps.files("none", COLUMNS, "csv", maxFileAge="1d"),
        r"files\(maxFileAge=...\) cannot be chosen: each file is read once, however old it is\.",
    ),
    "order of the reader": (
        lambda _: ps.files("none", COLUMNS, latestfirst=True),
        r"files\(latestfirst=...\) cannot be chosen: files are read in the order of \(modification time, name\)\.",
    ),
    "damaged files of the reader": (
        lambda _: ps.files("none", COLUMNS, ignoreCorruptFiles=True),
        r"files\(ignoreCorruptFiles=...\) cannot be chosen: a file that vanished or is damaged must not be passed over",
    ),
    "cleaning of the reader": (
        lambda _: ps.files("none", COLUMNS, cleanSource="delete"),
        r"files\(cleanSource=...\) cannot be chosen: a flow that runs an epoch again, or goes back to a snapshot, must find",
    ),
    "files of the reader": (
        lambda _: ps.files("none", COLUMNS, maxFilesPerTrigger=3),
        r"files\(maxFilesPerTrigger=...\) cannot be chosen: max_files_per_epoch= says it\.",
    ),
    "columns of the reader": (
        lambda _: ps.files("none", COLUMNS, "csv", columnPruning=True),
        r"files\(columnPruning=...\) cannot be",
    ),
    "no schema": (
        lambda _: ps.files("none", None),
        "must be text such as 'tail string, delay double', a StructType, or a pyarrow.Schema",
    ),
    "no name": (lambda _: ps.Flow("f").source("", ps.files("none", COLUMNS)), "The name of a source must be text, not ''"),
    "column that is none": (lambda _: ps.sum(None), "The column of sum must be text, not None"),
    "quantile of none": (lambda _: ps.quantile("v", None), "q must be a number, not None"),
    "error as text": (lambda _: ps.approx_count_distinct("v", "2 %"), "relative_error must be a number, not '2 %'"),
    "rate as text": (lambda _: ps.rate("3"), "rows_per_second of rate must be a whole number from 1, not '3'"),
    "files as text": (
        lambda _: ps.files("none", COLUMNS, max_files_per_epoch="2"),
        "max_files_per_epoch of files must be a whole number from 1, not '2'",
    ),
    "no path": (lambda _: ps.files(None, COLUMNS), "The path of files must be text, not None"),
    "time as number": (
        lambda _: ps.Flow("f").source("t", ps.files("none", COLUMNS), time=3),
        "The time column of source 't' must be text, not 3",
    ),
    "one position": (
        lambda _: ps.Flow("f").source("t", ps.files("none", COLUMNS), position="v"),
        r"Source 't' has position='v'; give two columns, \(partition, offset\)",
    ),
    "region as number": (lambda s: s.key_by("k", name=3), "key_by's name must be text, not 3"),
    "key as number": (lambda s: s.key_by(3), "What key_by is given must be text, not 3"),
    "condition as number": (lambda s: s.where(3), "What where is given must be text, not 3"),
    "nothing selected": (lambda s: s.select(), "select needs at least one column"),
    "number selected": (lambda s: s.select(3), "What select is given must be text, not 3"),
    "output as number": (lambda s: s.sink(ps.noop(), name=3), "The name of an output must be text, not 3"),
    "transform by number": (lambda s: s.transform(3), r"transform needs a function fn\(dataframe\), not 3"),
    "map by two": (lambda s: s.map_batches(lambda a, b: a, COLUMNS), r"map_batches calls its function as fn\(batch\)"),
    "list of numbers": (lambda s: s.key_by("k").deduplicate([3]), "A column of deduplicate must be text, not 3"),
    "no database": (lambda _: ps.sql(None, "t"), "The URL of sql must be text, not None"),
    "no table": (lambda _: ps.sql("sqlite:///x.db", None), "The table of sql must be text, not None"),
    "no folder": (lambda _: ps.parquet(None), "The path of parquet must be text, not None"),
    "rows as text": (lambda _: ps.console("x"), "The limit of console must be a whole number from 0, not 'x'"),
    "no memory": (lambda _: ps.memory(None), "The name of memory must be text, not None"),
    "type as number": (lambda s: s.key_by("k").match("SELECT * WHERE A", type=3), "type must be text, not 3"),
    "type of times": (
        lambda s: s.key_by("k").match("SELECT * WHERE A", type="at"),
        r"type names column 'at' of timestamp\[us, tz=UTC\], but a type's name is text; cast it",
    ),
    "types as list": (
        lambda s: s.key_by("k").match("SELECT * WHERE A", define=["A"]),
        r"define must be a dict of type names and SQL conditions, not \['A'\]",
    ),
    "type by number": (
        lambda s: s.key_by("k").match("SELECT * WHERE A", define={"A": 3}),
        "The condition of 'A' in define must be text, not 3",
    ),
    "matches as text": (
        lambda s: s.key_by("k").match("SELECT * WHERE A", define={"A": "v > 1"}, max_matches_per_event="x"),
        "max_matches_per_event must be a whole number from 0, not 'x'",
    ),
    "session as text": (
        lambda _: sinking().start("local", checkpoint="none"),
        "start needs a SparkSession, or none, not 'local'",
    ),
}


@pytest.mark.parametrize("case", DECLARATIONS)
def test_declaration_when_it_cannot_work_is_refused_in_one_sentence(case):
    declare, sentence = DECLARATIONS[case]
    with pytest.raises(DeclarationError, match=sentence) as caught:
        declare(events()[1])
    assert "\n" not in str(caught.value)


def test_name_that_is_announced_but_not_there_says_so():
    with pytest.raises(AttributeError, match=r"penstock.kafka is not available in this version"):
        _ = ps.kafka


def test_key_that_is_null_and_of_no_type_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(
        DeclarationError, match=r"Region 'n' cannot be keyed by column 'n', which is NULL and of no type; write CAST"
    ):
        run(lambda s: s.key_by("NULL AS n").aggregate(rows=ps.count()), tmp_path)
    assert run(lambda s: s.key_by("CAST(NULL AS string) AS n").aggregate(rows=ps.count()), tmp_path) == [{"n": None, "rows": 3}]


def test_option_of_start_that_is_none_counts_as_not_given(tmp_path):
    with pytest.raises(DeclarationError, match="start needs checkpoint"):
        events()[0].start(None, group=None)
    with pytest.raises(DeclarationError, match="start has no option 'serve'"):
        events()[0].start(None, group=None, serve=":8080", checkpoint=tmp_path)
    with pytest.raises(DeclarationError, match=r"group='g' is none; write group=penstock.Group"):
        events()[0].start(None, group="g", checkpoint=tmp_path)


def test_keys_to_move_when_they_are_one_text_are_refused():
    with pytest.raises(DeclarationError, match=r"keys must be a list of keys, not 'abc'; write \['abc'\]"):
        hashes_of("abc", pa.schema([("k", pa.string())]))


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        ("2", "workers='2' must be a whole number, or numbers by region"),
        (1.5, "workers=1.5 must be a whole number"),
        (True, "Region 'k' cannot have True workers"),
        ({"k": "2"}, "Region 'k' cannot have '2' workers"),
    ],
)
def test_workers_when_they_are_no_whole_number_are_refused(workers, sentence):
    flow, stream = events()
    stream.key_by("k").deduplicate("v").sink(ps.noop())
    with pytest.raises(DeclarationError, match=sentence):
        workers_of(flow.plan(), workers)


def test_star_is_all_columns_and_a_plain_name_needs_no_quotes(tmp_path):
    rows = run(
        lambda s: s.select("*", "v + 1 AS w").key_by("a b").stateful_map(lambda k, e, s: ((k, e.w), s), "k long, w long"),
        tmp_path,
    )
    assert sorted(r["k"] for r in rows) == [0, 1, 2]
    assert all(r["w"] == r["k"] + 1 for r in rows)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"delya": 1}, r"returned the row \{'delya': 1\}, which has no column 'delay'|has a column 'delya'"),
        ({"delay": 1, "more": 2}, "has a column 'more'; its schema has delay"),
        ((1.5,), "'delay' that is not int64: 1.5 is not a whole number"),
    ],
)
def test_row_of_a_function_when_it_does_not_fit_is_refused(tmp_path, given, sentence):
    with pytest.raises(OperatorError, match=sentence):
        run(lambda s: s.key_by("k").stateful_map(lambda *_: (given, None), "delay long"), tmp_path)


def test_row_of_a_function_when_a_whole_number_is_a_float_is_taken(tmp_path):
    rows = run(lambda s: s.key_by("k").stateful_map(lambda *_: ((2.0,), None), "v long"), tmp_path)
    assert rows == [{"v": 2}] * 3


class Fails(ps.Operator):
    def __init__(self, hook):
        self.hook = hook

    def _fail(self, hook):
        if hook == self.hook:
            raise ZeroDivisionError("by nothing")

    def on_data(self, rows, state):
        self._fail("on_data")
        yield rows.emit(rows.data)
        self._fail("generator")

    def on_frontier(self, t, state):
        self._fail("on_frontier")

    def on_barrier(self, epoch, state):
        self._fail("on_barrier")


@pytest.mark.parametrize("hook", ["on_data", "generator", "on_frontier", "on_barrier"])
def test_operator_when_it_raises_is_named(tmp_path, hook):
    with pytest.raises(OperatorError, match=r"Operator Fails of region 'k' failed in .*: ZeroDivisionError: by nothing"):
        run(lambda s: s.key_by("k").process(Fails(hook)), tmp_path)


def test_operator_when_it_gives_what_is_no_rows_is_told(tmp_path):
    class Gives(ps.Operator):
        def on_data(self, rows, state):
            return pa.table({"v": [1]})

    with pytest.raises(OperatorError, match=r"it must give what rows.emit\(...\) or state.emit\(...\) give"):
        run(lambda s: s.key_by("k").process(Gives()), tmp_path)


def test_aggregate_when_it_raises_is_named(tmp_path):
    class Broken(ps.Aggregate):
        type = "long"

        def zero(self):
            return 0

        def add(self, state, value):
            return state // 0

        def merge(self, a, b):
            return a + b

        def finish(self, state):
            return state

    with pytest.raises(OperatorError, match=r"of region 'k' failed in Broken.add on key 'a' at position .* ZeroDivisionError"):
        run(lambda s: s.key_by("k").window(ps.tumbling("1 hour")).aggregate(n=Broken("v")), tmp_path)


def test_function_over_batches_when_its_column_does_not_fit_is_told(tmp_path):
    with pytest.raises(OperatorError, match=r"gave column 'w', which is not int64: "):
        run(lambda s: s.map_batches(lambda b: pa.record_batch({"w": ["x"] * len(b)}), "w long"), tmp_path)
