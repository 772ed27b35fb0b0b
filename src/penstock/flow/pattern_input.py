"""What a pattern of a flow reads: which rows are of which stream, and the column with their times.

Read next: `penstock.flow.keyed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.flow import plan as p
from penstock.types import PART, PART_BITS, PART_MASK

if TYPE_CHECKING:
    from penstock.patterns.algebra import Query


def conditions_of_streams(query: Query, read: p.Node, sources: Sequence[p.SourceNode]) -> dict[str, str]:
    """Where several sources come together: the condition for a row to come from each, by name. Empty: it is one stream.

    Args:
        query: The query.
        read: What the region reads.
        sources: The flow's sources, in their order.

    Raises:
        QueryError: The query tells streams apart, and rows of a region are among those read.
    """
    from penstock.patterns.source_locations import error_in  # noqa: PLC0415  (numba takes half a second to load)
    from penstock.patterns.streams import streams_named  # noqa: PLC0415

    roots = p.roots(read)
    if len(roots) < 2:
        return {}
    named = streams_named(query)
    for root in roots if named else ():
        if isinstance(root, p.RegionOutput):
            raise error_in(
                query.text,
                named[0],
                f"the query reads stream {named[0]!r}, but here rows of region {root.region.name!r} come in with others, and they are of "
                "no source; leave FROM and streams before types out, and tell the rows apart by type.",
            )
    first = {source.name: number << PART_BITS for number, source in enumerate(sources) if source in roots}
    return {name: f"{PART} BETWEEN {at} AND {at + PART_MASK}" for name, at in first.items()}


def time_column(read: p.Node) -> str:
    """The column with the event time of what a region reads: that of the source, if it is still there under its name.

    Raises:
        DeclarationError: There is none, or there are several.
    """
    names = {n.time for n in p.upstream_of(p.SourceNode, read)}
    found = [name for name in names if name is not None and name in read.schema.names]
    if len(names) != 1 or not found:
        raise DeclarationError(
            "match shows the times of its events and needs one column that holds them; keep the source's time column "
            f"({', '.join(sorted(str(name) for name in names))}) under its name."
        )
    return found[0]
