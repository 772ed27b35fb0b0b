"""The checker of changed flows is checked: each plausible mistake in taking state over must be noticed by a small search."""

from __future__ import annotations

from dataclasses import replace

import drawing_changes
import pyarrow as pa
import pytest
import recipes as r
import test_changed_recipes
from changes import Changed
from hypothesis import given
from hypothesis import strategies as st
from test_against_oracle import always_the_same

from penstock.driver import opener, region_succession, takeover
from penstock.errors import PenstockError
from penstock.operators.aggregates.codec import Codec
from penstock.sinks.memory import MemorySink
from penstock.worker import waiting_rows


def a_change(behind: str) -> drawing_changes.Change:
    """A flow of one region with a function and a window, and a change of it."""
    source = r.Source("a", lateness_us=10 * r.SECOND, partitions=(0, 1))
    read = Changed(source, r.Columns, None, {"new": ("s", "coalesce(k, 'none')")}) if behind == "the source" else source
    keyed = r.KeyBy(read, ("j",), "region")
    first = Changed(keyed, r.Distinct, None, {"columns": ("v",), "within_us": None}) if behind == "the key" else keyed
    mapped = r.Map(first, "count", compact=True)
    window = r.Window("tumbling", 5 * r.SECOND)
    columns = (("v", "max", "v"), ("x", "min", "v"))
    about = {"aggregates": columns, "window": window, "emit": "final"}
    totals = r.Totals(keyed, **about)
    if behind == "the window":
        totals = Changed(keyed, r.Totals, about, {**about, "aggregates": (("more", "max", "v"), *columns)})
    elif behind == "nothing, but the window is another":
        totals = Changed(keyed, r.Totals, about, {**about, "window": r.Window("tumbling", 4 * r.SECOND)})
    nodes = list(dict.fromkeys([source, read, keyed, first, mapped, totals]))
    return drawing_changes.Change(r.Recipe(nodes, [mapped, totals]), behind, "refused" if "nothing" in behind else "goes on")


def search(behind: str) -> None:
    """Raise for the first difference that a few fixed examples show; each mutant needs two."""

    @always_the_same(20)
    @given(st.data())
    def compare(data):
        test_changed_recipes.check(data, a_change(behind))

    compare()


def state_found_by_place(patch):
    bind = takeover.bind

    def by_place(flow, shape):
        regions = {}
        for name, region in shape.regions.items():
            steps = [replace(step, slot=i) for i, step in enumerate(region.steps)]
            regions[name] = replace(region, steps=steps)
        bind(flow, replace(shape, regions=regions))

    patch.setattr(takeover, "bind", by_place)


def waiting_rows_by_place(patch):
    def by_place(rows, schema):
        kept = [
            rows.column(i).cast(f.type) if i < rows.num_columns else pa.nulls(rows.num_rows, f.type)
            for i, f in enumerate(schema)
        ]
        return pa.RecordBatch.from_arrays(kept, schema=schema)

    patch.setattr(waiting_rows, "conformed", by_place)


def meaning_is_not_compared(patch):
    step = region_succession.RegionSuccession._step

    def trusting(self, old, new):
        return step(self, replace(old, meaning=new.meaning, layouts=new.layouts), new)

    patch.setattr(region_succession.RegionSuccession, "_step", trusting)


def aggregates_that_are_new_count_from_the_beginning(patch):
    """As if one that has come had the state of the one before it."""
    of_generation = Codec._of_generation

    def first(self, generation, values):
        found = of_generation(self, generation, values)
        if generation == self._generation:
            return found
        was = list(self._layouts[generation])
        for i, name in enumerate(self._names):
            same = [
                n for n, bound in enumerate(self._bounds) if bound.fields == self._bounds[i].fields and self._names[n] in was
            ]
            if name not in was and same:
                found[i] = found[same[0]]
        return found

    patch.setattr(Codec, "_of_generation", first)


def rows_since_a_snapshot_stay(patch):
    patch.setattr(MemorySink, "rewind", lambda *_: None)


def what_was_read_since_a_snapshot_is_not_read_again(patch):
    roll_back = opener.roll_back

    def forgetful(checkpoint, plan, found, engine, **about):
        kept = replace(found.kept, sources=found.intent.sources)
        return roll_back(checkpoint, plan, replace(found, kept=kept), engine, **about)

    patch.setattr(opener, "roll_back", forgetful)


MUTANTS = {
    state_found_by_place: "the key",
    waiting_rows_by_place: "the source",
    meaning_is_not_compared: "nothing, but the window is another",
    aggregates_that_are_new_count_from_the_beginning: "the window",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_when_taking_over_is_broken_finds_a_difference(monkeypatch, mutant):
    search(MUTANTS[mutant])
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError, pa.ArrowInvalid, TypeError, ValueError)):
        search(MUTANTS[mutant])


@pytest.mark.parametrize(
    "mutant", [rows_since_a_snapshot_stay, what_was_read_since_a_snapshot_is_not_read_again], ids=lambda m: m.__name__
)
def test_search_when_going_back_to_the_code_of_before_is_broken_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError, StopIteration)):
        search("the key")
