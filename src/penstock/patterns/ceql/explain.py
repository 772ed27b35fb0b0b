"""A query's automaton as text."""

from __future__ import annotations

from penstock.patterns.algebra import name_text, variable_text
from penstock.patterns.automaton.build import SKIP, Automaton, Excluded, Test, Transition, TypeIs, build
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
    return "\n".join(lines)


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
        bound = automaton.kinds[t.choice - 1]
        does = "mark" + (f" [{', '.join(bound)}]" if bound else "")
    tests = [f"t{i}" for i in range(len(automaton.tests)) if t.needs >> i & 1]
    tests += [f"not t{i}" for i in range(len(automaton.tests)) if t.refuses >> i & 1]
    return f"{does} {'if ' + ' and '.join(tests) if tests else 'any event'} -> {t.target}"
