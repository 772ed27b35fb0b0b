"""The syntax tree of CEQL, and a query as text again.

All values are frozen and compare by content. ``parsing.parse`` makes them; ``str`` of one gives text that parses to the same tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

Strategy = Literal["ALL", "NEXT", "LAST", "MAX", "STRICT", "ANY"]
Consume = Literal["NONE", "PARTITION", "ANY"]

# ------------------------------------------------------------------------------------------------- conditions on one event


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    value: str

    def __str__(self) -> str:
        return "'" + self.value.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of the event."""

    name: str

    def __str__(self) -> str:
        return name_text(self.name)


@dataclass(frozen=True, slots=True)
class Minus:
    """The negative of a value."""

    inner: Operand

    def __str__(self) -> str:
        return f"-({self.inner})"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Two values joined by ``+ - * / %``."""

    op: str
    left: Operand
    right: Operand

    def __str__(self) -> str:
        return f"({self.left} {self.op} {self.right})"


@dataclass(frozen=True, slots=True)
class Of:
    """An attribute of the events bound to a variable, ``a.price``; ``PREV(a.price)``: of the event bound before it."""

    variable: str
    attribute: str
    stream: str | None = None
    previous: bool = False

    @property
    def whose(self) -> tuple[str, str | None]:
        """The variable, with its stream if it has one."""
        return self.variable, self.stream

    def __str__(self) -> str:
        shown = f"{variable_text(self.variable, self.stream)}.{name_text(self.attribute)}"
        return f"PREV({shown})" if self.previous else shown


Operand = Number | Text | Attribute | Of | Minus | Arithmetic


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison: ``< <= > >= = !=``."""

    op: str
    left: Operand
    right: Operand

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"


@dataclass(frozen=True, slots=True)
class Like:
    """A string that matches a regular expression as a whole."""

    attribute: str
    pattern: str

    def __str__(self) -> str:
        return f"{name_text(self.attribute)} LIKE {Text(self.pattern)}"


@dataclass(frozen=True, slots=True)
class In:
    """A value in a list."""

    attribute: str
    values: tuple[Number | Text, ...]
    negated: bool = False

    def __str__(self) -> str:
        return f"{name_text(self.attribute)} {'NOT ' if self.negated else ''}IN {{{', '.join(map(str, self.values))}}}"


@dataclass(frozen=True, slots=True)
class Between:
    """A value in a range, ends included; ``None`` is an open end."""

    attribute: str
    low: Number | None
    high: Number | None

    def __str__(self) -> str:
        return (
            f"{name_text(self.attribute)} IN {'' if self.low is None else self.low}..{'' if self.high is None else self.high}"
        )


@dataclass(frozen=True, slots=True)
class Negation:
    """``NOT``."""

    inner: Predicate

    def __str__(self) -> str:
        return f"NOT ({self.inner})"


@dataclass(frozen=True, slots=True)
class Both:
    """``AND`` within one event."""

    left: Predicate
    right: Predicate

    def __str__(self) -> str:
        return f"({self.left} AND {self.right})"


@dataclass(frozen=True, slots=True)
class Either:
    """``OR`` within one event."""

    left: Predicate
    right: Predicate

    def __str__(self) -> str:
        return f"({self.left} OR {self.right})"


Predicate = Compare | Like | In | Between | Negation | Both | Either

# ------------------------------------------------------------------------------------------------------------------ filters


@dataclass(frozen=True, slots=True)
class Bound:
    """``X[P]``: every event bound to the variable satisfies the predicate."""

    variable: str
    predicate: Predicate
    stream: str | None = None

    def __str__(self) -> str:
        return f"{variable_text(self.variable, self.stream)}[{self.predicate}]"


@dataclass(frozen=True, slots=True)
class Relation:
    """``b.price > a.price``: true of every choice of one bound event for each variable.

    With ``PREV`` of a variable, of every choice of two events bound to it one after the other.
    """

    op: str
    left: Operand
    right: Operand

    @property
    def values(self) -> tuple[Of, ...]:
        """What it reads of events, each once, in order of appearance."""
        return tuple(dict.fromkeys((*values_in(self.left), *values_in(self.right))))

    @property
    def variables(self) -> tuple[tuple[str, str | None], ...]:
        """Whose events it compares, in order of appearance."""
        return tuple(dict.fromkeys(value.whose for value in self.values))

    def __str__(self) -> str:
        return f"{bare_text(self.left)} {self.op} {bare_text(self.right)}"


