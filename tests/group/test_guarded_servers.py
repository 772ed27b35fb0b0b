"""Servers that do not let everybody in: TLS, users and passwords, a command that is not allowed, a node of a cluster. One sentence each."""

from __future__ import annotations

import itertools
import re
import shutil
import threading
import time

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import GroupError, PenstockError, RecordError, SinkError
from penstock.group.describe import describe
from penstock.redis_client.connection import connect
from penstock.types import Mark
from servers import free_port, url_of, valkey, with_tls

ROWS = pa.schema([("a", pa.int64())])
_names = (f"guarded-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def server():
    with valkey() as running:
        client = connect(url_of(running))
        for user, rights in {"me": [], "no_xread": ["-xread"], "no_xadd": ["-xadd"], "no_eval": ["-eval", "-evalsha"]}.items():
            client.execute_command("ACL", "SETUSER", user, "on", ">secret", "~*", "+@all", *rights)
        enough = ["+@read", "+@write", "+@scripting", "+@connection", "+time", "+info"]  # as the guide says
        client.execute_command("ACL", "SETUSER", "enough", "on", ">secret", "~{guarded-*", *enough)
        client.execute_command("ACL", "SETUSER", "few", "on", ">secret", "~*", "+@all")
        client.execute_command("ACL", "SETUSER", "default", "off")
        yield running


@pytest.fixture(scope="module")
def secured(server):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    with with_tls(server) as (port, certificate):
        yield port, certificate


def as_user(server, user, password="secret"):
    return url_of(server).replace("//", f"//{user}:{password}@")


def produced(url, stream):
    with ps.Producer(url, stream, 2) as producer:
        return producer.send_many([{"a": 1}, {"a": 2}])


def consumed(url, stream):
    """What a consumer got within a second, or until it had both entries."""
    consumer, got = ps.Consumer(ps.Group(url, "g", lease="1 s", grace="1 s"), stream, 2), []

    def leave():
        end = time.monotonic() + 3
        while len(got) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        consumer.leave()

    threading.Thread(target=leave).start()
    consumer.run(lambda _, entries: got.extend(entries))
    return sorted(entry.fields["a"] for entry in got)


def read(url, stream):
    rows = ps.redis_streams(url, stream, 2, "a long").records({})
    return 0 if rows is None else rows.num_rows


def written(url, stream):
    sink, mark = ps.redis_stream(url, f"{stream}-out", 2), Mark("f", "o", 1)
    sink.open(mark, ROWS)
    return sink.write([pa.record_batch({"a": [1, 2]}, schema=ROWS)], Mark("f", "o", 1, 0))


def everything(url):
    stream = next(_names)
    return (
        len(produced(url, stream)),
        consumed(url, stream),
        describe(url, "g", stream).lag,
        read(url, stream),
        written(url, stream),
    )


@pytest.mark.parametrize("user", ["me", "enough"])
def test_user_with_a_password_and_the_rights_can_do_everything(server, user):
    assert everything(as_user(server, user)) == (2, ["1", "2"], 0, 2, 2)


def test_user_over_tls_with_the_file_of_the_authority_can_do_everything(secured):
    port, certificate = secured
    assert everything(f"rediss://me:secret@localhost:{port}/0?ssl_ca_certs={certificate}") == (2, ["1", "2"], 0, 2, 2)


@pytest.mark.parametrize(
    ("do", "error"), [(produced, GroupError), (consumed, GroupError), (read, RecordError), (written, SinkError)]
)
def test_what_a_server_refuses_is_a_sentence_with_the_way_out_and_without_the_password(server, secured, do, error):
    port, _ = secured
    for url, way in (
        (as_user(server, "me", "wrong"), "give user and password in the URL, as redis://user:password@host."),
        (url_of(server), "give user and password in the URL, as redis://user:password@host."),
        (
            f"rediss://me:secret@localhost:{port}/0",
            "name the file of its authority in the URL, as rediss://host:6379?ssl_ca_certs=ca.pem.",
        ),
        (f"rediss://me:secret@localhost:{port}/0?ssl_ca_certs=/nowhere/ca.pem", "No such file or directory."),
    ):
        with pytest.raises(error) as caught:
            do(url, next(_names))
        said = str(caught.value)
        assert said.endswith(way), said
        assert (said.count("wrong"), said.count("secret"), said.count("..")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("user", "do", "sentence"),
    [
        ("no_eval", produced, r"The server of stream '.*' at .* cannot be used: .* 'evalsha' command; allow it with ACL SETUSER\."),
        ("no_eval", written, r"Redis stream '.*-out' could not be opened: .* 'eval' command; allow it with ACL SETUSER\."),
        ("no_xread", consumed, r"Stream '.*' cannot be read: .* 'xread' command; allow it with ACL SETUSER\."),
        ("no_xadd", produced, r"Stream '.*' at .* did not take all entries: .* 'xadd' command; allow it with ACL SETUSER; the first 0 of 2 .*"),
        ("no_xadd", consumed, r"The server of group 'g' refuses a step: .*; allow it with ACL SETUSER\."),
        ("no_xadd", written, r"Redis stream '.*-out' cannot be written: this user may not add to \{.*-out:0\}; correct that and start again\."),
    ],
)  # fmt: skip
def test_command_that_a_user_may_not_give_ends_the_work_in_a_sentence(server, user, do, sentence):
    begun = time.monotonic()
    with pytest.raises(PenstockError) as caught:
        do(as_user(server, user), next(_names))
    assert re.fullmatch(sentence, str(caught.value)), str(caught.value)
    assert time.monotonic() - begun < 10


def test_right_that_is_taken_away_while_a_consumer_works_ends_it_in_a_sentence(server):
    client, stream = connect(as_user(server, "me")), next(_names)
    consumer, raised = ps.Consumer(ps.Group(as_user(server, "few"), "g", lease="1 s", grace="1 s"), stream, 2), []

    def run():
        try:
            consumer.run(lambda *_: None)
        except PenstockError as error:
            raised.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    end = time.monotonic() + 5
    while len(consumer.owned) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    client.execute_command("ACL", "SETUSER", "few", "-evalsha", "-eval")
    thread.join(10)
    assert len(raised) == 1
    assert re.fullmatch(
        r"The server of group 'g' refuses a step: .* 'eval(sha)?' command; allow it with ACL SETUSER\.", raised[0]
    )


def test_node_of_a_cluster_that_does_not_have_the_key_is_refused_in_a_sentence():
    bus = [free_port(), free_port()]
    with (
        valkey(cluster_enabled="yes", cluster_port=bus[0]) as one,
        valkey(cluster_enabled="yes", cluster_port=bus[1]) as other,
    ):
        clients = [connect(url_of(one)), connect(url_of(other))]
        clients[0].execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 0)
        clients[1].execute_command("CLUSTER", "ADDSLOTSRANGE", 1, 16383)
        clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, bus[1])
        end = time.monotonic() + 20
        while any(c.execute_command("CLUSTER INFO")["cluster_state"] != "ok" for c in clients):
            assert time.monotonic() < end
            time.sleep(0.05)
        url = url_of(one)
        for do, error in ((produced, GroupError), (consumed, GroupError), (read, RecordError)):
            with pytest.raises(
                error,
                match=r"it is a node of a cluster, and another one \(.*\) has the key; give the address of a server that is no ",
            ):
                do(url, next(_names))
        with pytest.raises(SinkError, match="cluster"):
            written(url, next(_names))
