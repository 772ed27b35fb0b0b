"""The Python that runs the tasks of a session. In a session that penstock did not start, it may lack penstock.

PySpark takes it from ``PYSPARK_PYTHON`` when the session starts, else the first ``python3`` of the search path, whichever
Python runs the script.

Read next: `penstock.spark.session.local`.
"""

from __future__ import annotations

import builtins
import os
import sys
import types
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from penstock.errors import DeclarationError
from penstock.version import __version__

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_PYSPARKS_CHOICE: Final = "python3"
_known: WeakSet[SparkContext] = WeakSet()


def trust(context: SparkContext) -> None:
    """Accept the workers of a session that penstock has started: they are this Python."""
    _known.add(context)


def check_python(spark: SparkSession) -> None:
    """Check that a session's workers can run penstock; one of them is asked, once per session and process.

    If nobody has set their Python, and they run on this machine, they become this one.

    Raises:
        DeclarationError: They cannot. Nothing was started.
    """
    context: Any = spark.sparkContext
    if context in _known:
        return
    unsaid = "PYSPARK_PYTHON" not in os.environ and context.pythonExec == _PYSPARKS_CHOICE
    if unsaid and context.master.startswith("local"):
        context.pythonExec = sys.executable  # read each time that a function is handed to Spark
    try:
        # By value: otherwise a missing module could not be reported.
        by_value = types.FunctionType(look.__code__, {"__builtins__": builtins, "__name__": "__main__"})
        worker, version, wrong = context.parallelize([0], 1).map(by_value).first()
    except Exception as error:  # noqa: BLE001  (reported in a sentence)
        worker, version, wrong = context.pythonExec, "", first_cause(error)
    if not wrong and version != __version__:
        wrong = f"it has penstock {version}, this process {__version__}"
    if wrong:
        worker = context.pythonExec if worker in (context.pythonExec, sys.executable) else f"{context.pythonExec} ({worker})"
        raise DeclarationError(
            f"The tasks of this Spark session are run by the Python {worker}, which cannot run penstock ({wrong}); start the session with "
            f"PYSPARK_PYTHON naming a Python {sys.version_info[0]}.{sys.version_info[1]} that has it, here {sys.executable}."
        )
    _known.add(context)


def look(_: int) -> tuple[str, str, str]:
    """In a worker: its Python, its version of penstock, and what keeps it from running tasks."""
    import sys  # all that is not here is not there

    try:
        import penstock.spark.task
        import penstock.version
    except Exception as error:  # noqa: BLE001  (the driver reports it)
        return sys.executable, "", f"{type(error).__name__}: {error}"
    return sys.executable, penstock.version.__version__, ""


def first_cause(error: Exception) -> str:
    """Spark's reason why a worker does not start, or has another version, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    telling = ("[PYTHON_VERSION_MISMATCH]", "Cannot run program", "No module named", "Python worker")
    found = next((line for mark in telling for line in lines if mark in line), lines[0] if lines else type(error).__name__)
    return found.rpartition("Exception: ")[2].removesuffix(".")


__all__ = ["check_python", "first_cause", "look", "trust"]
