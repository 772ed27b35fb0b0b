"""Where a record came from is told by file and row: in errors, in the rows of error sinks, in progress, also of a record that waited."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import OperatorError

pytestmark = pytest.mark.spark
NAMES = [f"{i}.csv" for i in range(3)]


def dividing(key, event, state):
    return (12 // event.v,), state


def test_record_of_a_file_is_told_by_its_file_and_row_also_after_it_has_waited(spark, tmp_path):
    def run(on_error, rounds):
        for n, names in enumerate(rounds):
            for name in names:
                i = int(name[0])
                (tmp_path / "in").mkdir(exist_ok=True)
                lines = [f"a,2024-01-01T00:0{i}:0{row}Z,{v}" for row, v in enumerate([1, 2, 0])]
                (tmp_path / "in" / name).write_text("\n".join(["k,at,v", *lines, ""]))
            flow = ps.Flow("f")
            stream = flow.source("s", ps.files(str(tmp_path / "in"), "k string, at timestamp, v long", "csv"), time="at")
            stream.key_by("k").stateful_map(dividing, "w long", on_error=on_error).sink(rows)
            drain = n == len(rounds) - 1
            run = flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now", drain=drain)
            run.await_termination(600)
        return run

    rows, errors = ps.memory(f"rows {tmp_path}"), ps.memory(f"errors {tmp_path}")
    told = run(errors, [NAMES[:1], NAMES[1:]])  # the last record of the first file waits for the second run
    assert sorted(r["position"] for r in errors.rows()) == [f"s: {name} row 3" for name in NAMES]
    assert told.regions["k"]["first_skipped"].startswith("key 'a' at s: ")
    rows = ps.memory(f"rows again {tmp_path}")
    (tmp_path / "c").rename(tmp_path / "old")
    with pytest.raises(OperatorError, match=r"on key 'a' at position s: 0.csv row 3: ZeroDivisionError"):
        run("fail", [NAMES])
