"""What cannot work is refused when it is declared, in one sentence that says what is wrong and what to do."""

from __future__ import annotations

import re

import pytest

import penstock as ps
from penstock.errors import DeclarationError

COLUMNS = "tail string, at timestamp, delay double, tags array<string>"
RUNNING = (
    'can only append, but this output is a running aggregate, whose later rows take the place of earlier ones: write it with '
    'sql(..., mode="upsert", key=[\'tail\']), or close it with a window.'
)  # fmt: skip
NEEDS_TIME = "needs an event time; declare it: flow.source(..., time='column')."
NEEDS_KEY = "keeps state and so needs a key; open a region first: .key_by('column')"


class Flights:
    """A flow under way: two sources with event time, one without."""

    def __init__(self):
        self.flow = ps.Flow("flights")
        self.events = self.flow.source("events", ps.files("none", COLUMNS), time="at")
        self.other = self.flow.source("other", ps.files("none", "tail long, at timestamp, speed long"), time="at")
        self.untimed = self.flow.source("untimed", ps.files("none", COLUMNS))

    @property
    def keyed(self):
        return self.events.key_by("tail")

    @property
    def running(self):
        return self.keyed.aggregate(n=ps.count())

    def source(self, time):
        return self.flow.source("more", ps.files("none", COLUMNS), time=time)


def three(key, event, state):
    return None, state


def table(**options):
    return ps.sql("sqlite:///out.db", "t", **options)


