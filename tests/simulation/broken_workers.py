"""Worlds whose workers are wrong on purpose, each in one place, by what a plausible mistake would do.

Read next: `broken`, for the controller and what changes hands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from penstock.protocol.messages import KINDS, Barrier, Collect, Frontier, Hold, Release
from penstock.protocol.rescale.worker import WorkerEpoch
from penstock.routing.table import SUBS, sub_of
from penstock.testing.schedule import INPUT_OF_PART
from penstock.testing.simulated_worker import Task
from penstock.testing.simulator import World


def world_with(broken):
    """A world whose workers or tasks are of that kind."""
    return type(broken.__name__ + "World", (World,), {"worker" if issubclass(broken, WorkerEpoch) else "task": broken})


# ------------------------------------------------------------------------------- the workers' machine: rules W, H1, H4, C1, C4 to C8


class Carefree(WorkerEpoch):
    """Carries out what it would refuse."""

    def check(self):
        pass


class AcceptsAnotherEpoch(WorkerEpoch):
    def check(self):
        self.epoch = next((m.epoch for m in self.messages if type(m) is Barrier), self.epoch)
        super().check()


class AcceptsAnyOrder(WorkerEpoch):
    def check(self):
        self.messages = sorted(self.messages, key=lambda m: KINDS.index(type(m)))
        super().check()


class AcceptsTwice(WorkerEpoch):
    def check(self):
        self.messages = list({type(m): m for m in self.messages}.values())
        super().check()


class AcceptsLost(WorkerEpoch):
    def check(self):
        if any(type(m) is Frontier for m in self.messages):
            super().check()


class ReleasesWhatItHolds(WorkerEpoch):
    def check_held(self):
        pass


class Without(Carefree):
    """Forgets messages of a kind."""

    kind: ClassVar

    def run(self, task, *clock):
        self.messages = [m for m in self.messages if type(m) is not self.kind]
        return super().run(task, *clock)


class SkipsHold(Without):
    kind = Hold


class ReleasesNothing(Without):
    kind = Release


class Ordered(Carefree):
    """Carries messages out in another order."""

    first: ClassVar = ()
    last: ClassVar = ()

    def run(self, task, *clock):
        self.messages = sorted(self.messages, key=lambda m: (type(m) not in self.first) + (type(m) in self.last))
        return super().run(task, *clock)


class CollectsBeforeRows(Ordered):
    first = (Collect,)


class ProcessesBeforeHold(Ordered):
    last = (Hold,)


class HoldsWhatItReleases(Carefree):
    """Queues a released key's own rows again."""

    def run(self, task, *clock):
        keys = tuple(k for m in self.messages if type(m) is Release for k in m.keys)
        at = next((i for i, m in enumerate(self.messages) if type(m) is Release), -1) + 1
        self.messages = [*self.messages[:at], Hold(keys), *self.messages[at:]] if keys else self.messages
        return super().run(task, *clock)


class ReleasesAfterOwnRows(Ordered):
    last = (Release,)

    def run(self, task, *clock):
        answer = super().run(task, *clock)
        if any(type(m) is Release for m in self.messages):
            task.process(self.frontier)
        return answer


class CollectsBeforeAllInputs(Carefree):
    """Collects after each input; what is collected second overwrites what was collected first."""

    def run(self, task, *clock):
        if task.stage.inputs == 1 or not any(type(m) is Collect for m in self.messages):
            return super().run(task, *clock)
        rows, messages = task.rows, self.messages
        task.rows = [r for r in rows if INPUT_OF_PART[r[1]] == 0]
        super().run(task, *clock)
        first, task.moves = task.moves, []
        task.rows = [r for r in rows if INPUT_OF_PART[r[1]] == 1]
        self.messages = [m for m in messages if type(m) is not Release]
        answer = super().run(task, *clock)
        task.moves = first
        return answer


class AnswersTwice(WorkerEpoch):
    """Gives up twice what it is told to: what is left is cut again."""

    def collect(self, task, message):
        first = super().collect(task, message)
        moves = list(task.moves)
        super().collect(task, message)
        task.moves += moves
        return first


class CollectsMoreThanItSays(WorkerEpoch):
    """Says what fits the budget and gives up all that it was asked for."""

    def collect(self, task, message):
        said = self.choose(task, message)
        taken = super().collect(task, replace(message, budget_bytes=1 << 60, hold_bytes=1 << 60))
        return replace(taken, bins=said.bins, splits=said.splits, keys=said.keys)


class MovesPlacedKeysWithBin(WorkerEpoch):
    def collect(self, task, message):
        return super().collect(task, replace(message, pinned_keys=()))


class MovesWhatIsTooLarge(WorkerEpoch):
    """Gives up a key that is too large, and names it."""

    def collect(self, task, message):
        leaving = self.choose(task, message)
        task.give_up(replace(leaving, keys=(*leaving.keys, *((k, to) for k, to, _ in leaving.too_large))), message)
        return leaving


class NamesNothingTooLarge(WorkerEpoch):
    """Drops a key that is too large, and does not say so."""

    def collect(self, task, message):
        return replace(super().collect(task, message), too_large=())


class CutsOnePartShort(WorkerEpoch):
    def collect(self, task, message):
        taken = super().collect(task, message)
        return replace(taken, splits=tuple((at, to, upto - 1) for at, to, upto in taken.splits))


