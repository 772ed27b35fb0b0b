"""All rows of a source partition go to one worker, whatever their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from penstock.routing.key_grouping import KeyGrouping
from penstock.routing.strategy import MERGING, Hashes, Router, Strategy, Workers
from penstock.routing.table import Routing


@dataclass(frozen=True)
class ByPartition(Strategy):
    """The rows of a source partition go to one worker: the partition's number, modulo the number of workers.

    A key whose rows the producer puts into one partition has one worker; any other key has as many as it has partitions. So the load is as even as
    the partitions are, and there is none for more workers than partitions.

    In a flow of a group (``start(group=…)``) each partition is a flow of its own, so keys belong to their partition, every step is possible, and
    the region's workers share the keys of one partition.

    Example:
        >>> region = flights.key_by("tail", distribute=ps.ByPartition())
    """

    splits_keys: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = False
    fits: ClassVar[str] = MERGING

    def of_partition(self) -> Strategy:
        """There all rows are of one partition, so the table places them."""
        return KeyGrouping()

    def router(self, workers: int) -> Router:
        """Nothing is remembered."""
        return _BySender(workers)


class _BySender(Router):
    def __init__(self, workers: int) -> None:
        super().__init__(Routing.even(workers))
        self._workers = workers

    def route(self, senders: Mapping[int, Hashes]) -> dict[int, Workers]:
        return {sender: np.full(len(hashes), sender % self._workers, np.int32) for sender, hashes in senders.items()}
