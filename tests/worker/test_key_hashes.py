"""The hash of a row's key, where rows of several ports come side by side."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.routing.hashing import spark_xxhash64
from penstock.worker.spec import key_hashes


@pytest.mark.parametrize("ports", [1, 2, 70])  # NumPy's own choice among arrays ends at 63
def test_key_of_a_row_is_that_of_its_port(ports: int) -> None:
    n = 5 * ports
    tags, keys = np.arange(n, dtype=np.int32)[::-1] % ports, np.arange(n) * 7919
    own = [pa.array(keys, mask=tags != port) for port in range(ports)]
    columns = [pa.array(tags), *own] if ports > 1 else [pa.array(keys)]
    rows = pa.RecordBatch.from_arrays(columns, names=[str(i) for i in range(len(columns))])
    places = [[port + 1] for port in range(ports)] if ports > 1 else [[0]]
    assert key_hashes(places, rows).tolist() == spark_xxhash64(pa.array(keys)).tolist()
