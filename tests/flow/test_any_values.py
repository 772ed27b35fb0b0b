"""Whatever is written in a flow's declaration, what is wrong with it is said in a sentence: no error of Python's, Arrow's or a parser's."""

from __future__ import annotations

import datetime as dt
import decimal
import inspect
import random
import traceback

import pytest

import penstock as ps
from penstock.errors import PenstockError

SQL = (
    "v + 1",
    "v > 1",
    "sum(v)",
    "count(*)",
    "k AS n",
    "k +",
    "case when",
    "SELECT 1",
    "rand()",
    "explode(array(1))",
    "*",
    "k.k",
    "`k`",
)
NAMES = (
    "k",
    "v",
    "at",
    "no such",
    "",
    "k, v",
    "\0",
    "ä",
    "\ud800",
    "k long",
    "k long, n long",
    "A; B",
    "SELECT * FROM e WHERE A; B",
)
TIMES = (
    "5 seconds",
    "1 month",
    "-1 second",
    "0 seconds",
    "5 parsecs",
    dt.timedelta(seconds=1),
    dt.timedelta.max,
    dt.datetime.max.replace(tzinfo=dt.UTC),
    dt.date.min,
)
NUMBERS = (0, 1, -1, 2**63, 2**70, -5.5, float("nan"), float("inf"), decimal.Decimal("1.5"), True, False)
ODD = (None, b"x", [], ["k"], ["k", "k"], [None], (), {}, {"k": "v"}, {1: 2}, set(), object(), int, lambda: 0, lambda x: x)
PARTS = (
    *(ps.count(), ps.sum("v"), ps.sum("no such"), ps.tumbling("5 seconds"), ps.session("3 seconds"), ps.memory("m")),
    *(ps.Isolate(), ps.Histogram()),
)
VALUES = (*SQL, *NAMES, *TIMES, *NUMBERS, *ODD, *PARTS)
FUNCTIONS = [
    n for n in ps.__all__ if inspect.isfunction(getattr(ps, n)) and n not in {"match", "skew", "read_state"}
]  # those need Spark


def streams():
    """A flow and one stream of each kind."""
    flow = ps.Flow("any")
    events = flow.source("e", ps.files("none", "k long, at timestamp, v long, s string"), time="at", lateness="1 second")
    keyed = events.key_by("k")
    return flow, events, keyed, keyed.window(ps.tumbling("5 seconds"))


def offered():
    """Everything that a declaration may call: of a stream by its place and name, of the module by name."""
    of_streams = [
        (place, name)
        for place, one in enumerate(streams())
        for name, _ in inspect.getmembers(type(one), inspect.isfunction)
        if name[0] != "_" and name != "start"
    ]
    return [*of_streams, *((None, name) for name in FUNCTIONS)]


def arguments(function, dice):
    """What it needs and some of what it takes, each any value."""
    kinds = inspect.Parameter
    positional, named = [], {}
    parameters = inspect.signature(function).parameters.values()
    many = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    for parameter in parameters:
        if parameter.kind is kinds.VAR_POSITIONAL:
            positional += [dice.choice(VALUES) for _ in range(dice.randrange(3))]
        elif parameter.kind is kinds.VAR_KEYWORD:
            named |= {name: dice.choice(VALUES) for name in dice.sample(["n", "total", "k", "x y", "class"], dice.randrange(3))}
        elif parameter.default is kinds.empty or dice.random() < 0.3:
            if parameter.kind is kinds.POSITIONAL_ONLY or (many and parameter.kind is kinds.POSITIONAL_OR_KEYWORD):
                positional.append(dice.choice(VALUES))
            else:
                named[parameter.name] = dice.choice(VALUES)
    return positional, named


def declare(seed, calls):
    """Make so many calls, each in a flow of its own; gives the errors that no user should see."""
    dice, found = random.Random(seed), {}
    there = offered()
    for _ in range(calls):
        place, name = dice.choice(there)
        function = getattr(ps if place is None else streams()[place], name)
        positional, named = arguments(function, dice)
        try:
            function(*positional, **named)
        except PenstockError:
            pass
        except Exception as error:  # noqa: BLE001  (that is the question)
            at = traceback.extract_tb(error.__traceback__)[-1]
            found[name, type(error).__name__, at.name] = f"{name}(*{positional}, **{named}): {error}"
    return found


def test_declaration_whatever_it_is_given_is_refused_in_a_sentence_or_taken():
    assert declare(1, 6_000) == {}


@pytest.mark.soak
def test_declarations_in_hundreds_of_thousands_are_refused_in_a_sentence_or_taken():
    assert declare(2, 300_000) == {}
