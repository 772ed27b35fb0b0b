"""A pattern that is another one from one run to the next, drawn with quantifiers, gaps and conditions between events: it is refused, and the old one goes on;
or it is computed anew, and rows after the mark are those of the new one.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from recomputing import Store
from test_against_oracle import compare
from test_recompute_patterns import content

import penstock as ps
from penstock.errors import ChangedFlowError
from penstock.patterns import algebra as s
from penstock.patterns.automaton.build import outputs
from penstock.patterns.scopes import subformulas
from penstock.sources.base import Source
from penstock.testing import Harness

sys.path.append(str(Path(__file__).parent.parent / "patterns"))  # drawn queries
from ceql_judging import judged
from ceql_running import DEFINE

NUMBERS = itertools.count()
AT = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Log(Source):
    schema = pa.schema(
        [("part", pa.int64()), ("o", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("types", pa.string())]
        + [(name, pa.int64()) for name in "vwnk"]
    )


def query_of(seed: int) -> s.Query:
    """A drawn query with a window of seconds, in which gaps are seconds, too."""
    query = judged(seed, keyed=True, whole=True).query
    window = s.Window("time", random.Random(seed).randrange(3, 9) * 1_000_000)
    return replace(query, formula=in_seconds(query.formula), window=window)


def in_seconds(formula: Any) -> Any:
    names = [name for name in ("inner", "left", "right") if hasattr(formula, name)]
    formula = replace(formula, **{name: in_seconds(getattr(formula, name)) for name in names})
    gap = getattr(formula, "gap", None)
    return formula if gap is None else replace(formula, gap=s.Window("time", int(gap.size) * 1_000_000))


def changed(dice: random.Random, seed: int) -> tuple[s.Query, s.Query]:
    """Two queries: of two seeds, or of one that differ in a quantifier, a gap, a condition, or nothing."""
    before = query_of(seed)
    parts = [part for part in subformulas(before.formula) if isinstance(part, s.Plus | s.Times | s.Then | s.Filtered)]
    if not parts or dice.random() < 0.3:
        after = query_of(seed + dice.choice([0, 1]))
        alike = outputs(after) == outputs(before) and type(after.projection) is type(before.projection)  # else the sink refuses
        return before, after if alike else replace(before, strategy="ALL" if before.strategy == "LAST" else "LAST")
    part = dice.choice(parts)
    other: Any = replace(part, gap=s.Window("time", 1_000_000)) if not isinstance(part, s.Filtered) else part.inner
    return before, replace(before, formula=replaced(before.formula, part, other))


def replaced(formula: Any, part: Any, other: Any) -> Any:
    if formula is part:
        return other
    names = [name for name in ("inner", "left", "right") if hasattr(formula, name)]
    return replace(formula, **{name: replaced(getattr(formula, name), part, other) for name in names})


def log_of(dice: random.Random) -> list[dict[str, Any]]:
    rows, time, offsets = [], 0, [0, 0]
    for i in range(30):
        time += dice.choice([1, 1, 1, 2])
        part = i if i < 2 else dice.randrange(2)
        values = {name: dice.choice([0, 1, 1, 2, None]) for name in "vw"}
        kinds = dice.choice(["A", "A", "B", "AB", "C"])
        row = {
            "part": part,
            "o": offsets[part],
            "at": AT + dt.timedelta(seconds=time),
            "types": kinds,
            "n": i,
            "k": dice.choice([1, 1, 2]),
        }
        rows.append({**row, **values})
        offsets[part] += 1
    return rows


def flow_of(name: str, query: s.Query, sink: Any) -> ps.Flow:
    flow = ps.Flow(name)
    source = flow.source("log", Log(), time="at", lateness="0 seconds", position=("part", "o"), partitions=(0, 1))
    source.key_by("k").match(str(query), define=DEFINE).sink(sink, name="found")
    return flow


def feed(dice: random.Random, harness: Harness, records: list[dict[str, Any]]) -> None:
    if harness.record.recovery is None and harness.record.sources:
        known = {p: k.offset for p, k in harness.record.sources["log"].partitions.items()}
        records = [x for x in records if x["o"] > known.get(str(x["part"]), -1)]
    while records:
        n = dice.randrange(1, 9)
        harness.push("log", records[:n])
        records = records[n:]
        harness.epoch()


def rows_of(query: s.Query, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = ps.memory(f"clean {next(NUMBERS)}")
    with Harness(flow_of("clean", query, out)) as harness:
        harness.push("log", log)
        harness.finish()
    return out.rows()


def check(seed: int, folder: str) -> str:
    """What became of one change: ``"same"``, ``"refused"``, ``"anew"``."""
    dice = random.Random(seed)
    before, after = changed(dice, seed)
    log, name = log_of(dice), f"changed pattern {next(NUMBERS)}"
    made = Store(f"{name} found")
    cut = dice.randrange(5, 25)
    recover = dice.choice([{}, {"recover": "recompute"}])
    with Harness(flow_of(name, before, made), checkpoint=f"{folder}/{seed}", **recover) as harness:
        feed(dice, harness, log[:cut])
        frontier = harness.record.sources["log"].frontier
    old, what = content(made), f"seed {seed}: {before} → {after}"
    if str(before) != str(after) and not recover:
        with pytest.raises(ChangedFlowError, match="its query was SELECT"):
            Harness(flow_of(name, after, made), checkpoint=f"{folder}/{seed}")
        assert content(made) == old
        with Harness(flow_of(name, before, made), checkpoint=f"{folder}/{seed}") as harness:
            feed(dice, harness, log)
            harness.finish()
        compare(what, content(made), Counter(map(shown, rows_of(before, log))))
        return "refused"
    with Harness(flow_of(name, after, made), checkpoint=f"{folder}/{seed}", **recover) as harness:
        anew = harness.record.recovery is not None
        feed(dice, harness, log)
        harness.finish()
    assert anew == (str(before) != str(after)), what
    later = [row for row in rows_of(after, log) if (row["match_end"] - AT) // dt.timedelta(microseconds=1) >= frontier]
    compare(what, content(made), old + Counter(map(shown, later)))
    return "anew" if anew else "same"


def shown(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


@pytest.mark.slow
@pytest.mark.parametrize("block", [0, *(pytest.param(b, marks=pytest.mark.soak) for b in range(1, 40))])
def test_changed_pattern_is_refused_or_computed_anew(tmp_path, block):
    came = Counter(check(seed, str(tmp_path)) for seed in range(block * 40, block * 40 + 40))
    assert min(came["refused"], came["anew"]) > 8, came
    assert came["same"] > 1, came
