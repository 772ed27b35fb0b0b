"""What Spark and its tasks raise, as one sentence of penstock's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from penstock import errors
from penstock.errors import FencedError, PenstockError
from penstock.flow.naming import steps_calling, steps_with
from penstock.flow.plan import Plan, StepNode
from penstock.spark.session.settings import BATCH_ROWS, DRIVER_MEMORY

SEEN_BY_SPARK = "Another run uses the same checkpoint; this run stops."
"""Spark's own log was the first to notice; it does not know which run."""


COARSER = "write them in microseconds, as pandas does with to_parquet(..., coerce_timestamps='us')."
"""What to do with times in nanoseconds."""

_FINE_TIMES = f"Spark does not read times in nanoseconds; {COARSER}"


OURS: Final = "penstock: "
"""What a sentence of ours begins with where Spark raises it, so that it is told from what users have raised."""

Find = Callable[[StepNode, str], str]

_INSTEAD: Final = {
    "DIVIDE_BY_ZERO": ("division by zero", "write try_divide(…), which gives null"),
    "REMAINDER_BY_ZERO": ("remainder by zero", "write try_mod(…), which gives null"),
    "CAST_INVALID_INPUT": ("", "write try_cast(… AS …), which gives null"),
    "CAST_OVERFLOW": ("", "write try_cast(… AS …), which gives null"),
    "INVALID_ARRAY_INDEX": ("", "write get(…, …), which gives null"),
    "INVALID_ARRAY_INDEX_IN_ELEMENT_AT": ("", "write try_element_at(…, …), which gives null"),
    "ARITHMETIC_OVERFLOW": ("", "cast to a wider type, or write try_add(…) and the like, which give null"),
    "CANNOT_PARSE_TIMESTAMP": ("", "write try_to_timestamp(…), which gives null"),
}
"""By Spark's name of an error: what it is, if Spark's own words are not plain, and what to write instead."""


def plain(line: str) -> str:
    """A line of Spark's without the names and numbers that it gives its errors."""
    return re.sub(r"^\[[A-Z0-9_.]+\] |\s*SQLSTATE: \w+.*", "", line.strip())


def _of_step(text: str, plan: Plan | None, find: Find) -> PenstockError | None:
    """An expression that failed on a record, told with its step; None: it is something else."""
    head = re.search(r"\[([A-Z0-9_]+)(?:\.\w+)*\] (.+)", text)
    if head is None or not re.search(r"SQLSTATE: (22|P0001)", text):
        return None
    name, said = head[1], plain(head[2])
    if name == "USER_RAISED_EXCEPTION":
        if said.startswith(OURS):
            return errors.RecordError(said.removeprefix(OURS))
        told, instead, steps = said, "", steps_calling(plan, "raise_error") if plan else []
    else:
        first = re.match(r".+?[.](?= |$)", said)
        own, instead = _INSTEAD.get(name, ("", ""))
        told = own or (first[0] if first else said).rstrip(".")
        told = told[0].lower() + told[1:]
        shown = re.search(r"^== SQL.*==\n((?:.*\n)+?)\s*\^+", text, re.MULTILINE)
        sql = shown[1].strip() if shown else ""
        steps = steps_with(plan, sql) if plan and sql else []
        if not steps and not sql:
            return None
        if not steps:
            return errors.RecordError(
                f"The expression {sql!r} failed on a record: {told}; {instead}{' or ' * bool(instead)}leave such records out before it. "
                "The epoch was not committed."
            )
    if not steps or plan is None:
        return None
    node, step = steps[0]
    step += "".join(f" or {other}" for _, other in steps[1:3])
    sources = sorted(plan.source_of(node))
    of = f" of source{'s' * (len(sources) > 1)} {' and '.join(map(repr, sources))}" if sources else ""
    place = find(node, text) if len(steps) == 1 else ""
    record = f"the record at {place}" if place else f"a record{of}"
    instead = f"{instead}, or leave" if instead else "leave"
    return errors.RecordError(
        f"{step} failed on {record}: {told}; {instead} such records out with a where(…) before it. The epoch was not committed."
    )


def _of_folder(text: str, plan: Plan | None) -> PenstockError | None:
    """A folder that is not there, told with the source that reads it; None: it is something else."""
    found = re.search(r"\[PATH_NOT_FOUND\] Path does not exist: (.+?)\.? SQLSTATE", text)
    if found is None:
        return None
    path = re.sub("^file:/+", "/", found[1])
    for source in plan.sources if plan else ():
        given = source.connector.folder()
        if given is not None and path.rstrip("/").endswith(re.sub("^(file:/+|[./]+)", "", given).rstrip("/")):
            return errors.DeclarationError(
                f"Source {source.name!r} reads {given!r}, but there is no {path}; create the folder, or correct the path."
            )
    return errors.DeclarationError(f"There is no {path}; create the folder, or correct the path.")


