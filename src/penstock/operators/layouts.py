"""What stored values consist of, as text: the columns of a layout, and which values of an older type are values of the new one as well.

A pure comparison of texts: a checkpoint keeps layouts as text, and no type is needed to compare them.

Read next: `penstock.driver.region_succession`, which goes by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

KEPT_AS: Final = ", kept as "
"""Stands in a layout between what an aggregate is and how its state is stored."""
MIGRATED: Final = "__ps_migrated"
"""In a layout: how many of the step's migrations the state has gone through; absent: none."""
NONE_ADDED: Final = "+"
"""Among what is fixed of a layout (`Operator.fixed`): no part may come."""
NONE_DROPPED: Final = "-"
"""Likewise: no part may go."""
_WIDER: Final = (("int8", "int16", "int32", "int64"), ("float", "double"))
_DECIMAL: Final = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_PLAIN: Final[Mapping[str, pa.DataType]] = {
    str(t): t for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
}


def widens(was: str, now: str) -> bool:
    """Whether a type has all values of another one, and more: more bytes or, before and after the point, no fewer digits.

    Example:
        >>> widens("int32", "int64"), widens("int64", "int32"), widens("date32[day]", "timestamp[us]")
        (True, False, False)
        >>> widens("decimal128(5, 2)", "decimal128(7, 4)"), widens("decimal128(5, 2)", "decimal128(6, 4)")
        (True, False)
    """
    for family in _WIDER:
        if was in family and now in family:
            return family.index(was) < family.index(now)
    old, new = _DECIMAL.fullmatch(was), _DECIMAL.fullmatch(now)
    if not old or not new:
        return False
    (digits, scale), (more, finer) = (tuple(map(int, m.groups())) for m in (old, new))
    return was != now and finer >= scale and more - finer >= digits - scale


def part_widens(was: str, now: str) -> bool:
    """Whether values of a layout's part can be read as another one: a wider type, or the same aggregate over a wider type.

    Example:
        >>> part_widens("max(v) of int32, kept as Extreme(int32 bool)", "max(v) of int64, kept as Extreme(int64 bool)")
        True
        >>> part_widens("max(v) of int32, kept as Extreme(int32 bool)", "max(w) of int64, kept as Extreme(int64 bool)")
        False
    """
    (old, _, had), (new, _, has) = was.partition(KEPT_AS), now.partition(KEPT_AS)
    if not had and not has:
        return widens(was, now)
    (what, _, kind), (same, _, wider) = old.rpartition(" of "), new.rpartition(" of ")
    (name, fields), (as_before, wide) = kept_fields(had), kept_fields(has)
    grow = len(fields) == len(wide) and all(np.can_cast(a, b, "safe") for a, b in zip(fields, wide, strict=True))
    return what == same and widens(kind, wider) and name == as_before and grow


def kept_fields(text: str) -> tuple[str, tuple[np.dtype[np.generic], ...]]:
    """What an aggregate's state is: the name of its kernels' class, the types of its columns."""
    name, _, types = text.rpartition(KEPT_AS)[2].removesuffix(")").partition("(")
    return name, tuple(np.dtype(each) for each in types.split())


def scaled_by(was: str, now: str) -> int:
    """By what the unscaled numbers of a decimal are to be multiplied, if its digits after the point become more; else 1."""
    old, new = (re.search(_DECIMAL, text.partition(KEPT_AS)[0]) for text in (was, now))
    return 10 ** max(0, int(new[2]) - int(old[2])) if old and new else 1


def columns_text(schema: pa.Schema) -> str:
    """Columns as the text of a meaning: ``(n int64, at date32[day])``."""
    return f"({', '.join(f'{f.name} {f.type}' for f in schema)})"


def columns_of(text: str) -> dict[str, str]:
    """Types by column of what `columns_text` has made; of any other text it is one part without a name.

    Example:
        >>> columns_of("(n int64, d decimal128(5, 2), s struct<a: int32 not null, b: string>)")
        {'n': 'int64', 'd': 'decimal128(5, 2)', 's': 'struct<a: int32 not null, b: string>'}
        >>> columns_of("any value")
        {'': 'any value'}
    """
    depth, parts, word = 0, [], ""
    for letter in text[1:-1]:
        depth += (letter in "(<[") - (letter in ")>]")
        if depth == 0 and letter == ",":
            parts.append(word)
            word = ""
        else:
            word += letter
    first, *others = [*parts, word]
    found = dict(map(_named, [first, *(part.removeprefix(" ") for part in others)]))
    whole = f"({', '.join(f'{name} {kind}' for name, kind in found.items())})"
    return found if whole == text else {"": text}


def _named(part: str) -> tuple[str, str]:
    """A column's name and its type, which has no space outside of brackets."""
    depth = 0
    for at in range(len(part) - 1, -1, -1):
        depth += (part[at] in ")>]") - (part[at] in "(<[")
        if depth == 0 and part[at] == " ":
            return part[:at], part[at + 1 :]
    return part, ""


def schema_before(columns: Mapping[str, str], now: pa.Schema) -> pa.Schema:
    """The columns of an older layout, none of which has gone: those whose text differs were narrower."""
    return pa.schema(
        [(n, now.field(n).type if str(now.field(n).type) == kind else _type_of(kind)) for n, kind in columns.items()]
    )


def _type_of(text: str) -> pa.DataType:
    decimal = _DECIMAL.fullmatch(text)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _PLAIN[text]


__all__ = [
    "KEPT_AS",
    "MIGRATED", "NONE_ADDED", "NONE_DROPPED", "columns_of", "columns_text", "kept_fields", "part_widens", "scaled_by", "schema_before", "widens",
]  # fmt: skip
