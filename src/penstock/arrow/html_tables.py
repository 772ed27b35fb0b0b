"""Tables as HTML, for notebooks. Every text in them is escaped, as names and values are the user's.

Read next: `penstock.flow.picture`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from penstock.arrow.columns import values_of, within_calendar

SHOWN_ROWS: Final = 20
_SHOWN_TEXT: Final = 200


def escaped(value: object) -> str:
    """A value as text that means itself in HTML, cut off where it is very long.

    Example:
        >>> escaped("<b>")
        '&lt;b&gt;'
    """
    text = str(value)
    return html.escape(text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}…")


def html_table(titles: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table; empty if there are no rows.

    Args:
        titles: Of the columns.
        rows: A value for each column; None is shown as null.
        caption: Above it.
    """
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    if not body:
        return ""
    head = "".join(f"<th>{escaped(title)}</th>" for title in titles)
    above = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def rows_table(table: pa.Table, caption: str) -> str:
    """The last rows of an Arrow table, and how many there are."""
    last = table.slice(max(0, table.num_rows - SHOWN_ROWS))
    of = f", the last {SHOWN_ROWS}" if table.num_rows > SHOWN_ROWS else ""
    columns = [values_of(within_calendar(column)) for column in last.columns]
    shown = html_table(table.column_names, zip(*columns, strict=True))
    return f"<div>{escaped(caption)}: {table.num_rows:,} row{'s' * (table.num_rows != 1)}{of}</div>{shown}"


def _cell(value: object) -> str:
    if value is None:
        return "<td><i>null</i></td>"
    aligned = ' style="text-align:right"' if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
    text = f"{value:,}" if aligned and isinstance(value, int) else value
    return f"<td{aligned}>{escaped(text)}</td>"


__all__ = ["SHOWN_ROWS", "escaped", "html_table", "rows_table"]
