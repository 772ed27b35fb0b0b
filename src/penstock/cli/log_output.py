"""The log of ``penstock run`` on stderr: a line for the start, and one for each epoch where no live table shows them."""

from __future__ import annotations

import logging
import sys


class _Stderr(logging.Handler):
    """Writes to what stderr is at that moment. The end of a run is left out, as the command prints it."""

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "ended", False):
            print(self.format(record), file=sys.stderr, flush=True)


def log_to_stderr() -> None:
    """Show the lines of `penstock.spark.log_lines`; on a terminal the start only, because there the epochs are a table.

    What the program that declares the flow has configured itself stays: then these are its lines to show.
    """
    shown = logging.getLogger("penstock")
    if logging.getLogger().handlers or any(not isinstance(h, logging.NullHandler) for h in shown.handlers):
        return
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    shown.addHandler(handler)
    shown.setLevel(logging.INFO)
    if sys.stderr.isatty():
        logging.getLogger("penstock.epochs").setLevel(logging.WARNING)


__all__ = ["log_to_stderr"]
