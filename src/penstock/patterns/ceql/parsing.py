"""From text to the syntax tree, with errors that point at the place.

The grammar is ``ceql.lark``. What it cannot express (a window of mixed units, a repeated clause) is checked here.

Read next: ``scopes``, which names may be used where.
"""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from importlib.resources import files
from math import isinf
from typing import Any, cast

from lark import Lark, ParseTree, Token, Transformer, Tree, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken, VisitError

from penstock.errors import QueryError
from penstock.patterns import algebra as s
from penstock.patterns.scopes import FEWER_STEPS, MOST_TIMES, complaints
from penstock.patterns.source_locations import Name, error_at, error_in, lines_of
from penstock.types import duration_us

_UNITS_US = {unit: duration_us(f"1 {unit}") for unit in ("DAY", "HOUR", "MINUTE", "SECOND")}
_LONGEST = 1 << 62  # a size plus a time or position must fit into 64 bits
_DIGITS = 38  # of the widest decimal
_DEEPEST = 150  # trees are walked recursively; Python's stack ends at about 1,000 calls
_TOO_LONG = "the window is too long; leave WITHIN out if every match counts."
_CLAUSES = {"partition_by": "PARTITION BY", "window": "WITHIN", "consume": "CONSUME BY", "limit": "LIMIT"}
_WORDS = {
    "NAME": "a name",
    "QUOTED": "a name",
    "NUMBER": "a number",
    "STRING": "a string",
    "$END": "the end of the query",
}
_QUANTIFIERS = {"'+'", "'*'", "'?'", "'{'", "':+'", "':*'", "':{'"}
_HEADS = {"SELECT", "FROM", "WHERE"}
_TAILS = {"PARTITION", "WITHIN", "CONSUME", "LIMIT"}
_FILTERED = " FILTER applies to everything before it; put parentheses around the filter and its formula: (A FILTER A[…]) ; B."
_CHOSEN = re.compile(r"\s*SELECT\s+(ALL|NEXT|LAST|MAX|STRICT|ANY|NONE|COUNT)\s*(?:FROM\b|WHERE\b|[,>\[])", re.IGNORECASE)
_ORDER = " The order is: SELECT, FROM, WHERE, then PARTITION BY, WITHIN, CONSUME BY and LIMIT."


def parse(text: str) -> s.Query:
    """Read a CEQL query.

    Returns:
        Its syntax tree; ``str`` of it gives text with the same tree.

    Raises:
        QueryError: It is not CEQL, or has no meaning; the message shows line, column and what was expected.

    Example:
        >>> parse("SELECT * WHERE A ; B+ WITHIN 10 SECONDS").window
        Window(kind='time', size=10000000, attribute=None)
    """
    if not isinstance(text, str):
        raise QueryError(f"A query is text, not {type(text).__name__}.")
    try:
        tree = _grammar().parse(text)
        _check_depth(text, tree)
        query: s.Query = _Reader(text).transform(tree)
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None
    except VisitError as error:
        if isinstance(error.orig_exc, QueryError):
            raise error.orig_exc from None
        raise
    return query


@lru_cache(maxsize=1)
def _grammar() -> Lark:
    grammar = files("penstock.patterns.ceql").joinpath("ceql.lark").read_text(encoding="utf-8")
    return Lark(grammar, start="query", parser="lalr", propagate_positions=True, maybe_placeholders=False)


def _syntax_error(text: str, error: UnexpectedInput) -> QueryError:
    line, column = max(error.line, 1), max(error.column, 1)
    if isinstance(error, UnexpectedEOF) or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
        lines = lines_of(text)
        return error_at(text, len(lines), len(lines[-1]) + 1, f"the query ends too soon; {_expected(_accepted(text))}.")
    if isinstance(error, UnexpectedCharacters):
        found = text[error.pos_in_stream or 0]
        if found in "'\"`":
            return error_at(text, line, column, f"the {'name' if found == '`' else 'string'} that begins here does not end.")
    else:
        found = str(cast("UnexpectedToken", error).token)
    wanted = _accepted(text)
    return error_at(text, line, column, f"found {found!r}; {_expected(wanted)}.{_hint(text, found, wanted)}")


