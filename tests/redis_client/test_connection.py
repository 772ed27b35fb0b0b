"""Connections by URL, to a real Valkey server."""

from __future__ import annotations

import pytest

from penstock.errors import DeclarationError, SinkError
from penstock.redis_client.connection import connect, shown, translated
from servers import url_of, valkey


def test_connect_when_the_server_is_there_talks_to_it_and_after_a_restart_finds_its_data():
    with valkey(keep=True) as server:
        url = url_of(server)
        client = connect(url)
        client.set("a", "1")
        server.stop()
        with (
            pytest.raises(SinkError, match=r"^Reading failed at redis://127.0.0.1"),
            translated(url, SinkError, "Reading"),
        ):
            client.get("a")
        server.start()
        assert connect(url).get("a") == b"1"


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost", None, 7])
def test_connect_when_the_address_is_none_is_refused(url):
    with pytest.raises(DeclarationError, match="is no address of a Redis server"):
        connect(url)


def test_shown_leaves_out_the_password():
    assert shown("rediss://me:secret@host:6380/1") == "rediss://me:…@host:6380/1"
    assert shown("redis://:secret@host") == "redis://:…@host"
    assert shown("redis://host/0") == "redis://host/0"
