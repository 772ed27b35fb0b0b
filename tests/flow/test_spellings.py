"""A name of PySpark's, Bytewax' or Quix Streams' is answered with penstock's."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.driver.run import Run
from penstock.errors import DeclarationError, SpellingError
from penstock.flow.keyed import KeyedStream
from penstock.flow.spellings import FLOW, RUN, STREAM
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


@pytest.mark.parametrize(("kind", "words"), [(Stream, STREAM), (ps.Flow, FLOW), (Run, RUN)])
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
