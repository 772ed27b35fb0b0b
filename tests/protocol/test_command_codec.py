"""Commands between the JSON of the control log and dataclasses."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from penstock.checkpoint.record import EpochRecord
from penstock.protocol import commands
from penstock.protocol.commands import (
    KINDS,
    Copied,
    Drain,
    End,
    Load,
    Move,
    Open,
    Scale,
    Snapshot,
    Stop,
    Tick,
    Unknown,
    decode,
    encode,
)
from penstock.protocol.controller import refusal
from penstock.protocol.rescale import Placement

COMMANDS = [
    Scale(None, 3),
    Scale("k", 2),
    Move("k", (1, -5), 1),
    Move("k", (7,), None),
    Copied("k", 7, 3, {"path": "state/k/f", "rows": 2}),
    Snapshot("s"),
    Load("s"),
    Load("s", keep_output=True),
    Stop(),
    Stop(4),
    Drain(),
    End(2),
    Tick(),
]


def test_command_when_it_goes_through_json_comes_back_the_same():
    assert {type(c) for c in COMMANDS} == set(KINDS.values())
    assert [decode(json.loads(json.dumps(encode(c)))) for c in COMMANDS] == COMMANDS


def test_record_when_commands_are_open_keeps_them():
    record = EpochRecord(1, open={"a": Open(Move("k", (1, 2), None), ("k",)), "b": Open(Drain())}, rollback_pending=Load("s"))
    assert EpochRecord.from_bytes(record.to_bytes(), "here") == record
    assert EpochRecord.from_bytes(EpochRecord().to_bytes(), "here") == EpochRecord()


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ("rubbish", "'rubbish'"),
        ({"name": "s"}, "None"),
        ({"command": ["scale"]}, "['scale']"),
        ({"command": "unknown", "what": "x"}, "'unknown'"),
        ({"command": "scale", "workers": 3, "at": 7}, "'scale' with at=7"),
        ({"command": "scale", "workers": 3, "region": 1}, "'scale' with region=1"),
        ({"command": "scale"}, "'scale' without workers"),
        ({"command": "move", "region": "k", "keys": [1.5], "worker": 0}, "'move' with keys=[1.5]"),
        ({"command": "move", "region": "k", "keys": 1, "worker": 0}, "'move' with keys=1"),
        ({"command": "load", "name": "s", "keep_output": 1}, "'load' with keep_output=1"),
        ({"command": "stop", "run": "2"}, "'stop' with run='2'"),
        ({"command": "drain", "now": True}, "'drain' with now=True"),
        ({"command": "copied", "region": "k", "key": 1, "since": 2, "file": "f"}, "'copied' with file='f'"),
    ],
)
def test_command_when_this_version_does_not_know_it_is_refused_with_a_sentence(raw, what):
    found = refusal(decode(raw), {"k": Placement.fresh(2)}, ("s",))
    assert found.sentence == f"{what} is no command that this version knows."


@dataclass(frozen=True, slots=True)
class Pause:
    """A command of another version."""

    region: str
    ms: int
    why: str | None = None


def test_command_from_outside_when_its_class_is_listed_is_written_read_and_checked_by_its_fields(monkeypatch):
    pause, raw = Pause("k", 5), {"command": "pause", "region": "k", "ms": 5, "why": None}
    assert decode(raw) == Unknown("'pause'")
    monkeypatch.setattr(commands, "KINDS", {**KINDS, "pause": Pause})
    assert encode(pause) == raw
    assert decode(raw) == decode({"command": "pause", "region": "k", "ms": 5}) == pause
    assert decode({**raw, "ms": "5"}) == Unknown("'pause' with ms='5'")
    assert decode({"command": "pause", "region": "k"}) == Unknown("'pause' without ms")
