"""A user's first hour runs, over a session of the user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SCRIPT = Path(__file__).parents[1] / "flow" / "first_hour_script.py"


def test_first_hour_of_thirty_steps_runs(tmp_path):
    env = {**os.environ, "PENSTOCK_LOCAL_DIR": str(tmp_path / "local"), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1_500)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-5_000:]
    assert ran.stdout.splitlines()[-1] == "step 30: route by hand"
