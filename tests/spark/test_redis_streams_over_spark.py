"""`penstock.redis_streams` over Spark, from a real server: bounded epochs, starts, gaps, malformed entries."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.errors import DeclarationError, RecordError
from penstock.redis_client.connection import connect
from penstock.spark.internals.python_sources import TOLD

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not TOLD, reason="sources in Python need PySpark 4.2")]
_names = itertools.count()


@pytest.fixture
def stream():
    return f"over spark {next(_names)}"


def add(url, stream, partition, rows):
    """Rows as (key, value, second)."""
    with connect(url).pipeline(transaction=False) as pipe:
        for k, v, second in rows:
            pipe.xadd(
                f"{{{stream}:{partition}}}", {"k": k, "v": v, "at": f"2024-01-01 00:{second // 60:02d}:{second % 60:02d}Z"}
            )
        return [entry.decode() for entry in pipe.execute()]


def run(spark, flow, checkpoint):
    flow.start(spark, checkpoint=checkpoint, workers=2, trigger="available_now", drain=False).await_termination()


def flow_of(url, stream, name, *, on_error="fail", **options):
    flow = ps.Flow("totals")
    source = ps.redis_streams(url, stream, 2, "k string, v long, at timestamp", **options)
    rows = flow.source("orders", source, time="at", on_error=on_error)
    out = ps.sql(f"sqlite:///{name}.db", "rows")
    rows.key_by("k").stateful_map(lambda k, e, n: ([(e.v, (n or 0) + 1)], (n or 0) + 1), "v long, n long").sink(out)
    return flow


def held(name):
    import sqlite3

    with sqlite3.connect(f"{name}.db") as database:
        return Counter(v for (v,) in database.execute("SELECT v FROM rows"))


def test_entries_over_several_epochs_and_starts_are_read_once(spark, redis_url, stream, tmp_path):
    place, later = str(tmp_path / "out"), 10_000
    add(redis_url, stream, 0, [("abc"[v % 3], v, v // 10) for v in range(250)])
    add(redis_url, stream, 1, [("xy"[v % 2], 1000 + v, v // 10) for v in range(90)])
    run(spark, flow_of(redis_url, stream, place, max_rows_per_epoch=120), str(tmp_path / "ckpt"))
    first = held(place)
    add(redis_url, stream, 1, [("x", later + v, 60) for v in range(20)])
    add(redis_url, stream, 0, [("a", later * 2 + v, 60) for v in range(20)])
    run(spark, flow_of(redis_url, stream, place, max_rows_per_epoch=120), str(tmp_path / "ckpt"))
    end = held(place)
    assert set(first.values()) == set(end.values()) == {1}
    assert set(end) >= {*range(250), *range(1000, 1090)}
    assert Checkpoint(str(tmp_path / "ckpt")).last().epoch >= 5, "an epoch reads 60 entries of a partition at most"
    run(spark, flow_of(redis_url, stream, place, max_rows_per_epoch=120), str(tmp_path / "ckpt"))
    assert held(place) == end


@pytest.mark.parametrize("trimmed", ["XTRIM", "XDEL behind", "DEL", "anew"])
def test_entries_that_were_removed_before_they_were_read_stop_the_flow(trimmed, spark, redis_url, stream, tmp_path):
    place, client, key = str(tmp_path / "out"), connect(redis_url), f"{{{stream}:1}}"
    (last,) = add(redis_url, stream, 1, [("a", v, v) for v in range(3)])[-1:]
    run(spark, flow_of(redis_url, stream, place), str(tmp_path / "ckpt"))
    before = held(place)
    new = add(redis_url, stream, 1, [("a", v, v) for v in range(3, 9)])
    said = rf"Partition 1 of stream '{stream}', read up to entry {last}, "
    if trimmed == "XTRIM":
        client.xtrim(key, minid=new[2], approximate=False)
        said += rf"has lost 2 entries that were not read: the first one there is {new[2]}; declare on_trim"
    elif trimmed == "XDEL behind":
        client.xdel(key, new[3])
        said += rf"lacks 1 of 6 entries up to {new[-1]} that were not read: the first one there is .*; declare on_trim"
    else:
        client.delete(key)
        said += "is gone: it was deleted, or the server was started without its data; start this flow anew"
    if trimmed == "anew":
        add(redis_url, stream, 1, [("a", v, v) for v in range(12)])
        said = said.replace(
            "is gone: it was deleted, or the server was started without its data",
            "has more entries than were added since: it was deleted and created anew",
        )
    with pytest.raises(RecordError, match=said):
        run(spark, flow_of(redis_url, stream, place), str(tmp_path / "ckpt"))
    assert held(place) == before


def test_gap_is_kept_as_a_malformed_record_if_so_declared_and_malformed_entries_with_their_id(
    spark, redis_url, stream, tmp_path
):
    place, client, key, bad = str(tmp_path / "out"), connect(redis_url), f"{{{stream}:1}}", ps.memory(f"{stream} bad")
    flow = flow_of(redis_url, stream, place, on_trim="skip", on_error=bad)
    (last,) = add(redis_url, stream, 1, [("a", v, v) for v in range(3)])[-1:]
    run(spark, flow, str(tmp_path / "ckpt"))
    new = add(redis_url, stream, 1, [("a", v, v) for v in range(3, 9)])
    client.xtrim(key, minid=new[2], approximate=False)
    client.xdel(key, new[4])
    wrong = client.xadd(key, {"k": b"\xff", "v": "1"}).decode()
    run(spark, flow_of(redis_url, stream, place, on_trim="skip", on_error=bad), str(tmp_path / "ckpt"))
    found = {row["position"]: row["record"] for row in bad.rows()}
    assert set(found) == {f"1 @ {last}", f"1 @ {wrong}"}
    assert found[f"1 @ {last}"].startswith(f"the stream lacks 3 of 7 entries up to {wrong} that were not read")
    assert found[f"1 @ {wrong}"] == r"""its field 'k' is '\\xff', which is no string: {"k": "\\xff", "v": "1"}"""


def test_source_that_cannot_work_is_refused_before_anything_is_read(spark, redis_url, stream, tmp_path):
    with pytest.raises(DeclarationError, match=r'has on_trim="skip", which makes a gap a malformed record'):
        run(spark, flow_of(redis_url, stream, str(tmp_path / "out"), on_trim="skip"), str(tmp_path / "ckpt"))


def test_example_of_the_guide_gives_the_totals(spark, redis_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parents[2] / "docs" / "redis-streams.md").read_text()
    (block,) = re.findall(r"a test runs this block.*?```python\n(.*?)```", guide, re.DOTALL)
    exec(compile(block.replace("redis://localhost:6379", redis_url), "guide", "exec"), {"__name__": "__main__"})
    rows = ps.redis_streams(redis_url, "totals", 2, "customer string, total long").records({})
    found = [(row["customer"], row["total"]) for row in rows.to_pylist()]
    assert sorted(found) == [("ada", 100), ("ada", 250), ("bob", 250)]
