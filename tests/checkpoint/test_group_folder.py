"""The folder that the applications of a group share: made once, by whoever comes first, and refused for anything else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from penstock.checkpoint.folder import Checkpoint, Identity
from penstock.checkpoint.group_folder import GroupFolder, GroupIdentity
from penstock.errors import CheckpointError

MINE = GroupIdentity("billing", "eu", "orders", 8)


def test_folder_when_many_come_at_once_is_made_once(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: GroupFolder(str(tmp_path / "new")).create(MINE), range(64)))
    assert GroupFolder(str(tmp_path / "new")).identity() == MINE


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (replace(MINE, flow="invoices"), "whose flow is 'billing', not 'invoices'"),
        (replace(MINE, group="us"), "whose group is 'eu', not 'us'"),
        (replace(MINE, stream="returns"), "whose stream is 'orders', not 'returns'"),
        (replace(MINE, partitions=16), "had 8 partitions .* and the flow reads 16"),
    ],
)
def test_folder_of_another_group_is_refused_by_name(tmp_path, other, sentence):
    GroupFolder(str(tmp_path)).create(MINE)
    with pytest.raises(CheckpointError, match=sentence):
        GroupFolder(str(tmp_path)).create(other)
    assert GroupFolder(str(tmp_path)).identity() == MINE


def test_folder_that_is_a_checkpoint_and_checkpoint_that_is_a_folder_of_a_group_are_refused(tmp_path):
    Checkpoint(str(tmp_path / "flow")).create(Identity("id", "billing"))
    with pytest.raises(CheckpointError, match=r"in no group; give another folder, or start the flow without group="):
        GroupFolder(str(tmp_path / "flow")).create(MINE)
    GroupFolder(str(tmp_path / "group")).create(MINE)
    with pytest.raises(CheckpointError, match=r"is the folder of a group, .*start the flow with group="):
        Checkpoint(str(tmp_path / "group")).create(Identity("id", "billing"))


def test_folder_with_files_of_others_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("…")
    with pytest.raises(CheckpointError, match=r"holds other files \('thesis.txt'\)"):
        GroupFolder(str(tmp_path)).create(MINE)


def test_folder_knows_the_partitions_that_have_begun(tmp_path):
    folder = GroupFolder(str(tmp_path))
    folder.create(MINE)
    assert (folder.begun(), folder.partition(3)) == ([], f"{tmp_path}/partitions/3")
    for number in (7, 0):
        Checkpoint(folder.partition(number)).create(Identity("id", "billing"))
    assert folder.begun() == [0, 7]
