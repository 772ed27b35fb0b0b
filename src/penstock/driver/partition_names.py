"""What the rows of an output come from, by name: for `penstock.rows.stored_positions`."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.driver.compile import CompiledFlow
from penstock.flow import plan as p
from penstock.operators.base import marker
from penstock.progress.source_state import SourceState
from penstock.rows.stored_positions import PartitionNames


def partition_names(flow: CompiledFlow, sources: Mapping[str, SourceState], output: p.Output) -> PartitionNames | None:
    """Names of what an output's rows come from; None: they are not stored."""
    if not output.stored_positions:
        return None
    plan = flow.plan
    # Of a source without event time it is not known which partitions there are, so their numbers must do wherever it runs.
    hashed = {n for n, s in enumerate(plan.sources) if s.time is None and s.position and not s.whole_partitions}
    known = {
        state.part: f"{source.name}/{name}"
        for ordinal, source in enumerate(plan.sources)
        if ordinal not in hashed
        for name, state in sources[source.name].partitions.items()
    }
    for name, compiled in flow.regions.items():
        for at, step in enumerate(compiled.spec.steps):
            known[marker(compiled.spec.ordinal, step.slot)] = f"frontier of {name}/{compiled.region.step_name(at)}"
    return PartitionNames(tuple(s.name for s in plan.sources), frozenset(hashed), known, output.node.timed)
