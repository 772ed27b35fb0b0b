"""Any flow, changed in any way between two runs: refused and left as it was, or what the code before the stop and the code after it give.

It may go back to snapshots, from the code after the stop to one of the code before it too: what is read again counts as read after the stop.

Read next: `changes`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import changes
import drawing
import drawing_changes
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_against_oracle import compare, examples

AMBIGUOUS = ("nothing says which is which", "would take them now")
COUNTED: Counter = Counter()


def check(
    data, change: drawing_changes.Change | None = None, *, holding: bool = False, records: oracle.Records | None = None
) -> None:
    """Run a flow with a change, any or the given one, over any records or those given, and compare. `holding`: keys are on hold when it changes."""
    if change is None:
        change = data.draw(drawing_changes.changes(data.draw(drawing.recipes(changing=True))))
    if change is None:
        COUNTED["nothing to change"] += 1
        return
    records = records or data.draw(drawing.records(change.recipe, most=24))
    course = replace(data.draw(drawing.courses), jumps=data.draw(st.integers(0, 99)))
    if holding or any(getattr(changes.first(n), "emit", "") == "update" for n in change.recipe.nodes):
        # Rows of a table that is updated stay until what is read again replaces them, which other code need not do.
        steering = {epoch: [c for c in commands if c[0] in ("scale", "move")] for epoch, commands in course.steering.items()}
        course = replace(course, steering=steering, back=None)
    last = max((epoch for rows in records.values() for epoch, _ in rows), default=0)
    stop = data.draw(st.integers(min(last, 2) if holding else 0, last))
    if course.back:  # from the second version to a snapshot of the first one
        course = replace(course, back=(max(0, stop - course.back[0]), stop + course.back[1]))
    if holding:
        # Keys that were put on hold some epochs before have rows in their queues, and timers that are due.
        scaled = max(0, stop - data.draw(st.integers(0, 4)))
        workers = data.draw(st.integers(1, 8).filter(lambda n: n != course.workers))
        steering = {epoch: commands for epoch, commands in course.steering.items() if epoch < scaled}
        steering[scaled] = [("scale", None, workers)]
        course = replace(course, steering=steering, limits=(1000, 1), copy_every=99)
    closes = any(x.close_after_us for s in change.recipe.sources() for x in (s, s.then) if x)
    silent = data.draw(st.integers(0, 2)) if closes else 0
    outcome = changes.run(change.recipe, records, course, stop, silent, holding=holding)
    for part, must in change.says.items():
        assert outcome.outcomes[part] == must, f"{change.what}: {part} {outcome.outcomes[part]}"
    records = outcome.trail.records(records)
    epochs = outcome.trail.epochs
    COUNTED["gone back"] += any(kept.back_us is not None for kept in epochs.values())
    COUNTED["gone back to the other version"] += epochs[min(e for e in epochs if e > outcome.stopped)].back_us is not None
    if outcome.held and not holding:  # which then count for steps of any kind
        COUNTED["gone back to keys on hold"] += 1
        return
    if outcome.refusal:
        assert change.must == "refused" or any(words in outcome.refusal for words in AMBIGUOUS), (
            f"{change.what}: {outcome.refusal}"
        )
        first, known = changes.project(change.recipe, 0)
        markers = {known[node]: marker for node, marker in outcome.markers.items() if node in known}
        expected = oracle.Oracle(first, records, markers, outcome.clock, outcome.trail)
        wanted = {node: expected.rows(known[node]) if node in known else [] for node in outcome.contents}
        COUNTED["refused" if change.must == "refused" else "ambiguous"] += 1
    else:
        assert change.must == "goes on", f"{change.what} was not refused"
        both = changes.Oracle(
            change.recipe,
            records,
            outcome.markers,
            outcome.stopped,
            outcome.frontiers,
            outcome.clock,
            outcome.trail,
            outcome.held,
        )
        wanted = {node: both.rows(node) for node in outcome.contents}
        COUNTED["goes on"] += 1
        COUNTED["with keys on hold"] += bool(outcome.held)
    for node, found in outcome.contents.items():
        what = f"{change.what} after epoch {stop}: {type(node).__name__} {node}"
        compare(what, found, changes.plain(row.data for row in wanted[node]))


@pytest.mark.slow
@examples(100)
@given(data=st.data())
def test_changed_flow_is_refused_or_gives_what_both_versions_give(data):
    check(data)


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=10_000)
@given(data=st.data())
def test_ten_thousand_changed_flows_are_refused_or_give_what_both_versions_give(data):
    check(data)
