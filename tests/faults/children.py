"""Programs under test in processes of their own, and servers for them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from archive import QUICK

HERE = Path(__file__).parent


@dataclass
class Ended:
    """How a child ended: its return code (−9: killed) and what it said."""

    code: int
    out: str
    err: str


def environment(**more):
    """The environment of a child: penstock importable by Spark's workers too."""
    import penstock

    paths = [str(Path(penstock.__file__).parent.parent), str(HERE), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,  # of a cluster's workers; a local session finds it by itself
        "JAVA_TOOL_OPTIONS": QUICK,  # of executors too
        **more,
    }


def start(script, options, folder, **env):
    """Start a script of this folder in a process group of its own."""
    given = Path(folder, f"options-{os.urandom(4).hex()}.json")
    given.write_text(json.dumps(options))
    with given.with_suffix(".err").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, str(HERE / script), str(given)],
            stdout=subprocess.PIPE,
            stderr=err,
            env=environment(**env),
            cwd=folder,
            start_new_session=True,
            text=True,
        ), given.with_suffix(".err")


def wait(process, err, timeout=600):
    """Wait for a child. Its process group, an orphaned JVM for example, is left alone."""
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end_group(process)
        raise
    return Ended(process.returncode, out, err.read_text(errors="replace")[-4000:])


def run(script, options, folder, **env):
    """Run a script of this folder to its end."""
    return wait(*start(script, options, folder, **env))


def end_group(process):
    """End what is left of a child's process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
