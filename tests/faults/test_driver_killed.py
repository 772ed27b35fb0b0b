"""The driver is killed at every step of an epoch and started again: the sinks hold what they hold when nobody is killed."""

from __future__ import annotations

import os
import random
import signal
import time

import children
import killed_flow
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]

STEPS = [
    "decide",
    *(f"{when} {output}" for output in killed_flow.OUTPUTS for when in ("compute", "computed", "during", "stored")),
    "commit",
    "committed",
]


@pytest.fixture
def urls(postgres_database, tmp_path):
    """A SQLite file, a PostgreSQL database and a folder that are new."""
    return killed_flow.urls_in(tmp_path, postgres_database)


def check_killed(tmp_path, urls, seed, kills, *, files=5, workers=2, max_files=1, scales=None, phases=None, **more):
    """Run with these kills, one process after the other, and compare; `phases` collects where a rescale was at each kill."""
    data = killed_flow.records(seed, files)
    killed_flow.write_files(tmp_path / "in", data)
    options = {
        "folder": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "urls": urls,
        "workers": workers,
        "max_files": max_files,
        "scales": scales,
        **more,
    }
    local, happened = {"PENSTOCK_LOCAL_DIR": str(tmp_path / "local")}, []
    for kill in [*kills, None]:
        ended = children.run("killed_flow.py", {**options, "kill": kill}, tmp_path, **local)
        if ended.code == 0:  # the step does not come so often any more
            break
        assert ended.code == -signal.SIGKILL, f"{kill}: {ended}"
        happened.append(kill)
        if phases is not None:
            phases |= set(next(line for line in reversed(ended.out.splitlines()) if line.startswith("phase")).split()[1:])
    assert "done" in ended.out
    assert killed_flow.content(urls) == killed_flow.expected(data)
    return happened


@pytest.mark.soak
def test_driver_when_killed_around_both_sinks_and_both_commits_gives_each_row_once(tmp_path, urls):
    # In a sink's transaction, before the commit, between it and Spark's own. Before a sink is written and between two sinks: below, as a
    # rescale goes on ("compute totals", "stored totals") and as the JVM lives on ("stored running").
    kills = [("during spread", 1), ("commit", 1), ("committed", 2)]
    assert check_killed(tmp_path, urls, 1, kills) == kills


@pytest.mark.parametrize(
    "kills",
    [
        [("computed running", 1), ("during matches", 2)],
        pytest.param([("computed matches", 1), ("during running", 2)], marks=pytest.mark.soak),
    ],
    ids=["files, tables", "tables, files"],
)
def test_driver_when_killed_between_stage_and_commit_gives_each_row_once(tmp_path, urls, kills):
    # Tasks have stored rows, in files and in tables: nothing of the commit is done, or it is under way. Once it is done, all sinks are alike.
    assert check_killed(tmp_path, urls, 6, kills, files=5, parts=True) == kills
    assert not killed_flow.staged(urls)


RESCALE = [("compute totals", 3), ("stored totals", 2), *(("on hold", m) for m in ("copying", "reported", "released"))]


@pytest.mark.parametrize("kills", [RESCALE[1:4:2], pytest.param(RESCALE, marks=pytest.mark.soak)], ids=["some", "every"])
def test_driver_when_killed_in_every_phase_of_a_rescale_gives_each_row_once(tmp_path, urls, kills):
    # Each run goes further before it is killed: while bins are measured, while they move, and with a key on hold: while the
    # concurrent job copies its state, once that is reported and nobody has obeyed, and as the epoch that ends the hold commits.
    phases = set()
    more = {"scales": {"1": 4, "9": 1}, "hold_bytes": 20, "copy_s": 1.5}
    happened = check_killed(tmp_path, urls, 4, kills, files=10, workers=1, phases=phases, **more)
    assert happened == kills
    assert {"interrogate", "move"} <= phases or kills != RESCALE, phases


def test_jvm_of_a_killed_driver_when_it_wakes_up_after_the_restart_changes_nothing(tmp_path, urls):
    data = killed_flow.records(2, 3)
    killed_flow.write_files(tmp_path / "in", data)
    options = {"folder": str(tmp_path / "in"), "checkpoint": str(tmp_path / "checkpoint"), "urls": urls}
    local = {"PENSTOCK_LOCAL_DIR": str(tmp_path / "local")}
    process, err = children.start(
        "killed_flow.py", {**options, "kill": ("stored running", 2), "stop_java": True}, tmp_path, **local
    )
    try:
        java = None
        for line in process.stdout:  # not up to its end: the JVM keeps it open
            java = int(line.split()[1]) if line.startswith("java") else java
            if line.startswith("killed"):
                break
        assert process.wait(60) == -signal.SIGKILL, err.read_text()
        os.kill(java, 0)  # it is there, and does not know that its driver is dead
        ended = children.run("killed_flow.py", options, tmp_path, **local)
        assert ended.code == 0, ended
        assert killed_flow.content(urls) == killed_flow.expected(data)
        os.kill(java, signal.SIGCONT)
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and _alive(java):
            time.sleep(0.2)
        assert killed_flow.content(urls) == killed_flow.expected(data)
    finally:
        process.stdout.close()
        children.end_group(process)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(12))
def test_driver_when_killed_at_random_steps_gives_each_row_once(tmp_path, urls, seed):
    dice = random.Random(seed)
    kills = [(dice.choice(STEPS), dice.choice([1, 1, 2, 3])) for _ in range(dice.randint(2, 6))]
    check_killed(
        tmp_path,
        urls,
        100 + seed,
        kills,
        files=dice.randint(3, 7),
        workers=dice.randint(1, 4),
        max_files=dice.randint(1, 3),
        parts=seed % 2 == 0,
    )
