"""What goes on beside the epochs leaves them most of the time, and all of its own when the flow ends or it is behind."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord, RegionState
from penstock.driver.background import Background
from penstock.driver.epoch import Settings
from penstock.protocol.rescale import Placement
from penstock.state.deltas import SCHEMA, Metadata, Version, write_file
from penstock.state.recent_changes import HELD_DELTAS
from penstock.types import MAX_TIME, MIN_TIME


class Rests(list):
    """Stands for the event that the flow is about to end, and notes for how long it was waited for."""

    def wait(self, seconds):
        self.append(seconds)

    def set(self):
        self.append("ends")


def state_of(checkpoint, deltas):
    """A worker's state of so many deltas, each with a row of its own."""
    version = Version()
    for epoch in range(deltas):
        rows = pa.record_batch([[b"\0\0%08d" % epoch], [b"%d" % epoch], [MAX_TIME]], schema=SCHEMA)
        ref = write_file(checkpoint.fs, checkpoint.root, f"state/k/{epoch}", [rows], Metadata("delta", "f/k/0", epoch), "s")
        version = version.with_delta(ref, epoch)
    return version


@pytest.mark.parametrize(("deltas", "rests"), [(78, True), (200, False)])
def test_compaction_rests_unless_it_is_behind(tmp_path, deltas, rests):
    checkpoint = Checkpoint(str(tmp_path / "c"))
    version = state_of(checkpoint, deltas)
    region = RegionState(Placement.fresh(1), MIN_TIME, [version], 0, {}, {}, 0)
    record = EpochRecord(deltas + 1, 1, {}, {"k": region}, {}, [], {}, False, False, False, False, {}, "log")
    beside = Background(checkpoint, Settings("f", 1, {"k": 1}, lambda: 0), lambda _: {})
    beside._closing = noted = Rests()
    beside.look(record)
    beside.close()
    assert noted.count("ends") == 1
    assert (len(noted) > 1) == rests
    assert all(isinstance(s, str) or s > 0 for s in noted)
    compacted = beside.adopt(record).regions["k"].versions[0]
    assert (compacted.base.rows, len(compacted.deltas)) == (deltas - HELD_DELTAS, HELD_DELTAS)
