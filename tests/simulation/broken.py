"""Worlds that are wrong on purpose, each in one place, by what a plausible mistake would do."""

from __future__ import annotations

from dataclasses import replace

from penstock.protocol.messages import Collect, Release
from penstock.protocol.rescale.hold import released
from penstock.routing.table import sub_of
from penstock.testing.schedule import INPUT_OF_PART
from penstock.testing.simulated_worker import Given, State, Worker
from penstock.testing.simulator import World


def world_with(worker):
    """A world whose workers are of that kind."""
    return type(worker.__name__ + "World", (World,), {"worker": worker})


class SkipsHold(Worker):
    def queued(self, rows, held):
        return list(rows)


class KeepsStateAfterCollect(Worker):
    def leave(self, keys, to, *, held=False):
        self.given += [Given(k, to, self.state.chains.get(k), self.state.waiting.get(k, ()), held) for k in keys]


class CollectsBeforeAllInputs(Worker):
    """Collects after each input; what is collected second overwrites what was collected first."""

    def run(self, orders, rows, copied):
        collects = [o for o in orders if isinstance(o, Collect)]
        if self.stage.inputs == 1 or not collects:
            return super().run(orders, rows, copied)
        super().run(orders, [r for r in rows if INPUT_OF_PART[r[1]] == 0], copied)
        first, self.given = {g.key: g for g in self.given}, []
        holds = [o for o in orders if not isinstance(o, Release)]
        answer = super().run(holds, [r for r in rows if INPUT_OF_PART[r[1]] == 1], ())
        self.given = list({**first, **{g.key: g for g in self.given if g.chain}}.values())
        return answer


class HasAnotherHash(Worker):
    def bin_of(self, key):
        return (key ^ 5) % self.stage.bins


class ReleasesWithoutQueue(Worker):
    def released(self, keys):
        super().released(keys)
        return []


class ReleasesAfterOwnRows(Worker):
    def run(self, orders, rows, copied):
        self.late = [r for o in orders if isinstance(o, Release) for r in Worker.released(self, o.keys)]
        self.own = True
        return super().run(orders, rows, copied)

    def released(self, keys):
        return []

    def process(self, rows):
        super().process([*rows, *self.late])


class GetsCopyAfterRows(Worker):
    def run(self, orders, rows, copied):
        answer = super().run(orders, rows, ())
        self.state.chains.update({key: chain for key, chain in copied if chain is not None})
        return answer


class MovesPlacedKeysWithBin(Worker):
    def collect_state(self, order):
        return super().collect_state(replace(order, pinned_keys=()))


class CutsOnePartShort(Worker):
    def collect_state(self, order):
        taken = super().collect_state(order)
        return replace(taken, splits=tuple((at, to, upto - 1) for at, to, upto in taken.splits))


class CutsOneKeyFar(Worker):
    """Says nothing wrong, and gives up the first key that was to stay, too."""

    def collect_state(self, order):
        taken = super().collect_state(order)
        for at, to, upto in taken.splits:
            rest = sorted((sub_of(k), k) for k in self.state.chains if self.bin_of(k) == at and k not in order.pinned_keys)
            self.leave([k for sub, k in rest if sub >= upto][:1], to)
        return taken


class LosesWaitingRows(Worker):
    def leave(self, keys, to, *, held=False):
        super().leave(keys, to, held=held)
        self.given = [g._replace(waiting=()) for g in self.given]


class ForgetsQueue(Worker):
    """Queues in memory, not in its state."""

    def run(self, orders, rows, copied):
        answer = super().run(orders, rows, copied)
        self.state.queue.clear()
        return answer


class CollectsNothing(Worker):
    """Keeps a bin whose keys do not fit the budget together, so the rescale cannot end."""

    def collect_state(self, order):
        fitting = tuple(i for i in order.items if i.bin < 0 or self.bytes_of(i.bin) <= order.budget_bytes)
        return super().collect_state(replace(order, items=fitting))

    def bytes_of(self, at):
        return sum(n for k, (_, n) in self.state.chains.items() if self.bin_of(k) == at)


class HoldsEverything(Worker):
    """While anything is on hold, queues the rows of all keys."""

    def queued(self, rows, held):
        return super().queued(rows, {r[3] for r in rows} if held else held)

    def released(self, keys):
        return super().released([*self.state.queue] if keys else keys)


class FrontierOvertakesHold(World):
    def announced(self, control, frontier):
        return frontier


class EndsInputDuringHold(World):
    def announced(self, control, frontier):
        return frontier if frontier == 2**63 - 1 else super().announced(control, frontier)


class FrontierStands(World):
    """The frontier of a copy that is done bounds others for one more epoch."""

    def announced(self, control, frontier):
        before = self.controls[-1].held_frontier
        return super().announced(control, frontier if before is None else min(frontier, before))


