"""How the kernels are compiled.

numba counts references to every array that a function is given, unpacks or hands on, with an atomic instruction each: two thirds
and more of the recogniser's time went there. The kernels are compiled without; in return they cannot make arrays, so all that they
write to is the caller's. (numba refuses one that does make an array.)
"""

from __future__ import annotations

from typing import Any, Final

import numba

_njit: Any = numba.njit  # its types leave out _nrt
jit: Final = _njit(cache=True, nogil=True, boundscheck=False, _nrt=False)
inlined: Final = _njit(inline="always", _nrt=False)
"""For what is called for every event: to hand on an arena's arrays costs more than what most calls do."""
