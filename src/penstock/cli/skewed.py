"""``penstock skew``: how evenly the keys of files would be spread over workers, by each distribution strategy."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.inputs import check_beginnings, format_of, found_files, local
from penstock.cli.misuse import as_typed
from penstock.errors import DeclarationError
from penstock.sql_text.schema import unknown_column

if TYPE_CHECKING:
    from penstock.routing.skew import Skew
    from penstock.routing.strategy import Hashes

_BAR: Final = 40


def skew(
    files: Annotated[list[str], typer.Argument(help="CSV with a header, JSON lines or Parquet; folders and patterns too.")],
    key: Annotated[list[str], typer.Option("--key", help="The key column; again for keys of several columns.")],
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")],
    senders: Annotated[int, typer.Option(min=1, help="Partitions of the source, to which the rows are dealt in turn.")] = 1,
    kind: Annotated[str | None, typer.Option("--format", help="csv, json or parquet, where the names do not say.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, one for each strategy.")] = False,
) -> None:
    """Show how evenly keys would be spread over workers by each strategy. Flows of this version use KeyGrouping()."""
    from penstock.routing.skew import MOST, advice, measure

    with as_typed():
        there = found_files([local(name) for name in files])
        kind = format_of(there, kind)
        check_beginnings(there, kind)
        hashes = _hashes(there, kind, key)
    found = measure(hashes, workers, senders)
    if as_json:
        for one in found:
            print(json.dumps({**one.figures(), "loads": one.loads.tolist()}))
    else:
        _print(found, len(hashes))
        print(advice(found))
    if len(hashes) == MOST:
        print(f"The first {MOST:,} rows were looked at.", file=sys.stderr)


def _hashes(files: list[str], kind: str, keys: list[str]) -> Hashes:
    """The hashes of the files' keys, in the order of the files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.dataset as ds

    from penstock.routing.route import hashes_of
    from penstock.routing.skew import MOST

    dataset: Any = ds.dataset  # its types leave out json
    try:
        rows = dataset(files, format=kind)
        for name in keys:
            if name not in rows.schema.names:
                raise unknown_column(name, rows.schema.names, "--key")
        parts, count = [], 0
        for batch in rows.to_batches(columns=keys):
            parts.append(hashes_of(batch)[: MOST - count])
            count += len(parts[-1])
            if count == MOST:
                break
    except (pa.ArrowException, OSError) as error:
        raise DeclarationError(f"These files cannot be read as {kind}: {error}.") from error
    return np.concatenate([*parts, np.empty(0, np.int64)])


def _print(found: list[Skew], rows: int) -> None:
    """A row for each strategy, and the load of each worker by key."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("strategy", "busiest / mean", "copies per key", "moved", "for", title=f"{rows:,} rows", title_justify="left")
    for one in found:
        busiest = one.loads.max() / one.loads.mean() if rows else 1.0
        figures = f"{busiest:.2f}", f"{one.copies_per_key:.2f}", f"{one.moved_between_epochs:.0%}"
        table.add_row(one.name, *figures, one.strategy.fits)
    console.print(table)
    loads = found[0].loads
    for worker, load in enumerate(loads.tolist()):
        console.print(
            f"worker {worker:>3}  {'█' * round(_BAR * load / max(loads.max(), 1)):<{_BAR}}  {load:,}", highlight=False
        )
