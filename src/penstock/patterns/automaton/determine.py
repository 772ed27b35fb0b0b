"""The automaton made deterministic, one step at a time and only where events lead.

``Determiniser`` follows sets of the automaton's states. For one set and one event there is at most one successor that skips the
event and one per kind of mark, so no match is emitted twice. A node is a tuple of sets:

* the states that the marks made so far can reach;
* the states that the same marks with *preferred* kinds can reach. If one set of events can be bound to the variables in two
  ways, it is emitted once, in the preferred way (the first event at which the ways differ decides);
* for a selection strategy: the states that the same marks can reach whatever the kinds, and those of marks that beat them (and,
  for ``LAST``, of marks that may still win). So a match is accepted only if no better one from the same start ends at the same
  event. ``matches`` then compares the starts of one closing event.

Acceptance is a property of the step, not of the node: a state that can only be final is dropped at once. So waiting for the
next event of a pattern is a loop of one node onto itself, which the kernel skips.

Where an order is needed, nodes are compared as tuples: their numbers depend on which events came first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from penstock.patterns.automaton.build import SKIP, Automaton

Node = tuple[int, ...]


class Follower(Protocol):
    """A deterministic automaton, as ``tables`` uses it.

    Attributes:
        kinds: the choices after ``SKIP``: the output variables each kind of mark binds.
    """

    @property
    def kinds(self) -> tuple[tuple[str, ...], ...]: ...
    @property
    def start(self) -> Node: ...
    def step(self, node: Node, mask: int, choice: int) -> tuple[Node | None, bool]: ...
    def span(self, node: Node, /) -> int: ...


@dataclass(slots=True)
class Determiniser:
    """Steps from node to node.

    Args:
        automaton: what ``build`` made.
        strategy: the query's selection strategy.
    """

    automaton: Automaton
    strategy: str
    _moves: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[tuple[str, ...], ...]:
        return self.automaton.kinds

    @property
    def start(self) -> Node:
        """The node in which the first event of a match is read."""
        initial = self.automaton.initial
        match self.strategy:
            case "MAX" | "NEXT":
                return (initial, 0, initial, 0)
            case "LAST":
                return (initial, 0, initial, 0, 0)
            case "STRICT":
                return (initial, 0, 0)
            case _:
                return (initial, 0)

    def step(self, node: Node, mask: int, choice: int) -> tuple[Node | None, bool]:
        """Read one event.

        Args:
            node: the run's node.
            mask: the event's true tests.
            choice: ``SKIP`` or a kind of mark.

        Returns:
            The next node, or ``None`` if nothing can follow; and whether a match ends with the event.
        """
        after, preferred = self.moved(node[0], node[1], mask, choice)
        rest, better = self._rivals(node[2:], mask, marks=choice != SKIP)
        if rest is None:
            return None, False
        better |= preferred
        final = self.automaton.final
        accepts = bool(after & final) and not better & final
        # A choice in the same state as a better one loses, whatever follows.
        after = self.live(after & ~better)
        return ((after, self.live(preferred), *rest) if after else None), accepts

    def span(self, node: Node) -> int:
        """How long after their first event the runs in a node can go on (µs); -1: as long as their window. See `Automaton.spans`."""
        spans = [self.automaton.spans[state] for state in _members(node[0])] if self.automaton.spans else []
        return max(spans) if spans and min(spans) >= 0 else -1

    def moved(self, here: int, preferred: int, mask: int, choice: int) -> tuple[int, int]:
        """The states after a choice, and those after the same marks of preferred kinds."""
        after = self.move(here, mask, choice)
        if self.automaton.judges:  # any way to bind the same events may be the one that satisfies the conditions
            return after, 0
        if choice == SKIP:
            return after, self.move(preferred, mask, SKIP)
        preferred = self._marked(preferred, mask)
        for kind in range(1, choice):
            preferred |= self.move(here, mask, kind)
        return after, preferred

    def _rivals(self, rivals: Node, mask: int, *, marks: bool) -> tuple[Node | None, int]:
        """A strategy's next value beside the run, and the states that beat the run; ``None`` forbids the choice."""
        match self.strategy:
            case "MAX":  # a strict superset beats
                same, larger = rivals
                better = self._marked(larger, mask)
                if not marks:
                    better |= self.move(larger, mask, SKIP) | self._marked(same, mask)
                return self._alive(self.own(same, mask, marks=marks), better), better
            case "NEXT":  # the first difference decides: the one that marks there wins
                same, earlier = rivals
                better = self.any_of(earlier, mask)
                if not marks:
                    better |= self._marked(same, mask)
                return self._alive(self.own(same, mask, marks=marks), better), better
            case "LAST":  # the last difference decides, so a new one overrules earlier ones
                same, later, sooner = rivals
                everyone = same | later | sooner
                if marks:
                    better = self._marked(later, mask)
                    beaten = self._marked(sooner, mask) | self.move(everyone, mask, SKIP)
                else:
                    better = self.move(later, mask, SKIP) | self._marked(everyone, mask)
                    beaten = self.move(sooner, mask, SKIP)
                own = self.own(same, mask, marks=marks)
                return self._alive(own, better, beaten & ~better & ~own), better
            case "STRICT":  # 0 before the first mark, 1 within the marks, 2 after them
                (phase,) = rivals
                if marks:
                    return ((1,) if phase < 2 else None), 0
                return (min(2 * phase, 2),), 0
            case _:
                return (), 0

    def own(self, states: int, mask: int, *, marks: bool) -> int:
        """The states after any mark, or after a skip."""
        return self._marked(states, mask) if marks else self.move(states, mask, SKIP)

    def _marked(self, states: int, mask: int) -> int:
        total = 0
        for kind in range(1, len(self.automaton.kinds) + 1):
            total |= self.move(states, mask, kind)
        return total

    def any_of(self, states: int, mask: int) -> int:
        return self._marked(states, mask) | self.move(states, mask, SKIP)

    def move(self, states: int, mask: int, choice: int) -> int:
        """The states after a choice."""
        if not states:
            return 0
        known = self._moves.get((states, mask))
        if known is None:
            targets = [0] * (len(self.automaton.kinds) + 1)
            for state in _members(states):
                for t in self.automaton.transitions[state]:
                    if t.reads(mask):
                        targets[t.choice] |= 1 << t.target
            known = self._moves[states, mask] = tuple(targets)
        return known[choice]

    def _alive(self, *parts: int) -> Node:
        return tuple(self.live(part) for part in parts)

    def live(self, states: int) -> int:
        """The states that can read another event; acceptance was handled before."""
        live = 0
        for state in _members(states):
            if self.automaton.transitions[state]:
                live |= 1 << state
        return live


def _members(states: int) -> list[int]:
    members = []
    while states:
        members.append((states & -states).bit_length() - 1)
        states &= states - 1
    return members
