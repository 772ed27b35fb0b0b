"""``penstock diff``: what a start of a changed flow would find."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from penstock.cli.loading import CheckpointOption, load_flow
from penstock.cli.matching import quiet_session


def diff(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="file.py:name of a penstock.Flow, or of a function that returns one.")],
    checkpoint: CheckpointOption,
    forget: Annotated[list[str] | None, typer.Option(help="As for run: state that may be forgotten.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show what a flow's changes mean for the state in a checkpoint, before it is started. Changes nothing."""
    from penstock.driver.differences import differences

    plan = load_flow(target).plan()

    def over_spark(plan: Any) -> Any:
        from penstock.driver.compile import compile_flow
        from penstock.spark.engine import only_partition, partial_schema, schema_of
        from penstock.spark.session.own import query_session

        print("Only Spark knows the types of some columns; starting a local session.", file=sys.stderr)
        ours = query_session(quiet_session(context, None))
        return compile_flow(plan, schema_of(ours), partial_schema(ours), only_partition(plan))

    report = differences(plan, checkpoint, over_spark, forget or ())
    refusal = report.refusal()
    if as_json:
        print(json.dumps({**report.plain(), "refusal": None if refusal is None else str(refusal)}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("", "name", "state", "why")
    for verdict in report.verdicts:
        table.add_row(verdict.kind, verdict.name, verdict.outcome.value, verdict.reason)
    Console(markup=False, emoji=False).print(table)  # text that looks like markup is data
    print("A start goes on with the state." if refusal is None else f"A start is refused. {refusal}")
