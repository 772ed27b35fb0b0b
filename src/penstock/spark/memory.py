"""Memory of Python workers: each task reuses what the last one gave back.

By default the C library and Arrow map memory for each large array and unmap it afterwards, so the system clears every page anew
in every epoch.
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
    """Prepare this worker process for a task: it keeps memory, and excludes its modules' objects from garbage collection.

    PySpark runs Python's garbage collector after every task, which took 35 ms for the objects of NumPy, Arrow and numba, while
    Spark is about to begin the next epoch. Only the task's function is alive now, and the last collection has just been.
    """
    global _modules  # noqa: PLW0603  (as the process has)
    keep_memory()
    if len(sys.modules) > _modules:
        _modules = len(sys.modules)
        gc.freeze()


@lru_cache(maxsize=1)
def keep_memory() -> bool:
    """Make this process keep memory for its next task. Meant for worker processes, not for the user's own.

    Returns:
        Whether it does; only glibc can. Otherwise nothing has changed.
    """
    libc: Any = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    if not any(libc.mallopt(_MMAP_THRESHOLD, most) for most in (KEPT, _OLD_MOST)):
        return False
    libc.mallopt(_TRIM_THRESHOLD, KEPT)
    pa.set_memory_pool(pa.system_memory_pool())
    return True
