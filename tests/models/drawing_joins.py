"""How joins and lookups are drawn, a part of `drawing.Drawing`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import oracle
import recipes as r
from hypothesis import strategies as st
from table_versions import Again

import penstock as ps

LOOKED_UP = {
    "k": ["", "a", "é", "zz", None],
    "j": [0, 1, -(2**62), 77, None],
    "v": [0, 1, 3, 5, None],
    "x": [0.1, 0.0, float("nan"), -2.5, None],
    "s": ["", "a", "ü", None],
}
"""Keys of tables; nulls are there and are never met."""


AGAIN = [None, (0, 1, False), (0, 2, False), (0, 3, True), (2_000_000, 3, True)]
"""How a table is read again (`table_versions.Again`); those behind the first two become other tables."""


@dataclass(frozen=True)
class About:
    """What the drawing must know of a node.

    Attributes:
        keys: The region's key columns; none: not in a region.
        updating: Only a sink may follow.
        origins: What triggers its rows.
        tied: Several rows may have one place, so that their order is not documented.
        depth: How many steps have numbered its rows; four are possible.
    """

    keys: tuple[str, ...] = ()
    updating: bool = False
    origins: frozenset[Any] = frozenset()
    tied: bool = False
    depth: int = 0

    def plain(self) -> About:
        """The same outside of a region."""
        return replace(self, keys=())

    def deeper(self) -> About:
        """After a step that numbers its rows."""
        return replace(self, depth=self.depth + 1)


class Joins:
    """Draws joins and lookups."""

    draw: Any
    ties: bool
    shared: int
    changing: bool
    recipe: r.Recipe
    about: dict[r.Node, About]

    def _lookup(self, node: r.Node, about: About, *, first: bool = False) -> None:
        column = f"t{len(self.recipe.nodes)}"
        on = self.draw(st.sampled_from([*LOOKED_UP]))
        rows, how = drawn_rows(self.draw, on, 3 if first else 0), self.draw(st.sampled_from(["left", "inner"]))
        again = again_of(self.draw(st.sampled_from(AGAIN[2:] if first else AGAIN if self.changing else AGAIN[:2])))
        self.add(r.Lookup(node, on, column, rows, how, self.draw(st.booleans()), again), about)

    def look_first(self) -> None:
        """Look in a table that becomes other ones before all other steps."""
        source = self.recipe.nodes[0]
        self._lookup(source, self.about[source], first=True)

    def _join(self, node: r.Node, about: About) -> None:
        if any(c.endswith("_right") for c in oracle.columns(node)):
            return self._totals(node, about)
        other: r.Node = self.standard(self.stream(bias=False))
        if _region_of(other) is _region_of(node) and self.about[other].keys:
            other = self.add(r.Local(other), self.about[other].plain())
        merged = self._merged((node, other))
        if self._behind(other, _region_of(node)) or merged.depth >= 3:
            return self._totals(node, about)
        how = self.draw(st.sampled_from(["inner", "left", "right", "full", "asof", "asof"]))
        if (
            how == "asof" and self.about[other].tied and not self.ties
        ):  # which is the last of rows at one place is not documented
            return self._totals(node, about)
        if self.draw(st.booleans()):
            other = r.KeyBy(
                other, about.keys, f"r{len(self.recipe.nodes)}", distribute=(ps.ByPartition(),) if self.shared else ()
            )
            self.recipe.nodes.append(other)  # it becomes part of this region, so nothing else may follow it
        if how == "asof":  # a row of this side stays at its place
            within = self.draw(st.sampled_from([None, 0, r.SECOND, 5 * r.SECOND]))
            self.add(r.Join(node, other, within, how), about.deeper())
            return None
        added = r.Join(node, other, self.draw(st.sampled_from([0, 1, 4])) * r.SECOND, how)
        origins = merged.origins if how == "inner" else merged.origins | {added}
        self.add(added, About(about.keys, False, origins, merged.tied or how != "inner", merged.depth + 1))
        return None

    def _behind(self, node: Any, region: Any) -> bool:
        """Whether a node's rows come from a region, which cannot then read them."""
        if node is region:
            return True
        before = [*(node.of if isinstance(node, r.Union) else [getattr(node, "of", None)]), getattr(node, "other", None)]
        return any(self._behind(n, region) for n in before if n is not None)


def again_of(drawn: tuple[int, int, bool] | None) -> Again | None:
    """How a table is read again, of one run."""
    return None if drawn is None else Again(*drawn)


def drawn_rows(draw: Any, on: str, least: int = 0) -> tuple[tuple[Any, int], ...]:
    """The rows of a table, so many at least: its keys, each once, in any order, with a number each."""
    keys = draw(st.lists(st.sampled_from(LOOKED_UP[on]), unique_by=repr, min_size=least, max_size=4))
    return tuple((key, draw(st.integers(0, 9))) for key in keys)


def _region_of(node: Any) -> Any:
    while isinstance(node, r.Map | r.Totals | r.Distinct | r.Join | r.Process):
        node = node.of
    return node if isinstance(node, r.KeyBy) else None
