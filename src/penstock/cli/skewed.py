"""``penstock skew``: how evenly the keys of files would be spread over workers, by each distribution strategy."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.inputs import check_beginnings, format_of, found_files, local
from penstock.cli.misuse import as_typed
from penstock.errors import DeclarationError, MissingToolError
from penstock.sql_text.schema import unknown_column

if TYPE_CHECKING:
    from penstock.routing.skew import Keys, Skew
    from penstock.routing.strategy import Hashes

_BAR: Final = 20
_MOST_BARS: Final = 20
"""Of more workers only the busiest are shown on the terminal."""
_HOTTEST: Final = 3
_NAME: Final = 40
"""Characters of a key's name that are shown."""


def skew(
    files: Annotated[list[str], typer.Argument(help="CSV with a header, JSON lines or Parquet; folders and patterns too.")],
    key: Annotated[list[str], typer.Option("--key", help="The key column; again for keys of several columns.")],
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")],
    senders: Annotated[int, typer.Option(min=1, help="Partitions of the source, to which the rows are dealt in turn.")] = 1,
    kind: Annotated[str | None, typer.Option("--format", help="csv, json or parquet, where the names do not say.")] = None,
    plot: Annotated[
        str | None, typer.Option("--plot", help="Draw the load of each worker into this file (PNG, SVG, PDF).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, one for each strategy.")] = False,
) -> None:
    """Show how evenly keys would be spread over workers by each strategy, and which one to take."""
    from penstock.routing.skew import MOST, advice, count_keys, measure

    with as_typed():
        there = found_files([local(name) for name in files])
        kind = format_of(there, kind)
        check_beginnings(there, kind)
        hashes = _hashes(there, kind, key)
        if not len(hashes):
            raise DeclarationError("These files have no rows.")
    keys = count_keys(hashes)
    found = measure(keys, workers, senders)
    if plot:
        _draw(found, plot)
    if as_json:
        for one in found:
            print(json.dumps({**one.figures(), "loads": one.loads.tolist()}))
    else:
        _print(found, f"{len(hashes):,} rows, {len(keys.hashes):,} keys; the hottest: {_named(there, kind, key, keys)}")
        print(advice(found, keys.hottest))
    if len(hashes) == MOST:
        print(f"The first {MOST:,} rows were looked at.", file=sys.stderr)


def _batches(files: list[str], kind: str, keys: list[str]) -> Iterator[Any]:
    """The key columns of files, in their order; keys in CSV are text, as a file does not say what else they are.

    Raises:
        DeclarationError: A file cannot be read, lacks a key column, or has one of another type than the files before.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.dataset as ds

    csv = ds.CsvFileFormat(
        pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(keys, pa.string())),
    )
    how: dict[str, Any] = {"csv": csv, "json": ds.JsonFileFormat(), "parquet": ds.ParquetFileFormat()}
    first: tuple[str, Any] | None = None
    for path in files:
        try:
            rows = ds.dataset(path, format=how[kind])
            for name in keys:
                if name not in rows.schema.names:
                    raise unknown_column(name, rows.schema.names, "--key" if first is None else f"--key, in {path!r},")
            types = [rows.schema.field(name).type for name in keys]
            first = first or (path, types)
            if types != first[1]:
                before, now = (", ".join(str(t) for t in some) for some in (first[1], types))
                raise DeclarationError(f"The key is {before} in {first[0]!r} and {now} in {path!r}; give files of one type.")
            yield from rows.to_batches(columns=keys)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).rpartition("': ")[2].removeprefix("Invalid: ").rstrip(".")
            raise DeclarationError(f"{path!r} cannot be read as {kind}: {reason}.") from error


def _hashes(files: list[str], kind: str, keys: list[str]) -> Hashes:
    """The hashes of the files' keys, in the order of the files."""
    import numpy as np

    from penstock.routing.route import hashes_of
    from penstock.routing.skew import MOST

    parts, count = [], 0
    for batch in _batches(files, kind, keys):
        parts.append(hashes_of(batch)[: MOST - count])
        count += len(parts[-1])
        if count == MOST:
            break
    return np.concatenate([*parts, np.empty(0, np.int64)])


def _named(files: list[str], kind: str, names: list[str], keys: Keys) -> str:
    """The hottest keys as text, with their shares. The files are read again up to their first rows."""
    import numpy as np

    from penstock.routing.route import hashes_of

    hottest = np.argsort(-keys.counts, kind="stable")[:_HOTTEST]
    texts: dict[int, str] = {}
    for batch in _batches(files, kind, names):
        hashes = hashes_of(batch)
        for at in set(hottest.tolist()) - {*texts}:
            if len(rows := np.flatnonzero(hashes == keys.hashes[at])):
                values = batch.slice(int(rows[0]), 1).to_pylist()[0].values()
                texts[at] = textwrap.shorten(" ".join(str(value) for value in values), _NAME, placeholder="…")
        if len(texts) == len(hottest):
            break
    return ", ".join(f"{texts[at]} {keys.counts[at] / len(keys.numbers):.1%}" for at in hottest.tolist())


def _print(found: list[Skew], title: str) -> None:
    """A row for each strategy, and the load of each worker by key and by the strategy to take."""
    import numpy as np
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console.print(escape(title))
    table = Table("strategy", "busiest / mean", "copies/key", "moved", "for", box=None, padding=(0, 2, 0, 0))
    for one in found:
        figures = f"{one.busiest:.2f}", f"{one.copies_per_key:.2f}", f"{one.moved_between_epochs:.0%}"
        table.add_row(one.name, *figures, one.strategy.fits)
    console.print(table, "")
    compared = _compared(found)
    most = max(int(one.loads.max()) for one in compared)
    busiest = sorted(np.argsort(-found[0].loads, kind="stable")[:_MOST_BARS].tolist())
    bars = Table("worker", *(f"rows by {one.name}" for one in compared), box=None)
    for worker in busiest:
        loads = [int(one.loads[worker]) for one in compared]
        bars.add_row(str(worker), *(f"{'█' * round(_BAR * load / most):<{_BAR}} {load:,}" for load in loads))
    console.print(bars)
    if len(busiest) < len(found[0].loads):
        console.print(f"These are the {_MOST_BARS} busiest of {len(found[0].loads)} workers.")


def _compared(found: list[Skew]) -> list[Skew]:
    """By key, and the strategy to take if that is another one."""
    from penstock.routing.skew import advised

    return [found[0], *([best] if (best := advised(found)) is not found[0] else [])]


def _draw(found: list[Skew], path: str) -> None:
    """The load of each worker, as a picture."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingToolError("--plot needs matplotlib; install it with pip install matplotlib.") from error
    compared = _compared(found)
    figure, axes = plt.subplots(1, len(compared), figsize=(4.5 * len(compared), 3.2), sharey=True, squeeze=False)
    for axis, one in zip(axes[0], compared, strict=True):
        axis.bar(range(len(one.loads)), one.loads)
        axis.axhline(one.loads.mean(), color="black", linewidth=0.8, linestyle="--")
        axis.set(title=one.name, xlabel="worker")
    axes[0, 0].set_ylabel("rows (dashed: mean)")
    figure.tight_layout()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise DeclarationError(f"--plot {path!r} cannot be written: {error}.") from error