UNKNOWN_COLUMN = {
    "where": (
        lambda f: f.events.where("dealy > 3"),
        "where 'dealy > 3' names column 'dealy', which does not exist; did you mean 'delay'?",
    ),
    "select": (
        lambda f: f.events.select("tail", "dealy"),
        "select 'dealy' names column 'dealy', which does not exist; did you mean 'delay'?",
    ),
    "with_columns": (
        lambda f: f.events.with_columns(x="dealy + 1"),
        "with_columns x 'dealy + 1' names column 'dealy', which does not exist; did you mean 'delay'?",
    ),
    "key_by": (
        lambda f: f.events.key_by("tial"),
        "key_by 'tial' names column 'tial', which does not exist; did you mean 'tail'?",
    ),
    "aggregate": (
        lambda f: f.keyed.aggregate(m=ps.mean("dealy")),
        "Aggregate 'm' reads column 'dealy', which does not exist; there are tail, at, delay, tags.",
    ),
    "deduplicate": (
        lambda f: f.keyed.deduplicate("dealy"),
        "deduplicate(dealy) names column 'dealy', which does not exist; did you mean 'delay'?",
    ),
    "join": (
        lambda f: f.keyed.join(f.other.select("speed"), "1 second"),
        "join needs this region's key on the other side, and names column 'tail', which does not exist; there are speed.",
    ),
    "time": (
        lambda f: f.source("when"),
        (
            "Source 'more' takes its event time from a column it does not have: time= names column 'when', which does not exist; "
            "there are tail, at, delay, tags."
        ),
    ),
    "sink's key": (
        lambda f: f.events.sink(table(mode="upsert", key="tial")),
        "Table 't' in out.db has key column 'tial', but the output has only ['tail', 'at', 'delay', 'tags'].",
    ),
}
WRONG_TYPE = {
    "sum of text": (
        lambda f: f.keyed.aggregate(m=ps.sum("tail")),
        "sum needs a number: column 'tail' is string; choose another column or cast it.",
    ),
    "sum of text in a window": (
        lambda f: f.keyed.window(ps.tumbling("1 hour")).aggregate(m=ps.sum("tail")),
        "sum needs a number: column 'tail' is string; choose another column or cast it.",
    ),
    "where": (lambda f: f.events.where("delay + 1"), "where needs a condition, but 'delay + 1' is of type double."),
    "where with a name": (
        lambda f: f.events.where("delay > 1 AS late"),
        "where needs a condition, which has no name, but 'delay > 1 AS late' gives one; leave the name out.",
    ),
    "where with a comment": (
        lambda f: f.events.where("delay > 1 -- late"),
        "where needs a condition alone, but 'delay > 1 -- late' ends in a ';' or a comment; leave it out.",
    ),
    "where with a semicolon": (
        lambda f: f.events.where("delay > 1;"),
        "where needs a condition alone, but 'delay > 1;' ends in a ';' or a comment; leave it out.",
    ),
    "key_by": (
        lambda f: f.events.key_by("tags"),
        "key_by cannot use column 'tags' of type list<item: string>; key by numbers, strings, times.",
    ),
    "time": (
        lambda f: f.source("delay"),
        "Source 'more' takes its event time from column 'delay' of type double; cast it to timestamp.",
    ),
    "join": (
        lambda f: f.keyed.join(f.other.key_by("tail", name="o"), "1 hour"),
        "join needs keys of the same type: 'tail' is string, 'tail' is int64.",
    ),
    "stateful_map takes": (
        lambda f: f.keyed.stateful_map(lambda key, event: None, "tail string"),
        "stateful_map calls its function as fn(key, event, state); '<lambda>' does not take these (too many positional arguments).",
    ),
    "stateful_map gives": (
        lambda f: f.keyed.stateful_map(three, "tail"),
        "the schema of stateful_map gives column 'tail' no type; write for example 'tail string'.",
    ),
    "window without time": (
        lambda f: f.untimed.key_by("tail").window(ps.tumbling("1 hour")),
        f"A window {NEEDS_TIME}",
    ),
    "join without time": (
        lambda f: f.keyed.join(f.untimed, "1 hour"),
        f"join {NEEDS_TIME.replace('time;', 'time on both sides;')}",
    ),
}
WRONG_PLACE = {
    "two regions": (
        lambda f: (f.keyed, f.keyed),
        "Flow 'flights' has two regions named 'tail'; give one of them a name: key_by(..., name='…').",
    ),
    "stateful_map": (lambda f: f.events.stateful_map(three, "tail string"), f".stateful_map(...) {NEEDS_KEY}.stateful_map(...)."),
    "aggregate": (lambda f: f.events.aggregate(n=ps.count()), f".aggregate(...) {NEEDS_KEY}.aggregate(...)."),
    "after local": (
        lambda f: f.keyed.local().deduplicate("tail"),
        (
            ".deduplicate(...) keeps state and so needs a key, but these rows have left region 'tail'; key them again: "
            ".key_by('tail', name='…').deduplicate(...)."
        ),
    ),
    "after running values": (
        lambda f: f.running.local(),
        (
            "The running values of an aggregate replace one another, so nothing but a sink can follow them; use a window, or do it "
            "in a further stateful step of the same region."
        ),
    ),
    "no sink": (lambda f: f.flow.plan(), "Flow 'flights' has no sink, so nothing of it could be seen; end a stream with .sink(...)."),
}  # fmt: skip
WRONG_SINK = {
    "append to a table": (lambda f: f.running.sink(table()), f"Table 't' in out.db {RUNNING}"),
    "append to files": (lambda f: f.running.sink(ps.parquet("folder")), f"Directory 'folder' {RUNNING}"),
    "upsert without key": (
        lambda f: f.events.sink(table(mode="upsert")),
        "Table 't' in out.db has mode='upsert' but no key: write key=[...].",
    ),
    "unknown mode": (
        lambda f: f.events.sink(table(mode="merge")),
        "Table 't' in out.db has mode 'merge': write 'append', 'upsert' or 'replace'.",
    ),
    "no sink at all": (
        lambda f: f.events.sink("out.db"),
        "'out.db' is not a sink; use penstock.sql(...), penstock.parquet(...) or another of its sinks.",
    ),
}
ALL = {
    f"{kind}: {name}": case
    for kind, cases in {
        "unknown column": UNKNOWN_COLUMN,
        "wrong type": WRONG_TYPE,
        "wrong place": WRONG_PLACE,
        "wrong sink": WRONG_SINK,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize(("declare", "message"), ALL.values(), ids=ALL)
def test_declaration_when_it_cannot_work_is_refused_in_one_sentence(declare, message):
    with pytest.raises(DeclarationError, match=f"^{re.escape(message)}$"):
        declare(Flights())
    assert message[-1] in ".?"
    assert not re.search(r"[.?] [A-Z]", message), "one sentence"


@pytest.mark.parametrize("name", ["a/b", ".a", "_a", "a\0b", "é" * 101])
def test_region_whose_name_cannot_be_that_of_a_folder_is_refused(name):
    with pytest.raises(DeclarationError, match=r"cannot be named .*, because its state is kept in a folder of that name"):
        Flights().events.key_by("tail", name=name)


def test_names_with_half_a_character_are_refused():
    flights = Flights()
    for declare in (
        lambda name: flights.events.key_by("tail", name=name),
        lambda name: flights.keyed.deduplicate(name=name),
        lambda name: flights.flow.source(name, ps.files("none", COLUMNS)),
    ):
        with pytest.raises(DeclarationError, match=r"must be text, not 'a\\ud800'"):
            declare("a\ud800")
