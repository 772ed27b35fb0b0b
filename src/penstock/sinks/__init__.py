"""Where results go. Each sink stores rows and its mark together; `penstock.sinks.base` says what that means.

=================  ========================================================  ============================================
sink               where                                                     guarantee
=================  ========================================================  ============================================
`sql`              a table in SQLite, DuckDB or PostgreSQL                   exactly once, fenced
`parquet`          Parquet files in a directory, local or S3                 exactly once; fenced on a local file system
`memory`           this process                                              exactly once within the process
`redis_stream`     a partitioned stream of Redis or Valkey                   exactly once, fenced
`console`          the screen                                                at least once
`foreach_epoch`    a function of yours                                       at least once, or what the function makes of it
`noop`             nowhere                                                   none; state is exactly once all the same
=================  ========================================================  ============================================
"""

from __future__ import annotations

from penstock.sinks.base import Rewinding, Sink, Staging
from penstock.sinks.console import console
from penstock.sinks.foreach import foreach_epoch
from penstock.sinks.memory import memory
from penstock.sinks.noop import noop
from penstock.sinks.parquet import parquet
from penstock.sinks.redis_stream import redis_stream
from penstock.sinks.sql import sql
from penstock.types import Refusal

__all__ = [
    "Refusal",
    "Rewinding",
    "Sink",
    "Staging",
    "console",
    "foreach_epoch",
    "memory",
    "noop",
    "parquet",
    "redis_stream",
    "sql",
]
