"""A checkpoint of the present format, and one of the format before, go on as if nobody had interrupted or upgraded them."""

from __future__ import annotations

import json
from pathlib import Path

import kept_flow
import pytest
import xxhash

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.formats import FORMAT, OLDEST
from penstock.driver.inspect import key_schema, view_region
from penstock.errors import CheckpointError, TornFileError
from penstock.protocol.commands import Snapshot

FORMATS = range(OLDEST, FORMAT + 1)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """What the sinks hold after all epochs of a run that was never interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("calm"))
        with kept_flow.harness_of() as harness:
            for epoch in range(kept_flow.EPOCHS):
                kept_flow.push(harness, epoch)
                harness.epoch()
            harness.finish()
        found = kept_flow.stored()
    assert sorted(found) == sorted([*kept_flow.TABLES, "newest"])
    assert all(found.values())
    return found


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Unpacks a kept checkpoint; gives a harness that goes on with it."""

    def unpacked(format_, stage, **options):
        kept_flow.unpack(format_, stage, tmp_path)
        monkeypatch.chdir(tmp_path)
        return kept_flow.harness_of(**options)

    return unpacked


def finish(harness, first):
    """Read the input of the epochs from one on, and end."""
    for epoch in range(first, kept_flow.EPOCHS):
        kept_flow.push(harness, epoch)
        harness.epoch(*harness.copy())
    harness.settle()
    harness.finish()
    return kept_flow.stored()


@pytest.mark.parametrize("lmdb", [False, True], ids=["memory", "lmdb"])
@pytest.mark.parametrize("format_", FORMATS)
def test_rescale_with_keys_on_hold_and_a_crashed_epoch_when_the_checkpoint_is_kept_goes_on_to_the_same_rows(
    opened, wanted, format_, lmdb
):
    with opened(format_, "moving", lmdb=lmdb) as harness:
        assert harness.record.epoch == 6
        assert harness.record.regions["first"].control.held
        kept_flow.push(harness, 7)
        assert harness.epoch(Snapshot("late")).epoch == 7  # what it was told when it crashed
        assert finish(harness, 8) == wanted
        assert {n: r.workers for n, r in harness.record.regions.items()} == {"first": 4, "joined": 3, "second": 3}
        assert not harness.record.open


@pytest.mark.parametrize("format_", FORMATS)
def test_snapshot_when_it_is_kept_is_gone_back_to(opened, wanted, format_):
    with opened(format_, "moving") as harness:
        record = harness.load("early")
        assert [b.snapshot for b in record.rolled_back] == ["early"]
        kept = Path("checkpoint/snapshots/early.json").read_bytes()  # the next version reads the present format
        assert json.loads(kept.split(b"\n", 1)[1])["format"] == FORMAT
        assert finish(harness, 2) == wanted


@pytest.mark.parametrize("format_", FORMATS)
def test_going_back_when_it_is_kept_half_done_is_finished(opened, wanted, format_):
    with opened(format_, "going_back") as harness:
        assert harness.record.rollback_pending is None
        assert [b.snapshot for b in harness.record.rolled_back] == ["early", "early"]
        assert finish(harness, 2) == wanted


@pytest.mark.parametrize("format_", FORMATS)
def test_record_when_it_is_kept_is_the_same_after_it_was_written_anew(opened, tmp_path, format_):
    for stage in kept_flow.STAGES:
        kept_flow.unpack(format_, stage, tmp_path / stage)
        checkpoint = Checkpoint(str(tmp_path / stage / "checkpoint"))
        for record in (checkpoint.last(), *checkpoint.snapshots()):
            assert type(record).from_bytes(record.to_bytes(), "again") == record


@pytest.mark.spark
@pytest.mark.parametrize("format_", FORMATS)
def test_flow_over_spark_when_its_checkpoint_is_kept_goes_on_to_the_same_rows(spark, tmp_path, monkeypatch, format_):
    (tmp_path / "calm").mkdir()
    monkeypatch.chdir(tmp_path / "calm")
    with kept_flow.harness_of(joined=False) as harness:
        for epoch in range(kept_flow.EPOCHS):
            harness.push("a", kept_flow.rows(0, epoch))
            harness.epoch()
        harness.finish()
    wanted = kept_flow.stored()
    kept_flow.unpack(format_, "spark", tmp_path)
    monkeypatch.chdir(tmp_path)
    kept_flow.run_spark(spark, kept_flow.EPOCHS, drain=True)
    assert kept_flow.stored() == wanted


def rewritten(checkpoint, format_):
    """Give the last record another number of a format; gives its path."""
    path = max((checkpoint / "epochs").glob("*.json"))
    body = json.dumps({**json.loads(path.read_bytes().split(b"\n", 1)[1]), "format": format_}).encode()
    path.write_bytes(xxhash.xxh3_64_hexdigest(body).encode() + b"\n" + body)
    return path


NEWER = "was written by a newer version of penstock (format {}; this version reads {} and {}); use that version."
TOO_OLD = (
    "was written by a version of penstock that is too old (format {}; this version reads {} and {}); start the flow once with each version "
    "in between."
)


@pytest.mark.parametrize(("format_", "sentence"), [(FORMAT + 1, NEWER), (OLDEST - 1, TOO_OLD)])
def test_record_when_its_format_is_newer_or_too_old_is_refused_in_a_sentence_and_nothing_is_changed(
    opened, tmp_path, monkeypatch, format_, sentence
):
    kept_flow.unpack(FORMAT, "moving", tmp_path)
    monkeypatch.chdir(tmp_path)
    path = rewritten(tmp_path / "checkpoint", format_)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(TornFileError) as caught:
        kept_flow.harness_of()
    assert str(caught.value) == f"The epoch record {path} " + sentence.format(format_, OLDEST, FORMAT)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_state_when_what_describes_its_region_is_of_another_version_is_refused_in_a_sentence(tmp_path):
    kept_flow.unpack(FORMAT, "moving", tmp_path)
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "runs" / "000002.spec").write_bytes(b"cpenstock.gone\nRegion\n.")
    wanted = (
        f"The regions of checkpoint {checkpoint} cannot be loaded (ModuleNotFoundError: No module named 'penstock.gone'): start the flow once "
        "with this version of penstock, and run this where the modules that the flow imports can be found."
    )
    for read in (lambda: view_region(str(checkpoint), "first"), lambda: key_schema(Checkpoint(str(checkpoint)), "first")):
        with pytest.raises(CheckpointError) as caught:
            read()
        assert str(caught.value) == wanted
