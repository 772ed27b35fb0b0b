"""What a changed flow finds of the flow before it on the same checkpoint: one verdict for each source, region, step and output.

A start, `load` and ``penstock diff`` go by the same report: `Report.refusal` says why a start is refused, `Report.changes` what starts
empty or is dropped, `Report.recomputed` and `Report.kept` which regions' state must be rebuilt and which goes on.

Read next: `penstock.driver.succession`, which makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.checkpoint.shape import FlowShape
from penstock.errors import ChangedFlowError

REBUILD = "start with recover='recompute' to rebuild it from the log"


class Outcome(StrEnum):
    """What happens to the state of a part, from the mildest to the worst."""

    UNCHANGED = "unchanged"
    LOADS = "loads"
    EMPTY = "starts empty"
    FORGOTTEN = "forgotten"
    RECOMPUTE = "must be recomputed"
    CANNOT = "cannot"


_ORDER = list(Outcome)


@dataclass(frozen=True)
class Verdict:
    """What happens to one part of a flow.

    Attributes:
        kind: ``"source"``, ``"region"``, ``"step"``, ``"output"`` or ``"table"`` (of a `lookup`, named by its step).
        name: Its name; of a step ``"region/step"``.
        outcome: What happens to its state.
        reason: Why, in a sentence; if there are several reasons, a sentence for each.
        refusals: Why a plain start is refused because of it, each in a sentence with what to do; none: it is not.
    """

    kind: str
    name: str
    outcome: Outcome
    reason: str
    refusals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What a flow finds of the one before it.

    Attributes:
        verdicts: sources, then each region with its steps, then outputs and tables.
        shape: The shape to go on with: slots of the shape before where state is kept. A region of `recomputed` has those of one that begins.
        changes: A sentence for each thing that begins empty or is forgotten, as it goes on.
        new: A sentence for each part that begins empty, and that a replay would fill.
        differing: Regions whose state goes on, though a replay would give another: a part of it is new, or its rows come by other steps.
        at_once: By region and number of an input, the slot of an old input: its step waited there, and is given what waits at once.
    """

    verdicts: tuple[Verdict, ...]
    shape: FlowShape
    changes: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    differing: frozenset[str] = frozenset()
    at_once: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def _regions(self, *outcomes: Outcome) -> tuple[str, ...]:
        return tuple(v.name for v in self.verdicts if v.kind == "region" and v.outcome in outcomes)

    @property
    def recomputed(self) -> tuple[str, ...]:
        """Names of the regions whose state cannot be used: it must be rebuilt from the log."""
        return self._regions(Outcome.RECOMPUTE)

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the regions whose state goes on."""
        return self._regions(Outcome.UNCHANGED, Outcome.LOADS)

    @property
    def same(self) -> set[str]:
        """Names of the regions whose state is what a replay would give."""
        return {*self.kept} - self.differing

    def refusal(self) -> ChangedFlowError | None:
        """Why a plain start is refused: everything that stands in its way, a sentence for each; None: it goes on."""
        sentences = dict.fromkeys(sentence for verdict in self.verdicts for sentence in verdict.refusals)
        return ChangedFlowError(" ".join(sentences)) if sentences else None

    def lost(self) -> ChangedFlowError | None:
        """Why not even a recomputation helps: what stands in the way beside state that can be rebuilt; None: nothing."""
        others = [v for v in self.verdicts if v.refusals and v.outcome is not Outcome.RECOMPUTE]
        sentences = dict.fromkeys(sentence for verdict in others for sentence in verdict.refusals)
        return ChangedFlowError(" ".join(sentences)) if sentences else None

    def checked(self) -> Report:
        """Itself.

        Raises:
            ChangedFlowError: State would be lost or misread. Nothing was changed.
        """
        if refusal := self.refusal():
            raise refusal
        return self

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "starts": self.refusal() is None,
            "recomputed": list(self.recomputed),
            "kept": list(self.kept),
            "verdicts": [
                {
                    "kind": v.kind,
                    "name": v.name,
                    "verdict": v.outcome.value,
                    "reason": v.reason,
                    "refusals": list(v.refusals),
                }
                for v in self.verdicts
            ],
        }


class Findings:
    """Collects what is found, and makes one verdict of all that is found of a part: the worst."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.changes: list[str] = []
        self.new: list[str] = []
        self.differing: set[str] = set()
        self._parts: dict[tuple[str, str], list[Verdict]] = {}

    def part(self, kind: str, name: str) -> None:
        """There is such a part; as long as nothing else is found it is unchanged."""
        self._parts.setdefault((kind, name), [])

    def found(self, kind: str, name: str, outcome: Outcome, reason: str, refusal: str = "") -> None:
        """Something is found of a part."""
        self.part(kind, name)
        self._parts[kind, name].append(Verdict(kind, name, outcome, reason, (refusal,) if refusal else ()))

    def changed(self, kind: str, name: str, outcome: Outcome, reason: str) -> None:
        """Something is found that a start says."""
        self.changes.append(reason)
        self.found(kind, name, outcome, reason)

    def begins(self, region: str, kind: str, name: str, outcome: Outcome, what: str) -> None:
        """Some state of a region is new."""
        self.changed(kind, name, outcome, f"{what} is new and starts empty.")
        self.new.append(f"{what} is new.")
        self.differing.add(region)

    def refused(self, kind: str, name: str, where: str, differs: str, advice: str) -> None:
        """State cannot be used, but the log can be read again: a recomputation mends it."""
        refusal = f"{where} of checkpoint {self.uri} cannot be taken over: {differs}; {advice}, or {REBUILD}."
        self.found(kind, name, Outcome.RECOMPUTE, f"{differs[0].upper()}{differs[1:]}.", refusal)

    def outcome(self, kind: str, name: str) -> Outcome:
        """The worst that is found of a part so far."""
        found = self._parts.get((kind, name), [])
        return max((v.outcome for v in found), key=_ORDER.index, default=Outcome.UNCHANGED)

    def verdicts(self) -> tuple[Verdict, ...]:
        """One for each part, in the order in which the parts were first named."""
        return tuple(self._verdict(kind, name) for kind, name in self._parts)

    def _verdict(self, kind: str, name: str) -> Verdict:
        worst, found = self.outcome(kind, name), self._parts[kind, name]
        reasons = dict.fromkeys(v.reason for v in found if v.outcome == worst)
        refusals = dict.fromkeys(sentence for v in found for sentence in v.refusals)
        return Verdict(kind, name, worst, " ".join(reasons) or "Nothing of it has changed.", tuple(refusals))


__all__ = ["Findings", "Outcome", "Report", "Verdict"]
