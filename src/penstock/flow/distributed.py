"""Rows inside a stage of workers: stateless steps that run there, evenly shared."""

from __future__ import annotations

from penstock.flow import plan as p
from penstock.flow.steps import StatelessStep
from penstock.flow.stream import Stream


class DistributedStream(Stream):
    """Rows of a stage that ``stream.distribute`` has opened; stateless steps run on its workers."""

    def _after(self, step: StatelessStep) -> Stream:
        return DistributedStream(self._flow, p.stepped(step, self._node))

    def local(self) -> Stream:
        """End the stage: what follows is not said to run on its workers."""
        return Stream(self._flow, self._stateless())
