"""Names of a flow's stateless steps, and which of them a piece of SQL stands in: for messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.flow import plan as p
from penstock.sql_text.schema import quoted
from penstock.types import HIDDEN


def steps_with(plan: p.Plan, sql: str) -> list[tuple[p.StepNode, str]]:
    """The steps that a piece of SQL, as the engine shows it in an error, stands in, with their text; none if it is not the user's."""
    wanted = _plain(sql)

    def holds(name: str, given: str) -> bool:
        return not name.startswith(HIDDEN) and wanted in (_plain(given), _plain(f"{given} as {quoted(name)}"))

    return _steps(plan, holds)


def numbered(name: str, taken: Iterable[str]) -> str:
    """A name beside others: the second of one name has a number.

    Example:
        >>> numbered("lookup(k)", ["lookup(k)", "lookup(k)-2", "lookup(j)"])
        'lookup(k)-3'
    """
    nth = sum(known == name or known.startswith(f"{name}-") for known in taken)
    return f"{name}-{nth + 1}" if nth else name


def steps_calling(plan: p.Plan, function: str) -> list[tuple[p.StepNode, str]]:
    """The steps whose SQL calls a function."""
    return _steps(plan, lambda _, given: function in given.lower())


def _steps(plan: p.Plan, holds: Callable[[str, str], bool]) -> list[tuple[p.StepNode, str]]:
    """The steps in SQL of whose expressions one holds; its name is that of its column, or empty."""
    found: dict[int, tuple[p.StepNode, str]] = {}
    for node in p.upstream_of(p.StepNode, *p.readers(plan.regions, plan.outputs)):
        sql = node.sql
        for name, given in () if sql is None else (("", sql.where), *(sql.columns or ())):
            if given and holds(name, given):
                found[id(node)] = node, node.step.describe(name or None)
    return list(found.values())


def _plain(sql: str) -> str:
    return " ".join(sql.split()).lower()


def output_name(node: p.Node) -> str:
    """The name of an output that is given none, made from its stream."""
    if isinstance(node, p.AsideNode):
        return f"{node.source.name}.{node.kind}"
    if isinstance(node, p.RegionOutput):
        if node.operator < 0:
            return node.region.name
        return f"{node.region.name}.{node.region.step_name(node.operator)}{'.errors' * node.errors}"
    if isinstance(node, p.SourceNode):
        return node.name
    before = p.inputs_of(node)
    return output_name(before[0]) if before else "output"


__all__ = ["numbered", "output_name", "steps_calling", "steps_with"]
