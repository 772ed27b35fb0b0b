"""What users write as aggregates, as kernels: ``penstock.sum("delay")``, and Spark's spelling ``F.sum("delay")`` or ``"sum(delay)"``.

Read next: `penstock.flow.keyed`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import DeclarationError
from penstock.operators.aggregates import (
    approx_count_distinct,
    collect,
    count,
    count_distinct,
    first,
    last,
    max,  # noqa: A004  (the name is Spark's)
    mean,
    min,  # noqa: A004
    spelled,
    stddev,
    sum,  # noqa: A004
)
from penstock.operators.aggregates.base import Kernel
from penstock.sql_text.given import as_expression, is_column, spelled_in, without_name

if TYPE_CHECKING:
    from penstock.flow.keyed import KeyedStream

_BY_NAME: Final[dict[str, Callable[..., Kernel]]] = {
    "avg": mean,
    "mean": mean,
    "sum": sum,
    "min": min,
    "max": max,
    "stddev": stddev,
    "stddev_samp": stddev,
    "std": stddev,
    "first": first,
    "first_value": first,
    "last": last,
    "last_value": last,
    "collect_list": collect,
    "array_agg": collect,
}
_SHOWN: Final = "count, count_distinct, approx_count_distinct, sum, avg, min, max, stddev, first, last and collect_list"


def named_aggregates(given: Iterable[Any], aggregates: Mapping[str, Any]) -> dict[str, Kernel]:
    """Aggregates by the name of their column: given without a name of their own, such as ``F.count("*").alias("n")``, and by name.

    Raises:
        DeclarationError: One has no name, or is no aggregate.
    """
    found: dict[str, Kernel] = {}
    for one in given:
        name = _name_of(one)
        if not name:
            kernel = kernel_of(one, "without a name")
            column = kernel.column if kernel.column and kernel.column.isidentifier() else "n"
            raise DeclarationError(
                f"aggregate needs a name for each aggregate, but {spelled(kernel)} has none; write {column}={spelled(kernel)}."
            )
        if name in found or name in aggregates:
            raise DeclarationError(f"aggregate has two aggregates named {name!r}; rename one.")
        found[name] = kernel_of(one, name)
    return found | {name: kernel_of(one, name) for name, one in aggregates.items()}


def _name_of(given: Any) -> str:
    if isinstance(given, str) or is_column(given):
        return without_name(as_expression(given, "An aggregate"))[1]
    return ""


def kernel_of(given: Any, name: str) -> Kernel:
    """An aggregate as a kernel.

    Args:
        given: A kernel; or a Column or SQL text that calls an aggregate function of Spark's.
        name: The output column, for the error.

    Raises:
        DeclarationError: It is none, or one that penstock does not have.
    """
    if isinstance(given, Kernel):
        return given
    if isinstance(given, str) or is_column(given):
        sql, _ = without_name(as_expression(given, f"Aggregate {name!r}"))
        found = _parsed(sql)
        if found is not None:
            return found
        raise DeclarationError(
            f"Aggregate {name!r} is {sql!r}, which is none that penstock has; there are {_SHOWN}, of one column or expression, and "
            "penstock.Aggregate to write one of your own."
        )
    raise DeclarationError(f"Aggregate {name!r} is {given!r}; use penstock.count(), penstock.sum('column') and so on.")


def _parsed(sql: str) -> Kernel | None:
    """The kernel that a call of an aggregate function means; None: it is no such call."""
    import sqlglot  # noqa: PLC0415
    from sqlglot import exp  # noqa: PLC0415

    try:
        parsed: Any = sqlglot.parse_one(f"SELECT {sql}", dialect="spark").expressions[0]
    except Exception:  # noqa: BLE001  (the parser's own, of many kinds; the caller says that it is none)
        return None
    if not isinstance(parsed, exp.Func):
        return None
    name, _, _ = sql.partition("(")
    name, inner, further = name.strip().lower(), parsed.this, [a for k, a in parsed.args.items() if k != "this" and a]
    if isinstance(parsed, exp.Anonymous):
        inner, further = (parsed.expressions[0] if parsed.expressions else None), parsed.expressions[1:]
    if name == "count":
        if parsed.expressions:
            return None
        if isinstance(inner, exp.Distinct):
            return count_distinct(_operand(inner.expressions[0])) if len(inner.expressions) == 1 else None
        return count() if inner is None or isinstance(inner, (exp.Star, exp.Literal)) else count(_operand(inner))
    if name == "approx_count_distinct":
        error = parsed.args.get("accuracy")
        return approx_count_distinct(_operand(inner), *([] if error is None else [float(error.name or error.this.name)]))
    if name not in _BY_NAME or inner is None or further or isinstance(inner, (exp.Distinct, exp.Star)):
        return None
    return _BY_NAME[name](_operand(inner))


def _operand(parsed: Any) -> str:
    from sqlglot import exp  # noqa: PLC0415

    plain = isinstance(parsed, exp.Column) and len(parsed.parts) == 1
    return str(parsed.name if plain else parsed.sql("spark"))


def with_operands(stream: KeyedStream, aggregates: Mapping[str, Kernel]) -> tuple[KeyedStream, dict[str, Kernel]]:
    """A stream in which each aggregate finds what it reads as a column: its column as it is spelled there, or an expression as a new one.

    Raises:
        DeclarationError: One reads an expression, and a stateful step stands between ``key_by`` and the aggregate.
    """
    found: dict[str, Kernel] = {}
    for output, kernel in aggregates.items():
        column = kernel.column
        if column is None or column in stream.schema.names:
            found[output] = kernel
            continue
        there = spelled_in(column, stream.schema.names)
        if there is None and not column.isidentifier() and (computed := stream._computed(column, output)) is not None:
            stream, there = computed, column
        found[output] = kernel if there is None else _reading(kernel, there)
    return stream, found


def _reading(kernel: Kernel, column: str) -> Kernel:
    """The same aggregate of another column."""
    other = copy.copy(kernel)
    object.__setattr__(other, "column", column)
    return other


__all__ = ["kernel_of", "named_aggregates", "with_operands"]
