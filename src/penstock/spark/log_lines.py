"""What a run writes to the log: a line when it starts, one for each epoch in which something happened, one when it ends.

`penstock.runs` has starts and ends, `penstock.epochs` the epochs, all at INFO, a table that could not be read again at WARNING, a failure at ERROR. penstock adds no handler but `logging.NullHandler`, so a script
sees the lines once it configures logging; ``penstock run`` does so.

Read next: `penstock.driver.shown`, decision 48.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.driver.shown import epoch_line, stale_lines, start_line
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.checkpoint.record import EpochRecord
    from penstock.driver.loop import Loop

RUNS: Final = logging.getLogger("penstock.runs")
EPOCHS: Final = logging.getLogger("penstock.epochs")
for _log in (RUNS, EPOCHS):  # an error is raised to whoever waits; Python's last resort would print it a second time
    _log.addHandler(logging.NullHandler())


def log_start(flow: str, loop: Loop, ui: str | None) -> None:
    """Note that a run has started.

    Args:
        flow: The flow's name, with its partition in a group.
        loop: The run.
        ui: Where Spark's web interface is; None: there is none.
    """
    if RUNS.isEnabledFor(logging.INFO):
        workers = {name: placed.workers for name, placed in loop.driver.placements().items()}
        at = loop.checkpoint.uri if "://" in loop.checkpoint.uri else loop.checkpoint.root
        line = start_line(at, loop.settings.run, loop.last.epoch, workers, ui)
        RUNS.info("%s: %s", flow, line, extra={"flow": flow, "run": loop.settings.run})


def log_epoch(flow: str, before: EpochRecord, record: EpochRecord) -> None:
    """Note what an epoch has done; nothing if that was nothing."""
    if EPOCHS.isEnabledFor(logging.INFO) and (line := epoch_line(before, record)):
        EPOCHS.info("%s: %s", flow, line, extra={"flow": flow, "run": record.run, "epoch": record.epoch})
    for line in stale_lines(before, record):
        EPOCHS.warning("%s: %s", flow, line, extra={"flow": flow, "run": record.run, "epoch": record.epoch})


def log_end(flow: str, how: PenstockError | str) -> None:
    """Note how a run has ended: its error, or a sentence."""
    level = logging.ERROR if isinstance(how, PenstockError) else logging.INFO
    RUNS.log(level, "%s: %s", flow, how, extra={"flow": flow, "ended": True})


__all__ = ["EPOCHS", "RUNS", "log_end", "log_epoch", "log_start"]
