"""Files that are deleted, touched, replaced, renamed and dated anew between an epoch that failed and its re-run, over Spark."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import PenstockError, RecordError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STEPS = ("compute one", "stored one", "during two", "stored two", "commit")
CHANGES = ("none", "deleted", "touched", "replaced", "grown", "emptied", "renamed", "another", "older one")
BEGIN = 1_700_000_000


@dataclass
class Case:
    """Files of a few moments, read a few at a time into two sinks."""

    folder: Path
    rng: random.Random
    files: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    """By name: when it was written, and what it says."""

    def __post_init__(self):
        self.folder.mkdir(parents=True)
        for i in self.rng.sample(range(self.rng.randrange(3, 7)), k=3):
            self.put(f"{i}.csv", BEGIN + self.rng.randrange(2), [10 * i, 10 * i + 1])
        self.most = self.rng.randrange(1, 4)

    def put(self, name, at, values):
        self.files[name] = (at, values)
        self.write(name, at, values)

    def write(self, name, at, values):
        path = self.folder / name
        path.write_text("v\n" + "".join(f"{v}\n" for v in values))
        os.utime(path, (at, at))

    def order(self):
        return sorted(self.files, key=lambda name: (self.files[name][0], name))

    def expected(self):
        return [v for name in self.order() for v in self.files[name][1]]

    def flow(self):
        flow, name = ps.Flow("changed"), self.folder.parent
        events = flow.source("events", ps.files(self.folder, "v long", "csv", max_files_per_epoch=self.most))
        sinks = [ps.memory(f"{i} {name}") for i in ("one", "two")]
        numbered = events.with_columns(k="0").key_by("k")
        numbered.stateful_map(lambda _, e, n: ((e.v, n or 0), (n or 0) + 1), "v long, n long").sink(sinks[0], name="one")
        events.sink(sinks[1], name="two")
        return flow, sinks

    def change(self, kind, name):
        """Gives whether the file is not what it was."""
        path, (at, values) = self.folder / name, self.files[name]
        if kind == "deleted":
            path.unlink()
        elif kind == "renamed":
            path.rename(self.folder.parent / "elsewhere.csv")
        elif kind == "touched":
            os.utime(path, (at + 7, at + 7))
        elif kind == "replaced":
            self.write(name, at, [v + 5_000 for v in values])
        elif kind == "grown":
            self.write(name, at, [*values, 99_999])
        elif kind == "emptied":
            self.write(name, at, [])
        elif kind in ("another", "older one"):
            self.put(f"{kind}.csv", at + (100 if kind == "another" else -100), [777])
        return kind not in ("none", "another", "older one")


class Fails:
    def __init__(self, step, epoch):
        self.step, self.left = step, epoch

    def __call__(self, step):
        self.left -= step == "decide"  # each epoch has one; other steps come once for each part of an output
        if step == self.step and self.left == 0:
            raise OSError("pulled")


# Each change of a file of the epoch and of a later one, each step at which an epoch fails before a file is wrong, is not wrong or new.
TELLING = (0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 19, 20, 23, 25, 28, 29, 34)


@pytest.mark.parametrize(
    "numbers",
    [TELLING[::2], *(pytest.param(numbers, marks=pytest.mark.soak) for numbers in (TELLING[1::2], range(36, 136)))],
    ids=["telling", "others", "any"],
)
def test_epochs_when_files_are_changed_between_two_attempts_stop_or_give_what_they_would_have_given(spark, tmp_path, numbers):
    stopped = went_on = 0
    for number in numbers:
        rng = random.Random(3_800 + number)
        case = Case(tmp_path / str(number) / "in", rng)
        checkpoint = tmp_path / str(number) / "c"
        flow, (one, two) = case.flow()
        epochs = -(-len(case.files) // case.most)
        failed = rng.randrange(1, epochs + 1)
        batch = case.order()[case.most * (failed - 1) : case.most * failed]

        def run(on_step=None, flow=flow, checkpoint=checkpoint):
            flow.start(spark, checkpoint=checkpoint, workers=1, trigger="available_now", on_step=on_step).await_termination(600)

        with pytest.raises(PenstockError, match="pulled"):
            run(Fails(rng.choice(STEPS), failed))
        kind = rng.choice(CHANGES)
        victim = rng.choice(batch if rng.random() < 0.7 else case.order()[case.most * (failed - 1) :])
        wrong = case.change(kind, victim)
        if wrong and victim in batch:
            for _ in range(2):  # it does so again
                with pytest.raises(RecordError, match=rf"/{victim} of source 'events' is .*epoch {failed - 1}[, ]"):
                    run()
            case.write(victim, *case.files[victim])
            stopped += 1
        else:
            case.files.update({victim: read_again(case.folder / victim)} if (case.folder / victim).exists() else {})
            if not (case.folder / victim).exists():
                del case.files[victim]
            went_on += 1
        known = case.order()
        run()
        found = [r["v"] for r in sorted(one.rows(), key=lambda r: r["n"])]
        late = [v for v in found if v == 777]
        wanted = [v for v in case.expected() if v != 777]
        assert [v for v in found if v != 777] == wanted, (number, kind, victim, known)
        assert len(late) == (kind in ("another", "older one"))
        assert sorted(r["v"] for r in two.rows()) == sorted(found)
    assert stopped > 2
    assert went_on > 2


def read_again(path):
    return int(path.stat().st_mtime), [int(line) for line in path.read_text().split()[1:]]
