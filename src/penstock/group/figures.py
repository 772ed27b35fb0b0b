"""The figures of a group, each declared once: of the group, its members and partitions, as the server knows them, and of one application, as it
knows itself.

Read next: `penstock.group.describe`, which asks the server; `penstock.protocol.group.dispatch`, which counts in the application.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final

from penstock.progress.figures import Figure, declared


@dataclass(frozen=True)
class MemberFigures:
    """A member; `member` is its id."""

    member: str
    epoch: Annotated[int, Figure("gauge", "epochs", "Epoch of the group in which it joined", "epoch")]
    partitions: Annotated[int, Figure("gauge", "partitions", "Partitions that it should have", "partitions")]
    owned: Annotated[int, Figure("gauge", "partitions", "Partitions that it has", "owned")]
    alive_ms: Annotated[
        int | None,
        Figure(
            "gauge", "ms", "For how long it is taken to be alive if it stays silent; negative: it is taken out next", "alive ms"
        ),
    ]
    leaving: Annotated[bool, Figure("gauge", "yes", "Whether it is finishing its work", "leaving")]


@dataclass(frozen=True)
class PartitionFigures:
    """A partition; `target` is the member that should have it, `owner` the one that has it, `position` the id of the last acked entry."""

    partition: int
    target: str | None
    owner: str | None
    epoch: Annotated[int, Figure("gauge", "tokens", "Its fencing token: acks of an older one are refused", "epoch")]
    position: str
    lag: Annotated[int, Figure("gauge", "entries", "Entries behind the last acked one", "lag")]
    rebalance_ms: Annotated[
        int | None,
        Figure(
            "gauge", "ms", "From the change of the group to when the owner had it; none: too long ago, or never", "rebalance ms"
        ),
    ]


@dataclass(frozen=True)
class GroupFigures:
    """A group; `members` by name, `partitions` by number."""

    group: str
    stream: str
    epoch: Annotated[int, Figure("counter", "epochs", "Changes of its members")]
    lag: Annotated[int, Figure("gauge", "entries", "Entries that are not acked, of all partitions")]
    last_rebalance_ms: Annotated[
        int | None,
        Figure(
            "gauge", "ms", "From the last change that moved partitions to when the last of them had its owner; none: not known"
        ),
    ]
    members: list[MemberFigures]
    partitions: list[PartitionFigures]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class ApplicationFigures:
    """An application in a group."""

    epoch: Annotated[int, Figure("counter", "epochs", "Changes of the group's members, as far as it knows", "epoch")]
    members: Annotated[int, Figure("gauge", "members", "Members of the group, as far as it knows", "members")]
    owned: Annotated[int, Figure("gauge", "partitions", "Partitions that it has", "owned")]
    last_rebalance_ms: Annotated[
        int | None,
        Figure("gauge", "ms", "How long it took at the last change until it had its share; none: not yet", "last rebalance ms"),
    ]
    rebalances: Annotated[int, Figure("counter", "times", "How often it has come to have its share", "rebalances")]
    fences: Annotated[
        int,
        Figure(
            "counter", "partitions", "Partitions that it has had to let go of unfinished: lost, or its time was over", "fences"
        ),
    ]


@dataclass(frozen=True)
class ConsumerFigures(ApplicationFigures):
    """A consumer: an application, and more."""

    trimmed: Annotated[int, Figure("counter", "entries", "Entries that were removed before it read them", "trimmed")]


FIGURES: Final[Mapping[str, Mapping[str, Figure]]] = MappingProxyType(
    {
        "group": declared(GroupFigures),
        "member": declared(MemberFigures),
        "partition": declared(PartitionFigures),
        "application": declared(ApplicationFigures),
        "consumer": MappingProxyType({n: f for n, f in declared(ConsumerFigures).items() if n == "trimmed"}),
    }
)
"""By what they are of, then by name."""

__all__ = ["FIGURES", "ApplicationFigures", "ConsumerFigures", "GroupFigures", "MemberFigures", "PartitionFigures"]
