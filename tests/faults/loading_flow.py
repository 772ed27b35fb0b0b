"""The flow of the fault tests with sinks that can take rows back; it takes a snapshot, goes back to it, and kills itself on the way.

``python loading_flow.py options.json`` runs it; the options are those of `run_child`.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import killed_flow
import pyarrow.parquet as pq

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.commands import Commander
from penstock.protocol.commands import decode


def sinks_in(folder):
    """Upserts into SQLite, and Parquet files."""

    def sink(output):
        if output in ("totals", "spread"):
            key = ["k", "window_start"] if output == "totals" else ["n"]
            return ps.sql(f"sqlite:///{folder}/out.db", output, mode="upsert", key=key)
        return ps.parquet(f"{folder}/{output}")

    return sink


def content(folder):
    """What the sinks hold, as `killed_flow.expected` gives it."""
    found = {}
    for name, (_, columns, _) in killed_flow.OUTPUTS.items():
        if name in ("totals", "spread"):
            with sqlite3.connect(f"{folder}/out.db") as db:
                rows = db.execute(f"SELECT {', '.join(columns)} FROM {name}").fetchall()
            rows = [
                tuple(killed_flow.utc_time(v) if c == "window_start" else v for c, v in zip(columns, r, strict=True))
                for r in rows
            ]
        else:
            rows = [tuple(r[c] for c in columns) for r in pq.read_table(f"{folder}/{name}").to_pylist()]
        found[name] = killed_flow.comparable(rows)
    return found


def run_child(*, folder, out, checkpoint, commands, kill=None):
    """Run until the input ends or it is killed; `commands` are given before the epochs of these numbers, once each."""
    from penstock.spark.session.local import session

    spark = session("local[2]", "loading", **killed_flow.SETTINGS)
    opened, killing = Checkpoint(checkpoint), killed_flow.kill_at(*kill) if kill else lambda _: None

    def before(name):
        if name == "decide":
            epoch = str(opened.last().epoch + 1)
            given = Path(checkpoint, f"given-{epoch}")
            for command in commands.get(epoch, []) if not given.exists() else []:
                given.touch()
                Commander(opened).submit(decode(command))
        killing(name)

    flow = killed_flow.flow_of(folder, sinks_in(out))
    run = flow.start(
        spark, checkpoint=checkpoint, workers=2, trigger="available_now", on_step=before, step_budget=killed_flow.small_steps()
    )
    run.await_termination()
    print("done", json.dumps(run.progress["rolled_back"]), flush=True)
    spark.stop()


if __name__ == "__main__":
    run_child(**json.loads(Path(sys.argv[1]).read_text()))
