"""Worlds that are wrong on purpose, each in one place, by what a plausible mistake would do."""

from __future__ import annotations

from dataclasses import replace

from broken_workers import WORKERS

from penstock.protocol.commands import Copied, Scale
from penstock.protocol.messages import Collect
from penstock.testing.simulated_worker import STATES, State
from penstock.testing.simulator import World


class KeepsStateAfterCollect(World):
    kept = replace(STATES, left=lambda version, part: version)


class KeepsStateOfKeysOnHold(World):
    """Only what goes to a receiver leaves the giver."""

    def finished(self, control, answers, moves, *others):
        return World.finished(control, answers, {w: [m for m in given if m[0] >= 0] for w, given in moves.items()}, *others)


class JoinsInPlace(World):
    """Changes a committed state."""

    def joined(version, part):  # noqa: N805  (a function)
        out = STATES.joined(version, part)
        if version is STATES.empty:
            return out
        version.chains, version.waiting, version.queue = out.chains, out.waiting, out.queue
        return version

    kept = replace(STATES, joined=joined)


class CopiesWithoutWaitingRows(World):
    def copied(self, version, key):
        return State(World.copied(version, key).chains)


class CopiesTheLastState(World):
    """Copies a key on hold from what its old worker holds now."""

    def finished(self, control, answers, moves, versions, *others):
        after = World.finished(control, answers, moves, versions, *others)
        now = {h.key: after.versions[h.source] if h.source < len(after.versions) else State() for h in after.control.held}
        return replace(after, copies=now)


class GetsCopyAfterRows(World):
    """The state of a key whose hold ends joins its worker after the epoch."""

    def started(self, versions, workers, copied, kept):
        versions, came = World.started(versions, workers, (), kept)
        self.late = copied
        return versions, came

    def finished(self, control, answers, moves, versions, *others):
        for held, part in self.late:
            versions[held.to] = self.kept.joined(versions[held.to], part)
        return World.finished(control, answers, moves, versions, *others)


class MovesStateLate(World):
    """The table changes at the commit, and the state one epoch later."""

    def __init__(self, *args):
        super().__init__(*args)
        self.under_way = {}

    def region_epoch(self, stage, *others):
        self.stage = stage
        return super().region_epoch(stage, *others)

    def finished(self, control, answers, moves, versions, *others):
        after = World.finished(control, answers, {}, versions, *others)
        region, epoch = self.stage.region, self.stage.epoch
        self.under_way[region, epoch] = moves
        for giver, given in self.under_way.get((region, epoch - 1), {}).items():
            for to, part in given:
                if giver < len(after.versions):
                    after.versions[giver] = self.kept.left(after.versions[giver], part)
                if 0 <= to < len(after.versions):
                    after.versions[to] = self.kept.joined(after.versions[to], part)
        return after


# ------------------------------------------------------------------------------------------------------------------- the controller


class FrontierOvertakesHold(World):
    def announced(self, control, frontier):
        return frontier


class EndsInputDuringHold(World):
    def announced(self, control, frontier):
        return frontier if frontier == 2**63 - 1 else super().announced(control, frontier)


class FrontierStands(World):
    """The frontier of a copy that is done bounds others for one more epoch."""

    def announced(self, control, frontier):
        return super().announced(control, self.regions[-1].control.announced(frontier))


class SwitchesTableEarly(World):
    """Records go by the table that will be, while the state is where it was."""

    def table(self, region, control, told):
        items = [i for orders in told for o in orders if isinstance(o, Collect) for i in o.items if i.bin >= 0]
        return control.routing.with_owners({i.bin: i.to for i in items})


class SwitchesTableLate(World):
    def table(self, region, control, told):
        shown = self.outcome.epochs
        return shown[-2][region].table if len(shown) > 1 else control.routing


class SchedulesRemovedWorkers(World):
    def tasks(self, region, control):
        return max([control.workers, *(e[region].tasks for e in self.outcome.epochs)])


class LeavesStateAtRemovedWorkers(World):
    def commit(self, epoch, after, showed):
        for region, shown in enumerate(showed):
            for worker, state in enumerate(self.regions[region].versions):
                if worker >= after[region].control.workers and worker not in shown.states and state:
                    shown.states[worker] = State(dict(state.chains))
        super().commit(epoch, after, showed)


