"""Memory of Python workers: what one task gave back, the next one has without asking the system for it.

Left to themselves, the C library and Arrow map memory for each large array and unmap it afterwards, so that in every epoch the system clears every page anew for
arrays as large as those of the epoch before.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

KEPT: Final = 1 << 30
"""So many bytes at the end of the heap may be free before they are given back to the system; larger arrays than this are mapped as ever."""
_OLD_MOST: Final = 32 << 20  # the largest that glibc before 2.35 takes for _MMAP_THRESHOLD
_TRIM_THRESHOLD: Final = -1  # as in glibc's malloc.h
_MMAP_THRESHOLD: Final = -3


_modules = 0


def begin_task() -> None:
    """Make this worker process ready for a task: it keeps memory, and what its modules hold is not looked at by each search for garbage.

    PySpark has Python search after every task, which took 35 ms for the objects of NumPy, Arrow and numba alone, while Spark is about to
    begin the next epoch. Of a task only its function is there yet, and the search after the last one has just been.
    """
    global _modules  # noqa: PLW0603  (as the process has)
    keep_memory()
    if len(sys.modules) > _modules:
        _modules = len(sys.modules)
        gc.freeze()


@lru_cache(maxsize=1)
def keep_memory() -> bool:
    """Have this process keep memory for its next task. Meant for worker processes, not for one that is the user's own.

    Returns:
        Whether it does; only glibc can be told to. Otherwise nothing has changed.
    """
    libc: Any = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    if not any(libc.mallopt(_MMAP_THRESHOLD, most) for most in (KEPT, _OLD_MOST)):
        return False
    libc.mallopt(_TRIM_THRESHOLD, KEPT)
    pa.set_memory_pool(pa.system_memory_pool())
    return True
