"""The log of input of epochs that the driver plans: what is planned stays so, whoever plans it."""

from __future__ import annotations

import pytest

from penstock.checkpoint.folder import Checkpoint
from penstock.errors import PenstockError
from penstock.spark import logs
from penstock.spark.reading import PlannedLog


def test_epoch_that_another_run_has_planned_ends_where_that_one_says(tmp_path):
    checkpoint = Checkpoint(str(tmp_path))
    assert PlannedLog(checkpoint, "spark", 1).plan(0, [{"0": ["1-0", 1, 0]}]) == [{"0": ["1-0", 1, 0]}]
    assert PlannedLog(checkpoint, "spark", 1).plan(0, [{"0": ["9-0", 9, 0]}]) == [{"0": ["1-0", 1, 0]}]


def test_start_goes_on_with_the_epoch_that_was_planned_and_not_committed(tmp_path):
    log = PlannedLog(Checkpoint(str(tmp_path)), "spark", 2)
    assert log.pending(-1) == ([None, None], None)
    log.plan(0, [{"0": 1}, None])
    assert log.pending(-1) == ([None, None], [{"0": 1}, None])
    log.plan(1, [{"0": 2}, {"0": 7}])
    assert log.pending(0) == ([{"0": 1}, None], [{"0": 2}, {"0": 7}])
    assert log.pending(1) == ([{"0": 2}, {"0": 7}], None)


def test_log_that_does_not_belong_to_the_records_is_refused(tmp_path):
    log = PlannedLog(Checkpoint(str(tmp_path)), "spark", 1)
    for epoch in range(3):
        log.plan(epoch, [{"0": epoch}])
    for last in (-1, 0, 3):
        with pytest.raises(PenstockError, match=f"ends with epoch 2, and its last epoch record is of epoch {last}"):
            log.pending(last)
    with pytest.raises(PenstockError, match="is of 1 sources, and the flow has 2"):
        PlannedLog(Checkpoint(str(tmp_path)), "spark", 2).pending(2)


def test_old_epochs_leave_the_log(tmp_path):
    log = PlannedLog(Checkpoint(str(tmp_path)), "spark", 1)
    for epoch in range(130):
        log.plan(epoch, [{"0": epoch}])
    names = {int(path.name) for path in (tmp_path / "spark" / "offsets").iterdir()}
    assert names == set(range(30, 130))
    assert log.pending(129) == ([{"0": 129}], None)


def test_old_epochs_that_a_query_has_left_leave_the_log_when_it_is_opened(tmp_path):
    checkpoint = Checkpoint(str(tmp_path))
    for epoch in range(130):
        logs.plan(checkpoint, "spark", epoch, [{"0": epoch}])
    assert PlannedLog(checkpoint, "spark", 1).pending(129) == ([{"0": 129}], None)
    assert {int(path.name) for path in (tmp_path / "spark" / "offsets").iterdir()} == set(range(30, 130))
