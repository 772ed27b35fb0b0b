"""CPU time of a benchmark: this process, Java, and Spark's Python workers."""

from __future__ import annotations

import psutil


def cpu_s() -> float:
    """CPU seconds of this process and of all below it so far, with those that have ended."""
    me, total = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total
