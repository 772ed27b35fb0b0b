"""One region of a changed flow: which old step each step takes the state of, which input the rows that wait go to, and what stands in the way.

Read next: `penstock.driver.succession`, which compares whole flows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from penstock.checkpoint.shape import AS_IT_IS, PortShape, RegionShape, StepShape
from penstock.driver.report import Findings, Outcome
from penstock.errors import ChangedFlowError
from penstock.operators.layouts import KEPT_AS, MIGRATED, NONE_ADDED, NONE_DROPPED, columns_of, part_widens, widens
from penstock.sql_text.schema import on_one_line
from penstock.types import HIDDEN, MASK, plain_seconds

MOST_STEPS: Final = 250
"""Slots of a region: its steps, and those that it ever had."""
_DOES: Final = {Outcome.LOADS: "has changed and loads", Outcome.EMPTY: "starts empty", Outcome.FORGOTTEN: "is forgotten"}
_UNKNOWN: Final = "null"  # a type that only Spark knows


def difference(before: Mapping[str, str], now: Mapping[str, str], worded: Collection[str] = ()) -> tuple[str, str, str] | None:
    """The first part with another meaning, with its old and new meaning; None: there is none. `worded`: parts that are SQL."""
    return next((d for d in differences(before, now) if d[0] not in worded or len({*map(on_one_line, d[1:])}) > 1), None)


def differences(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> Iterator[tuple[str, str, str]]:
    """Each part with another meaning, likewise; none where one of both is not known."""
    if before is not None and now is not None:
        words = ((word, before.get(word, "none"), now.get(word, "none")) for word in {**before, **now})
        yield from ((word, plain_seconds(was), plain_seconds(is_)) for word, was, is_ in words if was != is_)


def gone(findings: Findings, kind: str, name: str, where: str, differs: str, advice: str) -> None:
    """A part that the flow no longer has, and that nobody said may be forgotten."""
    refusal = f"{where} of checkpoint {findings.uri} cannot be taken over: {differs}; {advice}."
    findings.found(
        kind,
        name,
        Outcome.FORGOTTEN,
        f"{differs[0].upper()}{differs[1:]}, and its state is forgotten if forget= says so.",
        refusal,
    )


def same(was: str, is_: str) -> bool:
    """Whether two types are the same, as far as they are known."""
    return was == is_ or _UNKNOWN in (was, is_)


class RegionSuccession:
    """One region of both flows.

    Attributes:
        at_once: By number of an input, the slot of the old input at which its step waited: it is given at once what waits there.
    """

    def __init__(
        self,
        name: str,
        before: RegionShape,
        now: RegionShape,
        findings: Findings,
        forget: Collection[str],
        held: Collection[str],
    ) -> None:
        self._name, self._before, self._now = name, before, now
        self._findings, self._held, self._holding = findings, name in held, held
        self._forget = forget
        self._unclear: set[int] = set()
        self.at_once: dict[int, int] = {}
        self._forgotten = {s.slot for s in before.steps if f"{name}/{s.name}" in forget}

    def taken_over(self) -> RegionShape:
        """The new region, with the slots of its state."""
        before, now = self._before, self._now
        self._check_region()
        pairs = self._pairs()
        steps, new = [], before.next_step
        taken = {before.step(old).name for old in pairs.values()} | {s.name for s in now.steps if s.named}
        self._check_gone(pairs)
        for step in now.steps:
            if step.slot in pairs:
                steps.append(self._step(before.step(pairs[step.slot]), step))
                continue
            names = (step.name, *(f"{step.kind}-{n}" for n in range(2, len(now.steps) + len(taken) + 2)))
            name = step.name if step.named else next(n for n in names if n not in taken)
            taken.add(name)
            if self._findings.outcome("step", f"{self._name}/{name}") is not Outcome.RECOMPUTE:
                what = f"Step {name!r} of region {self._name!r}"
                self._findings.begins(self._name, "step", f"{self._name}/{name}", Outcome.EMPTY, what)
            steps.append(replace(step, slot=new, name=name))
            new += 1
        for step in steps:
            if f"{self._name}/{step.name}" in self._forget:
                raise still_there(f"{self._name}/{step.name}")
        for name in dict.fromkeys(s.name for s in (*steps, *before.steps)):
            outcome = self._findings.outcome("step", f"{self._name}/{name}")
            if outcome is Outcome.RECOMPUTE:
                self._findings.found("region", self._name, outcome, f"Its step {name!r} must be recomputed.")
            elif outcome is not Outcome.UNCHANGED:
                self._loads(f"Its step {name!r} {_DOES[outcome]}.")
        if new > MOST_STEPS:
            self._refuse(
                "the steps that it has and ever had are more than 250, the slots of a checkpoint", "start on a new checkpoint"
            )
        slots = {s.slot: t.slot for s, t in zip(now.steps, steps, strict=True)} | {AS_IT_IS[0]: AS_IT_IS[0]}
        ports, next_port = self._ports(slots)
        return replace(now, ordinal=before.ordinal, steps=steps, ports=ports, next_step=new, next_port=next_port)

    def _refuse(self, differs: str, advice: str, where: str = "State", step: str | None = None) -> None:
        kind, name = ("region", self._name) if step is None else ("step", f"{self._name}/{step}")
        self._findings.refused(kind, name, f"{where} of region {self._name!r}", differs, advice)

    def _loads(self, differs: str, step: str | None = None) -> None:
        kind, name = ("region", self._name) if step is None else ("step", f"{self._name}/{step}")
        self._findings.found(kind, name, Outcome.LOADS, differs)

    def _check_region(self) -> None:
        before, now = self._before, self._now
        other = f"name the region anew with key_by(..., name='…') and start with forget=[{self._name!r}], or start on a new checkpoint"
        same_types = all(same(before.keys.get(n, ""), kind) for n, kind in now.keys.items())
        if list(before.keys) != list(now.keys) or not same_types:
            self._refuse(f"it was keyed by {_listed(before.keys)} and is now keyed by {_listed(now.keys)}", other)
        if before.distribution != now.distribution:  # state lies where the record says, whatever divides the rows of an epoch
            sentence = (
                f"Region {self._name!r} was distributed by {before.distribution} and is now distributed by {now.distribution}."
            )
            self._findings.changed("region", self._name, Outcome.LOADS, sentence)
        if before.timed != now.timed:
            had = "an event time" if before.timed else "none"
            self._refuse(f"its rows had {had}, and now they have {'an event time' if now.timed else 'none'}", other)
        added = [s for s in now.sources if s not in before.sources]
        if added and now.timed:
            self._refuse(
                f"source {added[0]!r} is new to it, and its records may lie before the frontier that the region has reached",
                other,
            )
        holding = [name for name in now.behind if name in self._holding and name not in before.behind]
        if holding and now.timed:
            self._refuse(
                f"it comes to read region {holding[0]!r}, where a key is on hold while it moves to another worker, and rows of that key may lie "
                "before the frontier that the region has reached",
                "start the flow as it was until its rescale has ended, then change it",
            )

    def _pairs(self) -> dict[int, int]:
        """For each step of now (its slot) the slot of the step whose state it takes over."""
        olds = {s.name: s for s in self._before.steps if s.slot not in self._forgotten}
        found = {s.slot: olds.pop(s.name).slot for s in self._now.steps if s.named and s.name in olds}
        for kind in dict.fromkeys(s.kind for s in self._now.steps):
            had = [s for s in olds.values() if s.kind == kind]
            has = [s for s in self._now.steps if s.kind == kind and not s.named]
            found |= self._pairs_of_kind(had, has)
        return found

    def _pairs_of_kind(self, had: list[StepShape], has: list[StepShape]) -> dict[int, int]:
        """Pair steps of one kind that have no names."""
        found: dict[int, int] = {}
        labels, labels_now = Counter(s.label for s in had), Counter(s.label for s in has)
        if any("<lambda>" in label and 0 < n != labels_now[label] > 0 for label, n in labels.items()):
            return self._ambiguous(had, has)  # a function without a name says nothing of which it is
        for tells, most in ((_wholly, MOST_STEPS), (_exactly, 1), (_nearly, 1)):
            counts, counts_now = Counter(map(tells, had)), Counter(map(tells, has))
            for what in counts:
                if not counts[what] == counts_now[what] <= most:
                    continue
                pairs = zip([s for s in had if tells(s) == what], [s for s in has if tells(s) == what], strict=True)
                found |= {new.slot: old.slot for old, new in pairs}
            had = [s for s in had if s.slot not in found.values()]
            has = [s for s in has if s.slot not in found]
        if len(had) == 1 and len(has) == 1:
            found[has[0].slot] = had[0].slot
        elif had and has:
            found |= self._ambiguous(had, has)
        return found

    def _ambiguous(self, had: list[StepShape], has: list[StepShape]) -> dict[int, int]:
        """No pairs."""
        names = ", ".join(repr(s.name) for s in had)
        self._unclear |= {s.slot for s in had}
        self._refuse(
            f"it had {len(had)} step{'s' * (len(had) > 1)} of the kind {had[0].kind!r} ({names}) and now has {len(has)}, and nothing says which is which",
            f"give each its name: name={had[0].name!r} to the one that goes on, another name to a new one",
        )
        return {}

    def _check_gone(self, pairs: dict[int, int]) -> None:
        new_kinds = {s.kind for s in self._now.steps if s.slot not in pairs}
        for step in self._before.steps:
            if step.slot in pairs.values() or step.slot in self._unclear:
                continue
            name, sentence = f"{self._name}/{step.name}", f"Step {step.name!r} of region {self._name!r} is forgotten."
            if step.slot in self._forgotten or (step.passes and step.kind not in new_kinds):
                self._findings.changed("step", name, Outcome.FORGOTTEN, sentence)
                continue
            where = f"State of step {step.name!r} ({step.label}) of region {self._name!r}"
            advice = (
                f"declare it as before, with name={step.name!r} if it has another name now, or start with forget=['{name}']"
            )
            gone(self._findings, "step", name, where, "the flow no longer has that step", advice)

    def _step(self, old: StepShape, new: StepShape) -> StepShape:
        """A step with the state of another."""
        self._findings.part("step", f"{self._name}/{old.name}")
        self._compare(old, new)
        had, has = _layouts(old, new)
        changes = list(had) != list(has) or any(not same(had[part], has[part]) for part in has)
        layouts = [*(old.layouts[:-1]), had, has] if changes else old.layouts
        return replace(new, slot=old.slot, name=old.name, layouts=layouts)

    def _compare(self, old: StepShape, new: StepShape) -> None:
        """Find what differs between a step and the one whose state it takes over."""
        where = f"State of step {old.name!r}"
        advice = (
            f"give the changed step another name with name='…' and start with forget=['{self._name}/{old.name}'], "
            "or start on a new checkpoint"
        )
        if old.kind != new.kind:
            self._refuse(f"it was of the kind {old.kind!r} and is now of the kind {new.kind!r}", advice, where, old.name)
            return
        had, has = _layouts(old, new)
        before, now = ({word: text for word, text in each.meaning.items() if word != new.typed} for each in (old, new))
        if differs := difference(before, now, new.worded):
            word, was, is_ = differs
            self._refuse(f"its {word} was {was} and is now {is_}", advice, where, old.name)
        if len(old.layouts) > MOST_STEPS:
            self._refuse("it has had more than 250 layouts", advice, where, old.name)
        gone_through, lists = old.migrations or [], new.migrations or []
        if lists[: len(gone_through)] != gone_through:
            self._refuse(
                f"its state has gone through the migrations {', '.join(gone_through)}, and migrate= lists {', '.join(lists) or 'none'} now",
                "keep those that are there, and put new ones behind them; or start on a new checkpoint",
                where,
                old.name,
            )
            return
        if further := lists[len(gone_through) :]:
            sentence = (
                f"State of step {old.name!r} of region {self._name!r} goes through {', '.join(further)} when it is first read."
            )
            self._findings.changed("step", f"{self._name}/{old.name}", Outcome.LOADS, sentence)
            return
        had.pop(MIGRATED, None), has.pop(MIGRATED, None)
        unread, wider = _unread(had, has, new.fixed)
        if new.migrations is not None:
            advice = f"give a function from the old state to the new one, migrate=…, or {advice}"
        if unread and new.typed:
            was, is_ = old.meaning.get(new.typed, "none"), new.meaning[new.typed]
            self._refuse(f"its {new.typed} was {was} and is now {is_}, and {unread[0]}", advice, where, old.name)
        elif unread:
            self._refuse(unread[0], advice, where, old.name)
        for sentence in wider:
            self._loads(f"{sentence[0].upper()}{sentence[1:]}, which has all values of before.", old.name)
        added = [part for part in has if part not in had]
        if added and not unread:
            where, parts = f"In step {old.name!r} of region {self._name!r}", ", ".join(map(repr, added))
            about = ("step", f"{self._name}/{old.name}", Outcome.LOADS)
            if new.typed:
                self._findings.changed(*about, f"{where} {parts} is new and null in what is stored.")
            else:
                self._findings.begins(self._name, *about, f"{where} {parts}")
        if gone_parts := [part for part in had if part not in has]:
            self._loads(f"In it {', '.join(map(repr, gone_parts))} is dropped.", old.name)
        if old.label != new.label and list(had) == list(has):
            self._loads(f"It was {old.label} and is now {new.label}.", old.name)
        if old.path != new.path:
            self._findings.differing.add(self._name)
            self._loads("Its rows come by other steps than before.", old.name)

    def _ports(self, slots: Mapping[int, int]) -> tuple[list[PortShape], int]:
        """The inputs, with the slots of those whose rows they take over; and the next free slot."""
        before = self._before
        ports = [_renumbered(port, slots) for port in self._now.ports]
        if self._held:
            if list(map(_alike, ports)) != list(map(_alike, before.ports)):
                self._refuse(
                    "a key is on hold while it moves to another worker, and rows queued for it are in the inputs as they were",
                    "start the flow as it was until its rescale has ended, then change it",
                    "The inputs",
                )
                return ports, before.next_port
            return [replace(x, slot=y.slot, ever=y.ever) for x, y in zip(ports, before.ports, strict=True)], before.next_port
        at_once = self._at_once(ports)
        taken = self._takers(ports, at_once)
        for at, old in taken.items():
            self._note_columns(old, ports[at])
        for at, old in [*taken.items(), *at_once.items()]:
            self._check_columns(old, ports[at], slots)
            self._check_readers(
                old, [ports[i] for some in (taken, at_once) for i, other in some.items() if other == old], ports
            )
        for at, old in at_once.items():
            self.at_once[at] = old.slot
            name = next(s.name for s in before.steps if [s.slot, 0] in ports[at].direct)
            sentence = f"Step {name!r} of region {self._name!r} no longer waits for the frontier; rows that wait for it are given to it at once."
            self._findings.changed("step", f"{self._name}/{name}", Outcome.LOADS, sentence)
        out, free = [], before.next_port
        unused = [x.slot for x in before.ports if not x.waits]  # nothing is kept there
        for i, port in enumerate(ports):
            if i in taken:
                out.append(replace(port, slot=taken[i].slot, ever={**taken[i].ever, **port.columns}))
            elif not port.waits and unused:
                out.append(replace(port, slot=unused.pop(0)))
            else:
                out.append(replace(port, slot=free))
                free += 1
        if free > MOST_STEPS:
            self._refuse("the inputs that it has and ever had are more than 250", "start on a new checkpoint")
        return out, free

    def _at_once(self, ports: list[PortShape]) -> dict[int, PortShape]:
        """By number of an input that does not wait, the old input at which its step did."""
        olds = [port for port in self._before.ports if port.waits]
        return {
            i: old
            for i, port in enumerate(ports)
            if not port.waits and not any(name.startswith(HIDDEN) for name in port.columns)  # no partial results
            for old in olds
            if any(step in port.direct for step in old.direct)
        }

    def _takers(self, ports: list[PortShape], at_once: Mapping[int, PortShape]) -> dict[int, PortShape]:
        """By number of an input, the old input whose waiting rows it takes over: a step reads both, or follows both."""
        taken: dict[int, PortShape] = {}
        waiting = [i for i, port in enumerate(ports) if port.waits]
        olds = [port for port in self._before.ports if port.waits]
        if len(olds) == len(waiting) == 1:
            return {waiting[0]: olds[0]}
        for read in (attrgetter("direct"), attrgetter("readers")):
            for old in [port for port in olds if port not in taken.values()]:
                to = [i for i in waiting if i not in taken and any(step in read(ports[i]) for step in read(old))]
                if len(to) > 1:
                    self._stranded(old, "more than one input")
                taken |= dict.fromkeys(to, old)
        for old in olds:
            if old not in [*taken.values(), *at_once.values()] and any(slot not in self._forgotten for slot, _ in old.readers):
                self._stranded(old, "nothing")
        return taken

    def _check_readers(self, old: PortShape, takers: Sequence[PortShape], ports: Sequence[PortShape]) -> None:
        """Waiting rows must reach each step that still waits for them, and none that has seen them on arrival.

        They must not leave the region unchanged if a step that followed the region may now stand before it.
        """
        if AS_IT_IS not in old.direct and any(AS_IT_IS in new.direct and new.path != old.path for new in takers):
            self._refuse(
                f"they wait for {self._readers(old)}, which is gone, and would leave the region without what stands before it now",
                "leave that step where it is, or take it out and change nothing else until the frontier has passed the rows that wait",
                "Rows waiting at the start",
            )
        at_once = [reader for port in self._before.ports if not port.waits for reader in port.readers]
        to = [reader for new in takers for reader in new.readers]
        lost = [x for x in old.readers if x not in to and any(x in port.readers for port in ports)]
        twice = [x for x in to if x not in old.readers and x in at_once]
        if not lost and not twice:
            return
        step = self._named((lost or twice)[0][0])
        differs = (
            f"they wait for {step}, and would not come to it now"
            if lost
            else f"{step} has seen them when they came in, and would see them again"
        )
        self._refuse(
            differs,
            "leave that step where it reads its rows and put what is new into a step of its own, or start on a new checkpoint",
            "Rows waiting at the start",
        )

    def _stranded(self, port: PortShape, takes: str) -> None:
        self._refuse(
            f"rows may wait for {self._readers(port)}, and {takes} would take them now",
            "leave that step where it reads its rows, or start on a new checkpoint",
            "Rows waiting at the start",
        )

    def _readers(self, port: PortShape) -> str:
        readers = [slot for slot, _ in port.readers]
        return self._named(next((s.slot for s in self._before.steps if s.slot in readers), AS_IT_IS[0]))

    def _named(self, slot: int) -> str:
        """A reader of an old input, in words."""
        return next((f"step {s.name!r}" for s in self._before.steps if s.slot == slot), "what follows the region")

    def _note_columns(self, old: PortShape, new: PortShape) -> None:
        """What else differs in rows that wait."""
        new_ones, gone_ones = (
            ", ".join(repr(n) for n in some if n not in others and not n.startswith(MASK))
            for some, others in ((new.columns, old.columns), (old.columns, new.columns))
        )
        if new_ones:
            self._loads(f"Its rows have the new columns {new_ones}, which are null in rows that wait.")
        if gone_ones:
            self._loads(f"Its rows no longer have the columns {gone_ones}.")
        if old.path != new.path:
            self._loads("What its rows come through has changed; rows that wait have come through what was there before.")

    def _is_null_there(self, slot: int, step: StepShape | None, column: str) -> bool:
        """Whether a step goes on, and reads as null what is stored without a column that it has got."""
        goes_on = any(s.slot == slot for s in self._before.steps)
        return bool(
            goes_on and step and step.typed and NONE_ADDED not in step.fixed and column in columns_of(step.meaning[step.typed])
        )

    def _check_columns(self, old: PortShape, new: PortShape, slots: Mapping[int, int]) -> None:
        for column, kind in new.columns.items():
            if column not in old.columns and column.startswith(MASK):
                self._refuse(
                    "they came before the pattern, whose conditions are evaluated as records come in",
                    "key the stream again under another name for the new pattern: key_by(..., name='…')",
                    "Rows waiting at the start",
                )
            if column in old.ever and not same(old.ever[column], kind) and not widens(old.ever[column], kind):
                self._refuse(
                    f"their column {column!r} was {old.ever[column]} and is now {kind}",
                    "give the changed column another name, or start on a new checkpoint",
                    "Rows waiting at the start",
                )
        by_slot = {slots[s.slot]: s for s in self._now.steps}
        for slot in new.first:
            step = by_slot.get(slot)
            for column in step.reads if step else ():
                if column in new.columns and column not in old.columns and not self._is_null_there(slot, step, column):
                    self._refuse(
                        f"step {step.name if step else ''!r} reads the column {column!r}, which they lack",
                        "add the column first, and the step when the frontier has passed the rows of before; or start on a new checkpoint",
                        "Rows waiting at the start",
                    )


def _layouts(old: StepShape, new: StepShape) -> tuple[dict[str, str], dict[str, str]]:
    """What a step's values consisted of, and consist of now."""
    if new.typed:
        had, has = columns_of(old.meaning.get(new.typed, "")), columns_of(new.meaning[new.typed])
    else:
        had, has = {n: v for n, v in old.layouts[-1].items() if n != MIGRATED}, new.layouts[-1]
    versions = ({MIGRATED: str(len(step.migrations))} if step.migrations else {} for step in (old, new))
    before, now = ({**layout, **version} for layout, version in zip((had, has), versions, strict=True))
    return before, now


