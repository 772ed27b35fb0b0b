"""How rows of a region are spread over its workers: the contract of ``key_by(distribute=…)``.

A strategy is a frozen value in a file of its own in this folder. The plan, the driver and the engines know it by this contract only;
rows go by the table that it gives, which a rescale then changes.

Read next: `penstock.routing.key_grouping`, `penstock.routing.table`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.routing.table import Routing


class Strategy(ABC):
    """A distribution strategy; deterministic, as an epoch that runs again must route alike."""

    def describe(self) -> str:
        """Its name and settings as text. A checkpoint keeps it, and a flow that is started again with another one is refused."""
        return repr(self)

    @abstractmethod
    def table(self, workers: int) -> Routing:
        """The table with which a region of so many workers begins."""
