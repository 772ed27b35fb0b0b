"""A process is killed while hot keys are divided or isolated, and started again: the tables hold what they hold otherwise."""

from __future__ import annotations

import json
import signal

import children
import divided_flow
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]


def check_kills(tmp_path, kills, **more):
    """Run with these kills, one process after the other, and compare; what the last one says of its regions."""
    rows = divided_flow.write_files(tmp_path / "in")
    database = tmp_path / "found.db"
    options = {"folder": str(tmp_path / "in"), "checkpoint": str(tmp_path / "checkpoint"), "database": str(database), **more}
    for kill in [*kills, None]:
        ended = children.run("divided_flow.py", {**options, "kill": kill}, tmp_path, PENSTOCK_LOCAL_DIR=str(tmp_path / "local"))
        assert ended.code == (0 if kill is None else -signal.SIGKILL), f"{kill}: {ended}"
    assert divided_flow.content(database) == divided_flow.expected(rows)
    return json.loads(next(line for line in ended.out.splitlines() if line.startswith("done"))[5:])


def test_driver_when_killed_within_split_stages_gives_each_row_once(tmp_path):
    found = check_kills(tmp_path, [("histogram", "driver", 3), ("choices", "driver", 2)])
    assert found["histogram"] > divided_flow.PER_FILE  # of several epochs
    assert found["choices"] >= 2 * divided_flow.PER_FILE


@pytest.mark.parametrize("region", ["histogram", pytest.param("choices", marks=pytest.mark.soak)])
def test_worker_when_killed_within_a_split_stage_is_run_again_and_gives_each_row_once(region, tmp_path):
    rows = divided_flow.write_files(tmp_path / "in")
    database = tmp_path / "found.db"
    options = {"folder": str(tmp_path / "in"), "checkpoint": str(tmp_path / "checkpoint"), "database": str(database)}
    options |= {"kill": (region, "worker", 2), "master": "local[2,4]"}
    ended = children.run("divided_flow.py", options, tmp_path, PENSTOCK_LOCAL_DIR=str(tmp_path / "local"))
    assert (ended.code, len((tmp_path / region).read_text()) > divided_flow.FILES) == (0, True), ended
    assert divided_flow.content(database) == divided_flow.expected(rows)


@pytest.mark.parametrize(
    "steps",
    [
        ("stored isolated",),
        *(pytest.param(steps, marks=pytest.mark.soak) for steps in [("compute isolated",), ("commit", "committed")]),
    ],
    ids=["stored", "computed", "commit"],
)
def test_driver_when_killed_while_a_hot_key_is_isolated_gives_each_row_once(tmp_path, steps):
    # Around the commit of a rescale the driver is killed in test_driver_killed, and here in the soak.
    found = check_kills(tmp_path, [("isolating", step) for step in steps])
    assert found["pinned"] == 1
