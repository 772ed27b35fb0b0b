"""Names of streams, each test's own, and the client of the server."""

from __future__ import annotations

import itertools

import pytest

from penstock.redis_client.connection import connect

_names = itertools.count()


@pytest.fixture
def stream():
    return f"orders{next(_names)}"


@pytest.fixture
def client(redis_url):
    return connect(redis_url)
