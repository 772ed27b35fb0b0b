"""From a formula to the automaton that recognises it.

``build`` turns a formula into a small non-deterministic automaton whose transitions read one event: they test bits of the
event's mask and either mark the event, naming the variables it is bound to, or skip it. ``determine`` makes it deterministic as
events arrive; ``kernel`` runs the resulting tables.

Source: Bucchi, Grez, Quintana, Riveros and Vansummeren, "CORE: a complex event recognition engine", PVLDB 15(9), 2022, section
5; the wait states, and labels as kinds of marks, are our own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from penstock.patterns.algebra import (
    AllOf,
    AnyOf,
    As,
    Bound,
    Chosen,
    CountAll,
    Event,
    Everything,
    Filter,
    Filtered,
    Formula,
    Not,
    Or,
    Plus,
    Predicate,
    Projection,
    Query,
    Relation,
    Then,
    Times,
    Window,
)

SIDE = "__ps_side"  # hidden variables begin so
UNBOUND = f"{SIDE}_of_none"  # of events that only a gap marks: those of a NOT
SKIP = 0  # every greater number is a kind of mark


@dataclass(frozen=True, slots=True)
class TypeIs:
    """The test whether an event is of a type (and comes from a stream)."""

    type: str
    stream: str | None = None


@dataclass(frozen=True, slots=True)
class Excluded:
    """The test whether an event is one that ``NOT(type FILTER condition)`` excludes."""

    type: str
    condition: Filter | None = None


Test = TypeIs | Excluded | Predicate


@dataclass(frozen=True, slots=True)
class Transition:
    """One way to read one event: ``needs`` and ``refuses`` are sets of bits, ``choice`` is ``SKIP`` or a kind of mark."""

    needs: int
    refuses: int
    choice: int
    target: int

    def reads(self, mask: int) -> bool:
        """Whether an event with this mask can be read."""
        return (mask & self.needs) == self.needs and not mask & self.refuses


@dataclass(frozen=True, slots=True)
class Automaton:
    """A trimmed automaton without empty transitions. States are numbers; sets of states are integers with a bit per state.

    Attributes:
        tests: the meaning of the bits of an event's mask, lowest bit first.
        transitions: by source state.
        kinds: the output variables that each kind of mark binds; preferred kinds first.
        initial: the set in which the first event of a match is read.
        final: the set of states in which a match is complete.
        relations: conditions between events, each for one place of the pattern: the events to compare are those of `side_of`.
        gaps: the longest times between neighbours, each wherever the pattern has it: the events are those of `gap_of`, in turn.
        spans: by state, how long after its first event a run in it can go on (µs), because it has no other event yet and a gap follows; -1:
            as long as its window.
    """

    tests: tuple[Test, ...]
    transitions: tuple[tuple[Transition, ...], ...]
    kinds: tuple[tuple[str, ...], ...]
    initial: int
    final: int
    relations: tuple[Relation, ...] = ()
    gaps: tuple[Window, ...] = ()
    spans: tuple[int, ...] = ()

    @property
    def judges(self) -> bool:
        """Whether conditions are evaluated when matches are enumerated."""
        return bool(self.relations or self.gaps)

    @property
    def most_matches(self) -> int | None:
        """An upper bound of the matches that end with one event; None if states repeat.

        Each transition reads one event, so a match is a path through the automaton.
        """
        rest = dict(enumerate(self.transitions))
        ways: dict[int, int] = {}
        while rest:
            ready = [state for state, row in rest.items() if all(t.target in ways for t in row)]
            if not ready:
                return None
            for state in ready:
                ways[state] = (self.final >> state & 1) + sum(ways[t.target] for t in rest.pop(state))
        return sum(ways[state] for state in range(len(self.transitions)) if self.initial >> state & 1)


@dataclass(slots=True)
class _Fragment:
    """A part under construction: the states before its first event and those after its last, and whether it may read no event."""

    initial: set[int]
    final: set[int]
    states: set[int]
    empty: bool = False


@dataclass(frozen=True, slots=True)
class _Reading:
    """A transition before the projection; it still has every variable. ``links``: hidden ones, of gaps, which events of NOT have, too."""

    source: int
    needs: int
    refuses: int
    labels: frozenset[str]
    target: int
    links: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Builder:
    tests: dict[Test, int] = field(default_factory=dict)
    readings: list[_Reading] = field(default_factory=list)
    empty: dict[int, set[int]] = field(default_factory=dict)
    relations: list[Relation] = field(default_factory=list)
    gaps: dict[Window, int] = field(default_factory=dict)
    count: int = 0

    def bit(self, test: Test) -> int:
        return 1 << self.tests.setdefault(test, len(self.tests))

    def state(self) -> int:
        self.count += 1
        return self.count - 1

    def link(self, sources: set[int], targets: set[int]) -> None:
        for source in sources:
            self.empty.setdefault(source, set()).update(targets)

    def wait(self) -> int:
        state = self.state()
        self.readings.append(_Reading(state, 0, 0, frozenset(), state))
        return state

    def part(self, formula: Formula) -> _Fragment:
        match formula:
            case Event(type=name, stream=stream):
                labels = {name} if stream is None else {name, label_of(name, stream)}
                return self.read(self.bit(TypeIs(name, stream)), 0, frozenset(labels))
            case Not(type=name, condition=condition):
                return self.read(0, self.bit(Excluded(name, condition)), frozenset())
            case As(inner=inner, name=name):
                return self.relabel(self.part(inner), name)
            case Plus(inner=inner):
                part = self.part(inner)
                self.chain(part, part, formula, part.states)
                return part
            case Then(left=left, right=right):
                return self.then(self.part(left), self.part(right), formula)
            case Times():
                return self.times(formula)
            case Or(left=left, right=right):
                first, second = self.part(left), self.part(right)
                initial, final = first.initial | second.initial, first.final | second.final
                return _Fragment(initial, final, first.states | second.states, first.empty or second.empty)
            case Filtered(inner=inner, filter=condition):
                return self.filtered(inner, condition)

    def read(self, needs: int, refuses: int, labels: frozenset[str]) -> _Fragment:
        source, target = self.state(), self.state()
        self.readings.append(_Reading(source, needs, refuses, labels, target))
        return _Fragment({source}, {target}, {source, target})

    def then(self, first: _Fragment, second: _Fragment, by: Then) -> _Fragment:
        states = first.states | second.states
        self.chain(first, second, by, states)
        # No transition stands for a part that is left out: it would also be taken in the middle of a match.
        initial = first.initial | second.initial if first.empty else first.initial
        final = first.final | second.final if second.empty else second.final
        return _Fragment(initial, final, states, first.empty and second.empty)

    def times(self, by: Times) -> _Fragment:
        """A copy for each time, each linked to the next, in the order of the pattern written out."""
        copies = max(by.least, 1) if by.most is None else by.most
        parts: list[_Fragment] = []
        states: set[int] = set()
        for _ in range(copies):
            part = self.part(by.inner)
            states |= part.states
            if parts:
                self.chain(parts[-1], part, by, states)
            parts.append(part)
        if by.most is None:
            self.chain(parts[-1], parts[-1], by, states)
        least = 0 if parts[0].empty else by.least  # if one can be empty, any number can; those that are not are the first
        final = set().union(*(part.final for part in parts[max(least, 1) - 1 :]))
        return _Fragment(parts[0].initial, final, states, least == 0)

    def chain(self, first: _Fragment, second: _Fragment, by: Plus | Times | Then, states: set[int]) -> None:
        """Let the one follow the other; ``states`` gets the states that this needs."""
        finals, initials = first.final, second.initial
        if by.gap is not None:
            nth = self.gaps.setdefault(by.gap, len(self.gaps))
            initials = self.entries(initials, gap_of(nth, 1), states)
            finals = self.exits(finals, gap_of(nth, 0))
        # The loop never sits on a state that reads events: it would let gaps into a contiguous repetition that follows.
        if by.contiguous:
            self.link(finals, initials)
        else:
            wait = self.wait()
            states.add(wait)
            self.link(finals, {wait})
            self.link({wait}, initials)

    def entries(self, initials: set[int], label: str, states: set[int]) -> set[int]:
        """Another way into a part, on which its first event gets a label."""
        other = {state: self.state() for state in sorted(initials)}
        for t in list(self.readings):
            if t.source in other:
                self.readings.append(replace(t, source=other[t.source], links=t.links | {label}))
        states.update(other.values())
        return set(other.values())

    def exits(self, finals: set[int], label: str) -> set[int]:
        """Another way out of a part, on which its last event gets a label."""
        other = {state: self.state() for state in sorted(finals)}
        for t in list(self.readings):
            if t.target in other:
                self.readings.append(replace(t, target=other[t.target], links=t.links | {label}))
        return set(other.values())

    def relabel(self, part: _Fragment, name: str) -> _Fragment:
        for index, t in enumerate(self.readings):
            if t.source in part.states and t.labels:
                self.readings[index] = replace(t, labels=t.labels | {name})
        return part

    def mark(self, part: _Fragment, label: str, also: str) -> None:
        """Give the events of a variable another label."""
        for index, t in enumerate(self.readings):
            if t.source in part.states and label in t.labels:
                self.readings[index] = replace(t, labels=t.labels | {also})

    def filtered(self, inner: Formula, condition: Filter) -> _Fragment:
        match condition:
            case AnyOf(left=left, right=right):  # the union of the two filtered sets, so two copies of the formula
                return self.part(Or(Filtered(inner, left), Filtered(inner, right)))
            case AllOf(left=left, right=right):
                return self.filtered(Filtered(inner, left), right)
            case Relation():
                part, nth = self.part(inner), len(self.relations)
                self.relations.append(condition)
                for which, (variable, stream) in enumerate(condition.variables):
                    self.mark(part, label_of(variable, stream), side_of(nth, which))
                return part
            case Bound(variable=variable, predicate=predicate, stream=stream):
                part = self.part(inner)
                label = label_of(variable, stream)
                bit = self.bit(predicate)
                for index, t in enumerate(self.readings):
                    if t.source in part.states and label in t.labels:
                        self.readings[index] = replace(t, needs=t.needs | bit)
                return part


def build(query: Query) -> Automaton:
    """The automaton of a query's formula. Only selected events are marked.

    Returns:
        An automaton in which every state lies on a path from the initial set to a final state.
    """
    builder = _Builder()
    part = builder.part(query.formula)
    closures = [_closure({state}, builder.empty) for state in range(builder.count)]
    final = {state for state in range(builder.count) if closures[state] & part.final}
    initial = _closure(part.initial, builder.empty)
    ahead: dict[int, set[int]] = {}
    back: dict[int, set[int]] = {}
    for t in builder.readings:
        for target in closures[t.target]:
            ahead.setdefault(t.source, set()).add(target)
            back.setdefault(target, set()).add(t.source)
    useful = _closure(initial, ahead) & _closure(final, back)
    number = {state: index for index, state in enumerate(sorted(useful))}
    sides = (side_of(nth, which) for nth, relation in enumerate(builder.relations) for which in range(len(relation.variables)))
    ends = (gap_of(nth, which) for nth in range(len(builder.gaps)) for which in (0, 1))
    variables = (*outputs(query), *sides, *ends, UNBOUND)
    for index, t in enumerate(builder.readings):
        if t.links:
            builder.readings[index] = replace(t, labels=t.labels | t.links | (frozenset() if t.labels else {UNBOUND}))
    kinds = _kinds(query.projection, variables, builder.readings)
    rows: list[dict[Transition, None]] = [{} for _ in useful]
    for t in builder.readings:
        choice = kinds[t.labels]
        for target in sorted(closures[t.target] & useful if t.source in useful else ()):
            rows[number[t.source]][Transition(t.needs, t.refuses, choice[0], number[target])] = None
    marks = tuple(dict(sorted(k for k in kinds.values() if k[0] != SKIP)).values())
    first = {number[state] for state in initial & useful}
    return Automaton(
        tests=tuple(builder.tests),
        transitions=tuple(tuple(row) for row in rows),
        kinds=marks,
        initial=_bits(first),
        final=_bits(number[state] for state in final & useful),
        relations=tuple(builder.relations),
        gaps=tuple(builder.gaps),
        spans=_spans(rows, marks, first, tuple(builder.gaps)),
    )


def _spans(
    rows: list[dict[Transition, None]], kinds: tuple[tuple[str, ...], ...], first: set[int], gaps: tuple[Window, ...]
) -> tuple[int, ...]:
    """See `Automaton.spans`: of states that only a first event before a gap leads to, and skips from such states."""
    spans = [-1] * len(rows)
    if not gaps:
        return tuple(spans)
    into: list[list[tuple[int, Transition]]] = [[] for _ in rows]
    for source, row in enumerate(rows):
        for t in row:
            into[t.target].append((source, t))
    begins = {state for state in first if not into[state]}
    alone = left = set(range(len(rows))) - first

    def longest(t: Transition) -> int:
        return max((int(gap.size) for nth, gap in enumerate(gaps) if gap_of(nth, 0) in kinds[t.choice - 1]), default=-1)

    def leads(source: int, t: Transition) -> bool:
        return source in alone if t.choice == SKIP else source in begins and longest(t) >= 0

    while left:  # those that something else leads to
        left = {state for state in alone if not all(leads(*way) for way in into[state])}
        alone = alone - left
    skips = {source: {t.target for t in row if t.choice == SKIP} for source, row in enumerate(rows)}
    for state in alone:
        span = max((longest(t) for _, t in into[state] if t.choice != SKIP), default=-1)
        for reached in _closure({state}, skips):
            spans[reached] = max(spans[reached], span)
    return tuple(spans)


def outputs(query: Query) -> tuple[str, ...]:
    """The variables with a column of their own: the selected ones, or every AS-name of ``SELECT *``, in order of appearance."""
    if isinstance(query.projection, Chosen):
        return tuple(dict.fromkeys(label_of(item.variable, item.stream) for item in query.projection.items))
    if isinstance(query.projection, Everything):
        return tuple(dict.fromkeys(_names(query.formula)))
    return ()


def _names(formula: Formula) -> Iterator[str]:
    match formula:
        case As(inner=inner, name=name):
            yield from _names(inner)
            yield name
        case Plus(inner=inner) | Times(inner=inner) | Filtered(inner=inner):
            yield from _names(inner)
        case Then(left=left, right=right) | Or(left=left, right=right):
            yield from _names(left)
            yield from _names(right)


def _kinds(
    projection: Projection, variables: tuple[str, ...], readings: list[_Reading]
) -> dict[frozenset[str], tuple[int, tuple[str, ...]]]:
    """For each set of labels: a number (``SKIP`` or a kind), and the variables bound."""
    marks: dict[frozenset[str], tuple[int, ...]] = {}
    for labels in {t.labels for t in readings}:
        bound = tuple(index for index, name in enumerate(variables) if name in labels)
        if labels and (bound or isinstance(projection, Everything | CountAll)):
            marks[labels] = bound
    order = {bound: index + 1 for index, bound in enumerate(sorted(set(marks.values())))}
    return {
        labels: (order[marks[labels]], tuple(variables[i] for i in marks[labels])) if labels in marks else (SKIP, ())
        for labels in {t.labels for t in readings}
    }


def gap_of(nth: int, which: int) -> str:
    """The hidden variable of the events before (0) and after (1) the nth gap; every gap that is passed has one of each."""
    return f"{SIDE}_gap{nth}.{which}"


def side_of(nth: int, which: int) -> str:
    """The hidden variable of the events of one of the variables that the nth condition between events compares, see `Relation.variables`."""
    return f"{SIDE}{nth}.{which}"


def label_of(variable: str, stream: str | None) -> str:
    """The name of a variable in transitions."""
    return variable if stream is None else f"{stream}>{variable}"


def _closure(states: Iterable[int], edges: dict[int, set[int]]) -> set[int]:
    found = set(states)
    todo = list(found)
    while todo:
        for target in edges.get(todo.pop(), ()):
            if target not in found:
                found.add(target)
                todo.append(target)
    return found


def _bits(states: Iterable[int]) -> int:
    total = 0
    for state in states:
        total |= 1 << state
    return total
