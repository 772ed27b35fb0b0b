"""A name of PySpark's, Bytewax' or Quix Streams' is answered with penstock's."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock as ps
from penstock.driver.run import Run
from penstock.errors import DeclarationError, SpellingError
from penstock.flow.keyed import KeyedStream
from penstock.flow.spellings import FLOW, MODULE, RUN, STREAM
from penstock.flow.stream import Stream
from penstock.flow.windowed import WindowedStream


@pytest.fixture
def flow():
    return ps.Flow("f")


@pytest.fixture
def stream(flow):
    return flow.source("s", ps.files("none", "k string, at timestamp, v long"), time="at")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("groupBy", "A stream has no .groupBy; write key_by('column')."),
        ("withColumn", "A stream has no .withColumn; write with_columns(name='SQL', …)."),
        ("map", "map_batches(fn, schema)"),
        ("writeStream", "A stream has no .writeStream; write sink("),
        ("show", "A stream has no .show: a flow's rows are in its sinks: sink(penstock.console())"),
        ("withWatermark", "lateness='10 minutes'"),
        ("tumbling_window", "window(penstock.tumbling("),
        ("orderBy", "A stream has no .orderBy: rows of a stream have no end"),
        ("wher", "A stream has no attribute 'wher'; did you mean 'where'?"),
        ("zzz", "A stream has no attribute 'zzz'."),
        ("stateful_map", "keeps state and so needs a key"),
    ],
)
def test_attribute_that_a_stream_does_not_have_is_answered_in_a_sentence(stream, word, said):
    assert not hasattr(stream, word)
    with pytest.raises(SpellingError) as caught:
        getattr(stream, word)
    assert said in str(caught.value)
    assert isinstance(caught.value, DeclarationError)


@pytest.mark.parametrize(("kind", "words"), [(Stream, STREAM), (ps.Flow, FLOW), (Run, RUN), (ps, MODULE)])
def test_word_that_is_answered_is_none_that_there_is(kind, words):
    assert not {w for w in words if hasattr(kind, w)}
    if kind is Stream:
        assert not {w for w in words if hasattr(KeyedStream, w) or hasattr(WindowedStream, w)}


def test_flow_and_window_answer_as_a_stream_does(flow, stream):
    with pytest.raises(SpellingError, match=r"A flow has no .readStream; write flow.source\('name'"):
        _ = flow.readStream
    window = stream.key_by("k").window(ps.tumbling("1h"))
    with pytest.raises(SpellingError, match=r"A window of a stream has no \.agg; write key_by"):
        _ = window.agg
    with pytest.raises(SpellingError, match=r".where cannot follow .window\(...\) directly"):
        _ = window.where
    assert not hasattr(window, "match")
    assert not hasattr(flow, "__wrapped__")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("col", "penstock has no .col; write SQL as text where an expression goes, such as where('delay > 5'), or a Column of"),
        ("window", "write key_by('column').window(penstock.tumbling('1 hour')).aggregate(n=penstock.count())."),
        ("hopping", "penstock.sliding('1 hour', '10 minutes')"),
        ("Application", "penstock has no .Application; write penstock.Flow('name')."),
        ("median", "penstock has no .median; write quantile('column', 0.5)."),
        ("readStream", "flow.source('name', penstock.files("),
        ("tumbing", "penstock has no attribute 'tumbing'; did you mean 'tumbling'?"),
        ("zzz", "penstock has no attribute 'zzz'."),
    ],
)
def test_name_that_the_module_does_not_have_is_answered_in_a_sentence(word, said):
    assert not hasattr(ps, word)
    with pytest.raises(SpellingError) as caught:
        getattr(ps, word)
    assert said in str(caught.value)


def test_modules_of_penstock_are_imported_as_ever():
    script = "import penstock as ps; from penstock import errors, flow; import penstock.sinks; print(ps.errors.__name__, flow.__name__)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "penstock.errors penstock.flow\n"
    with pytest.raises(ImportError):
        exec("from penstock import window")
