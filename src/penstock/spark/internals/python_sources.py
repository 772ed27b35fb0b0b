"""Sources in Python that are told where they stand: Spark asks them for the next end from 4.2 on.

Before, Spark asks such a source how far there is anything, and does not say where the query has got to. An epoch of it could have no bound,
and a query that starts again would not know which entries are missing. So without this penstock's sources in Python (Redis streams,
stored rows) are refused.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pyspark

from penstock.errors import DeclarationError

TOLD: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark tells a source in Python where it stands."""

if TYPE_CHECKING or TOLD:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:  # bases of classes of which no source is made

    class ReadLimit:
        """How much may be read at once."""

    class SupportsTriggerAvailableNow:
        """Can stop at what there was."""


def refuse_where_not_told(source: str, kind: str) -> None:
    """Refuse a source in Python where Spark does not tell it where it stands.

    Args:
        source: Its name.
        kind: The function that declares it.

    Raises:
        DeclarationError: It is so. Nothing was started.
    """
    if not TOLD:
        raise DeclarationError(
            f"Source {source!r} is penstock.{kind}, which needs PySpark 4.2 or newer, and this is {pyspark.__version__}: "
            "pip install 'pyspark>=4.2,<4.4'."
        )


__all__ = ["TOLD", "ReadLimit", "SupportsTriggerAvailableNow", "refuse_where_not_told"]
