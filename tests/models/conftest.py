"""What a test here writes is many small files that no one reads later: they are kept in memory, where the system has a folder for that."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = "/dev/shm"
ENOUGH = 1 << 30


@pytest.fixture(scope="module", autouse=True)
def in_memory() -> Iterator[None]:
    """Temporary folders of tests that start no Spark session lie in memory."""
    before = tempfile.tempdir
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
        tempfile.tempdir = MEMORY
    yield
    tempfile.tempdir = before
