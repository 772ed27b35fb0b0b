"""How the kernels are compiled.

numba counts the references to every array that a function receives, unpacks or passes on, with an atomic instruction each. That
took two thirds of the recogniser's time. The kernels are compiled without it. In return they cannot allocate arrays (numba
refuses), so the caller owns all that they write to.

Compiled code is kept on disk: beside the module, in the user's cache or, if neither can be written to, in a temporary folder of
this user. numba takes it as current while the kernel's own file is unchanged. But a kernel also contains what is inlined into it from other
files, and their constants, so these count too. numba numbers the files of a kernel's signatures, and two processes that compile
at once can give one number to two signatures: each would run the other's code. Here a file's name says what is in it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
from numba.core.dispatcher import Dispatcher

_njit: Any = numba.njit  # its types leave out _nrt
_FORM: Final = "named by content"  # of the files; what is kept in another form may be wrong, and is compiled anew
inlined: Final = _njit(inline="always", _nrt=False)
"""For what is called for every event: to hand on an arena's arrays costs more than what most calls do."""


def jit(function: Callable[..., Any]) -> Any:
    """Compile a kernel at its first call, and keep it for other processes."""
    compiled = _compiled(function)
    try:
        compiled.enable_caching()
    except RuntimeError:  # numba found no folder
        numba.config.CACHE_DIR = str(_own_folder())  # type: ignore[attr-defined]
        compiled.enable_caching()
    try:
        _keep_rightly(compiled._cache._cache_file, function)  # noqa: SLF001  (numba has no other way to say what code depends on)
    except AttributeError:  # another numba: each process compiles for itself
        return _compiled(function)
    return compiled


def _compiled(function: Callable[..., Any]) -> Any:
    return _njit(cache=False, nogil=True, boundscheck=False, _nrt=False)(function)


def _keep_rightly(kept: Any, function: Callable[..., Any]) -> None:
    """Have a kernel's files go by all that it consists of. Raises `AttributeError`: numba keeps it in another way."""
    kept._source_stamp = _FORM, kept._source_stamp, _imported(function, set())  # noqa: SLF001
    for needed in ("save", "_data_name_pattern", "_load_index", "_save_data", "_save_index"):
        getattr(kept, needed)
    kept.save = partial(_save, kept)


def _save(kept: Any, key: Any, data: Any) -> None:
    """Save what was compiled for a signature. Of two processes that save at once the later one's index stays, and is right."""
    name = kept._data_name_pattern.format(number=0).removesuffix(".0.nbc")  # noqa: SLF001
    digest = hashlib.sha256(repr((kept._source_stamp, key)).encode()).hexdigest()[:32]  # noqa: SLF001
    kept._save_data(file := f"{name}.{digest}.nbc", data)  # noqa: SLF001
    kept._save_index(kept._load_index() | {key: file})  # noqa: SLF001


def _imported(function: Callable[..., Any], seen: set[str]) -> tuple[Any, ...]:
    """What the module of a kernel has from others and compiles into it: digests of files, and numbers. `seen`: files that are counted."""
    seen.add(function.__code__.co_filename)
    found: list[Any] = []
    for name, value in sorted(function.__globals__.items()):
        if isinstance(value, (int, float, np.generic)):
            found.append((name, repr(value)))
        elif isinstance(value, Dispatcher) and (file := value.py_func.__code__.co_filename) not in seen:
            found += [_digest(file), *_imported(value.py_func, seen)]
    return tuple(found)


@cache
def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _own_folder() -> Path:
    """A temporary folder into which nobody else can put code."""
    folder = Path(tempfile.gettempdir(), f"penstock-kernels-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022:
        return folder
    return Path(tempfile.mkdtemp(prefix="penstock-kernels-"))
