"""Runs whose window closes: the results of ``on_timeout``.

A run times out if it has bound the named variable, could still continue when its window closes, and no match within the window
continues it. That is another automaton, so runs that time out are recognised, kept, moved and recovered like matches. A run is
followed as for a match until it marks an event for the variable. There it may *stop*: from then on only the set of states is
followed that its continuations can reach. A match removes it, and so does the end of every continuation.

The end of a window is a separate event (``close``), placed where the window of a start closes. It turns stopped runs into
results and changes nothing else. Heaps have the oldest runs on top here, and emitted runs are removed from them, so the cost
does not depend on the number of open runs (``kernel``, Expiry).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.patterns.automaton.build import SKIP, Automaton
from penstock.patterns.automaton.determine import Determiniser, Node

STRATEGY = "TIMED OUT"  # differs from old states, whose heaps had the newest runs on top


@dataclass(slots=True)
class Stopping:
    """Follows runs up to an event of a variable; a ``determine.Follower``.

    A node is (states, preferred states, states of the same marks, 0) before the stop and (0, 0, states, 0) after it. It ends in
    1 where runs begin: no run begins with the end of a window.

    Args:
        automaton: the query's.
        variable: where runs may stop.
    """

    automaton: Automaton
    variable: str
    _all: Determiniser
    _ahead: int

    @staticmethod
    def of(automaton: Automaton, variable: str) -> Stopping:
        return Stopping(automaton, variable, Determiniser(automaton, "ALL"), _before(automaton, variable))

    @property
    def kinds(self) -> tuple[tuple[str, ...], ...]:
        """The automaton's kinds of marks, then those that bind the variable again: mark and stop."""
        return (*self.automaton.kinds, *(kind for kind in self.automaton.kinds if self.variable in kind))

    @property
    def start(self) -> Node:
        """The node in which the first event of a run is read."""
        return (self.automaton.initial, 0, self.automaton.initial, 1)

    @property
    def close(self) -> int:
        """The mask of the end of a window."""
        return 1 << len(self.automaton.tests)

    def span(self, _node: Node) -> int:
        """As long as the window: gaps are refused beside timeouts."""
        return -1

    def step(self, node: Node, mask: int, choice: int) -> tuple[Node | None, bool]:
        """As ``Determiniser.step``; accepts runs that have timed out."""
        if mask == self.close:
            return (node, not node[0]) if choice == SKIP and not node[3] else (None, False)
        final = self.automaton.final
        if not node[0]:
            after = self._all.any_of(node[2], mask) if choice == SKIP else 0
            going = self._all.live(after)
            return ((0, 0, going, 0) if going and not after & final else None), False
        same = self._all.own(node[2], mask, marks=choice != SKIP)
        going = self._all.live(same)
        if choice > len(self.automaton.kinds):
            stops = self._stops(node, mask, choice - len(self.automaton.kinds) - 1)
            return ((0, 0, going, 0) if stops and going and not same & final else None), False
        own, preferred = self._all.moved(node[0], node[1], mask, choice)
        ahead = own & ~preferred & self._ahead
        return ((ahead, preferred & self._ahead, going, 0) if ahead else None), False

    def _stops(self, node: Node, mask: int, nth: int) -> bool:
        """Whether a run stops with the nth kind that binds the variable, and no preferred way has the same marks."""
        kinds, move = self._stopping, self._all.move
        better = any(move(node[1], mask, kind) for kind in kinds) or any(move(node[0], mask, kind) for kind in kinds[:nth])
        return bool(move(node[0], mask, kinds[nth])) and not better

    @property
    def _stopping(self) -> list[int]:
        return [number + 1 for number, kind in enumerate(self.automaton.kinds) if self.variable in kind]


def _before(automaton: Automaton, variable: str) -> int:
    """The states from which an event can still be marked for a variable."""
    stops = {number + 1 for number, kind in enumerate(automaton.kinds) if variable in kind}
    before = 0
    while True:
        more = before
        for state, transitions in enumerate(automaton.transitions):
            if any(t.choice in stops or before >> t.target & 1 for t in transitions):
                more |= 1 << state
        if more == before:
            return before
        before = more
