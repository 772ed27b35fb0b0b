"""Which epochs the demo compares: those before hot airlines have workers of their own, and those after."""

from __future__ import annotations

from penstock.demo.balance import Loads, Seen, before_and_after

FIRST = [Seen(0, (6, 2, 0), True, {}), Seen(1, (6, 1, 1), True, {})]
MOVES = [Seen(2, (9, 0, 0), False, {"UA": 0}), Seen(3, (0, 9, 0), False, {"UA": 0}), Seen(4, (0, 0, 9), True, {"UA": 0})]
LAST = [Seen(5, (4, 3, 3), True, {"UA": 0}), Seen(7, (3, 4, 3), True, {"UA": 0})]


def test_before_ends_where_a_key_moves_and_after_begins_one_epoch_after_the_last():
    before, after = before_and_after(FIRST + MOVES + LAST)
    assert before == Loads(0, 1, (12 / 16, 3 / 16, 1 / 16), {})
    assert after == Loads(5, 7, (7 / 20, 7 / 20, 6 / 20), {"UA": 0})


def test_another_key_that_moves_later_puts_off_the_begin_of_after():
    again = [Seen(8, (1, 1, 1), False, {"UA": 0, "EV": 1}), Seen(9, (1, 1, 1), True, {"UA": 0, "EV": 1})]
    assert before_and_after(FIRST + MOVES + LAST + again) is None
    last = Seen(10, (1, 2, 1), True, {"UA": 0, "EV": 1})
    assert before_and_after([*FIRST, *MOVES, *LAST, *again, last])[1] == Loads(10, 10, (0.25, 0.5, 0.25), last.alone)


def test_key_that_moved_between_two_epochs_that_were_seen_puts_off_the_begin_of_after():
    both = {"UA": 0, "EV": 1}
    after = [Seen(8, (0, 5, 0), True, both), Seen(9, (1, 1, 2), True, both)]
    assert before_and_after(FIRST + MOVES + LAST + after)[1] == Loads(9, 9, (0.25, 0.25, 0.5), both)


def test_nothing_is_compared_if_no_key_moved_or_the_first_epochs_were_not_seen():
    assert before_and_after([]) is None
    assert before_and_after(FIRST) is None
    assert before_and_after(MOVES + LAST) is None
    assert before_and_after(FIRST + MOVES) is None
