"""Patterns over several streams: `FROM S, T` and `S>A`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import random
import re

import pyarrow as pa
import pytest
from ceql_enriching import STREAMS, qualified, spoken_of
from ceql_running import DEFINE, SCHEMA, SQL_COLUMNS, answers_in, complaint, pattern_of, records_of, suitable

import penstock as ps
from penstock.errors import QueryError
from penstock.patterns import algebra as s
from penstock.patterns.memory import checksum
from penstock.patterns.scopes import subformulas, variables
from penstock.patterns.streams import streams_read
from penstock.testing import Harness

RUNS = itertools.count()


def drawn(seed):
    """A case that a flow can be asked, of events from several streams; None if this seed gives none."""
    case, rng = suitable(seed), random.Random(seed)
    if case is None:
        return None
    formula = qualified(case.query.formula, rng)
    named = {part.stream for part in subformulas(formula) if isinstance(part, s.Event)} - {None}
    read = tuple(name for name in STREAMS if name in named or rng.random() < 0.3) if rng.random() < 0.7 else ()
    events = tuple(dataclasses.replace(event, stream=rng.choice(STREAMS)) for event in case.events)
    projection = case.query.projection
    if isinstance(projection, s.Chosen):
        projection = s.Chosen(tuple(spoken_of(item, variables(formula), rng) for item in projection.items))
    query = dataclasses.replace(case.query, formula=formula, streams=read, projection=projection)
    return dataclasses.replace(case, query=query, events=events)


def keyed_by(keys):
    flow = ps.Flow(f"streams{next(RUNS)}")
    sources = [flow.source(name, ps.files(name, SQL_COLUMNS), time="at") for name in STREAMS]
    return flow, sources[0].union(*sources[1:]).key_by(*keys)


def answered(case):
    flow, keyed = keyed_by([group[0] for group in case.query.partition_by])
    found = ps.memory(f"found{next(RUNS)}")
    keyed.match(str(case.query), define=DEFINE, strategy_scope=case.scope).sink(found)
    records = records_of(case)
    with Harness(flow, workers=2) as harness:
        for low, high in itertools.pairwise([0, *case.cuts, len(case.events)]):
            for name in STREAMS:
                rows = [record for p, record in enumerate(records[low:high], low) if case.events[p].stream == name]
                harness.push(name, pa.Table.from_pylist(rows, SCHEMA))
            harness.epoch()
        harness.finish()
    return found.table()


@pytest.mark.slow
def test_flow_of_several_sources_answers_as_the_reference():
    tried = answers = 0
    for seed in range(70_000, 70_450):
        case = drawn(seed)
        if case is None:
            continue
        rows = [row for batch in answered(case).to_batches() for row in answers_in(case, pattern_of(case), batch)]
        wrong = complaint(case, rows)
        assert wrong is None, f"seed {seed}: {case.query}\n{case}\n{wrong}"
        tried, answers = tried + 1, answers + len(rows)
    assert tried > 150
    assert answers > 100


@pytest.mark.parametrize(
    ("text", "there", "read"),
    [
        ("SELECT * WHERE A", (), ()),
        ("SELECT * FROM anything WHERE A ; anything>B", (), ()),
        ("SELECT * WHERE A", ("S", "T"), ("S", "T")),
        ("SELECT * WHERE T>A", ("S", "T"), ("S", "T")),
        ("SELECT * FROM T WHERE A", ("S", "T"), ("T",)),
        ("SELECT * FROM T, S WHERE S>A", ("S", "T", "U"), ("S", "T")),
        ("SELECT * FROM S, T WHERE A", (), "the query reads streams S, T, but they are one."),
        ("SELECT * WHERE S>A OR T>B", (), "the query reads streams S, T, but they are one."),
        ("SELECT * WHERE V>A", ("S", "T"), "the query reads stream 'V', but they are one: S, T."),
    ],
)
def test_query_reads_the_streams_it_names(text, there, read):
    if isinstance(read, tuple):
        assert streams_read(ps.parse(text), there, "they are") == read
    else:
        with pytest.raises(QueryError) as refused:
            streams_read(ps.parse(text), there, "they are one")
        assert re.sub(r"^line 1, column \d+: |\n(.|\n)*", "", str(refused.value)) == read


def test_types_of_one_name_are_told_apart_by_their_streams():
    flow, keyed = keyed_by(["k"])
    found, counted, ended = (ps.memory(f"{name}{next(RUNS)}") for name in ("found", "counted", "ended"))
    matched = keyed.match("SELECT * FROM S, T WHERE S>A AS a ; T>A WITHIN 2 SECONDS", define=DEFINE, on_timeout="a")
    matched.sink(found)
    matched.timeouts.sink(ended)
    keyed.match("SELECT COUNT(*) WHERE S>A ; T>A", define=DEFINE).sink(counted)
    with Harness(flow) as harness:
        for second, name in enumerate("STUSUTTS"):
            row = {"p": second, "at": dt.datetime.fromtimestamp(second, dt.UTC), "types": "A", "k": 1}
            harness.push(name, pa.Table.from_pylist([row], SCHEMA))
            harness.epoch()
        harness.finish()
    assert sorted([e["p"] for e in row["events"]] for row in found.rows()) == [[0, 1], [3, 5]]
    assert [row["matches"] for row in counted.rows()] == [1, 2, 2]
    assert [[e["p"] for e in row["a"]] for row in ended.rows()] == [[7]]


def pattern_checksum(text, define):
    flow, keyed = keyed_by(["k"])
    keyed.match(text, define=define).sink(ps.noop())
    return checksum(flow.plan().regions[0].steps[0].operator.pattern)


def test_state_of_a_query_that_reads_other_streams_is_told_apart():
    def checked(text):
        return pattern_checksum(text, DEFINE)

    every, one, two = (checked(f"SELECT * {read} WHERE A ; B") for read in ("", "FROM S", "FROM S, T"))
    assert len({every, one, two}) == 3
    assert checked("SELECT * FROM T, S WHERE A ; B") == two


def test_state_of_a_query_with_other_types_or_clauses_is_told_apart():
    def checked(text, **define):
        return pattern_checksum(f"SELECT * WHERE A ; B {text}", {**DEFINE, **define})

    others = [checked("LIMIT 1"), checked("LIMIT 2"), checked("CONSUME BY PARTITION"), checked("", A="types = 'X'")]
    assert len({checked(""), *others}) == 5


@pytest.mark.parametrize("beside", ["source", "region"])
def test_rows_of_a_region_among_others_are_of_no_stream(beside):
    flow = ps.Flow(f"streams{next(RUNS)}")
    sources = [flow.source(name, ps.files(name, "k long, at timestamp, types string"), time="at") for name in "ST"]
    twice = [
        source.key_by("k", name=f"of {i}").stateful_map(
            lambda k, row, _: ((k, row.at, row.types), 0), "k long, at timestamp, types string"
        )
        for i, source in enumerate(sources)
    ]
    other = sources[1] if beside == "source" else twice[1].local()
    keyed = twice[0].local().union(other).key_by("k")
    keyed.match("SELECT * WHERE A ; B", define=DEFINE)
    with pytest.raises(QueryError) as refused:
        keyed.match("SELECT * FROM T WHERE T>A ; B", define=DEFINE)
    assert str(refused.value).startswith(
        "line 1, column 15: the query reads stream 'T', but here rows of region 'of 0' come in with others"
    )


def test_stream_that_is_no_source_of_a_flow_is_refused_when_it_is_declared():
    _, keyed = keyed_by(["k"])
    with pytest.raises(QueryError) as refused:
        keyed.match("SELECT * FROM S, V WHERE A", define=DEFINE)
    assert str(refused.value).splitlines() == [
        "line 1, column 18: the query reads stream 'V', but these sources come together here: S, T, U.",
        "  SELECT * FROM S, V WHERE A",
        "                   ^",
    ]


def test_rows_of_a_region_are_one_stream_whatever_sources_they_come_from():
    _, keyed = keyed_by(["k"])
    again = keyed.stateful_map(lambda k, row, _: ((k, row.at, row.types), 0), "k long, at timestamp, types string").key_by(
        "k", name="again"
    )
    again.match("SELECT * FROM changes WHERE A ; B", define=DEFINE)
    with pytest.raises(QueryError, match="the query reads streams S, T, but these rows are one stream"):
        again.match("SELECT * WHERE S>A ; T>B", define=DEFINE)
