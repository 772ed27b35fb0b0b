"""How a flow takes over the state of the previous flow on the same checkpoint, and what stands in the way.

A pure function of two shapes, whose result is a complete report. Steps with a name are found by it. Others are found among those of their kind: first those that
are identical, then the only one with the same meaning, the only one with the same label, the only one left. If several fit,
none is taken.

Rows that wait at the start of a region were read by the previous flow and are processed by this one, in its columns: columns
are found by name, and a missing column is null.

Read next: `penstock.driver.region_succession`, `penstock.driver.report`, `penstock.driver.shape`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from penstock.checkpoint.shape import FlowShape, RegionShape, SourceShape
from penstock.driver.region_succession import RegionSuccession, difference, differences, gone, still_there
from penstock.driver.report import Findings, Outcome, Report, Verdict
from penstock.flow.plan import Output
from penstock.types import seconds_text


def succeed(
    before: FlowShape | None, now: FlowShape, uri: str, forget: Collection[str] = (), held: Collection[str] = ()
) -> Report:
    """Give the steps and inputs of a flow the slots under which their state is kept, and say what happens to each part.

    Args:
        before: The shape of the flow whose state is there; None: there is no state.
        now: The shape of the flow as declared, with any slots.
        uri: The checkpoint, for messages.
        forget: Regions (``"k"``) and steps (``"k/name"``) that the flow no longer has and whose state may be forgotten; those that are
            forgotten already do not matter, so that a start can be repeated as it is.
        held: Regions in which a key is on hold, so that rows of any input may be queued.

    Raises:
        ChangedFlowError: `forget` names a part that the flow has. Nothing was changed.
    """
    findings = Findings(uri)
    if before is None:
        return Report(_all_new(now, findings), now)
    _compare_sources(before.sources, now.sources, findings)
    regions: dict[str, RegionShape] = {}
    at_once: dict[str, dict[int, int]] = {}
    ordinal = before.next_ordinal
    for name, region in now.regions.items():
        findings.part("region", name)
        if name in forget:
            raise still_there(name)
        if name in before.regions:
            succession = RegionSuccession(name, before.regions[name], region, findings, forget, held)
            regions[name], at_once[name] = succession.taken_over(), succession.at_once
        else:
            findings.begins(name, "region", name, Outcome.EMPTY, f"Region {name!r}")
            for step in region.steps:
                findings.found("step", f"{name}/{step.name}", Outcome.EMPTY, "Its region is new.")
            regions[name] = replace(region, ordinal=ordinal)
            ordinal += 1
    for name in before.regions:
        if name not in now.regions and name not in forget:
            advice = f"declare it as before (a region's name is its key columns, or key_by(..., name={name!r})), or start with forget=[{name!r}]"
            gone(findings, "region", name, f"State of region {name!r}", "the flow no longer has that region", advice)
        elif name not in now.regions:
            findings.changed("region", name, Outcome.FORGOTTEN, f"Region {name!r} is forgotten.")
    rebuilt = {n for n in now.regions if findings.outcome("region", n) is Outcome.RECOMPUTE}
    for name, region in now.regions.items():
        if first := [n for n in region.behind if n in rebuilt]:
            findings.found("region", name, Outcome.RECOMPUTE, f"It reads region {first[0]!r}, which must be recomputed.")
    for name, region in now.regions.items():
        if name in before.regions and findings.outcome("region", name) is Outcome.RECOMPUTE:
            regions[name], at_once[name] = replace(region, ordinal=before.regions[name].ordinal), {}
    _compare_outputs(before.outputs, now.outputs, findings)
    _compare_tables(before.tables, now.tables, findings)
    shape, told = replace(now, regions=regions, next_ordinal=ordinal), (tuple(findings.changes), tuple(findings.new))
    return Report(findings.verdicts(), shape, *told, frozenset(findings.differing), at_once)


def _all_new(now: FlowShape, findings: Findings) -> tuple[Verdict, ...]:
    parts = [("source", s.name) for s in now.sources]
    for name, region in now.regions.items():
        parts += [("region", name), *(("step", f"{name}/{s.name}") for s in region.steps)]
    for kind, name in [*parts, *(("output", name) for name in now.outputs)]:
        findings.found(kind, name, Outcome.EMPTY, "The checkpoint has no state yet.")
    return findings.verdicts()


def _compare_sources(before: list[SourceShape], now: list[SourceShape], findings: Findings) -> None:
    """Positions are kept for each source by its number: sources must be the same, and read the same."""
    had, has = [s.name for s in before], [s.name for s in now]
    again = "positions of records are kept for each source; declare the sources as before, or start on a new checkpoint"
    refusal = f"The flow of checkpoint {findings.uri} had the sources {', '.join(had)}, in this order, and now has {', '.join(has)}; {again}."
    for name in dict.fromkeys([*has, *had]):
        findings.part("source", name)
        if had != has:
            what = "It is new" if name not in had else "It is gone" if name not in has else "Other sources, or another order"
            findings.found("source", name, Outcome.CANNOT, f"{what}: positions would mean something else.", refusal)
    olds = {s.name: s for s in before}
    for new in now:
        old = olds.get(new.name, new)
        if differs := difference(old.meaning, new.meaning):
            word, was, is_ = differs
            sentence = f"Source {old.name!r} of checkpoint {findings.uri} had the {word} {was!r} and now has {is_!r}; {again}."
            findings.found("source", new.name, Outcome.CANNOT, f"It had the {word} {was!r} and now has {is_!r}.", sentence)
        if old.lateness_us != new.lateness_us:
            was, is_ = seconds_text(old.lateness_us), seconds_text(new.lateness_us)
            findings.found("source", new.name, Outcome.LOADS, f"Its lateness was {was} and is now {is_}.")
        for word, was, is_ in differences(old.options, new.options):
            findings.found("source", new.name, Outcome.LOADS, f"Its {word} was {was} and is now {is_}.")


def check_sources(before: list[SourceShape], now: list[SourceShape], uri: str) -> None:
    """Refuse sources other than those of the checkpoint's positions.

    Raises:
        ChangedFlowError: A source was added, dropped, renamed, or reads something else. Nothing was changed.
    """
    findings = Findings(uri)
    _compare_sources(before, now, findings)
    Report(findings.verdicts(), FlowShape(now, {}, {}, 0)).checked()


def _compare_outputs(before: Mapping[str, str], now: Mapping[str, str], findings: Findings) -> None:
    for name, sink in now.items():
        findings.part("output", name)
        if name not in before:
            findings.found("output", name, Outcome.EMPTY, "It is new, and its sink gets the rows of later epochs.")
        elif before[name] != sink:
            findings.found("output", name, Outcome.LOADS, f"Its sink was {before[name]} and is now {sink}.")
    for name in before:
        if name not in now:
            findings.found("output", name, Outcome.FORGOTTEN, "The flow no longer has it, and its sink gets no more rows.")


def _compare_tables(before: Mapping[str, str], now: Mapping[str, str], findings: Findings) -> None:
    """A table is code: records read before the change met the rows of before."""
    for name, table in now.items():
        if name in before:
            findings.part("table", name)
            if before[name] != table:
                was, is_ = (text.partition(", ")[0] for text in (before[name], table))
                rows = f"it had {was} and has {is_}" if was != is_ else f"it has {is_}, as before"
                findings.changed(
                    "table",
                    name,
                    Outcome.LOADS,
                    f"The table of {name} has changed ({rows}): records read from now on meet the rows of today.",
                )


def named_as_before(before: FlowShape | None, outputs: Sequence[Output], uri: str) -> tuple[list[Output], list[Verdict]]:
    """Outputs under the names by which their sinks know them.

    A derived name may change when steps are inserted; the sink identifies the output.

    Args:
        before: The shape of the flow whose state is there; None: there is none.
        outputs: The outputs as declared.
        uri: The checkpoint, for messages.

    Returns:
        The outputs, and a verdict for each with a given name that has another name now.
    """
    had = before.outputs if before else {}
    targets, known = Counter(repr(o.sink) for o in outputs), Counter(had.values())
    names = {target: name for name, target in had.items() if known[target] == 1 == targets[target]}
    given = {o.name for o in outputs if not o.derived}
    out, taken, refused = [], set(given), []
    for output in outputs:
        name = names.get(repr(output.sink), output.name)
        if name != output.name and (not output.derived or name in given):
            sentence = (
                f"The output to {output.sink!r} was named {name!r} in checkpoint {uri} and is now named {output.name!r}, so its sink would not "
                f"know what it holds of it; name it as before: .sink(..., name={name!r})."
            )
            refused.append(Verdict("output", output.name, Outcome.CANNOT, f"It was named {name!r}.", (sentence,)))
            name = output.name
        out.append(replace(output, name=name))
        taken.add(name)
    kept = set(names.values())
    for at, output in enumerate(out):
        if output.derived and repr(output.sink) not in names and output.name in kept:
            free = (f"{output.name}-{n}" for n in range(2, len(outputs) + len(taken) + 2))
            out[at] = replace(output, name=next(n for n in free if n not in taken))
            taken.add(out[at].name)
    return out, refused


__all__ = ["check_sources", "named_as_before", "succeed"]
