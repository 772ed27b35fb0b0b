"""What must be true of every group, whatever happens to it: properties G1 to G9.

    G1  no loss: what is committed was handled under the token that committed it, from the first entry on
    G2  no entry is committed twice, but for commits that the server has lost
    G3  committed entries of a partition were handled one after the other, in their order: never by two at once. A process handles one
        at a time
    G4  tokens rise: those of accepted acks on each partition, and those that one process gets for it
    G5  no process starts below what it knows to be committed; nobody does once a lost position had the time to be reported
    G6  within a bound after the last disturbance everybody works on what it should, within one of each other, and all is handled
    G7  in a calm run each entry is handled once, no more partitions move than must, and those that stay are not touched
    G8  no process begins an entry when its last renewal is a lease old
    G9  a process exits with a refusal only if another has its id; a leaver is gone in its grace and a little more

The checkers see what a user could see: entries handled, acks, starts of work, renewals, exits. They know nothing of documents, locks and
commands.

Read next: `penstock.testing.group.outcome`, which is what they see, and `penstock.testing.group.simulator`, which makes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.testing.checkers import Violation
from penstock.testing.group.outcome import Ack, AckKnown, DataLost, Gone, Handled, Outcome, Renewed, Taken

REPORTED = 2
"""So many leases after the last disturbance every member has reported what the server has lost."""
GONE_S = 1.5
"""So long after its grace a leaver is gone."""
SLACK_S = 0.01


def check(outcome: Outcome) -> list[Violation]:
    """What is wrong with a run; nothing, if all is well.

    Example:
        >>> from penstock.testing.group.simulator import simulate
        >>> check(simulate(7))
        []
    """
    found = [*_commits(outcome), *_starts(outcome), *_end(outcome), *_renewals(outcome), *_exits(outcome)]
    return [*found, *_calm(outcome)] if outcome.schedule.calm else found


def _commits(outcome: Outcome) -> Iterator[Violation]:
    """G1 to G4, of handled entries and accepted acks."""
    handled: dict[tuple[str, int, int], dict[int, Handled]] = defaultdict(dict)
    started: dict[tuple[str, int, int], int] = {}
    done_at: dict[tuple[str, int], float] = {}
    commits: dict[int, list[tuple[Ack, Handled]]] = defaultdict(list)  # by partition, its entries from the first on
    lost: dict[int, list[tuple[Ack, Handled]]] = defaultdict(list)
    for each in outcome.log:
        match each:
            case Taken(process=process, partition=p, token=token, position=position):
                started[process, p, token] = position
            case Handled(process=process, partition=p, token=token, entry=entry):
                handled[process, p, token][entry] = each
                if each.begun < done_at.get((process, p), 0.0) - 1e-9:
                    yield Violation("G3", f"{each} began before its own process had done another")
                done_at[process, p] = each.at
            case DataLost(since=since):
                for p, done in commits.items():
                    lost[p] = done if len(done) > len(lost[p]) else lost[p]
                    commits[p] = [c for c in done if c[0].at <= since]
            case Ack(process=process, partition=p, token=token, entry=entry, accepted=True):
                key, done = (process, p, token), commits[p]
                if done and done[-1][0].token > token:
                    yield Violation("G4", f"{each} was accepted after {done[-1][0]}")
                first = started.get(key, 0) + 1
                done += [(c._replace(at=each.at), h) for c, h in lost[p][len(done) : first - 1]]  # somebody remembered
                if first > len(done) + 1:
                    yield Violation("G1", f"{process} began partition {p} at entry {first}, and {len(done)} were committed")
                for n in range(first, entry + 1):
                    work = handled[key].get(n)
                    if work is None:
                        yield Violation("G1", f"{each} commits entry {n}, which was not handled")
                    elif n > len(done):
                        if done and done[-1][1].at > work.begun + 1e-9:
                            yield Violation("G3", f"{work} began before {done[-1][1]} was done")
                        done.append((each, work))
                    elif done[n - 1][0][1:4] != each[1:4]:
                        yield Violation("G2", f"{each} commits entry {n} again, after {done[n - 1][0]}")
    if outcome.settled is not None and outcome.shares:
        for p, entries in enumerate(outcome.entries):
            if len(commits[p]) < entries and not any(type(e) is DataLost for e in outcome.log):
                yield Violation("G1", f"partition {p} has {entries} entries, and {len(commits[p])} were committed")


def _starts(outcome: Outcome) -> Iterator[Violation]:
    """G4 and G5, of starts of work."""
    known: dict[tuple[str, int], int] = {}
    token: dict[tuple[str, int], int] = {}
    for each in outcome.log:
        match each:
            case AckKnown(process=process, partition=p, entry=entry):
                known[process, p] = max(known.get((process, p), 0), entry)
            case Taken(at=at, process=process, partition=p):
                if each.token <= token.get((process, p), 0):
                    yield Violation("G4", f"{each} has no higher token than {token[process, p]}")
                token[process, p] = each.token
                late = at > outcome.healed + REPORTED * outcome.schedule.long_s
                for (other, q), entry in known.items():
                    if q == p and entry > each.position and (other == process or (late and other in outcome.shares)):
                        yield Violation("G5", f"{each} began below entry {entry}, which {other} knows to be committed")


def _end(outcome: Outcome) -> Iterator[Violation]:
    """G6."""
    if outcome.settled is None:
        yield Violation("G6", f"it had not settled so long after {outcome.healed:.2f} s: {outcome.shares}")
    elif outcome.shares:
        sizes = [len(each) for each in outcome.shares.values()]
        placed = sorted(p for each in outcome.shares.values() for p in each)
        if max(sizes) - min(sizes) > 1 or placed != list(range(outcome.schedule.partitions)):
            yield Violation("G6", f"the shares in the end are {outcome.shares}")


def _renewals(outcome: Outcome) -> Iterator[Violation]:
    """G8; a process that was paused may find out a moment late, unless it looks at its clock before each entry."""
    renewed: dict[str, float] = {}
    for each in outcome.log:
        match each:
            case Renewed(at=at, process=process):
                renewed[process] = max(at, renewed.get(process, 0.0))
            case Handled(process=process, begun=begun) if outcome.strict or process not in outcome.paused:
                if begun > renewed.get(process, 0.0) + outcome.leases_s[process]:
                    yield Violation("G8", f"{each} began after the lease of {renewed.get(process)}")


def _exits(outcome: Outcome) -> Iterator[Violation]:
    """G9."""
    kinds = {d.kind for d in outcome.schedule.disturbances}
    if outcome.refused and not kinds & {"twin", "restart of a paused one"}:
        yield Violation("G9", f"without another process of their ids, these gave up: {outcome.refused}")
    gone = {e.process: e.at for e in outcome.log if type(e) is Gone}
    for process, deadline in outcome.leaving.items():
        if process not in outcome.paused and gone.get(process, outcome.ended) > deadline + GONE_S:
            yield Violation("G9", f"{process} was to be gone at {deadline:.2f}, and was gone at {gone.get(process)}")


def _calm(outcome: Outcome) -> Iterator[Violation]:
    """G7."""
    change = next((d for d in outcome.schedule.disturbances if d.kind != "entries"), None)
    kind = change.kind if change else "none"
    if kind not in {"kill", "restart at once"}:
        seen = set()
        for each in outcome.log:
            if type(each) is Handled:
                if (each.partition, each.entry) in seen:
                    yield Violation("G7", f"{each} was not the first time")
                seen.add((each.partition, each.entry))
            elif type(each) is Ack and not each.accepted:
                yield Violation("G7", f"{each} was refused")
    names = outcome.names
    before = {p: name for name, each in outcome.before.items() for p in each}
    after = {p: names[process] for process, each in outcome.shares.items() for p in each}
    moved = {p for p, name in after.items() if before.get(p, name) != name}
    gone = set(outcome.before) - {names[process] for process in outcome.shares}
    must = max((len(outcome.before[name]) for name in gone), default=0)
    if kind == "join":
        must = outcome.schedule.partitions // (len(outcome.before) + 1)
    if len(moved) > must:
        yield Violation("G7", f"{len(moved)} partitions moved, and {must} had to: {outcome.before} to {after}")
    if change:
        again = {e.partition for e in outcome.log if type(e) is Taken and e.at > change.at} - moved
        if again and kind != "restart at once":
            yield Violation("G7", f"the partitions {sorted(again)} stayed, and were begun again")


__all__ = ["check"]
