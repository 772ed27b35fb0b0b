"""Which of users' modules are pickled by value: another process cannot import a script, a notebook or a test module."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Iterator
from typing import Any


def loose_modules(functions: Iterable[Any]) -> Iterator[Any]:
    """The modules of functions and classes that another process cannot import by their names."""
    for fn in functions:
        module = sys.modules.get(getattr(fn, "__module__", None) or "")
        if module is not None and module.__name__ != "__main__" and not _installed(module):
            yield module


def _installed(module: Any) -> bool:
    """Whether it belongs to Python, to an installed package or to penstock."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.split(".")[0] == "penstock":
        return True
    return any(file.startswith(path) for path in sysconfig.get_paths().values() if path)