@dataclass(frozen=True, slots=True)
class AllOf:
    """Both filters."""

    left: Filter
    right: Filter

    def __str__(self) -> str:
        return f"({self.left} AND {self.right})"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The union of two filters' results."""

    left: Filter
    right: Filter

    def __str__(self) -> str:
        return f"({self.left} OR {self.right})"


Filter = Bound | Relation | AllOf | AnyOf

# ----------------------------------------------------------------------------------------------------------------- formulas


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a type."""

    type: str
    stream: str | None = None

    def __str__(self) -> str:
        return variable_text(self.type, self.stream)


@dataclass(frozen=True, slots=True)
class Not:
    """One event that is not of a type, or is of it and does not pass the condition. It binds nothing."""

    type: str
    condition: Filter | None = None

    def __str__(self) -> str:
        return f"NOT ({name_text(self.type)}{'' if self.condition is None else f' FILTER {self.condition}'})"


@dataclass(frozen=True, slots=True)
class As:
    """The events that ``inner`` binds, bound to a name as well."""

    inner: Formula
    name: str

    def __str__(self) -> str:
        return f"({self.inner}) AS {name_text(self.name)}"


@dataclass(frozen=True, slots=True)
class Plus:
    """``inner`` once or several times: ``+`` with gaps between, ``:+`` without."""

    inner: Formula
    contiguous: bool
    gap: Window | None = None

    def __str__(self) -> str:
        return f"({self.inner}){':+' if self.contiguous else '+'}{gap_text(self.gap)}"


@dataclass(frozen=True, slots=True)
class Times:
    """``inner`` from ``least`` to ``most`` times (``None``: any number): ``{2,4}``, ``?``, ``*`` with gaps between, ``:{2,4}`` without."""

    inner: Formula
    least: int
    most: int | None
    contiguous: bool
    gap: Window | None = None

    def __str__(self) -> str:
        bounds = {(0, None): "*", (0, 1): "" if self.contiguous or self.gap else "?"}.get((self.least, self.most))
        if not bounds:
            most = "" if self.most is None else self.most
            bounds = f"{{{self.least}}}" if self.least == self.most else f"{{{self.least},{most}}}"
        return f"({self.inner}){':' if self.contiguous else ''}{bounds}{gap_text(self.gap)}"


@dataclass(frozen=True, slots=True)
class Then:
    """One after the other: ``;`` with other events allowed between, ``:`` without; ``gap``: the longest time between the two."""

    left: Formula
    right: Formula
    contiguous: bool
    gap: Window | None = None

    def __str__(self) -> str:
        return f"({self.left} {':' if self.contiguous else ';'}{gap_text(self.gap)} {self.right})"


@dataclass(frozen=True, slots=True)
class Or:
    """Either."""

    left: Formula
    right: Formula

    def __str__(self) -> str:
        return f"({self.left} OR {self.right})"


@dataclass(frozen=True, slots=True)
class Filtered:
    """The matches of ``inner`` that pass a filter."""

    inner: Formula
    filter: Filter

    def __str__(self) -> str:
        return f"({self.inner} FILTER {self.filter})"


Formula = Event | Not | As | Plus | Times | Then | Or | Filtered

# ------------------------------------------------------------------------------------------------------------------ queries


@dataclass(frozen=True, slots=True)
class Everything:
    """``SELECT *``."""

    def __str__(self) -> str:
        return "*"


@dataclass(frozen=True, slots=True)
class Nothing:
    """``SELECT NONE``: the interval only."""

    def __str__(self) -> str:
        return "NONE"


@dataclass(frozen=True, slots=True)
class CountAll:
    """``SELECT COUNT(*)``: how many matches end with each event."""

    def __str__(self) -> str:
        return "COUNT(*)"


@dataclass(frozen=True, slots=True)
class Item:
    """A selected variable and the attributes of its events; none means all."""

    variable: str
    stream: str | None = None
    attributes: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = f"[{', '.join(map(name_text, self.attributes))}]" if self.attributes else ""
        return variable_text(self.variable, self.stream) + shown


@dataclass(frozen=True, slots=True)
class Chosen:
    """``SELECT a, b[x, y]``."""

    items: tuple[Item, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.items))


Projection = Everything | Nothing | CountAll | Chosen


@dataclass(frozen=True, slots=True)
class Window:
    """The longest reach of a match: ``end - start <= size``.

    Attributes:
        kind: ``"events"``, ``"time"`` or ``"attribute"``.
        size: positions; µs; or the attribute's unit.
        attribute: the column that measures, for ``"attribute"``.
    """

    kind: Literal["events", "time", "attribute"]
    size: int | Decimal
    attribute: str | None = None

    def __str__(self) -> str:
        if self.kind == "events":
            return f"{self.size} EVENTS"
        if self.kind == "time":
            return f"{Decimal(self.size) / 1_000_000:f} SECONDS"
        return f"{self.size:f} [{name_text(self.attribute or '')}]"


@dataclass(frozen=True, slots=True)
class Query:
    """A whole query.

    Attributes:
        strategy: which of the matches that end together are kept.
        projection: what is shown of a match.
        streams: the names after FROM.
        formula: the pattern.
        partition_by: groups of attributes; an event's key has the first of each group that is not null.
        window, consume, limit: the clauses of these names.
        text: the source text, for messages; ``source_locations.Name`` knows where a word stands in it.
        clauses: the first word of each clause, by attribute, for messages.
    """

    strategy: Strategy
    projection: Projection
    streams: tuple[str, ...]
    formula: Formula
    partition_by: tuple[tuple[str, ...], ...] = ()
    window: Window | None = None
    consume: Consume = "NONE"
    limit: int | None = None
    text: str = field(default="", compare=False, repr=False)
    clauses: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        parts = ["SELECT", *([] if self.strategy == "ALL" else [self.strategy]), str(self.projection)]
        if self.streams:
            parts += ["FROM", ", ".join(map(name_text, self.streams))]
        parts += ["WHERE", str(self.formula)]
        if self.partition_by:
            parts += ["PARTITION BY", ", ".join(f"[{', '.join(map(name_text, group))}]" for group in self.partition_by)]
        if self.window is not None:
            parts += ["WITHIN", str(self.window)]
        if self.consume != "NONE":
            parts += ["CONSUME BY", self.consume]
        if self.limit is not None:
            parts += ["LIMIT", str(self.limit)]
        return " ".join(parts)


_KEYWORDS = (
    "SELECT ALL NEXT LAST MAX STRICT ANY NONE COUNT FROM WHERE FILTER AS OR AND NOT LIKE IN PARTITION BY WITHIN EVENTS EVENT DAYS DAY "
    "HOURS HOUR MINUTES MINUTE SECONDS SECOND CONSUME LIMIT"
)
KEYWORDS = frozenset(_KEYWORDS.split())


def values_in(operand: Operand) -> Iterator[Of]:
    """What a calculation reads of events, in order of appearance."""
    match operand:
        case Of():
            yield operand
        case Minus(inner=inner):
            yield from values_in(inner)
        case Arithmetic(left=left, right=right):
            yield from values_in(left)
            yield from values_in(right)


def bare_text(operand: Operand) -> str:
    """A calculation as CEQL text, without parentheses around all of it."""
    return str(operand)[1:-1] if isinstance(operand, Arithmetic) else str(operand)


def gap_text(gap: Window | None) -> str:
    """The longest time between neighbours, as CEQL text."""
    return "" if gap is None else f"[WITHIN {gap}]"


def name_text(name: str) -> str:
    """A name as CEQL text: in backquotes if it is a keyword or has other characters."""
    plain = name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit() and name.upper() not in KEYWORDS
    return name if plain else "`" + name.replace("`", "``") + "`"


def variable_text(name: str, stream: str | None) -> str:
    """A variable, with its stream if it has one."""
    return name_text(name) if stream is None else f"{name_text(stream)}>{name_text(name)}"
