from __future__ import annotations

import pyarrow.fs as pafs
import pytest


@pytest.fixture
def fs():
    return pafs.LocalFileSystem()


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "checkpoint")