def _accepted(text: str) -> set[str]:
    """The names of the grammar's terminals that could follow where the text stops being a query.

    The parser's own errors do not have them: by then it has reduced everything that the wrong word cannot continue.
    """
    parser: Any = _grammar().parse_interactive(text)
    good: list[Token] = []
    try:
        for token in parser.lexer_thread.lex(parser.parser_state):
            parser.feed_token(token)
            good.append(token)
    except UnexpectedInput:
        parser = _grammar().parse_interactive()
        for token in good:
            parser.feed_token(token)
    accepted: set[str] = parser.accepts()
    return accepted


def _hint(text: str, found: str, wanted: set[str]) -> str:
    """Advice: a keyword is meant as a variable, FILTER does not end, or a clause is in the wrong order."""
    chosen = _CHOSEN.match(text)
    if chosen is not None:
        return f" As a variable, {chosen[1]} needs backquotes: `{chosen[1]}`."
    if found in {";", ":"} and "FILTER" in wanted:
        return _FILTERED
    word = found.upper()
    return _ORDER if word in _HEADS or (word in _TAILS and not wanted.isdisjoint(_HEADS)) else ""


def _check_depth(text: str, tree: ParseTree) -> None:
    level = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in node.children if isinstance(child, Tree)]
    if level:
        at = level[0].meta
        raise error_at(text, at.line, at.column, f"this is nested more than {_DEEPEST} deep; write the query flatter.")


