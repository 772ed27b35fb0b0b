"""Finds the record that an expression failed on, by conditions on which divisions and casts fail, and one more attempt."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from penstock.flow import plan as p
from penstock.types import OFFSET, PART

Rows = Callable[[p.SourceNode], DataFrame | None]
Apply = Callable[[p.StepNode, list[DataFrame]], DataFrame]


def fragment_of(text: str) -> str:
    """The part of an expression that an error of Spark underlines; empty: none."""
    shown = re.search(r"^== SQL.*==\n(.*)\n( *)(\^+)\s*$", text, re.MULTILINE)
    return shown[1][len(shown[2]) : len(shown[2]) + len(shown[3])] if shown else ""


def suspects(fragment: str) -> str | None:
    """SQL that is true of the records a division, a remainder or a cast cannot be computed of; None: it is something else.

    Example:
        >>> suspects("10 / (v - 1)")
        '(v - 1) = 0'
        >>> suspects("cast(k as int)")
        '(k) is not null and try_cast(k as INT) is null'
    """
    import sqlglot
    from sqlglot import exp

    try:
        parsed: Any = sqlglot.parse_one(f"SELECT {fragment}", dialect="spark").expressions[0]
    except Exception:  # noqa: BLE001  (the parser's own, of many kinds)
        return None
    if isinstance(parsed, exp.Div | exp.IntDiv | exp.Mod):
        divisor = parsed.expression.sql("spark")
        return f"{divisor if divisor.startswith('(') else f'({divisor})'} = 0"
    if isinstance(parsed, exp.Cast):
        given, kind = parsed.this.sql("spark"), parsed.to.sql("spark")
        return f"({given}) is not null and try_cast({given} as {kind}) is null"
    return None


def failing_record(node: p.StepNode, text: str, rows: Rows, apply: Apply) -> tuple[int, int] | None:
    """Source partition and offset of the first record that a step fails on; None: it was not found.

    Args:
        node: The step.
        text: What Spark said of it.
        rows: Gives a source's records with hidden columns; None: they cannot be read again.
        apply: Makes a step's rows of those before it.
    """
    wanted = suspects(fragment_of(text))
    try:
        before = _before(node, rows, apply) if wanted else None
        if before is None or wanted is None:
            return None
        found = before.where(wanted).select(PART, OFFSET).orderBy(PART, OFFSET).limit(1).collect()
        if not found:
            return None
        part, offset = found[0]
        alone = before.where(f"{PART} = {part}L and {OFFSET} = {offset}L")
    except Exception:  # noqa: BLE001  (what failed is told without the record then)
        return None
    try:
        apply(node, [alone]).write.format("noop").mode("append").save()
    except Exception:  # noqa: BLE001  (as expected)
        return part, offset
    return None


def _before(node: p.StepNode, rows: Rows, apply: Apply) -> DataFrame | None:
    """The rows that a step reads, if they come from a source by steps in SQL alone."""
    before = node.inputs[0]
    if len(node.inputs) > 1 or not p.by_sql(before):
        return None
    if isinstance(before, p.SourceNode):
        return rows(before)
    assert isinstance(before, p.StepNode)
    frame = _before(before, rows, apply)
    return None if frame is None else apply(before, [frame])


__all__ = ["failing_record", "fragment_of", "suspects"]
