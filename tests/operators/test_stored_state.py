"""Stored values of users' state: of any layout that there ever was, told apart and read in today's."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.layouts import MIGRATED
from penstock.operators.stored_state import StoredState

KINDS = {
    "int64": pa.int64(),
    "int16": pa.int16(),
    "int8": pa.int8(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
}
VALUES = {"int64": -1, "int16": 7, "int8": -1, "double": 0.5, "bool": True, "string": "ÿ."}
LAYOUTS = st.one_of(
    st.just({"": "any value"}), st.dictionaries(st.sampled_from("abcde"), st.sampled_from(list(KINDS)), min_size=1)
)


def written(layouts: list, at: int, functions: list, empty: set) -> tuple[bytes, tuple]:
    """A value as the version `at` of a flow stores it, and what it holds."""
    layout = {name: kind for name, kind in layouts[at].items() if name != MIGRATED}
    values = tuple(None if name in empty else VALUES.get(kind, ["x", 1]) for name, kind in layout.items())
    kept = stored(layouts[: at + 1], functions)
    return kept.tagged(kept.codec.dump(values[0] if "" in layout else values)), values


def stored(layouts: list, functions: list) -> StoredState:
    now = {name: kind for name, kind in layouts[-1].items() if name != MIGRATED}
    return StoredState(None if "" in now else pa.schema([(n, KINDS[k]) for n, k in now.items()]), layouts, functions)


@given(st.lists(LAYOUTS, min_size=1, max_size=5), st.sets(st.sampled_from(["", *"abcde"])), st.data())
def test_value_of_any_layout_is_told_from_others_and_goes_through_each_migration_since_once(plain, empty, data):
    layouts = [dict(plain[0])]
    called: list[int] = []
    functions: list = []
    for n, layout in enumerate(plain[1:]):
        if data.draw(st.booleans()) and "" not in layouts[-1]:
            before = {name: kind for name, kind in layouts[-1].items() if name != MIGRATED}
            more = {name: "int64" for name in "fg" if name not in before and data.draw(st.booleans())}
            layouts.append(before | more | ({MIGRATED: str(len(functions))} if functions else {}))
            continue
        whole = tuple(VALUES.get(kind, ["x", 1]) for kind in layout.values())
        functions.append(
            lambda state, n=n, whole=whole, layout=layout: (
                called.append(n),
                whole[0] if "" in layout else dict(zip(layout, whole, strict=True)),
            )[1]
        )
        layouts.append({**layout, MIGRATED: str(len(functions))})
    at = data.draw(st.integers(0, len(layouts) - 1))
    version = int(layouts[at].get(MIGRATED, 0))
    value, values = written(layouts, at, functions, empty - {""})
    now = stored(layouts, functions)
    assert now.is_older(value) is (at < len(layouts) - 1)
    state = now.codec.load(now.current(value))
    assert len(called) == len(functions) - version
    names = [name for name in layouts[-1] if name != MIGRATED]
    held = dict(zip(names, state, strict=True)) if names != [""] else {"": state}
    if version == len(functions):
        old = dict(zip([name for name in layouts[at] if name != MIGRATED], values, strict=True))
        assert held == {name: old.get(name) for name in names}
    else:
        migrated = int(next(i for i, each in enumerate(layouts) if int(each.get(MIGRATED, 0)) == len(functions)))
        last = {name: VALUES.get(kind, ["x", 1]) for name, kind in layouts[migrated].items() if name != MIGRATED}
        assert held == {name: last.get(name) for name in names}
    assert now.current(now.tagged(now.codec.dump(state))) == now.codec.dump(state)
