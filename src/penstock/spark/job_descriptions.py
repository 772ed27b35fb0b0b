"""What each Spark job of an epoch is for, as Spark's web interface shows it: ``delays · epoch 12 · region origin · output by_hour``.

Spark keeps a description for each thread of Java, and what is started from it inherits it: the threads in which Spark collects rows, stages, queries in SQL. All
jobs of an epoch are started by the thread that runs it, so the text is set there before each part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext


class JobDescriptions:
    """Sets the description of the jobs that this thread starts.

    Args:
        context: Spark.
        prefix: What stands before every text, such as the flow and the epoch; empty: nothing is set.
    """

    def __init__(self, context: SparkContext, *prefix: str) -> None:
        self._context, self._prefix = context, prefix if all(prefix) else ()
        self._now: tuple[str, ...] | None = None

    def begin(self, *what: str) -> None:
        """From now on jobs are for this."""
        if self._prefix and what != self._now:
            self._now = what
            self._context.setJobDescription(" · ".join((*self._prefix, *what)))

    @contextmanager
    def during(self, *what: str) -> Iterator[None]:
        """Jobs of a block are for this, then for what they were for."""
        before = self._now or ()
        self.begin(*what)
        try:
            yield
        finally:
            self.begin(*before)


__all__ = ["JobDescriptions"]
