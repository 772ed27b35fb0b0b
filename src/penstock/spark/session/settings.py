"""Names of Spark's settings that several modules read or set."""

from __future__ import annotations

from typing import Final

ADAPTIVE: Final = "spark.sql.adaptive.enabled"
BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
DRIVER_MEMORY: Final = "spark.driver.memory"
PROGRESS: Final = "spark.ui.showConsoleProgress"
SHUFFLE: Final = "spark.sql.shuffle.partitions"
TIME_ZONE: Final = "spark.sql.session.timeZone"
UI: Final = "spark.ui.enabled"