class CutsOneKeyFar(WorkerEpoch):
    """Says nothing wrong, and gives up the first key that was to stay, too."""

    def collect(self, task, message):
        leaving = self.choose(task, message)
        far = []
        for at, to, upto in leaving.splits:
            rest = [sub_of(k) for k in task.keys_of(at) if sub_of(k) >= upto and k not in message.pinned_keys]
            far.append((at, to, min(rest, default=SUBS - 1) + 1))
        task.give_up(replace(leaving, splits=tuple(far)), message)
        return leaving


class CutsNothing(WorkerEpoch):
    """Cuts a bin where it was cut before."""

    def choose(self, task, message):
        leaving = super().choose(task, message)
        starts = {item.bin: item.start for item in message.items}
        return replace(leaving, splits=tuple((at, to, starts[at]) for at, to, _ in leaving.splits))


class CollectsNothing(WorkerEpoch):
    """Keeps a bin whose keys do not fit the budget together, so the rescale cannot end."""

    def collect(self, task, message):
        fitting = tuple(i for i in message.items if i.bin < 0 or task.bytes_of(i.bin) <= message.budget_bytes)
        return super().collect(task, replace(message, items=fitting))


class MeasuresNothing(WorkerEpoch):
    """Never comes to the end of its bins."""

    def run(self, task, *clock):
        answer = super().run(task, *clock)
        return answer if answer.sized is None else replace(answer, sized=replace(answer.sized, next=0))


class HoldsEverything(Carefree):
    """While anything is on hold, queues the rows of all keys."""

    def run(self, task, *clock):
        if type(self.messages[0]) is Hold:
            self.messages = [Hold(tuple({r[3] for r in task.rows})), *self.messages[1:]]
        elif type(self.messages[0]) is Release:
            self.messages = [Release(tuple(task.state.queue), (0,) * len(task.state.queue)), *self.messages[1:]]
        return super().run(task, *clock)


# --------------------------------------------------------------------------------------------- what the machine is carried out on


class QueuesInMemory(Task):
    """Queues in memory, not in its state."""

    def hear(self, message):
        self.state.queue.clear()


class KeepsQueue(Task):
    """Releases rows and keeps them queued."""

    def release(self, keys):
        kept = dict(self.state.queue)
        super().release(keys)
        self.state.queue.update(kept)


class ReleasesBackwards(Task):
    """Releases the last row that was queued first."""

    def release(self, keys):
        for key in keys:
            if key in self.state.queue:
                self.state.queue[key] = self.state.queue[key][::-1]
        super().release(keys)


class HasAnotherHash(Task):
    def bin_of(self, key):
        return (key ^ 5) % self.bins


class LosesWaitingRows(Task):
    def give_up(self, leaving, asked):
        given = super().give_up(leaving, asked)
        for _, part in self.moves:
            part.waiting.clear()
        return given


WORKERS = {
    # name: (what is broken, properties of which at least one must be seen broken)
    "messages of another epoch": (world_with(AcceptsAnotherEpoch), {"P11"}),
    "messages in another order": (world_with(AcceptsAnyOrder), {"P11"}),
    "messages twice": (world_with(AcceptsTwice), {"P11"}),
    "messages lost": (world_with(AcceptsLost), {"P11"}),
    "release of a key on hold": (world_with(ReleasesWhatItHolds), {"P11"}),
    "hold skipped": (world_with(SkipsHold), {"P4"}),
    "hold after the rows": (world_with(ProcessesBeforeHold), {"P4"}),
    "every row held back an epoch": (world_with(HoldsEverything), {"P8"}),
    "nothing released": (world_with(ReleasesNothing), {"P1"}),
    "released key held again": (world_with(HoldsWhatItReleases), {"P1"}),
    "queue released after own rows": (world_with(ReleasesAfterOwnRows), {"P3"}),
    "queue released backwards": (world_with(ReleasesBackwards), {"P3"}),
    "queue released twice": (world_with(KeepsQueue), {"P5"}),
    "queue not in the state": (world_with(QueuesInMemory), {"P1"}),
    "collected before the rows": (world_with(CollectsBeforeRows), {"P4"}),
    "second Collect overwrites the first": (world_with(CollectsBeforeAllInputs), {"P4"}),
    "collected twice": (world_with(AnswersTwice), {"P4"}),
    "more collected than said": (world_with(CollectsMoreThanItSays), {"P6"}),
    "nothing collected": (world_with(CollectsNothing), {"P7"}),
    "placed key leaves with its bin": (world_with(MovesPlacedKeysWithBin), {"P6"}),
    "key too large moved and named": (world_with(MovesWhatIsTooLarge), {"P5"}),
    "key too large not named": (world_with(NamesNothingTooLarge), {"P4"}),
    "split one part short": (world_with(CutsOnePartShort), {"P6"}),
    "split one key far": (world_with(CutsOneKeyFar), {"P6"}),
    "split goes nowhere": (world_with(CutsNothing), {"P7"}),
    "bins measured for ever": (world_with(MeasuresNothing), {"P7"}),
    "another hash at the worker": (world_with(HasAnotherHash), {"P6"}),
    "waiting rows lost on Collect": (world_with(LosesWaitingRows), {"P1"}),
}
