"""The driver is killed at every step of going back to a snapshot and started again."""

from __future__ import annotations

import signal

import children
import killed_flow
import loading_flow
import pytest

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import RolledBack
from penstock.driver.commands import Commander

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]


KILLS = [("rewrite_offset_log", 1), ("rewind running", 1), ("commit going back", 1), ("gone back", 1)]


@pytest.mark.parametrize("kills", [KILLS[1::2], pytest.param(KILLS, marks=pytest.mark.soak)], ids=["some", "every"])
def test_driver_when_killed_at_every_step_of_going_back_gives_each_row_once(tmp_path, kills):
    data = killed_flow.records(5, 12)
    killed_flow.write_files(tmp_path / "in", data)
    (tmp_path / "out").mkdir()
    checkpoint = str(tmp_path / "checkpoint")
    options = {
        "folder": str(tmp_path / "in"),
        "out": str(tmp_path / "out"),
        "checkpoint": checkpoint,
        "commands": {
            "1": [{"command": "scale", "region": None, "workers": 4}],
            "3": [{"command": "snapshot", "name": "s"}],
            "9": [{"command": "load", "name": "s"}],
        },
    }
    local = {"PENSTOCK_LOCAL_DIR": str(tmp_path / "local")}
    for kill in kills:
        ended = children.run("loading_flow.py", {**options, "kill": kill}, tmp_path, **local)
        assert ended.code == -signal.SIGKILL, f"{kill}: {ended}"
    assert Checkpoint(checkpoint).last().rolled_back == [RolledBack("s", 3, 9)]
    # Nothing runs now: the next start goes back once more, before any epoch.
    Commander(Checkpoint(checkpoint)).load("s")
    ended = children.run("loading_flow.py", options, tmp_path, **local)
    assert ended.code == 0, ended
    assert [b.upto for b in Checkpoint(checkpoint).last().rolled_back] == [9, 11]
    assert loading_flow.content(tmp_path / "out") == killed_flow.expected(data)
