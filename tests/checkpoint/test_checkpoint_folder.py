"""Which folder can be a checkpoint: one of its own that can be written; whatever else is there stays as it is."""

from __future__ import annotations

import re

import pytest

from penstock.checkpoint.folder import Checkpoint, Identity, open_checkpoint
from penstock.errors import CheckpointError, TornFileError

MINE = Identity("1", "f")


@pytest.mark.parametrize("names", [["data.csv"], ["offsets", "commits", "metadata", "sources"], ["penstock.jso"]])
def test_folder_with_other_files_when_it_is_given_as_checkpoint_is_refused_and_stays(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(str(tmp_path)).create(MINE)
    shown = ", ".join(map(repr, sorted(names)[:3])) + (", …" if len(names) > 3 else "")
    assert str(caught.value) == (
        f"The folder {tmp_path} is not a checkpoint of penstock and holds other files ({shown}); "
        "give a folder of its own as checkpoint, new or empty."
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names)


def test_folder_when_it_is_new_or_empty_or_has_what_nobody_put_there_is_taken(tmp_path):
    for name in (".DS_Store", "_temporary", "_SUCCESS", "lost+found"):
        (tmp_path / name).mkdir()
    assert Checkpoint(str(tmp_path)).create(MINE) == MINE
    assert Checkpoint(str(tmp_path / "new" / "deep")).create(MINE) == MINE


def test_checkpoint_when_it_is_ours_is_taken_whatever_else_was_put_there(tmp_path):
    Checkpoint(str(tmp_path)).create(MINE)
    (tmp_path / "notes.txt").write_text("")
    assert Checkpoint(str(tmp_path)).create(Identity("2", "g")) == MINE


@pytest.mark.parametrize("act", ["create", "claim"])
def test_checkpoint_when_it_cannot_be_written_says_so_in_a_sentence(tmp_path, act):
    (tmp_path / "file").write_text("")
    uri = f"{tmp_path}/file/ckpt"
    checkpoint = Checkpoint(uri)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.create(MINE) if act == "create" else checkpoint.claim({})
    assert str(caught.value) == (
        f"Checkpoint {uri} cannot be written (not a directory); give a folder that this user may read and write."
    )
    with pytest.raises(
        CheckpointError, match="is not a checkpoint of penstock; give the folder that the flow was started with"
    ):
        open_checkpoint(uri)


@pytest.mark.parametrize("given", [None, 5, "", " ", b"folder", "a\0b", str, ["folder"]])
def test_location_that_is_no_folder_is_refused_by_name(given):
    with pytest.raises(CheckpointError, match=re.escape(f"checkpoint={given!r} is no folder; give the path or URI of one")):
        Checkpoint(given)


def test_location_may_be_a_path(tmp_path):
    assert Checkpoint(tmp_path / "there").uri == str(tmp_path / "there")


@pytest.mark.parametrize("body", [b"", b'{"flow": "12', b"\xff\x00", b"null", b"{}", b"[]"])
def test_small_file_that_is_damaged_is_named_and_what_only_informs_is_as_if_it_were_not_there(tmp_path, body):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.create(Identity("1", "f"))
    (tmp_path / "penstock.json").write_bytes(body)
    for look in (checkpoint.identity, lambda: checkpoint.create(Identity("1", "f"))):
        with pytest.raises(TornFileError, match=r"^The file /.*/penstock\.json is damaged \(.+\); restore it from a copy\.$"):
            look()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "000001.end").write_bytes(body)
    assert not checkpoint.end_of(1)
    assert checkpoint.end_of(2) is None


@pytest.mark.parametrize("body", [b"", b'{"sources": {', b"null"])
def test_note_of_an_epochs_files_when_it_is_damaged_is_not_taken_for_none(tmp_path, body):
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.kept_input(3) is None
    (tmp_path / "epochs").mkdir()
    (tmp_path / "epochs" / "000000000003.files").write_bytes(body)
    with pytest.raises(TornFileError, match=r"000000000003\.files is damaged \(.+\); restore it from a copy"):
        checkpoint.kept_input(3)