class SchedulesNewWorkersLate(World):
    """A new worker gets its first task an epoch after its first state."""

    def tasks(self, region, control):
        shown = self.outcome.epochs
        return min(control.workers, shown[-2][region].table.used) if len(shown) > 1 and control.goal else control.workers


class EndsAnyHold(World):
    """A second, late report of a copy ends another hold of the same key."""

    def decide(self, commands, controls, *others):
        since = {(n, h.key): h.since for n, control in controls.items() for h in control.held}
        return World.decide(
            [(n, replace(c, since=since.get((c.region, c.key), c.since)) if isinstance(c, Copied) else c) for n, c in commands],
            controls,
            *others,
        )


class ObeysWhatMakesNoSense(World):
    """Scales to no workers at all as if one had been asked for."""

    def decide(self, commands, *others):
        return World.decide(
            [(n, replace(c, workers=1) if isinstance(c, Scale) and not c.workers else c) for n, c in commands], *others
        )


class ObeysTheFirst(World):
    """Of commands of one epoch to one region only the first counts."""

    def decide(self, commands, *others):
        scales, out = set(), []
        for name, command in commands:
            if not isinstance(command, Scale) or command.region not in scales:
                out.append((name, command))
            scales |= {command.region} if isinstance(command, Scale) else set()
        return World.decide(out, *others)


class GoesBackWithoutTheSink(World):
    """The state goes back to a snapshot, and the sink keeps what it has."""

    def roll_back(self, to):
        emitted = self.outcome.emitted
        super().roll_back(to)
        self.outcome.emitted = emitted


class GoesBackWithoutCopies(World):
    """Copies that are under way when the flow goes back to a snapshot are not begun again."""

    def roll_back(self, to):
        self.copy = lambda *_: None
        super().roll_back(to)
        del self.copy


class KeepsStatesWhenGoingBack(World):
    """The placement goes back to a snapshot, and the state does not."""

    def roll_back(self, to):
        now = [r.versions for r in self.regions]
        super().roll_back(to)
        self.regions = [replace(r, versions=v) for r, v in zip(self.regions, now, strict=True)]


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


class TakesUsersKeys(World):
    """What the strategy pins and what users pin is one to it."""

    def watched(self, *args):
        after = World.watched(*args)
        return replace(after, watch=replace(after.watch, own=tuple(after.pins)))


class KeepsBinsBesideIsolatedKeys(World):
    """A key is pinned, and the bins of its worker stay."""

    def watched(self, control, *args):
        after = World.watched(control, *args)
        if control.goal is None and after.goal is not None:
            return replace(after, goal=replace(after.goal, target=control.routing.owners))
        return after


class DecidesWithoutEvidence(World):
    """Each row counts ten times."""

    def watched(self, control, during, strategy, rows, *others):
        return World.watched(control, during, strategy, {w: 10 * n for w, n in rows.items()}, *others)


VARIANTS = {
    # name: (what is broken, properties of which at least one must be seen broken)
    **WORKERS,
    "state kept after Collect": (KeepsStateAfterCollect, {"P5"}),
    "state of a key on hold kept": (KeepsStateOfKeysOnHold, {"P5"}),
    "committed state changed": (JoinsInPlace, {"P4"}),
    "waiting rows lost on a hold": (CopiesWithoutWaitingRows, {"P1"}),
    "copied from a later state": (CopiesTheLastState, {"P4"}),
    "copied state after the rows": (GetsCopyAfterRows, {"P4"}),
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
    "command without sense obeyed": (ObeysWhatMakesNoSense, {"P6"}),
    "second command of an epoch ignored": (ObeysTheFirst, {"P6"}),
    "back to a snapshot without the sink": (GoesBackWithoutTheSink, {"P2"}),
    "back to a snapshot without copies": (GoesBackWithoutCopies, {"P7"}),
    "back to a snapshot without the state": (KeepsStatesWhenGoingBack, {"P4"}),
    "epoch stored twice": (StoresTwice, {"P2"}),
    "users' keys are the strategy's": (TakesUsersKeys, {"P12"}),
    "bins stay beside an isolated key": (KeepsBinsBesideIsolatedKeys, {"P12"}),
    "strategy decides on too few rows": (DecidesWithoutEvidence, {"P13"}),
    "re-run differs": (RunsDifferentlyAgain, {"P2"}),
}
