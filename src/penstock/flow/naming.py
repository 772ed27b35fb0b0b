"""Steps without a name, as people wrote them: for messages."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.flow import plan as p
from penstock.sql_text.schema import quoted

_SHOWN = 200


def step_text(node: p.Node, column: str | None = None) -> str:
    """A stateless step as it was declared.

    Args:
        node: The step.
        column: Of a step that gives columns the one that is meant; None: all.

    Example:
        >>> step_text(p.Where(None, False, None, "v > 1"))
        "where('v > 1')"
    """
    if isinstance(node, p.Where):
        return f"where({_shown(node.condition)})"
    if isinstance(node, p.Select):
        new = [(name, sql) for name, sql in node.columns if sql != quoted(name)]
        before = set(node.input.schema.names) if node.input is not None else set()
        kept = before <= {name for name, _ in node.columns}
        chosen = [(name, sql) for name, sql in new if column in (None, name)]
        inside = ", ".join(f"{name}={_shown(sql)}" for name, sql in chosen)
        return f"{'with_columns' if kept and new else 'select'}({inside or ', '.join(node.schema.names)})"
    if isinstance(node, p.Transform):
        return f"transform({getattr(node.fn, '__name__', 'fn')})"
    if isinstance(node, p.MapBatches):
        return f"map_batches({getattr(node.fn, '__name__', 'fn')})"
    return type(node).__name__.lower()


def steps_with(plan: p.Plan, sql: str) -> list[tuple[p.Node, str]]:
    """The steps that a piece of SQL, as the engine shows it in an error, stands in, with their text; none if it is not the user's."""
    wanted = _plain(sql)
    found: dict[int, tuple[p.Node, str]] = {}
    for node in _nodes(plan):
        if isinstance(node, p.Where) and _plain(node.condition) == wanted:
            found[id(node)] = node, step_text(node)
        elif isinstance(node, p.Select):
            for name, given in node.columns:
                if not name.startswith("__ps_") and wanted in (_plain(given), _plain(f"{given} as {quoted(name)}")):
                    found[id(node)] = node, step_text(node, name)
    return list(found.values())


def steps_calling(plan: p.Plan, function: str) -> list[tuple[p.Node, str]]:
    """The steps whose SQL calls a function."""
    found: dict[int, tuple[p.Node, str]] = {}
    for node in _nodes(plan):
        if isinstance(node, p.Where) and function in node.condition.lower():
            found[id(node)] = node, step_text(node)
        elif isinstance(node, p.Select):
            for name, given in node.columns:
                if function in given.lower():
                    found[id(node)] = node, step_text(node, name)
    return list(found.values())


def _nodes(plan: p.Plan) -> Iterator[p.Node]:
    seen: set[int] = set()
    for end in p.readers(plan.regions, plan.outputs):
        for node in p.upstream(end):
            if id(node) not in seen:
                seen.add(id(node))
                yield node


def _plain(sql: str) -> str:
    return " ".join(sql.split()).lower()


def _shown(sql: str) -> str:
    text = " ".join(sql.split())
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


__all__ = ["step_text", "steps_calling", "steps_with"]
