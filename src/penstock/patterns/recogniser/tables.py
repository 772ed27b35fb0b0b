"""The deterministic automaton as arrays for the kernel, filled in as events need steps."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.patterns.automaton.determine import Follower, Node
from penstock.patterns.recogniser import kernel

BITS = 62  # tests per word: engines sum them, and words stay positive


class Tables:
    """Steps from node to node, for the nodes and masks met so far.

    One per query and worker. It holds no state of keys.

    Attributes:
        step, react, reacts, spans: see ``kernel.recognise``. Replaced by larger ones as nodes and letters are added.
    """

    def __init__(self, follower: Follower) -> None:
        self._determiniser = follower
        self._choices = len(follower.kinds) + 1
        self._nodes: list[Node] = [self._determiniser.start]
        self._numbers: dict[Node, int] = {self._nodes[0]: 0}
        self._order = [0]  # the nodes' numbers in the order of nodes as tuples
        self._masks: list[int] = []
        self._letters: dict[int, int] = {}
        self.step: NDArray[np.int32] = np.full((16, 16, self._choices), kernel.UNKNOWN, np.int32)
        self.react: NDArray[np.int32] = np.zeros((16, 16), np.int32)
        self.reacts: NDArray[np.int32] = np.zeros(16, np.int32)
        self.spans: NDArray[np.int64] = np.full(16, -1, np.int64)

    @property
    def width(self) -> int:
        """The number of nodes that fit."""
        return int(self.step.shape[0])

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes met so far, by number."""
        return tuple(self._nodes)

    def number(self, node: Node, *, list_it: bool = True) -> int:
        """The number of a node; a new node gets one. ``list_it``: at once among those that react, else the caller does."""
        known = self._numbers.get(node)
        if known is not None:
            return known
        number = self._numbers[node] = len(self._nodes)
        self._nodes.append(node)
        insort(self._order, number, key=self._nodes.__getitem__)
        if number == self.width:
            self._widen(2 * number, self.step.shape[1])
        self.spans[number] = self._determiniser.span(node)
        if list_it:
            self._list_reactions(range(len(self._masks)))
        return number

    def letters(self, words: Sequence[NDArray[Any]]) -> NDArray[np.int32]:
        """The letter of each event.

        Args:
            words: the true tests of each event, 62 per word (``BITS``), whole numbers [events] of any width.

        Returns:
            int32[events]; a letter stands for one combination of true tests.
        """
        if len(words[0]) == 0:
            return np.zeros(0, np.int32)
        if len(words) == 1:
            return self._letters_of(words[0].astype(np.int64, copy=False))
        columns, inverse = np.unique(np.stack(words), axis=1, return_inverse=True)
        values = [sum(int(word) << (BITS * i) for i, word in enumerate(column)) for column in columns.T]
        return np.array([self.letter(value) for value in values], np.int32)[inverse.reshape(-1)]

    def _letters_of(self, masks: NDArray[np.int64]) -> NDArray[np.int32]:
        """The letters of masks of one word. Small masks use a table, because a sort costs more than the recognition."""
        top = int(masks.max())
        if top >= 1 << 16:
            kinds, inverse = np.unique(masks, return_inverse=True)
            return np.array([self.letter(int(kind)) for kind in kinds], np.int32)[inverse]
        letters = np.zeros(top + 1, np.int32)
        for mask in np.flatnonzero(np.bincount(masks)).tolist():
            letters[mask] = self.letter(mask)
        return letters[masks]

    def edges(self, nodes: NDArray[np.int64], lows: NDArray[np.int64], now: NDArray[np.int64]) -> NDArray[np.int64]:
        """The least start of runs that can still go on, in each of some nodes, int64[n].

        Args:
            nodes: their numbers. ``lows``: the least start inside the window. ``now``: the time of the last event; the least number if unknown.
        """
        spans = np.maximum(self.spans[nodes], 0)
        return np.where((self.spans[nodes] < 0) | (now == kernel.NEVER), lows, np.maximum(lows, now - spans))

    def begins(self, letter: int) -> bool:
        """Whether a run can begin with such an event."""
        if self.step[0, letter, 0] == kernel.UNKNOWN:
            self.learn(0, letter)
        return bool(self.step[0, letter].any())

    def learn(self, number: int, letter: int) -> None:
        """Compute one step, and the node's steps for the other letters met, which are likely to be needed next."""
        for other in {letter, *range(min(len(self._masks), 64))}:
            if self.step[number, other, 0] == kernel.UNKNOWN:
                self._fill(number, other)
        self._list_reactions(range(len(self._masks)))

    def _fill(self, number: int, letter: int) -> None:
        for choice in range(self._choices):
            after, accepts = self._determiniser.step(self._nodes[number], self._masks[letter], choice)
            target = -1 if after is None else self.number(after, list_it=False)  # may replace the arrays
            self.step[number, letter, choice] = (target + 1) * 2 + accepts

    def letter(self, mask: int) -> int:
        """The letter of one combination of true tests."""
        known = self._letters.get(mask)
        if known is None:
            known = self._letters[mask] = len(self._masks)
            self._masks.append(mask)
            if known == self.step.shape[1]:
                self._widen(self.width, 2 * known)
            self._list_reactions([known])
        return known

    def _list_reactions(self, letters: range | list[int]) -> None:
        order = np.array(self._order)
        for letter in letters:
            steps = self.step[order, letter]
            moved = order[(steps[:, 0] != (order + 1) * 2) | steps[:, 1:].any(axis=1)]  # the others only wait at such an event
            self.react[letter, : len(moved)] = moved
            self.reacts[letter] = len(moved)

    def _widen(self, nodes: int, letters: int) -> None:
        step = np.full((nodes, letters, self._choices), kernel.UNKNOWN, np.int32)
        step[: self.step.shape[0], : self.step.shape[1]] = self.step
        react = np.zeros((letters, nodes), np.int32)
        react[: self.react.shape[0], : self.react.shape[1]] = self.react
        spans = np.full(nodes, -1, np.int64)
        spans[: len(self.spans)] = self.spans
        reacts = np.zeros(letters, np.int32)
        reacts[: len(self.reacts)] = self.reacts
        self.step, self.react, self.reacts, self.spans = step, react, reacts, spans