def _of_columns_of_folders(text: str) -> PenstockError | None:
    """Folders that Spark does not read together, or has not seen yet; None: it is something else."""
    if "assertion failed: Invalid batch: " in text:
        return errors.RecordError(
            "Folders that are named after columns, as in day=1, have come into the folder of a source since the run began; start the flow again. "
            "The epoch was not committed."
        )
    both = re.search(r"Conflicting (?:partition column names|directory structures) detected(.+)", text, re.DOTALL)
    if both is None:
        return None
    shown = [
        re.sub("^file:/+|\\s*SQLSTATE.*", lambda m: "/" * (m[0][0] == "f"), path)
        for path in re.findall(r"^\t(\w+:/.*)", both[1], re.MULTILINE)
    ]
    return errors.RecordError(
        "The folder of a source has folders that give it different columns, or none, and Spark reads no such files together"
        f"{': ' * bool(shown)}{', '.join(shown[:3])}. Move some of them elsewhere, or declare files(..., recursiveFileLookup=True), which reads all "
        "files at any depth and takes no columns from folders."
    )


def translated(
    error: BaseException, what: str = "The flow", plan: Plan | None = None, find: Find = lambda *_: ""
) -> PenstockError:
    """The error as penstock's own: from a task or from Spark's text if need be.

    Args:
        error: What was raised.
        what: What failed, if nothing better is known.
        plan: The flow, to find the step or source that is meant.
        find: Gives, of a step and Spark's text, the position of the record that it failed on; empty: it is not known.
    """
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    found = re.findall(r"penstock\.errors\.(\w+): (.+)", text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, PenstockError)
        return kind(message.strip())
    if (ours := _of_step(text, plan, find) or _of_folder(text, plan) or _of_columns_of_folders(text)) is not None:
        return ours
    if "Multiple streaming queries are concurrently using" in text or "CONCURRENT_STREAM_LOG_UPDATE" in text:
        return FencedError(SEEN_BY_SPARK)
    if begun := re.search(r"Error from python worker:\n((?:  .*\n|\n)+)", text):
        said = re.findall(r"^  ([A-Za-z_][\w.]*: .+)$", begun[1], re.MULTILINE) or begun[1].strip().splitlines()[-1:]
        return PenstockError(f"{what} failed: Spark's Python workers do not start: {' '.join(said[-1:]).strip().rstrip('.')}.")
    if "No space left on device" in text:
        return errors.StateError("The disk is full; the epoch was not committed. Make room and start the flow again.")
    if (
        "org.apache.arrow.memory.OutOfMemoryException" in text
        or "org.apache.arrow.vector.util.OversizedAllocationException" in text
    ):
        return errors.RecordError(
            f"{what} failed: Spark had no memory for a batch of rows on its way to Python; lower {BATCH_ROWS}, "
            f"or raise {DRIVER_MEMORY} or spark.executor.memory."
        )
    if "Illegal Parquet type: INT64 (TIMESTAMP(NANOS" in text:
        return errors.RecordError(
            f"{what} failed: a Parquet file has a column of another type than it can be read as. {_FINE_TIMES}"
        )
    if re.search(r"UnsupportedOperationException: .*PlainValuesDictionary\$Plain(Long|Integer)Dictionary", text):
        return errors.RecordError(
            f"{what} failed: a Parquet file has a column of another type than it can be read as. Numbers without a sign are wider in Spark: declare "
            "uint32 as bigint and uint64 as decimal(20,0)."
        )
    if read := re.search(r"\[FAILED_READ_FILE[.\w]*\] (.+)", text):
        causes = re.findall(r"^Caused by: (?!.*FAILED_READ_FILE)[\w.$]+: (.+)$", text, re.MULTILINE)
        told = re.sub(r"\s*SQLSTATE.*|\s*$", "", read[1])
        why = f" {causes[-1].rstrip('.:')}." if "NO_HINT" in read[0] and causes else ""
        why += f" {_FINE_TIMES}" if "Expected Spark type timestamp" in told and "Parquet type INT64" in told else ""
        after = " and start the flow again; the epoch was not committed." if what == "The flow" else "."
        return errors.RecordError(f"{told}{why} Fix or remove the file{after}")
    python = re.findall(
        r"^\s*([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Arrow\w+): .+)$", text.split("\tat ", maxsplit=1)[0], re.MULTILINE
    )
    lines = [line.strip(" :") for line in text.splitlines() if not line.startswith("An error occurred while calling ")]
    lines = [line for line in lines if line]
    first = python[-1] if "Python worker" in text and python else lines[0] if lines else type(error).__name__
    if "Exception thrown in awaitResult" in first and (causes := re.findall(r"^Caused by: [\w.$]+: (.+)$", text, re.MULTILINE)):
        first = causes[-1]
    first = re.sub(r"^(?:\[STREAM_FAILED\] )?Query \[id = .+?\] terminated with exception: ", "", first)
    return PenstockError(f"{what} failed: {plain(first)}")
