"""A query's automaton as text."""

from __future__ import annotations

from penstock.patterns.algebra import Of, Relation, Window, gap_text, name_text, variable_text
from penstock.patterns.automaton.build import SIDE, SKIP, Automaton, Excluded, Test, Transition, TypeIs, build
from penstock.patterns.ceql.parsing import parse


def explain(query: str) -> str:
    """What a query is compiled to: its tests and its automaton.

    Args:
        query: CEQL text.

    Returns:
        One line per test, state and transition. ``mark`` binds the event to the output variables in brackets, ``skip`` passes over it;
        ``any event`` is a wait.

    Raises:
        QueryError: The query is wrong.

    Example:
        >>> print(explain("SELECT * WHERE A ; B"))
        query: SELECT * WHERE (A ; B)
        tests:
          t0: type is A
          t1: type is B
        states: 4, a match begins in 0
          0: mark if t0 -> 1; mark if t0 -> 3
          1: mark if t1 -> 2
          2: a match ends
          3: skip any event -> 1; skip any event -> 3
    """
    parsed = parse(query)
    automaton = build(parsed)
    lines = [f"query: {parsed}", "tests:"]
    lines += [f"  t{i}: {_test(test)}" for i, test in enumerate(automaton.tests)]
    begins = " and ".join(str(state) for state in range(len(automaton.transitions)) if automaton.initial >> state & 1)
    lines.append(f"states: {len(automaton.transitions)}, a match begins in {begins}")
    for state, transitions in enumerate(automaton.transitions):
        parts = [_transition(automaton, t) for t in sorted(transitions, key=lambda t: (t.target, t.choice))]
        if automaton.final >> state & 1:
            parts.insert(0, "a match ends")
        lines.append(f"  {state}: {'; '.join(parts)}")
    for relation in automaton.relations:
        lines.append(f"when enumerated, for each candidate: {relation}{_hint(relation)}")
    lines += [f"when enumerated, for each candidate: neighbours {gap_text(gap)}" for gap in automaton.gaps]
    if parsed.window is None or parsed.window.kind == "time":
        lines += [
            f"when recognised, in {state}: a run ends {gap_text(Window('time', span))} of its first event"
            for state, span in enumerate(automaton.spans)
            if span >= 0
        ]
    return "\n".join(lines)


def _hint(relation: Relation) -> str:
    """Advice: what is equal in all events can be the key, which costs nothing."""
    left, right = relation.left, relation.right
    if relation.op != "=" or not isinstance(left, Of) or not isinstance(right, Of) or left.attribute != right.attribute:
        return ""
    if len(relation.variables) == 1:
        return ""
    return (
        f"; if it is so for all events of a match, PARTITION BY [{name_text(left.attribute)}] (in a flow, key_by) costs nothing"
    )


def _test(test: Test) -> str:
    match test:
        case TypeIs(type=name, stream=stream):
            return f"type is {variable_text(name, stream)}"
        case Excluded(type=name, condition=condition):
            return f"type is {name_text(name)}" + ("" if condition is None else f" and {condition}")
        case _:
            return str(test)


def _transition(automaton: Automaton, t: Transition) -> str:
    if t.choice == SKIP:
        does = "skip"
    else:
        bound = [name for name in automaton.kinds[t.choice - 1] if not name.startswith(SIDE)]
        does = "mark" + (f" [{', '.join(bound)}]" if bound else "")
    tests = [f"t{i}" for i in range(len(automaton.tests)) if t.needs >> i & 1]
    tests += [f"not t{i}" for i in range(len(automaton.tests)) if t.refuses >> i & 1]
    return f"{does} {'if ' + ' and '.join(tests) if tests else 'any event'} -> {t.target}"
