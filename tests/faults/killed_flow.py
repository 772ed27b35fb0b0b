"""The flow of the fault tests, what it must give, and a program that runs it and kills itself at a chosen step.

``python killed_flow.py options.json`` runs it; the options are those of `run_child`.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
import penstock.sinks.parts
from penstock import sinks

SCHEMA = "k string, at timestamp, v long"
SETTINGS = {  # a child lives for few rows: they are sooner interpreted than code for them is compiled
    "spark.driver.memory": "1g",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
LATENESS, WINDOW, REACH = 3, 10, 30
KINDS = {"opening": "v % 4 = 0", "trying": "v % 4 IN (1, 2)", "closing": "v % 4 = 3"}
PATTERN = f"SELECT a, b, c WHERE opening AS a ; trying+ AS b ; closing AS c PARTITION BY [k] WITHIN {REACH} SECONDS"
BEGIN = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
OUTPUTS = {  # output: (table, columns, which database)
    "totals": ("totals", ("k", "window_start", "n", "total", "newest"), "sqlite"),
    "running": ("running", ("k", "number", "trail"), "postgres"),
    "late": ("late", ("k", "at", "v"), "sqlite"),
    "spread": ("spread", ("n", "windows", "total"), "postgres"),
    "matches": ("matches", ("k", "opened", "tried", "closed"), "parquet"),
}


def records(seed, files=5, per_file=14):
    """By file, its records: a few keys, null among them; some records come late."""
    dice = random.Random(seed)
    now, out = 0, []
    for i in range(files):
        rows = []
        for j in range(per_file):
            now += dice.choice([0, 1, 1, 3])
            second = max(0, now - dice.choice([0, 0, 0, 1, 2, 6, 9]))
            rows.append(
                {"k": dice.choice(["a", "b", "ü", None]), "at": BEGIN + dt.timedelta(seconds=second), "v": i * per_file + j}
            )
        out.append(rows)
    return out


def write_files(folder, files, first=0):
    """Write records as Parquet files, with times that put them in their order."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
    for i, rows in enumerate(files, first):
        path = Path(folder, f"{i:03d}.parquet")
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))


def expected(files):
    """What every output must hold in the end, computed in one pass without any of penstock."""
    on_time, late, newest = [], [], None
    for record in (r for rows in files for r in rows):
        if newest is not None and record["at"] < newest - dt.timedelta(seconds=LATENESS):
            late.append(record)
        else:
            on_time.append(record)
        newest = record["at"] if newest is None else max(newest, record["at"])
    on_time.sort(key=lambda r: (r["at"], r["v"]))  # v counts the records, so it is the order of offsets
    windows, trails, running, spread = {}, {}, [], {}
    for r in on_time:
        start = BEGIN + (r["at"] - BEGIN) // dt.timedelta(seconds=WINDOW) * dt.timedelta(seconds=WINDOW)
        windows.setdefault((r["k"], start), []).append(r["v"])
        number, trail = trails.get(r["k"], (0, ""))
        trails[r["k"]] = number + 1, f"{trail},{r['v']}"[-24:]
        running.append((r["k"], *trails[r["k"]]))
    totals = [(k, start, len(v), sum(v), v[-1]) for (k, start), v in windows.items()]
    for _, _, n, total, _ in totals:
        before = spread.get(n, (0, 0))
        spread[n] = before[0] + 1, before[1] + total
    found = {
        "totals": totals,
        "running": running,
        "late": [(r["k"], r["at"], r["v"]) for r in late],
        "spread": [(n, *rest) for n, rest in spread.items()],
        "matches": list(matches_in(on_time)),
    }
    return {name: comparable(rows) for name, rows in found.items()}


def matches_in(on_time):
    """The matches of the pattern in records in their order: each choice of trials between an opening and a closing near enough."""
    by_key = {r["k"]: [other for other in on_time if other["k"] == r["k"]] for r in on_time if r["k"] is not None}
    for key, rows in by_key.items():
        for first, last in itertools.combinations(rows, 2):
            if (_kind(first), _kind(last)) != ("opening", "closing") or last["at"] - first["at"] > dt.timedelta(seconds=REACH):
                continue
            trials = [str(r["v"]) for r in rows[rows.index(first) : rows.index(last)] if _kind(r) == "trying"]
            for n in range(1, len(trials) + 1):
                yield from ((key, first["v"], ",".join(some), last["v"]) for some in itertools.combinations(trials, n))


