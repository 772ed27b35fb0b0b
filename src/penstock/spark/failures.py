"""What Spark and its tasks raise, as one sentence of penstock's own."""

from __future__ import annotations

import re

from penstock import errors
from penstock.errors import FencedError, PenstockError

SEEN_BY_SPARK = "Another run uses the same checkpoint; this run stops."
"""Spark's own log was the first to notice; it does not know which run."""


COARSER = "write them in microseconds, as pandas does with to_parquet(..., coerce_timestamps='us')."
"""What to do with times in nanoseconds."""

_FINE_TIMES = f"Spark does not read times in nanoseconds; {COARSER}"


def translated(error: BaseException, what: str = "The flow") -> PenstockError:
    """The error as penstock's own: from a task or from Spark's text if need be. What failed is named if nothing better is known."""
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    found = re.findall(r"penstock\.errors\.(\w+): (.+)", text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, PenstockError)
        return kind(message.strip())
    if "Multiple streaming queries are concurrently using" in text or "CONCURRENT_STREAM_LOG_UPDATE" in text:
        return FencedError(SEEN_BY_SPARK)
    if "No space left on device" in text:
        return errors.StateError("The disk is full; the epoch was not committed. Make room and start the flow again.")
    if (
        "org.apache.arrow.memory.OutOfMemoryException" in text
        or "org.apache.arrow.vector.util.OversizedAllocationException" in text
    ):
        return errors.RecordError(
            f"{what} failed: Spark had no memory for a batch of rows on its way to Python; lower spark.sql.execution.arrow.maxRecordsPerBatch, "
            "or raise spark.driver.memory or spark.executor.memory."
        )
    if "Illegal Parquet type: INT64 (TIMESTAMP(NANOS" in text:
        return errors.RecordError(
            f"{what} failed: a Parquet file has a column of another type than it can be read as. {_FINE_TIMES}"
        )
    if read := re.search(r"\[FAILED_READ_FILE[.\w]*\] (.+)", text):
        causes = re.findall(r"^Caused by: (?!.*FAILED_READ_FILE)[\w.$]+: (.+)$", text, re.MULTILINE)
        told = re.sub(r"\s*SQLSTATE.*|\s*$", "", read[1])
        why = f" {causes[-1].rstrip('.:')}." if "NO_HINT" in read[0] and causes else ""
        why += f" {_FINE_TIMES}" if "Expected Spark type timestamp" in told and "Parquet type INT64" in told else ""
        after = " and start the flow again; the epoch was not committed." if what == "The flow" else "."
        return errors.RecordError(f"{told}{why} Mend or remove the file{after}")
    python = re.findall(
        r"^\s*([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Arrow\w+): .+)$", text.split("\tat ", maxsplit=1)[0], re.MULTILINE
    )
    lines = [line.strip(" :") for line in text.splitlines() if not line.startswith("An error occurred while calling ")]
    lines = [line for line in lines if line]
    first = python[-1] if "Python worker" in text and python else lines[0] if lines else type(error).__name__
    if "Exception thrown in awaitResult" in first and (causes := re.findall(r"^Caused by: [\w.$]+: (.+)$", text, re.MULTILINE)):
        first = causes[-1]
    return PenstockError(f"{what} failed: {first}")
