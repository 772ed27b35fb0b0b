"""Runs whose window closes: what ``on_timeout`` tells.

A run is told if it has bound a named variable, may still go on when its window closes, and no match within the window goes on from
it. That is again an automaton, so runs that time out are recognised, kept, moved and recovered as matches are. A run is followed as
for a match until it marks an event for the variable; there it may *stop*: from then on only the set of states is followed that
anything going on from it can be in. A match kills it, and so does the end of every way to go on.

The window's end is an event of its own (``close``), put between the others where a start's window closes. It changes nothing but makes
what has stopped, and lives, a result. Heaps have the oldest runs on top here, and what is told is taken out of them, so that it does not
matter how many are open (``kernel``, Expiry).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.patterns.automaton.build import SKIP, Automaton
from penstock.patterns.automaton.determine import Determiniser, Node

STRATEGY = "TIMED OUT"  # not the word of old states, whose heaps have the newest runs on top


@dataclass(slots=True)
class Stopping:
    """Follows runs up to an event of a variable; see ``determine.Follower``.

    A node is (states, preferred states, states of the same marks, 0) before the stop, (0, 0, states, 0) after it, and ends in 1 where
    runs begin: no run begins with the end of a window.

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
        """A follower of an automaton's runs."""
        return Stopping(automaton, variable, Determiniser(automaton, "ALL"), _before(automaton, variable))

    @property
    def kinds(self) -> tuple[tuple[str, ...], ...]:
        """The automaton's kinds of marks, then those of the variable once more: to mark and stop."""
        return (*self.automaton.kinds, *(kind for kind in self.automaton.kinds if self.variable in kind))

    @property
    def start(self) -> Node:
        """The node in which the first event of a run is read."""
        return (self.automaton.initial, 0, self.automaton.initial, 1)

    @property
    def close(self) -> int:
        """The mask of the end of a window."""
        return 1 << len(self.automaton.tests)

    def step(self, node: Node, mask: int, choice: int) -> tuple[Node | None, bool]:
        """As ``Determiniser.step``; what is accepted is a run that has timed out."""
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
        """Whether a run stops with the nth kind that binds the variable, and none of the same marks in a preferred way."""
        kinds, move = self._stopping, self._all.move
        better = any(move(node[1], mask, kind) for kind in kinds) or any(move(node[0], mask, kind) for kind in kinds[:nth])
        return bool(move(node[0], mask, kinds[nth])) and not better

    @property
    def _stopping(self) -> list[int]:
        return [number + 1 for number, kind in enumerate(self.automaton.kinds) if self.variable in kind]


def _before(automaton: Automaton, variable: str) -> int:
    """The states from which an event can still be marked for a variable: a run that is in none of them will not stop."""
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
