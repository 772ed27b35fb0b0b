"""A database commits an epoch and the answer is lost: the write fails, and the epoch that is run again finds its rows and stores none twice."""

from __future__ import annotations

import pytest
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import OperationalError
from test_contract import opened

from penstock.errors import SinkError


@pytest.fixture
def losing(monkeypatch):
    """Has the answer to the next commit lost, after it was done."""
    commit, left = DefaultDialect.do_commit, []

    def do_commit(self, connection):
        commit(self, connection)
        if left:
            left.pop()
            raise OperationalError("COMMIT", None, ConnectionResetError("the answer is lost"))

    monkeypatch.setattr(DefaultDialect, "do_commit", do_commit)
    return left


@pytest.mark.parametrize("run", [1, 2], ids=["the same run", "another run"])
def test_epoch_whose_commit_was_done_and_not_answered_is_not_stored_again(sql_rig, make, losing, run):
    if sql_rig.system == "duckdb":
        pytest.skip("a file in the same process: nothing lies between")
    sink = opened(sql_rig, make, epoch=1)
    losing.append(True)
    with pytest.raises((SinkError, OperationalError)):
        sink.write([make.batch((1, "a"))], make.mark(2))
    assert not losing
    again = sink if run == 1 else opened(sql_rig, make, epoch=1, run=2)
    assert again.write([make.batch((1, "a"))], make.mark(2, run=run)) == 0
    assert again.write([make.batch((2, "b"))], make.mark(3, run=run)) == 1
    assert sql_rig.rows() == [(1, "a"), (2, "b")]
