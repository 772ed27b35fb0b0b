"""A flow from one Redis stream to another, what it must give, and a program that runs it and kills itself before a chosen step.

``python redis_flow.py options.json``: ``url``, ``checkpoint``, ``kill``: before so many steps, counted from the start, or those whose names begin with
``step``; 0: not.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from killed_flow import SETTINGS

import penstock as ps

SCHEMA = "k string, at timestamp, v long"
OUT = "k string, number long, total long"
PARTITIONS, MADE = 2, 3


def records(seed, n):
    """Entries of a few keys, each key's in one partition; some have no key."""
    dice, now, made = random.Random(seed), 1_700_000_000, []
    for v in range(n):
        now += dice.choice([0, 1, 2])
        made.append({"k": dice.choice(["a", "b", "ü", "key", None]), "at": f"{now * 1_000_000}", "v": v})
    return made


def expected(made):
    """The rows in the end."""
    found, totals = [], {}
    for record in made:
        number, total = totals.get(record["k"], (0, 0))
        totals[record["k"]] = number + 1, total + record["v"]
        found.append((record["k"], *totals[record["k"]]))
    return sorted(found, key=repr)


def numbered(key, event, state):
    number, total = state or (0, 0)
    state = number + 1, total + event.v
    return (key, *state), state


def flow_of(url):
    flow = ps.Flow("redis")
    source = ps.redis_streams(url, "in", PARTITIONS, SCHEMA, max_rows_per_epoch=30)
    events = flow.source("events", source, time="at", lateness="2 seconds", partitions=[0, 1])
    events.key_by("k").stateful_map(numbered, OUT).sink(ps.redis_stream(url, "out", MADE, key="k"), name="out")
    return flow


def main(url, checkpoint, kill, step=""):
    seen = 0

    def before(name):
        nonlocal seen
        seen += name.startswith(step)
        if seen == kill > 0 and name.startswith(step):
            print("killed before", name, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    from penstock.spark.session.local import session

    spark = session("local[2]", "redis", **SETTINGS)
    flow_of(url).start(spark, checkpoint=checkpoint, trigger="available_now", on_step=before).await_termination()
    print("steps", seen, flush=True)


if __name__ == "__main__":
    main(**json.loads(Path(sys.argv[1]).read_text()))
