"""The aggregate functions: what users write in ``.aggregate(n=ps.count(), mean_delay=ps.mean("delay"))``.

Each function returns a frozen, picklable declaration; `Aggregate` is the base class of users' own. Every aggregate is mergeable
state in columns, so neither order nor grouping of rows changes a result, with one exception: float sums, means and standard
deviations may differ in the last bits unless ``exact=True``. Nulls are ignored except where noted.

Read next: `penstock.operators.aggregates.base`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.operators.aggregates.base import Bound, Columns, Kernel, output_field
from penstock.operators.aggregates.basic import Count, Mean, Stddev, Sum
from penstock.operators.aggregates.ordered import Collect, Edge, Extreme
from penstock.operators.aggregates.sets import CountDistinct
from penstock.operators.aggregates.sketches import ApproxCountDistinct, Quantile
from penstock.operators.aggregates.user import Aggregate
from penstock.sql_text.given import as_operand
from penstock.sql_text.schema import as_float

if TYPE_CHECKING:
    from penstock.sql_text.given import Expression

__all__ = [
    "Aggregate",
    "Bound",
    "Columns",
    "Kernel",
    "approx_count_distinct",
    "avg",
    "collect",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "output_field",
    "quantile",
    "spelled",
    "stddev",
    "sum",
]


def spelled(kernel: Kernel) -> str:
    """An aggregate's declaration, for messages.

    Example:
        >>> spelled(max("v"))
        "penstock.max('v')"
    """
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(kernel).__name__).lower()
    if isinstance(kernel, Extreme):
        name = "max" if kernel.greatest else "min"
    elif isinstance(kernel, Edge):
        name = "last" if kernel.last else "first"
    columns = "" if kernel.column is None else repr(kernel.column)
    if isinstance(kernel, Aggregate):
        return f"{type(kernel).__name__}({columns})"
    return f"penstock.{name}({columns}{', …' if isinstance(kernel, Quantile) else ''})"


def count(column: Expression | None = None) -> Kernel:
    """Number of rows (``count()``, ``count("*")``), or of values of a column that are not null (int64).

    Example:
        >>> by_day.aggregate(flights=count(), with_delay=count("delay")).schema.field("with_delay").type
        DataType(int64)
    """
    read = "*" if column is None else as_operand(column, "The column of count")
    return Count(None if read in ("*", "1") else read)


def sum(column: Expression, exact: bool = False) -> Kernel:  # noqa: A001  (the name is Spark's, and always used as ps.sum)
    """Sum of a number column; null for no value.

    Args:
        column: Integers (result int64), decimals (decimal with ten more digits, at most 38) or floats (float64).
        exact: Round the sum of floats once, as ``math.fsum``, so that it does not depend on the order. Slower; integers and
            decimals are always exact.

    Returns:
        The declaration. Integers and decimals are added exactly, so only the result must fit its type. The result of a window
        or session that does not fit is a StateError that names the key; a running value is null until it fits again.

    Example:
        >>> by_day.aggregate(minutes=sum("delay", exact=True)).schema.field("minutes").type
        DataType(double)
    """
    return Sum(as_operand(column, "The column of sum"), exact)


def mean(column: Expression, exact: bool = False) -> Kernel:
    """Mean of a number column, float64 or decimal with four more digits (at most 38 in all); null for no value.

    Args:
        column: Integers, decimals or floats.
        exact: As for `sum`: the correctly rounded sum divided by the number of values.

    Example:
        >>> by_day.aggregate(mean_delay=mean("delay")).schema.field("mean_delay").type
        DataType(double)
    """
    return Mean(as_operand(column, "The column of mean"), exact)


def avg(column: Expression, exact: bool = False) -> Kernel:
    """As `mean`.

    Example:
        >>> avg("delay") == mean("delay")
        True
    """
    return mean(column, exact)


def min(column: Expression) -> Kernel:  # noqa: A001  (as sum)
    """Least value of a column; null for no value. NaN is greater than every number, −0.0 is 0.0.

    Example:
        >>> by_day.aggregate(first_flight=min("at")).schema.field("first_flight").type
        TimestampType(timestamp[us, tz=UTC])
    """
    return Extreme(as_operand(column, "The column of min"), greatest=False)


def max(column: Expression) -> Kernel:  # noqa: A001  (as sum)
    """Greatest value of a column; null for no value. NaN is greater than every number, −0.0 is 0.0.

    Example:
        >>> by_day.aggregate(worst=max("delay")).schema.field("worst").type
        DataType(double)
    """
    return Extreme(as_operand(column, "The column of max"), greatest=True)


def stddev(column: Expression) -> Kernel:
    """Standard deviation of a sample (divisor n − 1) as float64; null for fewer than two values.

    Example:
        >>> by_day.aggregate(spread=stddev("delay")).schema.field("spread").type
        DataType(double)
    """
    return Stddev(as_operand(column, "The column of stddev"))


def first(column: Expression) -> Kernel:
    """Value of the first record by (time, partition, offset); null if that record's value is null.

    Example:
        >>> by_day.aggregate(first_plane=first("tail")).schema.field("first_plane").type
        DataType(string)
    """
    return Edge(as_operand(column, "The column of first"), last=False)


def last(column: Expression) -> Kernel:
    """Value of the last record by (time, partition, offset); null if that record's value is null.

    Example:
        >>> by_day.aggregate(last_plane=last("tail")).schema.field("last_plane").type
        DataType(string)
    """
    return Edge(as_operand(column, "The column of last"), last=True)


def collect(column: Expression) -> Kernel:
    """List of the values that are not null, in the order of their records; empty for none. Its state grows with the values.

    Example:
        >>> by_day.aggregate(planes=collect("tail")).schema.field("planes").type
        ListType(list<item: string>)
    """
    return Collect(as_operand(column, "The column of collect"))


def count_distinct(column: Expression) -> Kernel:
    """Exact number of distinct values that are not null (int64). Its state grows with that number.

    Example:
        >>> by_day.aggregate(planes=count_distinct("tail")).schema.field("planes").type
        DataType(int64)
    """
    return CountDistinct(as_operand(column, "The column of count_distinct"))


def approx_count_distinct(column: Expression, relative_error: float = 0.02) -> Kernel:
    """Approximate number of distinct values that are not null (int64), in bounded space.

    Args:
        column: Any type that Spark's ``xxhash64`` takes, except lists, maps and structs.
        relative_error: Standard error of the estimate, 0.0041 to 0.26. A state takes up to about (1.04 / error)² bytes, at most
            twice that.

    Raises:
        DeclarationError: The error is out of bounds. Nothing was changed.

    Example:
        >>> by_day.aggregate(planes=approx_count_distinct("tail", relative_error=0.05)).schema.field("planes").type
        DataType(int64)
    """
    return ApproxCountDistinct(
        as_operand(column, "The column of approx_count_distinct"), as_float(relative_error, "relative_error")
    )


def quantile(column: Expression, q: float, relative_error: float = 0.01) -> Kernel:
    """Approximate quantile of a number column as float64; null for no value.

    Args:
        column: Integers, decimals or floats.
        q: Which quantile, 0 to 1; the value at rank floor(q · (n − 1)) of the n sorted values is approximated.
        relative_error: Greatest distance from that value, as a fraction of it; 0.000001 to 0.5.

    Raises:
        DeclarationError: An argument is out of bounds. Nothing was changed.

    Example:
        >>> by_day.aggregate(p99=quantile("delay", 0.99)).schema.field("p99").type
        DataType(double)
    """
    return Quantile(as_operand(column, "The column of quantile"), as_float(q, "q"), as_float(relative_error, "relative_error"))
