"""Taking rows back: the contract of `penstock.sinks.Rewinding`, for every sink."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import FencedError, SinkError
from penstock.sinks import Rewinding

UPSERT = {"mode": "upsert", "key": ["n"]}


def opened(rig, make, *, run=1, epoch=-1, **options):
    sink = rig.sink(**options)
    sink.open(make.mark(epoch, run=run), make.schema)
    return sink


def options_of(rig):
    """Options with which the sink can take rows back."""
    return {} if rig.system in ("memory", "parquet", "redis") else UPSERT


def filled(rig, make, **options):
    sink = opened(rig, make, **options)
    for epoch in range(4):
        sink.write([make.batch((epoch, "old"))] if epoch != 1 else [], make.mark(epoch))
    return sink


def test_every_sink_when_checked_then_can_be_asked_to_take_rows_back(rig):
    for sink in (rig.sink(), ps.console(), ps.noop(), ps.foreach_epoch(print)):
        assert isinstance(sink, Rewinding)
    if rig.system != "redis":
        assert rig.sink(**options_of(rig)).rewind_refusal() is None
    assert ps.console().rewind_refusal() is ps.noop().rewind_refusal() is None
    assert (
        ps.foreach_epoch(print).rewind_refusal().sentence
        == "foreach_epoch(print) cannot take back the rows that the function was given"
    )


def test_rewind_when_rows_are_of_later_epochs_then_they_are_gone_or_are_replaced(rig, make):
    if rig.system == "redis":
        pytest.skip("takes no rows back")
    sink = filled(rig, make, **options_of(rig))
    sink.rewind(0, make.mark(4))
    assert rig.stored_epoch() == 4
    if rig.system in ("memory", "parquet"):
        assert rig.rows() == [(0, "old")]
    sink.write([make.batch((2, "new"), (3, "new"))], make.mark(5))
    assert sorted(rig.rows()) == [(0, "old"), (2, "new"), (3, "new")]


def test_rewind_when_it_was_done_before_then_nothing_is_changed(rig, make):
    sink = filled(rig, make, **options_of(rig))
    sink.rewind(0, make.mark(4))
    sink.write([make.batch((9, "new"))], make.mark(5))
    before = rig.rows()
    sink.rewind(0, make.mark(4))
    assert rig.rows() == before
    assert rig.stored_epoch() == 5


def test_rewind_when_a_crash_follows_then_a_new_run_finds_the_mark_and_does_it_again(rig, make):
    filled(rig, make, **options_of(rig)).rewind(0, make.mark(4))
    again = opened(rig, make, run=2, epoch=3, **options_of(rig))
    again.rewind(0, make.mark(4, run=2))
    assert rig.stored_epoch() == 4
    assert again.write([make.batch((7, "new"))], make.mark(5, run=2)) == 1
    assert (7, "new") in rig.rows()


def test_rewind_when_a_newer_run_owns_the_sink_then_it_is_fenced_and_nothing_is_changed(rig, make):
    old = filled(rig, make, **options_of(rig))
    opened(rig, make, run=2, epoch=3, **options_of(rig))
    before = rig.rows()
    with pytest.raises(FencedError):
        old.rewind(0, make.mark(4))
    assert rig.rows() == before
    assert rig.stored_epoch() == 3


def test_rewind_when_the_sink_was_not_opened_then_it_is_refused(rig, make):
    if rig.system != "memory":
        with pytest.raises(SinkError, match="open"):
            rig.sink(**options_of(rig)).rewind(0, make.mark(4))


def test_rewind_when_a_table_is_appended_to_then_only_the_mark_moves(rig, make):
    if rig.system in ("memory", "parquet"):
        pytest.skip("takes rows back")
    sink = filled(rig, make)
    why = 'cannot take back rows, because with mode="append" a row does not say which epoch it is of'
    why = "cannot take back entries, which others may have read" if rig.system == "redis" else why
    assert sink.rewind_refusal().sentence.endswith(why)
    sink.rewind(0, make.mark(4))
    assert len(rig.rows()) == 3
    assert rig.stored_epoch() == 4


def test_rewind_when_files_are_those_of_another_output_then_they_stay(tmp_path, make):
    one, other = ps.parquet(tmp_path), ps.parquet(tmp_path)
    for sink, output in ((one, "one"), (other, "one-more")):
        sink.open(make.mark(-1, output=output), make.schema)
        sink.write([make.batch((1, output))], make.mark(0, output=output))
    one.rewind(-1, make.mark(1, output="one"))
    (kept,) = tmp_path.glob("*.parquet")
    assert "one_more" in kept.name


def test_rewind_when_the_console_or_a_function_then_the_mark_moves(make, capsys):
    given = []
    for sink in (ps.console(), ps.foreach_epoch(lambda table, epoch: given.append(epoch))):
        sink.open(make.mark(-1), make.schema)
        sink.write([make.batch((1, "a"))], make.mark(0))
        sink.rewind(-1, make.mark(1))
        sink.rewind(-1, make.mark(1))
        assert sink.write([make.batch((1, "a"))], make.mark(1)) == 0
        assert sink.write([make.batch((1, "a"))], make.mark(2)) == 1
    assert given == [0, 2]
    assert capsys.readouterr().out.count("what was printed since no longer counts") == 1
