"""How the kernels are compiled.

numba counts the references to every array that a function receives, unpacks or passes on, with an atomic instruction each. That
took two thirds of the recogniser's time. The kernels are compiled without it. In return they cannot allocate arrays (numba
refuses), so the caller owns all that they write to.

Compiled code is kept on disk: beside the module, in the user's cache or, if neither can be written to, in a temporary folder of
this user.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numba

_njit: Any = numba.njit  # its types leave out _nrt
inlined: Final = _njit(inline="always", _nrt=False)
"""For what is called for every event: to hand on an arena's arrays costs more than what most calls do."""


def jit(function: Callable[..., Any]) -> Any:
    """Compile a kernel at its first call, and keep it for other processes."""
    compiled = _njit(cache=False, nogil=True, boundscheck=False, _nrt=False)(function)
    try:
        compiled.enable_caching()
    except RuntimeError:  # numba found no folder
        numba.config.CACHE_DIR = str(_own_folder())  # type: ignore[attr-defined]
        compiled.enable_caching()
    return compiled


def _own_folder() -> Path:
    """A temporary folder into which nobody else can put code."""
    folder = Path(tempfile.gettempdir(), f"penstock-kernels-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022:
        return folder
    return Path(tempfile.mkdtemp(prefix="penstock-kernels-"))
