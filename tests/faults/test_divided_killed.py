"""A process is killed while hot keys are divided or isolated, and started again: the tables hold what they hold otherwise."""

from __future__ import annotations

import json
import signal

import children
import divided_flow
import pytest

from penstock.checkpoint.folder import Checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]


def check_kills(tmp_path, kills, region, moment):
    """Run with these kills of the driver, one process after the other, then to the end, with one of a worker within a split stage of the region, and
    compare; what the last process says of its regions."""
    rows = divided_flow.write_files(tmp_path / "in")
    database, checkpoint = tmp_path / "found.db", tmp_path / "checkpoint"
    options = {"folder": str(tmp_path / "in"), "checkpoint": str(checkpoint), "database": str(database)}
    local = {"PENSTOCK_LOCAL_DIR": str(tmp_path / "local")}
    for kill in kills:
        ended = children.run("divided_flow.py", {**options, "kill": kill}, tmp_path, **local)
        assert ended.code == -signal.SIGKILL, f"{kill}: {ended}"
    met, read = tmp_path / region, Checkpoint(str(checkpoint)).last().sources["s"].files if kills else 0
    before = len(met.read_text()) if met.exists() else 0
    last = {"kill": (region, "worker", before + moment), "master": "local[2,4]"}
    ended = children.run("divided_flow.py", {**options, **last}, tmp_path, **local)
    assert ended.code == 0, ended
    assert len(met.read_text()) > before + divided_flow.FILES - read, "a task is run again, and meets its marked row again"
    assert divided_flow.content(database) == divided_flow.expected(rows)
    return json.loads(next(line for line in ended.out.splitlines() if line.startswith("done"))[5:])


def test_driver_when_killed_within_split_stages_and_while_a_key_is_isolated_and_a_worker_too_give_each_row_once(tmp_path):
    # Around the commit of a rescale the driver is killed in test_driver_killed, and below in the soak.
    kills = [("isolating", "stored isolated"), ("histogram", "driver", 3), ("choices", "driver", 2)]
    found = check_kills(tmp_path, kills, "histogram", 2)
    assert found["pinned"] == 1
    assert found["histogram"] > divided_flow.PER_FILE  # of several epochs
    assert found["choices"] >= 2 * divided_flow.PER_FILE


@pytest.mark.soak
@pytest.mark.parametrize("steps", [(), ("compute isolated",), ("commit", "committed")], ids=["worker", "computed", "commit"])
def test_driver_when_killed_as_a_key_is_isolated_and_a_worker_within_the_other_split_stage_give_each_row_once(tmp_path, steps):
    found = check_kills(tmp_path, [("isolating", step) for step in steps], "choices", 2)
    assert found["pinned"] == 1
