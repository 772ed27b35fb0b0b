"""Every error of penstock. Each message is one sentence or two: what was wrong, where, what to do.

PenstockError
├── DeclarationError      a flow was declared wrongly (nothing has run)
│   ├── QueryError        a pattern is not CEQL, or does not fit the columns
│   └── SpellingError     something has another name here, or does not exist; also an AttributeError
├── CheckpointError       the checkpoint cannot be used
│   ├── TornFileError     a file is missing, truncated or altered
│   ├── ChangedFlowError  the flow changed so that it cannot take over the state that is there
│   ├── FinishedError     the flow has reached the end of its input
│   └── RecoveryError     state cannot be computed from the log of the sources
├── ReplacedError         a command will not be carried out: something took its place
├── FencedError           a newer run owns this checkpoint or sink; this one must stop
├── SinkError             a sink refused, or cannot do what is asked
│   └── SinkAheadError    the sink holds what this checkpoint does not know of
├── RecordError           a record cannot be read or has no place
├── OperatorError         a user's function raised; names operator, key and position
├── AuditError            a user's function is not deterministic; names step, key and both results
├── StateError            state cannot be stored or read
├── GroupError            the members of a group do not agree, or its server cannot do what is asked
└── MissingToolError     Java or a package is missing
"""

from __future__ import annotations


class PenstockError(Exception):
    """The root: catch this to catch everything penstock raises on purpose.

    Attributes:
        cause: What it came from, with its traceback, where that is the engine's and would be hundreds of lines; ``penstock --debug``
            shows it, and ``raise error.cause`` does. None: there is nothing more, or it stands in ``__cause__``.

    Example:
        >>> try:
        ...     ps.tumbling("0 hours")
        ... except ps.PenstockError as error:
        ...     print(error)
        A window of 0 hours every 0 hours is empty; give positive durations.
    """

    cause: BaseException | None = None


def raised(error: BaseException) -> str:
    """What a user's function raised, and in which line of whose file.

    Example:
        >>> raised(ValueError("no"))
        'ValueError: no'
    """
    found, step = None, error.__traceback__
    while step is not None:
        file, ours = step.tb_frame.f_code.co_filename, step.tb_frame.f_globals.get("__name__", "").split(".")[0] == "penstock"
        if (
            not ours and not file.startswith("<frozen ") and (found is None or file == found[0])
        ):  # not into the libraries that it calls
            found = file, step.tb_lineno
        step = step.tb_next
    where = "" if found is None else f" ({found[0].replace(chr(92), '/').rpartition('/')[2]}, line {found[1]})"
    return f"{type(error).__name__}: {error}{where}"


def without_trace(error: PenstockError, cause: BaseException | None = None) -> PenstockError:
    """An error to be raised by itself; what it came from is kept in its attribute `cause`."""
    if error.cause is None and cause is not error:
        error.cause = cause
    error.__cause__, error.__suppress_context__ = None, True
    return error.with_traceback(None)


class DeclarationError(PenstockError):
    """A flow was declared wrongly. Nothing has run and nothing was changed."""


class QueryError(DeclarationError):
    """A CEQL query is wrong, or does not fit the columns. Nothing has run and nothing was changed."""


class SpellingError(DeclarationError, AttributeError):
    """Something has another name in penstock, or cannot be done at this point of a flow. Nothing has run and nothing was changed."""


class CheckpointError(PenstockError):
    """The checkpoint cannot be used as asked. It was left as it was."""


class TornFileError(CheckpointError):
    """A file of the checkpoint is missing, truncated or altered."""


class ChangedFlowError(CheckpointError):
    """The flow was changed so that state of the flow before would be lost or misread. Nothing was read or stored."""


class FinishedError(CheckpointError):
    """The flow has reached the end of its input; its frontier is MAX and it is never scheduled again."""


class RecoveryError(CheckpointError):
    """State cannot be computed from the log: it does not reach back far enough, or is another one than that of the sinks' rows."""


class ReplacedError(PenstockError):
    """A command was obeyed and not carried out: a later one, a going back to a snapshot, or the end of the flow took its place."""


class FencedError(PenstockError):
    """A newer run owns the checkpoint or the sink. This run wrote nothing after that."""


class SinkError(PenstockError):
    """A sink cannot do what is asked. Its rows and its mark are as before the call."""


class SinkAheadError(SinkError):
    """A sink's own mark says that it holds rows which this checkpoint does not know of. Nothing was written."""


class RecordError(PenstockError):
    """A record is malformed or has no event time. The epoch was not committed."""


class OperatorError(PenstockError):
    """A user's function raised. The epoch was not committed; state and sinks are as before it."""


class AuditError(PenstockError):
    """A user's function gave something else when it was computed again. The epoch was not committed, and no sink holds any of it."""


class StateError(PenstockError):
    """State cannot be stored or read. The epoch was not committed."""


class GroupError(PenstockError):
    """The members of a group do not agree on something, or its server cannot do what is asked. What was acked stays acked."""


class MissingToolError(PenstockError):
    """Something that penstock needs is missing on this machine."""
