"""Runs the flow of `killed_flow` with faults in its tasks: ``python failing_flow.py options.json``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import killed_flow

from penstock.errors import PenstockError


def faulty(faults, once):
    """The flow's function; at certain values, once each, it raises or kills its process."""

    def fn(key, event, state):
        kind = faults.get(str(event.v))
        if kind is not None:
            marker = Path(once, f"fault-{event.v}")
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                kind = None
        if kind == "raise":
            raise RuntimeError("once")
        if kind == "kill worker":
            os.kill(os.getpid(), signal.SIGKILL)
        return killed_flow.keyed(key, event, state)

    return fn


def killing_executors(inner, once, checkpoint):
    """The flow's function `inner`; it kills its executor once in each phase of a rescale, and of a key's hold."""

    def fn(key, event, state):
        hold = killed_flow.hold_now(checkpoint)
        where = phase_now(checkpoint) if hold is None else "ending" if hold == "released" else "held"
        kill_executor_once(Path(once, f"killed-{where}"))
        return inner(key, event, state)

    return fn


def kill_executor_once(marker):
    """Kill the JVM above this Python worker, unless it is done."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    pid = java_above(os.getpid())
    os.kill(pid, signal.SIGKILL)
    signal.pause()


def phase_now(checkpoint):
    """The phase in which the region is in the epoch under way: what its commands have made of the last one's."""
    from penstock.checkpoint.folder import Checkpoint
    from penstock.protocol.controller import Now, decide
    from penstock.protocol.rescale import STANDARD

    opened = Checkpoint(checkpoint)
    record = opened.last()
    new = [(n, opened.read_command(n)) for n in opened.control_names() if n not in record.control]
    if not record.regions:
        return "settled"
    return (
        decide(new, {n: r.control for n, r in record.regions.items()}, (), STANDARD, Now(record.epoch + 1)).controls["k"].phase
    )


def java_above(pid):
    """The JVM that started this Python worker."""
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1
    return pid


def sleep_before(step, count=1):
    """A hook that puts this process and its JVM to sleep, once, when it comes to a step for the nth time."""
    seen = []

    def before(name):
        if name == step:
            seen.append(name)
            if len(seen) == count:
                os.killpg(0, signal.SIGSTOP)
                time.sleep(0.2)  # another thread may take the signal, and this one run on for a moment

    return before


def main(
    *,
    folder,
    checkpoint,
    urls,
    master="local[2]",
    faults=None,
    once="",
    conf=None,
    sleep_at=None,
    scales=None,
    kill_executors=False,
    workers=None,
):
    from penstock.spark.session.local import session

    spark = session(master, "failing", **{**killed_flow.SETTINGS, **(conf or {})})
    fn = faulty(faults, once) if faults else killed_flow.keyed
    if kill_executors:
        fn = killing_executors(fn, once, checkpoint)
        killed_flow.copy_slowly(1.5, lambda: kill_executor_once(Path(once, "killed-copying")))
    flow = killed_flow.flow_of(folder, killed_flow.sinks_in(urls), fn=fn)
    before = sleep_before(*([sleep_at] if isinstance(sleep_at, str) else sleep_at)) if sleep_at else None
    steps = {}
    if scales:
        steps = {"step_budget": killed_flow.small_steps(20)}
        before = killed_flow.steer_at(checkpoint, scales, before)
    run = flow.start(spark, checkpoint=checkpoint, workers=workers, trigger="available_now", on_step=before, **steps)
    try:
        run.await_termination()
        print("done", flush=True)
    except PenstockError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        raise
    finally:
        spark.stop()


if __name__ == "__main__":
    main(**json.loads(Path(sys.argv[1]).read_text()))
