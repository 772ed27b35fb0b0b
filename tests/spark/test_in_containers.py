"""Workers run where neither the package nor the home can be written to and the user has no name: as in many a container."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.task import local_folder

KERNELS = """
import numpy as np
from penstock.arrow.jit import jit

@jit
def doubled(values):
    for i in range(len(values)):
        values[i] *= 2
"""
CALL = """
import numpy as np
from kernels import doubled
values = np.arange(3)
doubled(values)
print(values.tolist(), sum(doubled.stats.cache_hits.values()))
"""


@pytest.fixture
def called(tmp_path):
    """Calls a kernel in a process of its own; what it gives, and how often its code was there already."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "kernels.py").write_text(KERNELS)
    (package / "__pycache__").touch()  # a file: a folder without rights would not stop root
    (tmp_path / "temporary").mkdir()

    def call() -> str:
        nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME"), "/dev/null/nowhere")
        env = {**os.environ, **nowhere, "TMPDIR": str(tmp_path / "temporary")}
        env.pop("NUMBA_CACHE_DIR", None)
        done = subprocess.run([sys.executable, "-c", CALL], cwd=package, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return call


def test_kernels_are_kept_in_a_temporary_folder_where_there_is_no_other(called, tmp_path):
    assert called() == "[0, 2, 4] 0"
    assert called() == "[0, 2, 4] 1"
    (folder,) = (tmp_path / "temporary").glob("penstock-kernels-*")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_not_used(called, tmp_path):
    folder = Path(tmp_path, "temporary", f"penstock-kernels-{os.getuid()}")
    folder.mkdir()
    folder.chmod(0o777)
    assert called() == "[0, 2, 4] 0"
    assert not list(folder.iterdir())
    assert called() == "[0, 2, 4] 0"


def test_state_is_cached_for_users_without_a_name(monkeypatch):
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.delenv("PENSTOCK_LOCAL_DIR", raising=False)
    monkeypatch.setattr("getpass.getuser", unknown)
    assert local_folder().endswith(f"penstock-{os.getuid()}")
