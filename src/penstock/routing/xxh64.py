"""XXH64, compiled: for whole columns, each value with its own seed.

Separate from `penstock.routing.hashing`, because numba takes a fifth of a second to load.

Source: Y. Collet's XXH64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.arrow.jit import inlined, jit

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)

Words = npt.NDArray[np.uint64]


@inlined
def _rotated(x: Any, by: Any) -> Any:
    return (x << np.uint64(by)) | (x >> np.uint64(64 - by))


@inlined
def _avalanche(h: Any) -> Any:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


@inlined
def _round(so_far: Any, word: Any) -> Any:
    return _rotated(so_far + word * _P2, 31) * _P1


@inlined
def _with_8(h: Any, word: Any) -> Any:
    return _rotated(h ^ _round(np.uint64(0), word), 27) * _P1 + _P4


@inlined
def _with_4(h: Any, half: Any) -> Any:
    return _rotated(h ^ (half * _P1), 23) * _P2 + _P3


@inlined
def _read(data: Any, at: Any, size: Any) -> Any:
    """Bytes as a little-endian number."""
    word = np.uint64(0)
    for i in range(size):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@jit
def hash_longs(values: Words, missing: npt.NDArray[np.bool_], hashes: Words) -> None:
    """Hash numbers of eight bytes.

    Args:
        values: n numbers.
        missing: Values that leave their hash as it is: n, or empty if there are none.
        hashes: n seeds; holds the hashes afterwards.
    """
    for i in range(len(values)):
        if not len(missing) or not missing[i]:
            hashes[i] = _avalanche(_with_8(hashes[i] + _P5 + np.uint64(8), values[i]))


@jit
def hash_ints(values: npt.NDArray[np.uint32], missing: npt.NDArray[np.bool_], hashes: Words) -> None:
    """Hash numbers of four bytes; arguments as in `hash_longs`."""
    for i in range(len(values)):
        if not len(missing) or not missing[i]:
            hashes[i] = _avalanche(_with_4(hashes[i] + _P5 + np.uint64(4), np.uint64(values[i])))


@jit
def hash_bytes(
    data: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    missing: npt.NDArray[np.bool_],
    hashes: Words,
) -> None:
    """Hash ranges of bytes.

    Args:
        data: All bytes.
        begins: The start of each of n ranges.
        ends: Their ends.
        missing: As in `hash_longs`.
        hashes: As in `hash_longs`.
    """
    for i in range(len(begins)):
        if len(missing) and missing[i]:
            continue
        at, end, seed = begins[i], ends[i], hashes[i]
        if end - at >= 32:
            v1, v2, v3, v4 = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
            while at + 32 <= end:
                v1, v2 = _round(v1, _read(data, at, 8)), _round(v2, _read(data, at + 8, 8))
                v3, v4 = _round(v3, _read(data, at + 16, 8)), _round(v4, _read(data, at + 24, 8))
                at += 32
            h = _rotated(v1, 1) + _rotated(v2, 7) + _rotated(v3, 12) + _rotated(v4, 18)
            h = (h ^ _round(np.uint64(0), v1)) * _P1 + _P4
            h = (h ^ _round(np.uint64(0), v2)) * _P1 + _P4
            h = (h ^ _round(np.uint64(0), v3)) * _P1 + _P4
            h = (h ^ _round(np.uint64(0), v4)) * _P1 + _P4
        else:
            h = seed + _P5
        h += np.uint64(end - begins[i])
        while at + 8 <= end:
            h = _with_8(h, _read(data, at, 8))
            at += 8
        if at + 4 <= end:
            h = _with_4(h, _read(data, at, 4))
            at += 4
        while at < end:
            h = _rotated(h ^ (np.uint64(data[at]) * _P5), 11) * _P1
            at += 1
        hashes[i] = _avalanche(h)
