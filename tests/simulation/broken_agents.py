"""Agents that are broken on purpose, each in one way, and the property that must be seen broken."""

from __future__ import annotations

from penstock.protocol.group.dispatch import Channel, Dispatcher
from penstock.protocol.group.events import SendBeat, Stopped
from penstock.testing.group.agent import AgentProcess, AgentWorld


class ForgetsCommandsOfAcks(Dispatcher):
    """What the machine orders when it is told of an ack is not carried out: so it was until f028f96."""

    def handle(self, events, clock):
        for partition in list(self._acked):
            self.machine.handle(self._acked.pop(partition), clock())
        return super().handle(events, clock)


class ForgetsAcks(Dispatcher):
    """The machine does not learn of acks."""

    def acked(self, order, position, *, done):
        found = super().acked(order, position, done=done)
        self._acked.clear()
        return found


class IgnoresItsClock(Dispatcher):
    """What is mine is mine until the machine says otherwise."""

    def holds(self, partition, now):
        return partition in self.owned


class EndsUnderAnotherToken(Dispatcher):
    """The end of work is reported under the token before it."""

    def stopped(self, partition):
        found = super().stopped(partition)
        return found and Stopped(partition, found.token - 1)


class KeepsTheFirstOrder(Dispatcher):
    """Work that starts again acks under its first token."""

    def begin(self, order):
        self._started.setdefault(order.partition, order)


class SaysNothingOfFailures(Dispatcher):
    """The machine does not learn that a command was not answered."""

    @staticmethod
    def unanswered(command):
        return Dispatcher.unanswered(command) if isinstance(command, SendBeat) else None


class TakesOneEvent(Dispatcher):
    """Of the events that came together, only the first counts."""

    def handle(self, events, clock):
        return super().handle(events[:1], clock)


class GivesOrdersBackwards(AgentProcess):
    """The newest order to the work is carried out first."""

    def send_next(self, channel):
        if channel is Channel.ORDERS:
            self.queues[channel].reverse()
        super().send_next(channel)


def with_agent(kind):
    return type(kind.__name__, (AgentWorld,), {"process": type("Broken", (AgentProcess,), {"agent": kind})})


def with_process(kind):
    return type(kind.__name__, (AgentWorld,), {"process": kind})


VARIANTS = {
    # name: (what is broken, properties of which each must be seen broken)
    "commands of acks are thrown away": (with_agent(ForgetsCommandsOfAcks), {"G6"}),
    "acks are not remembered": (with_agent(ForgetsAcks), {"G5"}),
    "own clock is ignored": (with_agent(IgnoresItsClock), {"G8"}),
    "end under another token": (with_agent(EndsUnderAnotherToken), {"G6"}),
    "acks under the first token": (with_agent(KeepsTheFirstOrder), {"G6"}),
    "failures are not told": (with_agent(SaysNothingOfFailures), {"G6"}),
    "one event of many": (with_agent(TakesOneEvent), {"G6"}),
    "orders backwards": (with_process(GivesOrdersBackwards), {"G6"}),
}
