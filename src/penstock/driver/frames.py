"""The frames of one epoch: what the backend makes of each node of the plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from penstock.driver.compile import CompiledFlow
from penstock.driver.engine import Backend, EpochOrders, Frame, SourceFrames
from penstock.flow import plan as p
from penstock.progress.lateness import Judgement


class Frames:
    """Frames of one epoch, made on first use, kept if read more than once.

    Args:
        flow: The compiled flow.
        backend: What makes them.
        judgements: By source, which records may be late; `Frames` adds how many are.
        work: By region, what its workers are to do.
        steps: By id, what takes a step's place in this epoch.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        backend: Backend,
        judgements: Mapping[str, Judgement],
        work: Mapping[str, EpochOrders],
        steps: Mapping[int, p.StepNode] = MappingProxyType({}),
    ) -> None:
        self._steps = steps
        self._flow, self._backend, self._judgements, self._work = flow, backend, judgements, work
        self._made: dict[int, Frame] = {}
        self._regions: dict[str, Frame] = {}
        self._sources: dict[str, SourceFrames] = {}

    def of(self, node: p.Node) -> Frame:
        """The frame of a node; None if it has no rows in this epoch."""
        if id(node) in self._made:
            return self._made[id(node)]
        frame: Frame = None
        if isinstance(node, (p.SourceNode, p.AsideNode)):
            source = node if isinstance(node, p.SourceNode) else node.source
            frames = self._source(source)
            frame = getattr(frames, node.kind) if isinstance(node, p.AsideNode) else frames.on_time
        elif isinstance(node, p.RegionOutput):
            compiled = self._flow.regions[node.region.name]
            frame = self._backend.part(self.region(node.region.name), compiled, compiled.outs[node.operator, node.errors])
        else:
            assert isinstance(node, p.StepNode)
            inputs = [frame for i in node.inputs if (frame := self.of(i)) is not None]
            frame = self._backend.step(self._steps.get(id(node), node), inputs) if inputs else None
            if frame is not None and self._flow.consumers.get(id(node), 0) > 1:
                frame = self._backend.keep(frame)
        self._made[id(node)] = frame
        return frame

    def compute_outputs(self) -> None:
        """Compute what all outputs are given, once, so that what fails does so before any sink has stored its rows."""
        for output in self._flow.plan.outputs:
            if (frame := self.of(output.node)) is not None:
                kept = self._made[id(output.node)] = self._backend.keep(frame)
                self._backend.force(kept)

    def _source(self, source: p.SourceNode) -> SourceFrames:
        if source.name not in self._sources:
            judged = self._judgements[source.name]
            frames = self._backend.source(source, self._flow.ordinal(source), judged.candidate_chunks if source.time else {})
            if self._flow.consumers.get(id(source), 0) > 1:
                frames = replace(frames, on_time=self._backend.keep(frames.on_time))
            judged.state.late += frames.late_rows
            self._sources[source.name] = frames
        return self._sources[source.name]

    def region(self, name: str) -> Frame:
        """The frame of a region's tasks."""
        if name not in self._regions:
            compiled = self._flow.regions[name]
            inputs = [self.of(i) for i in compiled.region.inputs]
            frames = [
                inputs[feed] if inputs[feed] is not None else self._backend.empty(compiled.region.inputs[feed])
                for feed in compiled.feeds
            ]
            for i, step in enumerate(compiled.spec.steps):
                if step.parts is not None:
                    rows, frames[step.parts] = step.inputs[0][1], None
                    if inputs[compiled.feeds[rows]] is not None:
                        whole = inputs[compiled.feeds[rows]]
                        frames[rows], frames[step.parts] = self._backend.split(compiled, i, whole, self._work[name])
            frame = self._backend.region(compiled, frames, self._work[name])
            self._regions[name] = self._backend.keep(frame) if self._readers(name) > 1 else frame
        return self._regions[name]

    def _readers(self, name: str) -> int:
        nodes = p.upstream_of(p.RegionOutput, *p.readers(self._flow.plan.regions, self._flow.plan.outputs))
        return sum(self._flow.consumers.get(id(n), 0) for n in nodes if n.region.name == name)

    def unread(self, outputs: Sequence[p.Output], resting: Collection[str] = ()) -> list[str]:
        """Regions that must be run although nothing reads them that is given to a sink.

        Args:
            outputs: The outputs that are given rows in this epoch.
            resting: Regions that do not run in it.
        """
        given = {n.region.name for n in p.upstream_of(p.RegionOutput, *(o.node for o in outputs))}
        found: list[str] = []
        for region in reversed(self._flow.plan.regions):
            if region.name not in given and region.name not in resting:
                found.append(region.name)
                given |= {region.name, *(n.region.name for n in p.upstream_of(p.RegionOutput, *region.inputs))}
        return found[::-1]
