"""What goes on beside the epochs gives way to them."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.spark.maintenance import _give_way


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")
def test_thread_that_compacts_has_a_lower_priority_than_all_others():
    def priority():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    mine = priority()
    with ThreadPoolExecutor(1, initializer=_give_way) as pool, ThreadPoolExecutor(1) as other:
        assert pool.submit(priority).result() == min(19, mine + 15)
        assert (priority(), other.submit(priority).result()) == (mine, mine)
