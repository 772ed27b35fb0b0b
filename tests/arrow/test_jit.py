"""Compiled kernels that are kept on disk are those of the code that there is now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.caching import IndexDataCacheFile

from penstock.arrow.jit import jit

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


SIGNATURES = """
from numba.core.caching import IndexDataCacheFile as Cache
from threading import Event, Thread
from penstock.arrow.jit import jit

load_index, save_index, save_data = Cache._load_index, Cache._save_index, Cache._save_data
read, written, done = Event(), Event(), Event()


def run(x):
    return x / 2


def step(kept, act, *given, after=None, then=None):  # each waits for the other, if the other gets there
    if after is not None:
        after.wait(0.5)
    result = act(kept, *given)
    if then is not None:
        then.set()
    return result


if __name__ == "__main__":
    one, other = jit(run), jit(run)
    data = {}
    for kernel in (one, other):
        kernel._cache.save_overload = lambda sig, compiled, kernel=kernel: data.update({kernel: (sig, compiled)})
    assert (one(3), other(3.0)) == (1.5, 1.5)
    for kernel in (one, other):
        del kernel._cache.save_overload
    first = one._cache._cache_file
    Cache._load_index = lambda kept: step(kept, load_index, then=None if kept is first else read)
    Cache._save_index = lambda kept, index: (
        step(kept, save_index, index, after=read, then=written)
        if kept is first
        else step(kept, save_index, index, after=written)
    )
    Cache._save_data = lambda kept, name, code: step(kept, save_data, name, code, after=done if kept is first else None)
    thread = Thread(target=one._cache.save_overload, args=data[one])
    thread.start()
    other._cache.save_overload(*data[other])
    done.set()
    thread.join()
    Cache._load_index, Cache._save_index, Cache._save_data = load_index, save_index, save_data
    third = jit(run)
    print(third(2.5), third(3), third(5), third(7.5))
"""


def test_kernel_when_two_processes_save_two_signatures_at_once_has_the_code_of_each(tmp_path):
    (tmp_path / "signatures.py").write_text(SIGNATURES)
    done = subprocess.run(
        [sys.executable, "signatures.py"],
        cwd=tmp_path, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["1.25", "1.5", "2.5", "3.75"], done.stderr
    assert len(list(tmp_path.glob("cache/*/*.nbc"))) == 2


def test_kernel_when_numba_keeps_code_in_another_way_is_compiled_by_each_process(monkeypatch):
    monkeypatch.delattr(IndexDataCacheFile, "_save_index")
    kernel = jit(half)
    assert (kernel(3), kernel(2.5)) == (1.5, 1.25)
    assert not list(Path(__file__).parent.glob("__pycache__/test_jit.half-*"))


def half(x):
    return x / 2
