"""A checkpoint is lost over Spark, and the log is Redis streams or stored rows: computed anew if it is the log of before, otherwise refused with nothing stored.

Read next: `tests/sources/test_redis_recomputed.py`, `tests/sinks/test_read_back_edited.py`.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from datetime import timedelta
from typing import ClassVar

import pytest
import recomputed as rc

import penstock as ps
from penstock.errors import RecoveryError
from penstock.redis_client.connection import connect
from penstock.spark.internals.python_sources import TOLD
from penstock.testing import Harness

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not TOLD, reason="sources in Python need PySpark 4.2")]
NUMBERS = itertools.count()
SECOND = timedelta(seconds=1)
BEFORE, ALL, WINDOW, EDITED = 60, 100, 10, 86
COLUMNS = "k string, at timestamp, v long"


def entries(first, last):
    return [{"k": "ab"[v % 3 % 2], "at": rc.BEGIN + v // 2 * SECOND, "v": v} for v in range(first, last)]


class Streams:
    """Two Redis streams."""

    refusals: ClassVar = {
        "dated anew": "as many, with other positions or times",
        "deleted": r"after position 1070-1 and up to 1098-1 .*\(1 fewer\)",
        "trimmed": "8 fewer",
    }

    def __init__(self, url, folder):
        self.url, self.name, self.client = url, f"other log {next(NUMBERS)}", connect(url)

    def key(self, partition):
        return f"{{{self.name}:{partition}}}"

    def add(self, rows):
        for x in rows:
            fields = {"k": x["k"], "v": x["v"], "at": x["at"].isoformat()}
            self.client.xadd(self.key(x["v"] % 2), fields, id=f"{1000 + x['v']}-1")

    def edit(self, how):
        if how == "deleted":
            self.client.xdel(self.key(EDITED % 2), f"{1000 + EDITED}-1")
        elif how == "trimmed":
            self.client.xtrim(self.key(0), minid=f"{1000 + EDITED}-0", approximate=False)
        else:
            self.client.delete(self.key(0), self.key(1))
            self.add([{**x, "at": x["at"] + SECOND * (x["v"] == EDITED)} for x in entries(0, ALL)])

    def source(self, flow):
        log = ps.redis_streams(self.url, self.name, 2, COLUMNS, max_rows_per_epoch=40)
        return flow.source("log", log, time="at", lateness="2 seconds", partitions=[0, 1])


class Table:
    """Rows that another flow stored with their positions."""

    short = "has read all there is .* ends at position {}, and the mark stands at 93"
    refusals: ClassVar = {
        "dated anew": "as many, with other positions or times",
        "deleted": short.format(92),
        "trimmed": short.format(53),
    }

    def __init__(self, url, folder):
        self.database = folder / "stored.db"
        writer = ps.Flow(f"storing {next(NUMBERS)}")
        rows = writer.source("s", ps.files("none", COLUMNS), time="at", lateness="2 seconds")
        rows.sink(self.sink(), name="out", positions=True)
        self.harness = Harness(writer)

    def sink(self):
        return ps.sql(f"sqlite:///{self.database}", "stored")

    def add(self, rows):
        self.harness.push("s", rows)
        self.harness.epoch()

    def edit(self, how):
        query = {
            "deleted": f"DELETE FROM stored WHERE v = {EDITED}",
            "trimmed": f"DELETE FROM stored WHERE v < {EDITED}",
            "dated anew": f"UPDATE stored SET __ps_time = __ps_time + 1000000 WHERE v = {EDITED}",
        }[how]
        with sqlite3.connect(self.database) as database:
            assert database.execute(query).rowcount > 0

    def source(self, flow):
        return flow.source("log", ps.read_back(self.sink(), max_rows_per_epoch=40))


def flow_over(log, database):
    flow = ps.Flow("other logs")
    rows = log.source(flow)
    rows.sink(ps.sql(f"sqlite:///{database}", "rows"), name="rows")
    totals = rows.key_by("k").window(ps.tumbling(f"{WINDOW} seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
    totals.sink(ps.sql(f"sqlite:///{database}", "totals"), name="totals")
    return flow


def held(database):
    with sqlite3.connect(database) as connection:
        rows = Counter(connection.execute("SELECT k, v FROM rows"))
        return rows, Counter(connection.execute("SELECT k, n, total FROM totals"))


def wanted(upto, kind):
    """What the tables hold after so many entries, as the frontier is two seconds behind the last one."""
    windows = {}
    for x in entries(0, upto):
        windows.setdefault((x["k"], x["v"] // 2 // WINDOW), []).append(x["v"])
    frontier = (upto - 1) // 2 - 2
    return (
        Counter((x["k"], x["v"]) for x in entries(0, upto) if kind is Streams or x["v"] // 2 < frontier),
        Counter((k, len(vs), sum(vs)) for (k, w), vs in windows.items() if (w + 1) * WINDOW <= frontier),
    )


@pytest.mark.parametrize("kind", [Streams, Table])
def test_log_that_is_no_files_is_computed_anew_over_spark_as_long_as_it_is_the_log_of_before(
    kind, spark, redis_url, tmp_path, monkeypatch
):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    log, database = kind(redis_url, tmp_path), tmp_path / "out.db"
    log.add(entries(0, BEFORE))
    rc.run(flow_over(log, database), spark, tmp_path / "lost", drain=False)
    assert held(database) == wanted(BEFORE, kind)
    log.add(entries(BEFORE, ALL))
    run = rc.recompute(flow_over(log, database), spark, tmp_path / "new", drain=False)
    assert run.recovery is not None
    assert not run.recovery["active"]
    assert held(database) == wanted(ALL, kind)
    for how in ("dated anew", "deleted", "trimmed"):
        log.edit(how)
        with pytest.raises(RecoveryError, match=kind.refusals[how]):
            rc.recompute(flow_over(log, database), spark, tmp_path / how, drain=False)
        assert held(database) == wanted(ALL, kind)
