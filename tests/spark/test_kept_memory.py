"""A worker process does not ask the system again for memory it has had."""

import subprocess
import sys
from itertools import pairwise
from statistics import median

import pytest

# Rounds of arrays as a worker makes them, of NumPy and of Arrow, all given back; page faults after each round. In some of them the heap still grows, until it has room for all.
ROUNDS = """
import resource, sys
import numpy as np, pyarrow as pa
from penstock.spark.memory import keep_memory

if sys.argv[1] == "keep" and not keep_memory():
    sys.exit("no glibc")
for _ in range(24):
    numbers = np.ones(5_000_000)
    column = pa.concat_arrays([pa.array(numbers), pa.array(numbers)])
    ordered = column.take(pa.array(np.arange(len(column))))
    del numbers, column, ordered
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(pa.default_memory_pool().backend_name, file=sys.stderr)
"""


def faults_per_round(how: str) -> tuple[list[int], str]:
    """And by whose means Arrow has its memory."""
    done = subprocess.run([sys.executable, "-c", ROUNDS, how], capture_output=True, text=True, check=False)
    if "no glibc" in done.stderr:
        pytest.skip("this machine's C library cannot be told to keep memory")
    assert done.returncode == 0, done.stderr
    return [later - earlier for earlier, later in pairwise(int(line) for line in done.stdout.split())], done.stderr.split()[-1]


def test_memory_is_had_again_without_asking_the_system():
    (kept, pool), (left, _) = faults_per_round("keep"), faults_per_round("leave")
    assert median(kept) * 10 < min(left)
    assert pool == "system"  # Arrow's own allocators give large arrays back


# What a search for garbage looks at: before any task, in the first, and in later ones with and without further modules.
SEARCHES = """
import gc
from penstock.spark.memory import begin_task

class Node:
    pass

before = len(gc.get_objects())
begin_task()
first, frozen = len(gc.get_objects()), gc.get_freeze_count()
import penstock.patterns.recogniser.kernel
grown = len(gc.get_objects())
begin_task()
again, more = len(gc.get_objects()), gc.get_freeze_count()
held = [Node() for _ in range(1_000)]
for node in held:
    node.itself = node
del held, node
begin_task()
assert gc.get_freeze_count() == more, "what a task leaves is not to be spared"
print(before, first, frozen, grown, again, more, gc.collect())
"""


def test_a_search_for_garbage_leaves_out_modules_and_finds_what_tasks_left():
    done = subprocess.run([sys.executable, "-c", SEARCHES], capture_output=True, text=True, check=True)
    before, first, frozen, grown, again, more, found = map(int, done.stdout.split())
    assert first * 10 < before < frozen * 2
    assert grown > again * 10
    assert more > frozen + 10_000
    assert found >= 1_000
