"""What the state in a checkpoint belongs to: the flow's shape.

Every source, region, step and input of a region is described as plain values. A region's steps and inputs have numbers (slots) under which
their state is kept; these never change while the checkpoint lives, wherever the step then stands. The shape is a part of each epoch's record,
so a snapshot has that of its own epoch.

`penstock.driver.succession.succeed` is a pure function of the shape before and the shape declared now: it gives each step its slot, or refuses.

    goes on     stateless steps, sinks, functions, output columns, new regions, new steps, aggregates under new names
    refused     everything else, before anything is read or stored

Read next: `penstock.driver.shape`, which makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.routing.key_grouping import KeyGrouping

AS_IT_IS: Final = [-1, 0]
"""In place of a step and its input: the rows leave the region as they came."""


@dataclass(frozen=True)
class SourceShape:
    """A source: its name, and what it reads, as text by a word for each part.

    `options`: likewise what else it is declared with that decides its frontier and which records are put aside; None: not known.
    """

    name: str
    meaning: dict[str, str]
    lateness_us: int = 0
    options: dict[str, str] | None = None


@dataclass(frozen=True)
class StepShape:
    """A step of a region.

    Attributes:
        slot: The number under which its state is kept.
        name: Its name, unique in the region: given, or made from its kind and its place among those of its kind.
        named: Whether the name was given.
        kind: What it is.
        label: Tells it from others of its kind: with the name of its function.
        meaning: What its state means, as text by a word for each part.
        path: A digest of all that its rows have come through; it tells apart steps that are alike.
        layouts: What stored values consist of; the present layout is the last.
        passes: Whether it can be taken away without loss to what follows.
        reads: Columns that its rows must have had.
        typed: The word of its meaning that lists the columns of stored values; empty: none does.
        migrations: Names of the functions that its state has gone through, oldest first; None: it takes none.
        fixed: Parts of its layout whose types must stay, ``"+"`` if none may be added, ``"-"`` if none may go.
        worded: The words of its meaning that are SQL.
    """

    slot: int
    name: str
    named: bool
    kind: str
    label: str
    path: str
    meaning: dict[str, str]
    layouts: list[dict[str, str]]
    passes: bool = False
    reads: list[str] = field(default_factory=list)
    typed: str = ""
    fixed: list[str] = field(default_factory=list)
    migrations: list[str] | None = None
    worded: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PortShape:
    """An input of a region.

    Attributes:
        slot: The number under which its waiting rows are kept.
        waits: Whether rows wait for the frontier.
        columns: Types by column.
        ever: Types of all columns that its waiting rows may have, those of today among them.
        direct: The steps that read it, each as (slot, which of its inputs); `AS_IT_IS`.
        readers: Likewise, those that its rows come to through others among them.
        first: Slots of those that read its rows as they are, directly or through steps that pass rows on.
        path: A digest of all that its rows have come through.
    """

    slot: int
    waits: bool
    columns: dict[str, str]
    ever: dict[str, str]
    direct: list[list[int]]
    readers: list[list[int]]
    first: list[int]
    path: str


@dataclass(frozen=True)
class RegionShape:
    """A region.

    Attributes:
        ordinal: Its number in the flow, which orders rows that the frontier gives rise to.
        keys: Types by key column.
        timed: Whether its rows have an event time.
        sources: Names of the sources whose records come to it.
        behind: Names of the regions whose rows come to it.
        steps: Its steps.
        ports: Its inputs.
        next_step: The least slot that no step ever had. Likewise for inputs `next_port`.
        distribution: Its distribution strategy, as `penstock.routing.strategy.Strategy.describe` has it.
    """

    ordinal: int
    keys: dict[str, str]
    timed: bool
    sources: list[str]
    behind: list[str]
    steps: list[StepShape]
    ports: list[PortShape]
    next_step: int
    next_port: int
    distribution: str = repr(KeyGrouping())  # of a checkpoint that does not say it

    def step(self, slot: int) -> StepShape:
        """The step with a slot."""
        return next(s for s in self.steps if s.slot == slot)


@dataclass(frozen=True)
class FlowShape:
    """A flow.

    Attributes:
        sources: In the order of their numbers.
        regions: By name.
        outputs: What each output's sink is, by the output's name.
        next_ordinal: The least number that no region ever had.
        tables: What each table has that stateless steps look in, by the step.
    """

    sources: list[SourceShape]
    regions: dict[str, RegionShape]
    outputs: dict[str, str]
    next_ordinal: int
    tables: dict[str, str] = field(default_factory=dict)
