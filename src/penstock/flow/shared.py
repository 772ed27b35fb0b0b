"""A flow in a group: each partition of its streams is a flow of its own, which one application runs at a time.

So a key belongs to its partition, whatever the producer hashed, and all that holds of a flow holds of each partition: its state, its frontier,
its marks, its exactly once.

Read next: `penstock.driver.group_run`.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import DeclarationError
from penstock.flow import plan as p
from penstock.sinks.base import Sharing, Sink
from penstock.sources.base import Shared

if TYPE_CHECKING:
    from penstock.flow.flow import Flow


def shared_by(flow: Flow) -> Shared:
    """The stream whose partitions applications share that run a flow in a group: the first source's.

    Raises:
        DeclarationError: The flow cannot run in a group: a source has no partitions, or another number of them; a region's keys are not those of
            a partition; a sink cannot be written by several applications.
    """
    if not flow._sources:
        flow.plan()  # which says so
    found = [(source.name, _partitioned(source)) for source in flow._sources]
    first, shared = found[0]
    for name, other in found[1:]:
        if other.partitions != shared.partitions:
            raise DeclarationError(
                f"In a group partition 0 of one source is worked on with partition 0 of the others, but source {first!r} has {shared.partitions} "
                f"partitions and source {name!r} has {other.partitions}; give them as many, or make two flows."
            )
    for region in flow._regions:
        if region.distribute.of_partition() is None:
            raise DeclarationError(
                f"Region {region.name!r} gathers rows of a key from all partitions, but an application of a group has some of them only; write "
                "key_by(…, distribute=penstock.ByPartition()) if the producer puts all rows of a key into one partition; otherwise write the rows "
                "with redis_stream(…, key=…) to a second stream, and key them in a second flow that reads it."
            )
    for output in flow._outputs:
        refused = output.sink.sharing_refusal(cast("Sink", output.sink)) if isinstance(output.sink, Sharing) else None
        if refused:
            raise DeclarationError(
                f"Output {output.name!r} cannot be written by the applications of a group: {refused.sentence}."
            )
    return shared


def of_partition(flow: Flow, partition: int) -> Flow:
    """The flow of one partition: the same steps and functions, sinks of its own, and only that partition of each source.

    Args:
        flow: A flow that `shared_by` accepts.
        partition: From 0.
    """
    memo: dict[int, Any] = {id(s): _only(s, partition) for s in flow._sources} | {
        id(o.sink): copy.copy(o.sink) for o in flow._outputs
    }
    for region in flow._regions:  # users' own objects may be large, or not to be copied
        memo |= {id(step.operator): copy.copy(step.operator) for step in region.steps}
    memo |= {id(n.step): n.step for n in p.upstream_of(p.StepNode, *p.readers(flow._regions, flow._outputs))}
    mine = copy.deepcopy(flow, memo)
    for region in mine._regions:
        region.distribute = region.distribute.of_partition() or region.distribute
    mine._outputs = [replace(o, name=output_name(o.name, partition)) for o in mine._outputs]
    return mine


def with_sink(flow: Flow, sink: Any) -> Flow:
    """The same flow with another sink for each of its outputs. `flow` is changed."""
    flow._outputs = [replace(output, sink=sink) for output in flow._outputs]
    return flow


def output_name(output: str, partition: int) -> str:
    """What an output of a flow in a group is called in its sink, for the mark of one partition."""
    return f"{output}@{partition}"


def _only(source: p.SourceNode, partition: int) -> p.SourceNode:
    declared = tuple(name for name in source.partitions if name == partition)
    return replace(source, connector=source.connector.only(partition), partitions=declared)


def _partitioned(source: p.SourceNode) -> Shared:
    shared = source.connector.shared()
    if shared is None:
        raise DeclarationError(
            f"Source {source.name!r} ({source.connector.describe()}) has no partitions that applications of a group could share; read a partitioned "
            "stream, such as penstock.redis_streams(…), or start the flow without group=."
        )
    return shared


__all__ = ["of_partition", "output_name", "shared_by", "with_sink"]
