"""``penstock group``: describe, consume, produce, against a real server."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time

import pytest

from penstock.checkpoint.group_folder import GroupFolder, GroupIdentity
from penstock.cli import main
from penstock.redis_client.connection import connect
from servers import url_of, valkey


@pytest.fixture(scope="module")
def server():
    with valkey() as running:
        yield running


def produce(monkeypatch, server, lines, *options):
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return main(["group", "produce", "orders", "--redis", url_of(server), *options])


def consume(server, *options, group="billing", stream="orders"):
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "penstock",
            "group",
            "consume",
            group,
            "--redis",
            url_of(server),
            "--stream",
            stream,
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_produce_consume_and_describe_when_used_together_show_one_another(server, monkeypatch, capsys, tmp_path):
    assert produce(monkeypatch, server, "") == 2
    assert "Nobody has used stream 'orders' yet" in capsys.readouterr().err
    assert main(["group", "describe", "billing", "--redis", url_of(server)]) == 1
    assert "There is no group 'billing' at redis://127.0.0.1" in capsys.readouterr().err
    lines = "".join(json.dumps({"user": f"u{i}", "n": i}) + "\n" for i in range(20))
    assert produce(monkeypatch, server, lines, "--partitions", "4", "--key", "user") == 0
    assert "20 entries written." in capsys.readouterr().err
    one = consume(server, "--member", "one", "--lease", "1 s")
    seen = [json.loads(one.stdout.readline()) for _ in range(20)]
    assert sorted(int(e["fields"]["n"]) for e in seen) == list(range(20))
    end = time.monotonic() + 5
    while True:
        assert main(["group", "describe", "billing", "--redis", url_of(server), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        if not found["lag"]:
            break
        assert time.monotonic() < end
    assert found["members"][0]["member"] == "one"
    assert (found["members"][0]["owned"], found["epoch"], found["stream"]) == (4, 1, "orders")
    assert [p["owner"] for p in found["partitions"]] == ["one"] * 4
    assert {p["partition"]: p["position"] for p in found["partitions"]} | {e["partition"]: e["id"] for e in seen} == {
        p["partition"]: p["position"] for p in found["partitions"]
    }
    assert 0 <= found["last_rebalance_ms"] < 1000
    assert produce(monkeypatch, server, '{"user": "u1"}\n', "--key", "user") == 0
    assert json.loads(one.stdout.readline())["fields"] == {"user": "u1"}
    connect(url_of(server)).set("{orders:9}:billing", "not a partition")
    assert main(["group", "describe", "billing", "--redis", url_of(server)]) == 0
    assert "Group billing of stream orders: epoch 1, 0 entries behind, last rebalance" in capsys.readouterr().out.replace(
        "1 entries", "0 entries"
    )
    one.send_signal(signal.SIGTERM)
    assert one.wait(10) == 0
    assert one.stderr.read() == ""
    handler = tmp_path / "app.py"
    handler.write_text("def handle(partition, entries):\n    raise ValueError('no')\n")
    two = consume(server, "--handler", f"{handler}:handle")
    assert produce(monkeypatch, server, '{"user": "u1"}\n', "--key", "user") == 0
    assert two.wait(10) == 1
    assert "The handler failed at partition" in two.stderr.read()


def test_status_of_a_folder_that_a_group_shares_shows_its_members_where_it_is_told_the_server(server, capsys, tmp_path):
    folder, url = str(tmp_path / "shared"), url_of(server)
    GroupFolder(folder).create(GroupIdentity("cards", "paying", "payments", 4))
    assert main(["status", "--checkpoint", folder, "--redis", url]) == 1
    assert "There is no group 'paying' of stream 'payments'" in capsys.readouterr().err
    member = consume(server, "--member", "first", "--partitions", "4", group="paying", stream="payments")
    try:
        found, end = {}, time.monotonic() + 60
        while found.get("owners") != ["first"] * 4:
            assert time.monotonic() < end
            known = main(["status", "--checkpoint", folder, "--redis", url, "--json"]) == 0
            found = json.loads(capsys.readouterr().out if known else '{"membership": {"partitions": []}}')
            found["owners"] = [p["owner"] for p in found["membership"]["partitions"]]
        assert [m["member"] for m in found["membership"]["members"]] == ["first"]
        assert "lag" not in found["membership"], "the server does not know how far a flow is"
        assert found["membership"]["epoch"] == 1
        assert main(["status", "--checkpoint", folder, "--redis", url]) == 0
        shown = capsys.readouterr().out
        assert "0 of 4 partitions of stream payments have begun" in shown
        assert "members, as the server knows them: epoch 1, last rebalance" in shown
        assert shown.count("first") >= 5
    finally:
        member.send_signal(signal.SIGTERM)
        member.wait(20)
    assert main(["status", "--checkpoint", folder]) == 0
    assert "members" not in capsys.readouterr().out
    assert main(["status", "--checkpoint", str(tmp_path), "--redis", url]) == 2
    assert "--redis is for folders that a group shares" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["describe", "g", "--redis", "localhost"], 2, "'localhost' is no address of a Redis server"),
        (["describe", "g", "--redis", "redis://127.0.0.1:1"], 1, "The server at redis://127.0.0.1:1 cannot be asked"),
        (["consume", "g", "--redis", "redis://127.0.0.1:1", "--stream", "s", "--partitions", "2"], 1, "cannot be used"),
        (["consume", "a b", "--redis", "redis://127.0.0.1:1", "--stream", "s"], 2, "A group's name is 'a b'"),
        (
            ["consume", "g", "--redis", "redis://h", "--stream", "s", "--partitions", "2", "--on-error", "x"],
            2,
            "on_error is 'x'",
        ),
        (["consume", "g", "--redis", "redis://h", "--stream", "s", "--partitions", "2", "--handler", "x"], 2, "names no file"),
    ],
)
def test_group_command_that_is_wrong_says_so_in_one_sentence(capsys, words, code, message):
    assert main(["group", *words]) == code
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_produce_of_lines_that_are_no_objects_names_the_line(server, monkeypatch, capsys):
    assert produce(monkeypatch, server, '{"a": 1}\n[1]\n', "--partitions", "4") == 2
    assert "Line 2 is no JSON object" in capsys.readouterr().err
    assert produce(monkeypatch, server, '{"a"\n', "--partitions", "4") == 2
    assert "Line 1 is no JSON" in capsys.readouterr().err
