"""`penstock run` hands on what it was told, and prints what the flow says of itself; without Spark."""

from __future__ import annotations

import pytest

from penstock import cli
from penstock.cli import commands
from penstock.flow.flow import Flow

APP = "import penstock as ps\n\n\ndef made():\n    return ps.Flow('said')\n"


class Running:
    """A run that has ended."""

    last_end = "Run 1 did not end cleanly. Epoch 4 is run again from the same input."
    changes = ("Step 'x' starts empty.",)
    outcome = "The flow finished in epoch 7."

    def await_termination(self, timeout=None):
        return True


@pytest.mark.parametrize(("words", "audit"), [([], False), (["--audit"], True)])
def test_run_hands_on_the_audit_and_prints_how_the_last_run_ended(words, audit, tmp_path, monkeypatch, capsys):
    told, asked = {}, []
    monkeypatch.setattr(Flow, "start", lambda self, spark, **options: told.update(options) or Running())
    monkeypatch.setattr(commands, "quiet_session", lambda *_, **conf: asked.append(conf))
    (tmp_path / "app.py").write_text(APP)
    assert cli.main(["run", f"{tmp_path}/app.py:made", "--checkpoint", str(tmp_path / "c"), *words]) == 0
    assert told["audit"] is audit
    assert asked == [{}]  # as `conftest` sets PENSTOCK_UI
    assert capsys.readouterr().err.splitlines() == [Running.last_end, *Running.changes, Running.outcome]


@pytest.mark.parametrize(("words", "asked"), [([], {"spark.ui.enabled": "true"}), (["--no-ui"], {})])
def test_run_shows_sparks_web_interface_unless_told_not_to(words, asked, tmp_path, monkeypatch):
    found = []
    monkeypatch.delenv("PENSTOCK_UI")
    monkeypatch.setattr(Flow, "start", lambda self, spark, **options: Running())
    monkeypatch.setattr(commands, "quiet_session", lambda *_, **conf: found.append(conf))
    (tmp_path / "app.py").write_text(APP)
    assert cli.main(["run", f"{tmp_path}/app.py:made", "--checkpoint", str(tmp_path / "c"), *words]) == 0
    assert found == [asked]
