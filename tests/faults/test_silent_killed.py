"""A source that is silent, over Spark: the clock brings out what is left, once each, though the driver is killed before, meanwhile and after."""

from __future__ import annotations

import signal

import children
import killed_flow
import pytest
import silent_flow

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]


@pytest.mark.soak
def test_silent_source_with_records_ahead_when_the_driver_is_killed_gives_each_window_and_timer_once(tmp_path):
    data = silent_flow.records()
    killed_flow.write_files(tmp_path / "in", data)
    url, wanted = f"sqlite:///{tmp_path}/out.db", silent_flow.expected(data)
    options = {"folder": str(tmp_path / "in"), "checkpoint": str(tmp_path / "checkpoint"), "url": url}
    rows = len(wanted["windows"]) + len(wanted["told"])
    codes = []
    for kill in [("stored windows", 2), ("commit", 3), ("decide", 3), None]:
        ended = children.run("silent_flow.py", {**options, "rows": rows, "kill": kill}, tmp_path)
        codes.append(ended.code)
    assert codes[:2] == [-signal.SIGKILL] * 2, ended
    assert codes[-1] == 0, ended
    assert silent_flow.content(url) == wanted
