"""Groups that are broken on purpose, each in one way, and the properties of which at least one must be seen broken."""

from __future__ import annotations

from dataclasses import replace

from penstock.protocol.group import document as documents
from penstock.protocol.group.assignment import assign
from penstock.protocol.group.events import Acquire, Beaten, Confirm, Edit, Release, SendBeat, Stopped
from penstock.protocol.group.store import START, Changed, Granted, Wanted
from penstock.testing.group.process import Process, Work
from penstock.testing.group.simulator import World
from penstock.testing.group.store import ModelStore, Row

# ------------------------------------------------------------------------------------------------------- the steps of the store


class AcksAnything(ModelStore):
    """No token and no owner is checked at an ack."""

    def ack(self, partition, incarnation, token, position):
        row = self.rows.setdefault(partition, Row())
        return super().ack(partition, row.owner, row.token, position)


class GivesAnybody(ModelStore):
    """A lock that another has is given away."""

    def acquire(self, partition, member, incarnation, epoch, instead_of, token, position):
        owner = self.rows.setdefault(partition, Row()).owner
        return super().acquire(partition, member, incarnation, epoch, owner, token, position)


class TokensStay(ModelStore):
    """A grant does not raise the token."""

    def acquire(self, *arguments):
        answer = super().acquire(*arguments)
        if isinstance(answer, Granted):
            self.rows[answer.partition].token = 1
            return replace(answer, token=1)
        return answer


class KnowsNoDead(ModelStore):
    """Nobody is told of a missed deadline."""

    def beat(self, incarnation, lease_ms):
        return replace(super().beat(incarnation, lease_ms), dead=())


class BelievesItsClock(ModelStore):
    """Deadlines are kept when the clock jumps."""

    def beat(self, incarnation, lease_ms):
        self.last_beat_ms = self.clock_ms()
        return super().beat(incarnation, lease_ms)


class ForgetsReports(ModelStore):
    """What members remember is not believed."""

    def acquire(self, partition, member, incarnation, epoch, instead_of, token, position):
        return super().acquire(partition, member, incarnation, epoch, instead_of, 0, START)


# --------------------------------------------------------------------------------------------------------------- the work


class ReleasesBeforeTheLastAck(Work):
    """Work that is to stop says that it has, and then acks what it had in hand."""

    def go_on(self):
        if self.stopping and not self.ended:
            self.end()
        else:
            super().go_on()


class SkipsOne(Work):
    """Work begins one entry too far."""

    def __init__(self, process, order):
        super().__init__(process, order)
        self.done += self.token > 1


class Impatient(Process):
    work = ReleasesBeforeTheLastAck


class Hasty(Process):
    work = SkipsOne


class GoesOnWorking(Process):
    """Work that is abandoned goes on."""

    def abandon(self, order):
        if (work := self.works.get(order.partition)) is not None:
            self.world.later(2.0, self, self.give_up, work)

    def give_up(self, work):
        work.abandoned = True
        work.go_on()


class EndsTwice(Process):
    """Work that is abandoned is reported as ended at once, though it has not."""

    def abandon(self, order):
        super().abandon(order)
        self.world.later(0.0, self, self.tell, Stopped(order.partition, order.token))


class NeverPolls(Process):
    """Beats say nothing of the document."""

    def tell(self, event):
        document = self.member.document
        if isinstance(event, Beaten) and document is not None:
            event = replace(event, beat=replace(event.beat, epoch=document.epoch, editor=document.editor))
        super().tell(event)


# -------------------------------------------------------------------------------------------------------------- the world


class ReadsTheStream(World):
    """All that members know of changes they read on the control stream, in runs in which it loses nothing."""

    process = NeverPolls

    def __init__(self, schedule, *rest):
        schedule = (
            replace(schedule, losing=0.0, disturbances=[])
            if schedule.calm
            else replace(schedule, starts=[0.0], disturbances=[])
        )
        super().__init__(schedule, *rest)


class ReadsFromNow(ReadsTheStream):
    """Each read of the control stream begins with what comes next, so what comes between two reads is lost."""

    def publish(self, message):
        if isinstance(message, Changed) and self.now < getattr(self, "reading_from", 0.0):
            return
        self.reading_from = self.now + 0.02
        super().publish(message)


class JudgesByWallClocks(World):
    """Deadlines are set and judged by the clocks of the members' hosts."""

    def carry_out(self, what):
        process, command, _ = what
        if isinstance(command, SendBeat | Edit):
            clock, self.store.clock_ms = self.store.clock_ms, lambda: int((self.now + process.offset_s) * 1000)
            try:
                return super().carry_out(what)
            finally:
                self.store.clock_ms = clock
        return super().carry_out(what)


class ForgetsItself(World):
    """Members do not tell the server what they remember."""

    def carry_out(self, what):
        process, command, sent = what
        if isinstance(command, Acquire):
            command = replace(command, token=0, position=START)
        elif isinstance(command, Confirm):
            return True
        elif isinstance(command, Release):
            command = replace(command, position=START)
        return super().carry_out((process, command, sent))


class WaitsInSilence(World):
    """Nobody says that it waits for a lock."""

    def publish(self, message):
        if not isinstance(message, Wanted):
            super().publish(message)


def contiguous(partitions, held):
    """Shares in the order of the names, whoever had what."""
    return assign(partitions, dict.fromkeys(held, ()))


class AssignsContiguously(World):
    def run(self):
        documents.assign = contiguous
        try:
            return super().run()
        finally:
            documents.assign = assign


def with_store(kind):
    return type(kind.__name__, (World,), {"model": kind})


def with_process(kind):
    return type(kind.__name__, (World,), {"process": kind})


VARIANTS = {
    # name: (what is broken, properties of which each must be seen broken)
    "no epoch check at ack": (with_store(AcksAnything), {"G2", "G4"}),
    "lock given to anybody": (with_store(GivesAnybody), {"G7"}),
    "token does not rise": (with_store(TokensStay), {"G4"}),
    "nobody is told of the dead": (with_store(KnowsNoDead), {"G6"}),
    "clock that jumps is believed": (with_store(BelievesItsClock), {"G6"}),
    "memory is not believed": (with_store(ForgetsReports), {"G4", "G6"}),
    "release before the last ack": (with_process(Impatient), {"G7"}),
    "work begins one entry too far": (with_process(Hasty), {"G1"}),
    "abandoned work has ended at once": (with_process(EndsTwice), {"G3"}),
    "abandoned work goes on": (with_process(GoesOnWorking), {"G8"}),
    "control stream read from now": (ReadsFromNow, {"G6"}),
    "lease judged by wall clocks": (JudgesByWallClocks, {"G6"}),
    "memory is not reported": (ForgetsItself, {"G4", "G6"}),
    "waiting is not announced": (WaitsInSilence, {"G6"}),
    "contiguous assignment": (AssignsContiguously, {"G7"}),
}
