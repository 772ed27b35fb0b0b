"""Compiled kernels that are kept on disk are those of the code that there is now."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

KERNEL = "from penstock.arrow.jit import jit\nfrom {0} import f, K\n\n\n@jit\ndef run(x):\n    return f(x) + K\n"
INLINED = "from penstock.arrow.jit import inlined\n{1}\nK = {2}\n\n\n@inlined\ndef f(x):\n    return {0}\n"


def run(folder):
    done = subprocess.run(
        [sys.executable, "-c", "import kernel; r = kernel.run(1); print(r, len(kernel.run._cache_hits))"],
        cwd=folder, env={**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    result, hits = done.stdout.split()
    return int(result), int(hits)


@pytest.mark.parametrize("changed", ["what is inlined", "what is inlined into that", "a constant of another module"])
def test_kernel_when_a_part_of_it_from_another_file_changed_is_compiled_anew(changed, tmp_path):
    def write(f, g, constant):
        (tmp_path / "kernel.py").write_text(KERNEL.format("middle"))
        (tmp_path / "middle.py").write_text(INLINED.format(f, "from last import f as g, K as L", constant))
        (tmp_path / "last.py").write_text(INLINED.format(g, "", 0))

    write("g(x) + 1", "x", 10)
    assert run(tmp_path) == (12, 0)
    assert run(tmp_path) == (12, 1)  # kept
    if changed == "what is inlined":
        write("g(x) + 3", "x", 10)
    elif changed == "what is inlined into that":
        write("g(x) + 1", "x + 2", 10)
    else:
        write("g(x) + 1", "x", 12)
    assert run(tmp_path) == (14, 0)
    assert run(tmp_path) == (14, 1)
