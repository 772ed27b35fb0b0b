"""How rows of a region are distributed over its workers: the contract of ``key_by(distribute=…)``.

A strategy is a frozen value in its own file in this folder. The plan, the driver and the engines know it only by this contract.
Its table routes rows until a rescale changes it.

Read next: `penstock.routing.key_grouping`, `penstock.routing.table`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.routing.table import Routing


class Strategy(ABC):
    """A distribution strategy. It is deterministic, so that a re-run of an epoch routes alike."""

    def describe(self) -> str:
        """Its name and settings as text. The checkpoint keeps it, and a flow that is started with another one is refused."""
        return repr(self)

    @abstractmethod
    def table(self, workers: int) -> Routing:
        """The first table of a region with so many workers."""
