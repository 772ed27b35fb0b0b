"""Programs under test in processes of their own, and servers for them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from archive import JAVA_OPTIONS

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
        "JAVA_TOOL_OPTIONS": JAVA_OPTIONS,  # of executors too
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


@contextlib.contextmanager
def standalone_cluster(folder):
    """Spark's master and two workers with one core each, on loopback, with their logs in the folder. Gives the master's URL."""
    import pyspark

    from penstock.spark.session.java import ensure_java

    ensure_java()
    home, package = Path(pyspark.__file__).parent, "org.apache.spark.deploy"
    env = environment(SPARK_HOME=str(home), SPARK_NO_DAEMONIZE="1", SPARK_WORKER_DIR=str(folder / "work"))
    processes = []

    def launch(name, *arguments):
        log = folder / f"{name}.log"
        with log.open("wb") as output:
            command = [str(home / "bin" / "spark-class"), *arguments]
            processes.append(
                subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=folder, start_new_session=True)
            )
        return log

    def wait_for(log, text):
        deadline = time.monotonic() + 600
        while text not in log.read_text(errors="replace"):
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.1)
        return next(line for line in log.read_text(errors="replace").splitlines() if text in line)

    try:
        master = launch("master", f"{package}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = wait_for(master, "Starting Spark master at").split()[-1]
        worker = [f"{package}.worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "1g", "--webui-port", "0", url]
        for log in [launch(f"worker{i}", *worker) for i in range(2)]:
            wait_for(log, "Successfully registered with master")
        yield url
    finally:
        for process in reversed(processes):
            end_group(process)
            process.wait(30)


def end_group(process):
    """End what is left of a child's process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
