"""The checker of lookups and as-of joins is checked: each plausible mistake must be noticed by a small search."""

from __future__ import annotations

import math
from types import SimpleNamespace

import drawing
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import recipes as r
from drawing_joins import drawn_rows
from hypothesis import given
from hypothesis import strategies as st
from test_against_oracle import always_the_same, check

from penstock.errors import PenstockError
from penstock.flow import tables
from penstock.operators import asof_join
from penstock.operators.asof_join import AsOfJoin
from penstock.testing import frames


def lookups(draw) -> r.Recipe:
    """Tables of floats and of whole numbers, before a region."""
    source = r.Source("a", lateness_us=10 * r.SECOND, partitions=(0, 1))
    rows = ((math.nan, 7), *(row for row in drawn_rows(draw, "x") if row[0] == row[0]))
    floats = r.Lookup(source, "x", "tx", rows, draw(st.sampled_from(["left", "inner"])), draw(st.booleans()))
    whole = r.Lookup(source, "v", "tv", drawn_rows(draw, "v"), draw(st.sampled_from(["left", "inner"])), draw(st.booleans()))
    return r.Recipe([source, floats, whole], [floats, whole])


def joins(draw) -> r.Recipe:
    """Each row with the last of another stream."""
    left, right = (r.Source(name, lateness_us=r.SECOND, partitions=(0,)) for name in "ab")
    keyed = r.KeyBy(r.Standard(left), ("k",), "region")
    other = r.Standard(right)
    joined = r.Join(keyed, other, draw(st.sampled_from([None, r.SECOND // 2, r.SECOND])), "asof")
    return r.Recipe([left, right, keyed.of, other, keyed, joined], [joined])


def search(flow) -> None:
    """Raise for the first difference that some fixed examples show."""

    @always_the_same(150)
    @given(st.data())
    def compare(data):
        recipe = flow(data.draw)
        check(recipe, data.draw(drawing.records(recipe, most=80, edges=True)), data.draw(drawing.courses))

    compare()


def but(module, **changed):
    """A module with other functions."""
    return SimpleNamespace(**{**vars(module), **changed})


def nan_in_a_narrower_column_is_lost(patch):
    patch.setattr(tables, "pc", but(pc, is_nan=pc.is_null))


def nan_equals_nothing(patch):
    at = tables.Table.at

    def lossy(self, columns, looked_up):
        found = at(self, columns, looked_up)
        nan = [value != value for value in columns[0].to_pylist()]  # noqa: PLR0124
        return np.where(nan, -1, found)

    patch.setattr(tables.Table, "at", lossy)


def null_equals_null(patch):
    """Rows with a null key stay in the table, and a null is found among them."""

    def index_in(values, among, **_):
        return pc.index_in(values, among, skip_nulls=False)

    patch.setattr(tables, "pc", but(pc, is_valid=lambda values: pa.array(np.ones(len(values), bool)), index_in=index_in))


def row_of_the_next_key(patch):
    at = tables.Table.at
    patch.setattr(
        tables.Table, "at", lambda self, *given: np.where((found := at(self, *given)) >= 0, np.maximum(found - 1, 0), -1)
    )


def rows_without_a_partner_stay(patch):
    beside = frames.beside

    def left(table, of):
        return beside(table, frames.Beside(of.table, of.on, of.columns, False))

    patch.setattr(frames, "beside", left)


def order_within_a_key_is_lost(patch):
    """What a sort that is not stable may do."""

    def argsort(values, **_):
        return np.lexsort((-np.arange(len(values)), values))

    patch.setattr(asof_join, "np", but(np, argsort=argsort))


def right_row_of_the_same_time_does_not_count(patch):
    def searchsorted(values, wanted, side="left"):
        return np.searchsorted(values, wanted)

    patch.setattr(asof_join, "np", but(np, searchsorted=searchsorted))


def tolerance_is_exclusive(patch):
    on_inputs = AsOfJoin.on_inputs

    def shorter(self, *given):
        if not self.tolerance_us:
            return on_inputs(self, *given)
        self.tolerance_us -= 1
        try:
            return on_inputs(self, *given)
        finally:
            self.tolerance_us += 1

    patch.setattr(AsOfJoin, "on_inputs", shorter)


def nothing_is_kept(patch):
    on_inputs = AsOfJoin.on_inputs

    def forgetful(self, inputs, state):
        return on_inputs(self, inputs, SimpleNamespace(names=state.names, get=state.get, put_objects=lambda *_: None))

    patch.setattr(AsOfJoin, "on_inputs", forgetful)


def first_row_is_kept(patch):
    """Where rows of a key begin, in place of where they end."""

    def flatnonzero(ends):
        return np.append(0, np.flatnonzero(ends)[:-1] + 1)

    patch.setattr(asof_join, "np", but(np, flatnonzero=flatnonzero))


def null_keys_meet(patch):
    patch.setattr(asof_join, "without_null", lambda keys: np.ones(len(keys), bool))


MUTANTS = {
    nan_in_a_narrower_column_is_lost: lookups,
    nan_equals_nothing: lookups,
    null_equals_null: lookups,
    row_of_the_next_key: lookups,
    rows_without_a_partner_stay: lookups,
    order_within_a_key_is_lost: joins,
    right_row_of_the_same_time_does_not_count: joins,
    tolerance_is_exclusive: joins,
    nothing_is_kept: joins,
    first_row_is_kept: joins,
    null_keys_meet: joins,
}


@pytest.mark.parametrize("flow", [lookups, joins])
def test_search_when_nothing_is_broken_finds_nothing(flow):
    search(flow)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_finds_what_is_broken_in_a_lookup_or_an_as_of_join(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError, pa.ArrowInvalid, ValueError, IndexError)):
        search(MUTANTS[mutant])
