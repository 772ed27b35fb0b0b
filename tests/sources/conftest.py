"""A Valkey server for all tests of this folder; each test has names of its own."""

from __future__ import annotations

import itertools

import pytest

from penstock.redis_client.connection import connect
from servers import url_of, valkey

_names = itertools.count()


@pytest.fixture(scope="session")
def redis_url():
    with valkey() as server:
        yield url_of(server)


@pytest.fixture
def stream():
    return f"orders{next(_names)}"


@pytest.fixture
def client(redis_url):
    return connect(redis_url)