def _expected(wanted: set[str]) -> str:
    patterns = {terminal.name: terminal.pattern.value for terminal in _grammar().terminals}
    shown = {_WORDS.get(name) or _shown(patterns.get(name, name)) for name in wanted}
    if shown >= _QUANTIFIERS:
        shown = shown - _QUANTIFIERS | {"a quantifier"}
    words = sorted(shown, key=_first_words)
    return "expected " + (" or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words))


def _shown(pattern: str) -> str:
    plain = pattern.replace("\\", "")
    return plain if plain.isalpha() else f"'{plain}'"


def _first_words(word: str) -> tuple[int, str]:
    return (0 if word.startswith(("a ", "the ")) else 1 if word.isalpha() else 2, word)


@v_args(inline=True)
class _Reader(Transformer[Token, Any]):
    """Builds the tree from the bottom up."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self._clauses: dict[str, Name] = {}

    def _fail(self, token: Token | Name, message: str) -> QueryError:
        return error_at(self._text, token.line or 1, token.column or 1, message)

    # Rules whose parts are the fields of their node.
    attribute, minus, negation, both, either = s.Attribute, s.Minus, s.Negation, s.Both, s.Either
    any_of, all_of, or_, filtered = s.AnyOf, s.AllOf, s.Or, s.Filtered
    everything, nothing, count_all = s.Everything, s.Nothing, s.CountAll

    # names and values

    def name(self, token: Token) -> Name:
        return _placed(token[1:-1].replace("``", "`") if token.type == "QUOTED" else str(token), token)

    def variable(self, first: Name, second: Name | None = None) -> tuple[Name, Name | None]:
        self._plain(first if second is None else second)
        return (first, None) if second is None else (second, self._plain(first))

    def _plain(self, name: Name) -> Name:
        """A name that cannot be mistaken for ``stream>type``."""
        if ">" in name:
            raise self._fail(name, f"{str(name)!r} has a '>', which names of types, variables and streams must not have.")
        return name

    def plain_number(self, token: Token) -> s.Number:
        return s.Number(self._number(token))

    def negative_number(self, token: Token) -> s.Number:
        return s.Number(f"-{self._number(token)}")

    def _number(self, token: Token) -> str:
        """A number as written, which SQL must be able to hold: a double with an exponent, else a decimal."""
        text = str(token)
        if "e" in text.lower():
            if isinf(float(text)):
                raise self._fail(token, "the number is greater than a double holds, which ends at 1.8e308.")
        else:
            whole, _, fraction = text.partition(".")
            if len(whole.lstrip("0")) + len(fraction) > _DIGITS:
                raise self._fail(token, f"a number has at most {_DIGITS} digits; write it with an exponent, as in 1e40.")
        return text

    def text(self, token: Token) -> s.Text:
        return s.Text(_unescaped(token))

    def calculation(self, left: s.Operand, op: Token, right: s.Operand) -> s.Arithmetic:
        return s.Arithmetic(_placed(str(op), op), left, right)

    # conditions

    def comparison(self, token: Token) -> Token:
        return token

    def compare(self, left: s.Operand, op: Token, right: s.Operand) -> s.Compare:
        plain = {"==": "=", "<>": "!="}.get(str(op), str(op))
        texts = [side for side in (left, right) if isinstance(side, s.Text)]
        if texts and plain not in {"=", "!="}:
            raise self._fail(op, "strings are compared with = or !=; for an order use numbers.")
        if any(_holds_text(side) for side in (left, right)):
            raise self._fail(op, "a string cannot be part of a calculation.")
        return s.Compare(_placed(plain, op), left, right)

    def like(self, name: Name, pattern: Token) -> s.Like:
        return s.Like(name, _placed(_unescaped(pattern), pattern))

    def in_(self, name: Name, *values: s.Number | s.Text) -> s.In:
        if len({type(value) for value in values}) > 1:
            raise self._fail(name, f"the list for {str(name)!r} mixes numbers and strings.")
        return s.In(name, values)

    def not_in(self, name: Name, *values: s.Number | s.Text) -> s.In:
        return replace(self.in_(name, *values), negated=True)

    def between(self, name: Name, low: s.Number, high: s.Number) -> s.Between:
        if Decimal(low.text) > Decimal(high.text):
            raise self._fail(name, f"the range {low}..{high} is empty; write the smaller number first.")
        return s.Between(name, low, high)

    def at_least(self, name: Name, low: s.Number) -> s.Between:
        return s.Between(name, low, None)

    def at_most(self, name: Name, high: s.Number) -> s.Between:
        return s.Between(name, None, high)

    # filters

    def bound(self, variable: tuple[Name, Name | None], predicate: s.Predicate) -> s.Bound:
        return s.Bound(variable[0], predicate, variable[1])

    def of(self, variable: tuple[Name, Name | None], attribute: Name) -> s.Of:
        return s.Of(variable[0], attribute, variable[1])

    def of_function(self, function: Name, variable: tuple[Name, Name | None], attribute: Name) -> s.Of:
        if function.upper() != "PREV":
            raise self._fail(
                function,
                f"there is no function {str(function)!r}; PREV({variable[0]}.{attribute}) is of the event bound before.",
            )
        return s.Of(variable[0], attribute, variable[1], previous=True)

    def relation(self, left: s.Operand, op: Token, right: s.Operand) -> s.Relation:
        relation = s.Relation(_placed({"==": "=", "<>": "!="}.get(str(op), str(op)), op), left, right)
        if not relation.values:
            raise self._fail(op, f"{relation} is about no event; compare attributes of variables, as in b.v > a.v.")
        if len(relation.variables) == 1 and not any(value.previous for value in relation.values):
            shown = s.variable_text(*relation.variables[0])
            raise self._fail(
                op,
                f"a condition on one event stands in brackets, as in {shown}[v < w]; this form compares two variables, or, with "
                f"PREV({shown}.v), an event with the one bound before.",
            )
        for side in (left, right):
            self._check_calculation(side, op)
        return relation

    def _check_calculation(self, side: s.Operand, at: Token | Name) -> None:
        match side:
            case s.Text():
                raise self._fail(
                    at, "a string is compared in brackets, as in a[t = 'x']; this form compares events with each other."
                )
            case s.Minus(inner=inner):
                self._check_calculation(inner, at)
            case s.Arithmetic(op=op, left=left, right=right):
                if op in {"/", "%"}:
                    raise self._fail(
                        cast("Name", op),
                        f"a condition between events does not calculate with {op}; multiply the other side, as in b.v > 2 * a.v for "
                        "b.v / a.v > 2, or compute a column before.",
                    )
                self._check_calculation(left, op)  # type: ignore[arg-type]
                self._check_calculation(right, op)  # type: ignore[arg-type]

    # formulas

    def event(self, variable: tuple[Name, Name | None]) -> s.Event:
        return s.Event(*variable)

    def not_(self, name: Name, condition: s.Filter | None = None) -> s.Not:
        return s.Not(self._plain(name), condition)

    def as_(self, inner: s.Formula, name: Name) -> s.As:
        return s.As(inner, self._plain(name))

    def plus(self, inner: s.Formula, gap: s.Window | None = None) -> s.Plus:
        return s.Plus(inner, contiguous=False, gap=gap)

    def adjacent_plus(self, inner: s.Formula, gap: s.Window | None = None) -> s.Plus:
        return s.Plus(inner, contiguous=True, gap=gap)

    def star(self, inner: s.Formula, gap: s.Window | None = None) -> s.Times:
        return s.Times(inner, 0, None, contiguous=False, gap=gap)

    def adjacent_star(self, inner: s.Formula, gap: s.Window | None = None) -> s.Times:
        return s.Times(inner, 0, None, contiguous=True, gap=gap)

    def gap(self, within: Token, window: s.Window) -> s.Window:
        if window.kind != "time":
            raise self._fail(within, "a gap between neighbours is a time, such as [WITHIN 5 MINUTES].")
        return window

    def optional(self, inner: s.Formula, mark: Token) -> s.Times:
        before = self._text[: mark.start_pos].rstrip()
        if before.endswith(("+", "*", "?", "}")):
            raise self._fail(
                mark,
                "a quantifier cannot be reluctant: every number of events is found, and SELECT NEXT, LAST or MAX chooses; for an "
                "optional repetition put it in parentheses: (A+)?.",
            )
        return s.Times(inner, 0, 1, contiguous=False)

    def repeated_times(self, inner: s.Formula, bounds: tuple[int, int | None], gap: s.Window | None = None) -> s.Times:
        return s.Times(inner, *bounds, contiguous=False, gap=gap)

    def adjacent_times(self, inner: s.Formula, bounds: tuple[int, int | None], gap: s.Window | None = None) -> s.Times:
        return s.Times(inner, *bounds, contiguous=True, gap=gap)

    def exactly(self, number: Token) -> tuple[int, int | None]:
        return self.from_to(number, number)

    def at_least_times(self, least: Token) -> tuple[int, int | None]:
        return self._times(least), None

    def at_most_times(self, most: Token) -> tuple[int, int | None]:
        return 0, self._times(most, 1)

    def from_to(self, least: Token, most: Token) -> tuple[int, int | None]:
        bounds = self._times(least), self._times(most, 1)
        if bounds[0] > bounds[1]:
            raise self._fail(least, f"the quantifier {{{least},{most}}} is empty; write the smaller number first.")
        return bounds

    def _times(self, number: Token, least: int = 0) -> int:
        """A number of times."""
        if not number.isdigit():
            raise self._fail(number, f"a quantifier needs whole numbers from 0, not {number}.")
        if len(number.lstrip("0")) > len(str(MOST_TIMES)) or int(number) > MOST_TIMES:
            raise self._fail(number, f"a quantifier goes up to {MOST_TIMES:,}; {FEWER_STEPS}.")
        if int(number) < least:
            raise self._fail(
                number, "a step that occurs 0 times matches nothing; leave it out, or write ? for one that may occur."
            )
        return int(number)

    def sequence(self, left: s.Formula, *rest: Any) -> s.Then:
        return s.Then(left, rest[-1], contiguous=False, gap=rest[0] if rest[1:] else None)

    def adjacent(self, left: s.Formula, *rest: Any) -> s.Then:
        return s.Then(left, rest[-1], contiguous=True, gap=rest[0] if rest[1:] else None)

    # clauses

    @v_args(inline=True, meta=True)
    def projection(self, place: Any, shown: s.Projection) -> s.Projection:
        self._clauses["projection"] = Name("", place.line, place.column)
        return shown

    def item(self, variable: tuple[Name, Name | None], *attributes: Name) -> s.Item:
        for n, attribute in enumerate(attributes):
            if attribute in attributes[:n]:
                raise self._fail(attribute, f"attribute {str(attribute)!r} is selected twice.")
        return s.Item(*variable, attributes)

    def chosen(self, *items: s.Item) -> s.Chosen:
        return s.Chosen(items)

    def group(self, *names: Name) -> tuple[Name, ...]:
        return names

    def partition_by(self, clause: Token, *groups: tuple[Name, ...]) -> tuple[Token, str, Any]:
        names = [name for group in groups for name in group]
        for n, name in enumerate(names):
            if name in names[:n]:
                raise self._fail(name, f"attribute {str(name)!r} stands twice in PARTITION BY.")
        return clause, "partition_by", groups

    def size(self, *tokens: Token) -> Token:
        return Token.new_borrow_pos("NUMBER", "".join(tokens), tokens[0])

    def unit(self, token: Token) -> Token:
        return token

    def window(self, *parts: Token) -> s.Window:
        total = Decimal(0)
        seen: set[str] = set()
        for number, unit in zip(parts[::2], parts[1::2], strict=True):
            word = unit.upper().removesuffix("S")
            if word in seen:
                raise self._fail(unit, f"the window names {word}S twice.")
            seen.add(word)
            if "EVENT" in seen and len(seen) > 1:
                raise self._fail(unit, "a window is measured in EVENTS or in time, not in both.")
            total += self._size(number) * _UNITS_US.get(word, 1)
        if total >= _LONGEST:
            raise self._fail(parts[0], _TOO_LONG)
        if total != int(total):
            raise self._fail(parts[0], "a window is a whole number of events, or of microseconds.")
        return s.Window("events" if "EVENT" in seen else "time", int(total))

    def attribute_window(self, number: Token, name: Name) -> s.Window:
        return s.Window("attribute", self._size(number), name)

    def _size(self, number: Token) -> Decimal:
        try:
            value = Decimal(str(number))
        except ArithmeticError:  # the exponent is too large
            raise self._fail(number, _TOO_LONG) from None
        if value < 0:
            raise self._fail(number, f"a window's size must be 0 or more, not {number}.")
        if value.adjusted() >= _DIGITS or cast("int", value.as_tuple().exponent) < -_DIGITS:
            raise self._fail(number, f"a window's size has at most {_DIGITS} digits." if value < 1 else _TOO_LONG)
        return value

    def within(self, clause: Token, window: s.Window) -> tuple[Token, str, Any]:
        return clause, "window", window

    def consume(self, token: Token) -> Token:
        return token

    def consume_by(self, clause: Token, token: Token) -> tuple[Token, str, Any]:
        return clause, "consume", token.upper()

    def limit(self, clause: Token, token: Token) -> tuple[Token, str, Any]:
        if not token.isdigit() or len(token) > _DIGITS or not 0 < int(token) < _LONGEST:
            shown = token if len(token) <= _DIGITS else f"{token[:9]}…"
            raise self._fail(token, f"LIMIT needs a whole number from 1 to below 2^62, not {shown}.")
        return clause, "limit", int(token)

    def query(self, *parts: Any) -> s.Query:
        found: dict[str, Any] = {"strategy": "ALL", "streams": ()}
        for part in parts:
            if isinstance(part, tuple):
                clause, name, value = part
                if name in found and name in _CLAUSES:
                    raise self._fail(clause, f"the query has two clauses {_CLAUSES[name]}; leave one.")
                found[name] = value
                self._clauses[name] = _placed(clause, clause)
            elif isinstance(part, s.Projection):
                found["projection"] = part
            else:
                found["formula"] = part
        query = s.Query(**found, text=self._text, clauses=self._clauses)
        for word, message in complaints(query):
            raise error_in(self._text, word, message)
        return query

    def streams(self, *names: Name) -> tuple[Name, str, Any]:
        for n, name in enumerate(names):
            if self._plain(name) in names[:n]:
                raise self._fail(name, f"stream {str(name)!r} stands twice in FROM.")
        return names[0], "streams", names

    def strategy(self, token: Token) -> tuple[Token, str, Any]:
        return token, "strategy", token.upper()


def _placed(text: str, token: Token) -> Name:
    return Name(text, token.line, token.column)


def _unescaped(token: Token) -> str:
    quote, body = token[0], token[1:-1]
    return body.replace(f"\\{quote}", quote).replace("\\\\", "\\") if "\\" in body else body


def _holds_text(operand: s.Operand) -> bool:
    match operand:
        case s.Minus(inner=inner):
            return isinstance(inner, s.Text) or _holds_text(inner)
        case s.Arithmetic(left=left, right=right):
            return any(isinstance(side, s.Text) or _holds_text(side) for side in (left, right))
        case _:
            return False
