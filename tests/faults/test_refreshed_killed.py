"""A table of `lookup` is another one each time it is read, and the process is killed around its versions: an epoch meets one of them, and a re-run the same."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import children
import pytest
import refreshed_flow

pytestmark = [pytest.mark.fault, pytest.mark.slow]
KILLS = [  # in the second epoch of a process, or in its first, which one before it has begun
    *[("read lookup(k)", 2), ("keep lookup(k)", 2), ("note tables", 2), ("stored direct", 2), ("note tables", 1)],
    *[("stored running", 2), ("read lookup(k)", 1), ("commit", 2), ("keep lookup(k)", 1), ("committed", 2)],
]


def check_killed(tmp_path, kills, *, over_spark):
    data = refreshed_flow.records(2 + len(kills))
    folder = tmp_path / "in"
    folder.mkdir()
    for i, rows in enumerate(data):
        file = folder / f"{i:03d}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))
    options = {
        "folder": str(folder),
        "checkpoint": str(tmp_path / "checkpoint"),
        "counted": str(tmp_path / "counted"),
        "url": f"sqlite:///{tmp_path}/out.db",
        "over_spark": over_spark,
    }
    for kill in [*kills, None]:
        ended = children.run(
            "refreshed_flow.py", {**options, "kill": kill}, tmp_path, PENSTOCK_LOCAL_DIR=str(tmp_path / "local")
        )
        assert ended.code == (-signal.SIGKILL if kill else 0), (kill, ended)
    found = refreshed_flow.content(options["url"])
    met = dict(found["direct"])
    assert [v for v, _ in found["direct"]] == [v for v, *_ in found["running"]] == list(range(len(met)))
    by_epoch = [{met[row["v"]] for row in rows} for rows in data]
    assert all(len(reads) == 1 for reads in by_epoch), by_epoch
    reads = [read for (read,) in by_epoch]
    assert reads == sorted(set(reads)), "a later epoch meets a later table"
    seen = {}
    for v, read, n, total in found["running"]:
        key = seen.setdefault(refreshed_flow.KEYS[v % len(refreshed_flow.KEYS)], [])
        key.append(read)
        assert (read, n, total) == (met[v], len(key), sum(key)), v
    assert len(list(Path(options["checkpoint"], "tables").iterdir())) <= 2, "old versions are gone"


def test_epoch_when_it_is_killed_around_a_version_of_a_table_meets_the_same_rows_again(tmp_path):
    check_killed(tmp_path, KILLS, over_spark=False)


@pytest.mark.spark
@pytest.mark.soak
def test_epoch_over_spark_when_it_is_killed_between_two_sinks_meets_the_same_rows_again(tmp_path):
    check_killed(tmp_path, [("stored running", 2)], over_spark=True)
