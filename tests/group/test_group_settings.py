"""What a group's settings may be."""

from __future__ import annotations

import datetime as dt

import pytest

import penstock as ps
from penstock.errors import DeclarationError

URL = "redis://me:secret@localhost:6379/0"


def test_group_when_declared_gives_its_durations_and_hides_the_password():
    group = ps.Group(URL, "billing", member="one", lease="500 ms", grace=dt.timedelta(seconds=2))
    assert (group.lease_ms, group.grace_s) == (500, 2.0)
    assert ps.Group(URL, "billing").lease_ms == 10_000
    assert repr(group) == (
        "Group('redis://me:…@localhost:6379/0', 'billing', member='one', lease='500 ms', grace=datetime.timedelta(seconds=2))"
    )
    assert group == ps.Group(URL, "billing", member="one", lease="500 ms", grace=dt.timedelta(seconds=2))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("localhost", "g"), {}, "'localhost' is no address of a Redis server"),
        ((URL, ""), {}, "A group's name is ''; give 1 to 200 characters"),
        ((URL, "a b"), {}, "A group's name is 'a b'"),
        ((URL, "{a}"), {}, "A group's name is '{a}'"),
        ((URL, None), {}, "A group's name is None"),
        ((URL, "g"), {"member": "a#b"}, "A member's name is 'a#b'"),
        ((URL, "g"), {"member": "x" * 201}, "A member's name is 'xxx"),
        ((URL, "g"), {"lease": "99 ms"}, "A group's lease is '99 ms'; give one from 0.1 seconds to 1 hour"),
        ((URL, "g"), {"lease": "61 min"}, "A group's lease is '61 min'"),
        ((URL, "g"), {"lease": "soon"}, "A group's lease 'soon' is not a duration"),
        ((URL, "g"), {"grace": "25 h"}, "A group's grace is '25 h'; give one of at most a day"),
        ((URL, "g"), {"grace": "later"}, "A group's grace 'later' is not a duration"),
    ],
)
def test_group_when_an_argument_is_wrong_is_refused(arguments, options, message):
    with pytest.raises(DeclarationError) as refused:
        ps.Group(*arguments, **options)
    assert str(refused.value).startswith(message)
