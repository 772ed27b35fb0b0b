"""Figures of a group: what is declared is what is shown, in tables, JSON and Prometheus's text, and what an application counts itself."""

from __future__ import annotations

import json
import re
import time

import pytest

import penstock as ps
from penstock.cli import main
from penstock.group.agent import Agent
from penstock.group.figures import FIGURES
from penstock.progress.figures import Figure
from penstock.redis_client.connection import connect
from penstock.serve.exposition import exposition

SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+)')


class EndsAtOnce:
    """Work that ends when it should."""

    def start(self, partition, token, position):
        pass

    def stop(self, partition, within_s):
        self.agent.stopped(partition)

    def abandon(self, partition):
        self.agent.stopped(partition)


def joined(url, name, lease="10 s"):
    work = EndsAtOnce()
    work.agent = Agent(ps.Group(url, "figures", member=name, lease=lease), "counted", 3, work)
    work.agent.start()
    return work.agent


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def parsed(text):
    """The samples of Prometheus's text, by name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            found[name, tuple(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))] = float(value)
    return found


def test_figures_when_members_come_and_go_are_the_same_in_every_form(redis_url, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with ps.Producer(redis_url, "counted", 3) as producer:
        producer.send_many({"n": str(n)} for n in range(7))
    first = joined(redis_url, "first")
    try:
        until(lambda: len(first.owned) == 3)
        second = joined(redis_url, 'the "second"'.replace(" ", "-"))
        try:
            until(lambda: len(first.owned) + len(second.owned) == 3 and first.settled and second.settled)
            assert main(["group", "describe", "figures", "--redis", redis_url, "--json"]) == 0
            plain = json.loads(capsys.readouterr().out)
            assert main(["group", "describe", "figures", "--redis", redis_url, "--prometheus"]) == 0
            text = capsys.readouterr().out
            assert main(["group", "describe", "figures", "--redis", redis_url]) == 0
            table = capsys.readouterr().out
        finally:
            second.leave()
            second.close()
        until(lambda: first.figures["members"] == 1 and first.settled)
        mine = first.figures
    finally:
        first.leave()
        first.close()
    about = (("group", "figures"), ("stream", "counted"))
    found = parsed(text)
    assert found["penstock_group_epoch_total", about] == plain["epoch"] == 2
    assert found["penstock_group_lag", about] == plain["lag"] == 7
    assert found["penstock_group_last_rebalance_ms", about] == plain["last_rebalance_ms"]
    members = {m["member"].replace('"', r"\""): m for m in plain["members"]}
    assert set(members) == {"first", r"the-\"second\""}
    for name, values in members.items():
        for figure in set(FIGURES["member"]) - {"alive_ms"}:
            assert found[f"penstock_group_member_{figure}", (*about, ("member", name))] == values[figure]
    for values in plain["partitions"]:
        for figure in FIGURES["partition"]:
            key = f"penstock_group_partition_{figure}", (*about, ("partition", str(values["partition"])))
            assert found.get(key) == values[figure]
    for prefix, of in (("", "group"), ("_member", "member"), ("_partition", "partition")):
        for figure in FIGURES[of].values():
            name = f"penstock_group{prefix}_{figure.name}{'_total' if figure.kind == 'counter' else ''}"
            assert f"# HELP {name} {figure.help}\n# TYPE {name} {figure.kind}\n" in text
    assert all(figure.title in table for of in ("member", "partition") for figure in FIGURES[of].values())
    told = {name: mine[name] for name in ("members", "owned", "rebalances", "fences")}
    assert (told, mine["epoch"] in {3, 4}) == ({"members": 1, "owned": 3, "rebalances": 3, "fences": 0}, True)
    assert list(mine) == list(FIGURES["application"])
    assert 0 <= mine["last_rebalance_ms"] < 5_000


def test_fences_of_an_application_when_it_loses_a_lock_are_counted(redis_url):
    agent = joined(redis_url, "alone", lease="5 s")
    try:
        until(lambda: len(agent.owned) == 3)
        before = agent.figures
        connect(redis_url).hset("{counted:1}:figures", "token", "999")
        assert agent.ack(1, "1-1") is False
        until(lambda: agent.figures["fences"] == 1 and agent.settled)
        assert (before["fences"], before["rebalances"], agent.figures["rebalances"]) == (0, 1, 2)
    finally:
        agent.leave()
        agent.close()


def test_two_forms_at_once_are_refused_in_a_sentence(redis_url, capsys):
    assert main(["group", "describe", "figures", "--redis", redis_url, "--json", "--prometheus"]) == 2
    assert "--json and --prometheus are two forms of the same; give one of them." in capsys.readouterr().err


@pytest.mark.parametrize(("label", "shown"), [('a"b', r"a\"b"), ("a\\b", r"a\\b"), ("a\nb", r"a\nb"), ("é", "é")])
def test_label_with_any_character_is_one_line_that_can_be_read(label, shown):
    lines = list(
        exposition("p", {"n": Figure("counter", "rows", "Rows\nread")}, [({"who": label}, {"n": 2**53 + 1}), ({}, {"n": None})])
    )
    assert lines == [r"# HELP p_n_total Rows\nread", "# TYPE p_n_total counter", f'p_n_total{{who="{shown}"}} 9007199254740992']
