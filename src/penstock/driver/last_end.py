"""How the run before ended, and what a start does about it.

A run is marked when it claims the checkpoint, by its description, and notes how it has ended beside that. One that should have and has not was
killed, or still runs. Runs of versions before this one have no mark: nothing is said of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord

MARK: Final = "notes_end"
"""In a run's description: it notes how it ends."""


def runs_here(about: Mapping[str, Any], by: Mapping[str, Any]) -> bool:
    """Whether the process of a run is one of this machine and lives; a number alone may be another process's by now.

    Args:
        about: The run's description of itself.
        by: Who asks, in the same terms.
    """
    if any(about.get(name) is None or about[name] != by.get(name) for name in ("host", "boot")):
        return False
    if about.get("process") == by.get("process"):
        return True
    if about["pid"] == by["pid"]:
        return False
    try:
        os.kill(int(about["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def last_end(checkpoint: Checkpoint, last: EpochRecord, by: Mapping[str, Any], *, open_epoch: bool, anew: bool = False) -> str:
    """A sentence or two about the newest run if it did not end cleanly; empty if it did, or if there is none.

    Args:
        checkpoint: The checkpoint, which the new run has not claimed yet.
        last: The last epoch's record.
        by: Who starts now.
        open_epoch: Whether input was planned for an epoch after that.
        anew: Whether state is computed anew from the log.
    """
    run = checkpoint.newest_run()
    about, end = checkpoint.about(run), checkpoint.end_of(run)
    if not about.get(MARK) or (end is not None and end.get("clean")):
        return ""
    who = f"Run {run} (process {about.get('pid', '?')} on {about.get('host', '?')}, started {about.get('started', '?')})"
    if end is not None:
        told = f"{who} did not end cleanly: {end['sentence']}"
    elif runs_here(about, by):
        told = f"{who} still runs; this run replaces it, and it can store nothing from now on."
    elif about.get("host") == by.get("host") and about.get("boot") != by.get("boot"):
        told = f"{who} did not end cleanly: the machine was started anew meanwhile."
    else:
        told = f"{who} did not end cleanly."
    return f"{told} {'State is computed anew from the log.' if anew else _done_about_it(last, open_epoch=open_epoch)}"


def _done_about_it(last: EpochRecord, *, open_epoch: bool) -> str:
    if last.rollback_pending:
        return f"The return to snapshot {last.rollback_pending.name!r} is completed first."
    if last.finished:
        return f"The flow had finished in epoch {last.epoch}; nothing is left to do."
    if open_epoch:
        return f"Epoch {last.epoch + 1} is run again from the same input."
    return "The flow begins." if last.epoch < 0 else f"No epoch was open; the flow goes on after epoch {last.epoch}."


def how_it_ended(about: Mapping[str, Any], *, alive: bool | None) -> str:
    """For `penstock status`, how the newest run ended; empty: it runs, or nothing is known.

    Args:
        about: The run's description of itself, with its ``end``.
        alive: Whether it runs; None: unknown from here.
    """
    end = about.get("end")
    if end is not None:
        return f"ended {end['ended']}: {end['sentence']}"
    if not about.get(MARK) or alive is not False:
        return ""
    return "did not end cleanly; the next start says what is run again"