def _unread(had: Mapping[str, str], has: Mapping[str, str], fixed: Collection[str]) -> tuple[list[str], list[str]]:
    """What cannot be read of values of another layout, and what has become wider; each as the beginning of a sentence."""
    unread: list[str] = []
    wider: list[str] = []
    for part in had:
        if part in has and not same(had[part], has[part]):
            was, is_ = (layout[part].partition(KEPT_AS)[0] for layout in (had, has))
            if was == is_:
                was, is_ = had[part], has[part]
            reads = part not in fixed and part_widens(had[part], has[part])
            (wider if reads else unread).append(f"{part!r} was {was} and is now {is_}")
        if part not in has and NONE_DROPPED in fixed:
            unread.append(f"{part!r} is gone" if part else "what is stored has no columns")
    if NONE_ADDED in fixed:
        unread += [f"{part!r} is new" for part in has if part not in had]
    return unread, wider


def _renumbered(port: PortShape, slots: Mapping[int, int]) -> PortShape:
    """An input whose steps have other slots."""
    direct, readers = ([[slots[slot], n] for slot, n in steps] for steps in (port.direct, port.readers))
    return replace(port, direct=direct, readers=readers, first=[slots[slot] for slot in port.first])


def still_there(name: str) -> ChangedFlowError:
    """Refuse to forget a part that still exists: it would be forgotten at each start."""
    return ChangedFlowError(
        f"forget names {name!r}, which the flow has: its state would be forgotten at every start; give what is new another name with name='…'."
    )


def _alike(port: PortShape) -> PortShape:
    """An input without what does not matter to rows queued for it."""
    return replace(port, slot=0, first=[], ever={}, path="")


def _wholly(step: StepShape) -> str:
    return json.dumps([step.path, _exactly(step)])


def _exactly(step: StepShape) -> str:
    return json.dumps([step.label, step.meaning, step.layouts[-1]])


def _nearly(step: StepShape) -> str:
    return step.label


def _listed(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


__all__ = ["RegionSuccession", "difference", "differences", "gone", "still_there"]