def _kind(record):
    return ("opening", "trying", "trying", "closing")[record["v"] % 4]


def content(urls):
    """What the tables hold."""
    found = {}
    for name, (table, columns, database) in OUTPUTS.items():
        if database == "parquet":
            files = Path(urls[database], table).glob("*.parquet")
            found[name] = comparable(
                tuple(row[c] for c in columns) for file in files for row in pq.read_table(file).to_pylist()
            )
            continue
        query = f"SELECT {', '.join(columns)} FROM {table}"
        url = urls[database]
        if url.startswith("sqlite"):
            with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60) as connection:
                rows = connection.execute(query).fetchall()
            rows = [
                tuple(utc_time(v) if c in ("at", "window_start") else v for c, v in zip(columns, r, strict=True)) for r in rows
            ]
        else:
            import psycopg

            with psycopg.connect(url) as connection:
                rows = connection.execute(query).fetchall()
        found[name] = comparable(rows)
    return found


def staged(urls):
    """What tasks have stored and nothing has committed or removed."""
    import psycopg

    with psycopg.connect(urls["postgres"]) as connection:
        tables = connection.execute(r"SELECT relname FROM pg_class WHERE relname LIKE 'penstock\_part\_%'").fetchall()
    return [*tables, *Path(urls["parquet"]).glob("*/_penstock/staging/*")]


def utc_time(text):
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def comparable(rows):
    return sorted(
        (tuple(v.astimezone(dt.UTC).isoformat() if isinstance(v, dt.datetime) else v for v in r) for r in rows), key=repr
    )


def numbered(_, event, state):
    """A running number per key, and the last few values it saw."""
    number, trail = state or (0, "")
    state = number + 1, f"{trail},{event.v}"[-24:]
    return state, state


def keyed(key, event, state):
    """`numbered` with the key in front."""
    row, state = numbered(key, event, state)
    return (key, *row), state


def told(key, match, _):
    """A match of the pattern as values that a table has."""
    return (key, match.a[0]["v"], ",".join(str(event["v"]) for event in match.b), match.c[0]["v"]), None


def flow_of(folder, sink, *, fn=keyed, name="killed", max_files=1):
    """The flow over the files of a folder; `sink(output)` makes the sinks."""
    flow = ps.Flow(name)
    events = flow.source(
        "events", ps.files(str(folder), SCHEMA, max_files_per_epoch=max_files), time="at", lateness=f"{LATENESS} seconds"
    )
    by_key = events.key_by("k")
    totals = by_key.window(ps.tumbling(f"{WINDOW} seconds")).aggregate(n=ps.count(), total=ps.sum("v"), newest=ps.last("v"))
    totals.sink(sink("totals"), name="totals")
    by_key.stateful_map(fn, "k string, number long, trail string").sink(sink("running"), name="running")
    events.late.sink(sink("late"), name="late")
    spread = totals.local().select("n", "total").key_by("n", name="spread")
    spread.aggregate(windows=ps.count(), total=ps.sum("total")).sink(sink("spread"), name="spread")
    matches = by_key.match(PATTERN, KINDS).stateful_map(told, "k string, opened long, tried string, closed long")
    matches.sink(sink("matches"), name="matches")
    return flow


def urls_in(folder, postgres):
    """Where the outputs are."""
    return {"sqlite": f"sqlite:///{folder}/half.db", "postgres": postgres, "parquet": f"{folder}/files"}


def sinks_in(urls):
    """Sinks in the two databases and the folder."""

    def sink(output):
        table, _, database = OUTPUTS[output]
        if database == "parquet":
            return ps.parquet(f"{urls[database]}/{table}")
        return ps.sql(urls[database], table, **({"mode": "upsert", "key": "n"} if output == "spread" else {}))

    return sink


