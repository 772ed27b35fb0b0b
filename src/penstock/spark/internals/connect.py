"""Sessions of Spark Connect, which have PySpark's public names and nothing behind them: no Java objects, no context, no copies to compute in.

What is lost there: flows, which need plans and epochs; and a session of penstock's own, so the user's must have its settings.

Read next: `penstock.spark.session.connected`.
"""

from __future__ import annotations

from typing import Any


def is_connect(given: Any) -> bool:
    """Whether something is a session or a DataFrame of Spark Connect."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(given).__mro__)


def speaks_connect() -> bool:
    """Whether PySpark's functions and sessions in this process are those of Spark Connect."""
    from pyspark.sql import is_remote

    return is_remote()


__all__ = ["is_connect", "speaks_connect"]
