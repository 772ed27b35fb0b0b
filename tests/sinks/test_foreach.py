from __future__ import annotations

import pytest

from penstock import sinks
from penstock.errors import DeclarationError, FencedError, SinkError


@pytest.fixture
def calls():
    return []


@pytest.fixture
def sink(calls, make):
    made = sinks.foreach_epoch(lambda table, epoch: calls.append((epoch, table.to_pylist())))
    made.validate(make.schema, updates=True, key=())
    assert made.open(make.mark(-1), make.schema) is None
    return made


def test_write_when_rows_then_function_gets_them_as_one_table(sink, calls, make):
    assert sink.write([make.batch((1, "a")), make.batch((2, "b"))], make.mark(3)) == 2
    assert calls == [(3, [{"n": 1, "word": "a"}, {"n": 2, "word": "b"}])]


def test_write_when_epoch_is_empty_or_held_then_function_is_not_called(sink, calls, make):
    assert sink.write([], make.mark(0)) == 0
    assert sink.write([make.batch((1, "a"))], make.mark(0)) == 0
    assert calls == []
    assert sink.write([make.batch((1, "a"))], make.mark(1)) == 1


def test_write_when_function_raises_then_epoch_is_named_and_called_again(make):
    calls = []

    def store(table, epoch):
        calls.append(epoch)
        if len(calls) == 1:
            raise ValueError("disk full")

    sink = sinks.foreach_epoch(store)
    sink.open(make.mark(-1), make.schema)
    with pytest.raises(
        SinkError, match=r"foreach_epoch\(store\) raised ValueError on the 1 rows of epoch 4 \(disk full\)"
    ) as raised:
        sink.write([make.batch((1, "a"))], make.mark(4))
    assert isinstance(raised.value.__cause__, ValueError)
    assert sink.write([make.batch((1, "a"))], make.mark(4)) == 1
    assert calls == [4, 4]


def test_write_when_a_newer_run_opened_then_function_is_not_called(sink, calls, make):
    sink.open(make.mark(-1, run=2), make.schema)
    with pytest.raises(FencedError):
        sink.write([make.batch((1, "a"))], make.mark(0))
    assert calls == []


def test_write_when_batches_raise_then_it_is_not_the_functions_error(sink, calls, make):
    def crashing():
        yield make.batch((1, "a"))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sink.write(crashing(), make.mark(0))
    assert calls == []


def test_foreach_epoch_when_not_a_function_then_is_refused():
    with pytest.raises(DeclarationError, match="needs a function of"):
        sinks.foreach_epoch("store")