def kill_at(step, count, *, stop_java=False):
    """A hook that kills this process before the `count`-th step of that name; if asked, the JVM is put to sleep first."""
    seen = 0

    def before(name):
        nonlocal seen
        seen += name == step
        if name == step and seen == count:
            if stop_java:
                from pyspark import SparkContext

                os.kill(SparkContext._gateway.proc.pid, signal.SIGSTOP)
                print("java", SparkContext._gateway.proc.pid, flush=True)
            print("killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    return before


def steer_at(checkpoint, scales, before):
    """A hook that gives scale commands before the epochs of these numbers, once each, and says in which phase it is killed."""
    from penstock.checkpoint.folder import Checkpoint
    from penstock.driver.commands import Commander
    from penstock.protocol.commands import Scale

    opened = Checkpoint(checkpoint)

    def hook(name):
        if name == "decide":
            record = opened.last()
            workers = scales.get(str(record.epoch + 1))
            mark = Path(checkpoint, f"scaled-{record.epoch + 1}")
            if workers and not mark.exists():
                mark.touch()
                Commander(opened).submit(Scale(None, workers))
            print("phase", *(r.control.phase for r in record.regions.values()), flush=True)
        if before:
            before(name)

    return hook


def hold_now(checkpoint):
    """How far a key's hold is in the epoch under way: None, held, reported (its copy is, and nobody has obeyed) or released."""
    from penstock.checkpoint.folder import Checkpoint
    from penstock.protocol.commands import Copied

    opened = Checkpoint(checkpoint)
    record = opened.last()
    if not any(r.control.held for r in record.regions.values()):
        return None
    decided = Path(checkpoint, "epochs", f"{record.epoch + 1:012d}.decided")
    obeyed = json.loads(decided.read_text())["commands"] if decided.exists() else []
    if any(isinstance(opened.read_command(n), Copied) for n in obeyed):
        return "released"
    told = [opened.read_command(n) for n in opened.control_names() if n not in record.control]
    return "reported" if any(isinstance(c, Copied) for c in told) else "held"


def kill_when(checkpoint, moment):
    """A hook that kills this process while a key's state is being copied, when its copy is reported, or as its hold ends."""
    step, wanted = {
        "copying": ("stored totals", "held"),
        "reported": ("decide", "reported"),
        "released": ("commit", "released"),
    }[moment]

    def before(name):
        if name == step and hold_now(checkpoint) == wanted:
            print("on hold", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    return before


def copy_slowly(seconds, first=lambda: None):
    """Make the job that copies a key's state take so long; its task begins with `first`."""
    from penstock.checkpoint.folder import Checkpoint
    from penstock.spark import run

    def slow(spark, uri, copy):
        def one(c):
            first()
            time.sleep(seconds)
            return c.carry_out(Checkpoint(uri))

        return spark.sparkContext.parallelize([copy], 1).map(one).collect()[0]

    run.copy_on_executor = slow


def small_steps(hold_bytes=150):
    """Bounds with which even this little state takes many steps, and some keys are put on hold."""
    from penstock.protocol.rescale import Limits

    return Limits(first_bytes=100, least_bytes=100, most_bytes=400, hold_bytes=hold_bytes, measure_entries=3)


def run_child(
    *,
    folder,
    checkpoint,
    urls,
    workers=2,
    kill=None,
    stop_java=False,
    master="local[2]",
    conf=None,
    max_files=1,
    scales=None,
    hold_bytes=150,
    copy_s=0,
    parts=False,
):
    """Run the flow until its input ends, or until it is killed. With `parts` tasks store even few rows where they are."""
    if parts:
        sinks.parts.INLINE_BYTES = 0
    from penstock.spark.session.local import session

    spark = session(master, "killed", **{**SETTINGS, **(conf or {})})
    before = None
    if kill:
        before = kill_when(checkpoint, kill[1]) if kill[0] == "on hold" else kill_at(*kill, stop_java=stop_java)
    if copy_s:
        copy_slowly(copy_s)
    flow = flow_of(folder, sinks_in(urls), max_files=max_files)
    if scales:
        before = steer_at(checkpoint, scales, before)
    steps = {"step_budget": small_steps(hold_bytes)} if scales else {}
    run = flow.start(spark, checkpoint=checkpoint, workers=workers, trigger="available_now", on_step=before, **steps)
    run.await_termination()
    print("done", run.progress.get("epoch", ""), flush=True)
    spark.stop()


if __name__ == "__main__":
    run_child(**json.loads(Path(sys.argv[1]).read_text()))
