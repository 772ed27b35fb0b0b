from __future__ import annotations

import sys

import pytest

from penstock import sinks
from penstock.errors import DeclarationError, FencedError


@pytest.fixture
def sink(make):
    made = sinks.console(limit=2)
    made.validate(make.schema, updates=True, key=("n",))
    assert made.open(make.mark(-1), make.schema) is None
    return made


def test_write_when_in_a_pipe_then_prints_tab_separated_lines(sink, make, capsys):
    assert sink.write([make.batch((1, "a\tb"), (2, None)), make.batch((3, "[red]"))], make.mark(7)) == 3
    assert capsys.readouterr().out == "# out · epoch 7\nn\tword\n1\ta\\tb\n2\t\n# 1 more rows\n"


def test_write_when_on_a_terminal_then_draws_a_table(make, capsys, monkeypatch):
    sink = sinks.console()
    sink.open(make.mark(-1), make.schema)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    sink.write([make.batch((1, "[red]x"))], make.mark(0))
    out = capsys.readouterr().out
    assert "[red]x" in out
    assert "┃" in out
    assert "word" in out


def test_write_when_epoch_is_empty_or_held_then_prints_nothing(sink, make, capsys):
    assert sink.write([make.batch()], make.mark(0)) == 0
    assert sink.write([make.batch((1, "a"))], make.mark(0)) == 0
    assert capsys.readouterr().out == ""


def test_open_when_reopened_then_knows_what_was_printed(sink, make):
    sink.write([make.batch((1, "a"))], make.mark(0))
    assert sink.open(make.mark(0, run=2), make.schema) == make.mark(0)
    with pytest.raises(FencedError):
        sink.write([make.batch((1, "a"))], make.mark(1))
    assert sink.open(make.mark(-1, flow="other"), make.schema) is None


def test_console_when_limit_is_negative_then_is_refused():
    with pytest.raises(DeclarationError, match="limit of console must be a whole number from 0, not -1"):
        sinks.console(limit=-1)
