"""A process that dies between ALTER TABLE and the commit leaves the table as it was, with neither the column nor a row."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

CHILD = """
import os, signal, sys
import pyarrow as pa
import penstock as ps
from penstock.sinks.sql_layout import Layout
from penstock.types import Mark

add = Layout.add

def added(self, transaction, *rest):
    add(self, transaction, *rest)
    transaction.run('SELECT r.new FROM results r')  # it is there, for this transaction
    if sys.argv[2] == "outside":  # what must not be: the column stays whatever becomes of the rows
        transaction.run("COMMIT")
        transaction.run("BEGIN")
    print("added", flush=True)
    if sys.argv[2] == "at once":
        os.kill(os.getpid(), signal.SIGKILL)

def rows():
    yield pa.record_batch({"n": [2], "word": ["b"], "new": [0.5]})
    os.kill(os.getpid(), signal.SIGKILL)

Layout.add = added
sink = ps.sql(sys.argv[1], "results", evolve=True)
schema = pa.schema([("n", pa.int64()), ("word", pa.string()), ("new", pa.float64())])
sink.open(Mark("flow-a", "out", 2, 0), schema)
sink.write(rows(), Mark("flow-a", "out", 2, 1))
"""


def killed(sql_rig, make, when):
    """A table with a row, and a process that dies while it adds a column."""
    sink = sql_rig.sink()
    sink.open(make.mark(-1), make.schema)
    sink.write([make.batch((1, "a"))], make.mark(0))
    sink.close()
    child = subprocess.run(
        [sys.executable, "-c", CHILD, sql_rig.url, when], check=False, capture_output=True, text=True, timeout=120
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert child.stdout == "added\n"


def check_unchanged(sql_rig):
    with pytest.raises(Exception, match="new"):
        sql_rig.query("SELECT r.new FROM results r")
    assert sql_rig.rows() == [(1, "a")]


@pytest.mark.parametrize("when", ["at once", "after a row"])
def test_process_when_killed_between_the_new_column_and_the_commit_leaves_neither(sql_rig, make, when):
    killed(sql_rig, make, when)
    check_unchanged(sql_rig)
    wider = make.schema.append(make.schema.field("n").with_name("new"))
    again = sql_rig.sink(evolve=True)
    again.open(make.mark(0, run=3), wider)
    assert again.write([make.batch((2, "b", 7), schema=wider)], make.mark(1, run=3)) == 1
    assert sql_rig.rows(columns='n, "new"', order="n") == [(1, None), (2, 7)]


def test_column_that_is_added_outside_of_the_transaction_is_found(sql_rig, make):
    killed(sql_rig, make, "outside")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_unchanged(sql_rig)
