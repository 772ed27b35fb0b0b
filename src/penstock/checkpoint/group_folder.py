"""The folder of a flow in a group, which its applications share: what the group is of, and a checkpoint for each partition.

folder/
  group.json              flow, group, stream, number of partitions
  partitions/<number>/    the checkpoint of a partition (`penstock.checkpoint.folder`)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from penstock.checkpoint.folder import GROUP, IDENTITY, Checkpoint, reached
from penstock.errors import CheckpointError
from penstock.state.files import create_exclusive, list_dir, read_json

PARTITIONS: Final = "partitions"


@dataclass(frozen=True)
class GroupIdentity:
    """What a folder is of: the flow's name, the group's, the stream and the number of its partitions."""

    flow: str
    group: str
    stream: str
    partitions: int


class GroupFolder:
    """The folder that the applications of a group share.

    Args:
        uri: Local path or URI.

    Raises:
        CheckpointError: It is a file, or cannot be reached.
    """

    def __init__(self, uri: str) -> None:
        self._folder = Checkpoint(uri)
        self.uri = uri

    def identity(self) -> GroupIdentity | None:
        """What it is of; None: it is no folder of a group."""
        fs, path = self._folder.fs, self._folder.path(GROUP)
        if GROUP not in list_dir(fs, self._folder.root):
            return None
        raw = read_json(fs, path, *GroupIdentity.__dataclass_fields__)
        return GroupIdentity(*(raw[name] for name in GroupIdentity.__dataclass_fields__))

    def create(self, identity: GroupIdentity) -> None:
        """Make it the folder of a group, unless it is that already.

        Raises:
            CheckpointError: It cannot be written, is of another flow, group, stream or number of partitions, or the checkpoint of a flow that
                is in no group. Nothing was changed.
        """
        fs, data = self._folder.fs, json.dumps({"format": 1, **asdict(identity)}).encode()
        with reached(self.uri, "written"):
            there = list_dir(fs, self._folder.root)
            if IDENTITY in there:
                raise CheckpointError(
                    f"{self.uri} is the checkpoint of a flow that is in no group; give another folder, or start the flow without group=."
                )
            if GROUP not in there:
                self._folder.refuse_others(there)
                if create_exclusive(fs, self._folder.path(GROUP), data):
                    return
        known = self.identity()
        for name, value in asdict(identity).items():
            if known is not None and (old := getattr(known, name)) != value:
                raise CheckpointError(
                    f"{self.uri} is the folder of a group whose {name} is {old!r}, not {value!r}; give each its own folder."
                    if name != "partitions"
                    else f"Stream {identity.stream!r} had {old} partitions when {self.uri} was made, and the flow reads {value}: a key would be in "
                    "another partition than its state; start on a new folder with new tables."
                )

    def partition(self, number: int) -> str:
        """The checkpoint of a partition."""
        return f"{self.uri.rstrip('/')}/{PARTITIONS}/{number}"

    def begun(self) -> list[int]:
        """The partitions that have a checkpoint."""
        fs, root = self._folder.fs, self._folder.path(PARTITIONS)
        return sorted(int(name) for name in list_dir(fs, root) if name.isdigit())


__all__ = ["GroupFolder", "GroupIdentity"]