class MovesStateLate(World):
    """The table changes at the commit, and the state one epoch later."""

    def __init__(self, *args):
        super().__init__(*args)
        self.under_way = {}

    def region_epoch(self, stage, control, ends, rows):
        before = self.states[stage.region]
        after, shown, given = super().region_epoch(stage, control, ends, rows)
        late = {}
        for worker, state in shown.states.items():
            old = before.get(worker, State())
            for key in [k for k in state.chains if k not in old.chains and any(k in s.chains for s in before.values())]:
                late[worker, key] = state.chains.pop(key)
        for (worker, key), chain in self.under_way.get((stage.region, stage.epoch - 1), {}).items():
            shown.states.setdefault(worker, State()).chains.setdefault(key, chain)
        self.under_way[stage.region, stage.epoch] = late
        return after, shown, given


class SwitchesTableEarly(World):
    """Records go by the table that will be, while the state is where it was."""

    def table(self, region, control, told):
        items = [i for orders in told.values() for o in orders if isinstance(o, Collect) for i in o.items if i.bin >= 0]
        return control.routing.with_owners({i.bin: i.to for i in items})


class SwitchesTableLate(World):
    def table(self, region, control, told):
        shown = self.outcome.epochs
        return shown[-2][region].table if len(shown) > 1 else control.routing


class SchedulesRemovedWorkers(World):
    def tasks(self, region, control):
        return max([control.workers, *(e[region].tasks for e in self.outcome.epochs)])


class LeavesStateAtRemovedWorkers(World):
    def commit(self, epoch, controls, showed, given):
        for region, shown in enumerate(showed):
            for worker, state in self.states[region].items():
                if worker not in shown.states and worker >= controls[region].workers:
                    shown.states[worker] = State(dict(state.chains))
        super().commit(epoch, controls, showed, given)


class SchedulesNewWorkersLate(World):
    """A new worker gets its first task an epoch after its first state."""

    def tasks(self, region, control):
        shown = self.outcome.epochs
        return min(control.workers, shown[-2][region].table.used) if len(shown) > 1 and control.goal else control.workers


class EndsAnyHold(World):
    """A second, late report of a copy ends another hold of the same key."""

    def end_hold(self, control, key, since):
        found = next((h for h in control.held if h.key == key), None)
        return released(control, key, found.since if found else since)


class ReportsCopiesLate(World):
    """A copy's report lies in the log for one more epoch."""

    def report(self, epoch, command):
        super().report(epoch + 1, command)


class RunsDifferentlyAgain(World):
    """What a re-run emits is not what the first run emitted."""

    def store(self, emitted):
        super().store([e._replace(worker=e.worker + 1) for e in emitted] if self.stored is not None else emitted)


class StoresTwice(World):
    def store(self, emitted):
        self.stored = [*(self.stored or ()), *emitted]


VARIANTS = {
    # name: (what is broken, properties of which at least one must be seen broken)
    "hold skipped": (world_with(SkipsHold), {"P4"}),
    "state kept after Collect": (world_with(KeepsStateAfterCollect), {"P5"}),
    "second Collect overwrites the first": (world_with(CollectsBeforeAllInputs), {"P4"}),
    "another hash at the worker": (world_with(HasAnotherHash), {"P6"}),
    "released without its queue": (world_with(ReleasesWithoutQueue), {"P1"}),
    "queue released after own rows": (world_with(ReleasesAfterOwnRows), {"P3"}),
    "queue not in the state": (world_with(ForgetsQueue), {"P1"}),
    "copied state after the rows": (world_with(GetsCopyAfterRows), {"P4"}),
    "placed key leaves with its bin": (world_with(MovesPlacedKeysWithBin), {"P6"}),
    "split one part short": (world_with(CutsOnePartShort), {"P6"}),
    "split one key far": (world_with(CutsOneKeyFar), {"P6"}),
    "waiting rows lost on Collect": (world_with(LosesWaitingRows), {"P1"}),
    "nothing collected": (world_with(CollectsNothing), {"P7"}),
    "frontier overtakes a hold": (FrontierOvertakesHold, {"P9"}),
    "input ends during a hold": (EndsInputDuringHold, {"P9"}),
    "frontier stands while nothing is on hold": (FrontierStands, {"P9"}),
    "table switched early": (SwitchesTableEarly, {"P4"}),
    "table switched late": (SwitchesTableLate, {"P4"}),
    "table switched without the state": (MovesStateLate, {"P4", "P6"}),
    "removed workers scheduled": (SchedulesRemovedWorkers, {"P6"}),
    "removed workers hold state": (LeavesStateAtRemovedWorkers, {"P5"}),
    "new workers scheduled late": (SchedulesNewWorkersLate, {"P1"}),
    "late report ends another hold": (EndsAnyHold, {"P5"}),
    "copies reported late": (ReportsCopiesLate, {"P10"}),
    "every row held back an epoch": (world_with(HoldsEverything), {"P8"}),
    "epoch stored twice": (StoresTwice, {"P2"}),
    "re-run differs": (RunsDifferentlyAgain, {"P2"}),
}
