"""Timers and state that ends over Spark, while the region rescales, keys are put on hold and the driver is killed."""

from __future__ import annotations

import signal
from pathlib import Path

import children
import killed_flow
import pytest
import timed_flow

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]


@pytest.mark.parametrize(
    "kills",
    [[("stored silent", 3)], pytest.param([("stored silent", 3), ("commit", 2)], marks=pytest.mark.soak)],
    ids=["stored", "commit too"],
)
def test_timers_when_the_region_rescales_and_the_driver_is_killed_fire_once_each(tmp_path, kills):
    data = killed_flow.records(3, 9)
    killed_flow.write_files(tmp_path / "in", data)
    urls = {"sqlite": f"sqlite:///{tmp_path}/out.db"}
    options = {
        "folder": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "urls": urls,
        "workers": 1,
        "scales": {"1": 4, "6": 2},
        "hold_bytes": 20,
    }
    codes, phases = [], set()
    for kill in [*kills, None]:
        ended = children.run("timed_flow.py", {**options, "kill": kill}, tmp_path, PENSTOCK_LOCAL_DIR=str(tmp_path / "local"))
        codes.append(ended.code)
        phases |= {word for line in ended.out.splitlines() if line.startswith("phase") for word in line.split()[1:]}
    assert codes == [*[-signal.SIGKILL] * len(kills), 0], ended
    assert {"interrogate", "move"} <= phases, phases
    assert [Path(tmp_path, "checkpoint", f"scaled-{epoch}").exists() for epoch in options["scales"]] == [True, True]
    wanted = timed_flow.expected(data)
    assert len(wanted) > 20
    assert {name: timed_flow.content(urls, name) for name in timed_flow.OUTPUTS} == dict.fromkeys(timed_flow.OUTPUTS, wanted)
