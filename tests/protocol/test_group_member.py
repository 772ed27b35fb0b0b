"""One member of a group, step by step: its table, what it refuses, and what happens at the edges."""

from __future__ import annotations

import pytest

from penstock.protocol.group.document import Document, Entry
from penstock.protocol.group.events import (
    AbandonWork,
    Acked,
    Acquire,
    Announce,
    Announced,
    Beaten,
    Confirm,
    DocumentRead,
    Edit,
    Edited,
    Exit,
    Failed,
    Fenced,
    ReadDocument,
    Release,
    SendBeat,
    Started,
    StartWork,
    Stopped,
    StopRequested,
    StopWork,
    Tick,
)
from penstock.protocol.group.member import Member
from penstock.protocol.group.membership import Remembered, Wish
from penstock.protocol.group.partition import AFTER, TRANSITIONS, Partition, State
from penstock.protocol.group.store import Beat, Busy, Changed, Granted, Raised, Wanted, from_fields, later, order, to_fields
from penstock.testing.group.simulator import simulate

TWO = Document(3, 2, {"a": Entry("ia", 1, (0,)), "b": Entry("ib", 2, (1,))}, "ib", "ia/ia@1")


def alone(partitions=2, now=0.0, **options):
    """A member that has joined a group of its own, and what it asked for then."""
    member = Member("a", "ia", partitions, **{"lease_s": 3.0, "grace_s": 1.0, "seed": 1} | options)
    assert member.handle(Started(), now) == [ReadDocument()]
    (edit,) = member.handle(DocumentRead(None), now)
    assert isinstance(edit, Edit)
    return member, member.handle(Edited(True, now), now)


def kinds(commands):
    return [type(c) for c in commands]


def test_member_asks_for_every_partition_when_it_is_the_first():
    member, commands = alone()
    assert kinds(commands) == [Acquire, Acquire, SendBeat]
    assert member.handle(Granted(0, 5, "7-0"), 0.1) == [StartWork(0, "ia", 5, "7-0")]
    assert member.owned == {0: 5}
    assert not member.settled
    member.handle(Granted(1, 5, "0-0"), 0.1)
    assert member.settled


def test_table_is_walked_whole_and_left_nowhere_when_groups_are_simulated(monkeypatch):
    walked = set()

    def go(self, what):
        walked.add((self.state, what))
        self.state = AFTER[self.state, what]

    monkeypatch.setattr(Partition, "go", go)
    for seed in range(4_000):
        simulate(seed)
        if len(walked) == len(TRANSITIONS):
            break
    assert walked | {(State.OWNED, "stopped")} == set(AFTER)  # work ends by itself in agents only


def test_table_has_one_transition_for_each_thing_that_happens():
    assert len(AFTER) == len(TRANSITIONS)


def test_what_is_no_event_is_refused_and_changes_nothing():
    member = Member("a", "ia", 2, lease_s=3.0, grace_s=1.0, seed=1)
    with pytest.raises(TypeError, match="'tick' is no event of a member"):
        member.handle("tick", 0.0)
    assert member.handle(Started(), 0.0) == [ReadDocument()]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (
            Document(1, 4),
            "The group shares 4 partitions, and this process was started with 2; give partitions=4.",
        ),
        (
            Document(1, 2, version=9),
            "The group speaks version 9 of the protocol, and this process version 1; start all its members with one version of penstock.",
        ),
    ],
)
def test_group_of_other_settings_is_refused_when_it_is_joined(document, sentence):
    member = Member("a", "ia", 2, lease_s=3.0, grace_s=1.0, seed=1)
    member.handle(Started(), 0.0)
    (left,) = member.handle(DocumentRead(document), 0.0)
    assert left.refusal.sentence == sentence
    assert member.exited
    assert member.handle(Tick(), 9.0) == []


def test_later_process_with_the_same_id_ends_the_earlier_one_and_says_so():
    member, _ = alone()
    member.handle(Granted(0, 1, "0-0"), 0.0)
    member.handle(Announced(Changed(2)), 0.1)
    document = Document(2, 2, {"a": Entry("other", 2, (0, 1))}, "other", member.document.generation)
    commands = member.handle(DocumentRead(document), 0.1)
    assert "Another process has joined the group as 'a'" in commands[-1].refusal.sentence


def test_process_that_replaces_its_own_earlier_start_has_the_same_share_at_once():
    member = Member("a", "again", 2, lease_s=3.0, grace_s=1.0, seed=1)
    member.handle(Started(), 0.0)
    (edit,) = member.handle(DocumentRead(TWO), 0.0)
    assert edit.document.members["a"] == Entry("again", 4, (0,), lease_ms=3000)
    assert edit.document.members["b"] == TWO.members["b"]
    asked, _ = member.handle(Edited(True, 0.0), 0.0)
    assert (asked.partition, asked.instead_of) == (0, "")
    (asked,) = member.handle(Busy(0, "a", "ia", 1), 0.0)
    assert asked.instead_of == "ia"


def test_member_that_was_taken_out_joins_again_as_another_incarnation():
    member, _ = alone()
    member.handle(Granted(0, 1, "4-0"), 0.0)
    member.handle(Beaten(Beat(2, "ib", known=False), "ia", 0.2), 0.2)
    commands = member.handle(DocumentRead(Document(2, 2, {"b": Entry("ib", 2, (0, 1))}, "ib", member.document.generation)), 0.3)
    (edit,) = [c for c in commands if isinstance(c, Edit)]
    assert edit.document.members["a"].incarnation == "ia.1"
    assert Release(0, "ia", 1, "4-0") in member.handle(Tick(), 0.3) + commands  # what it remembers


def test_work_is_abandoned_before_the_lease_ends_when_no_beat_is_answered():
    member, _ = alone()
    member.handle(Granted(0, 1, "0-0"), 0.0)
    member.handle(Failed(SendBeat("ia", 3000)), 0.5)
    assert AbandonWork not in kinds(member.handle(Tick(), 2.69))
    assert AbandonWork(0, 1) in member.handle(Tick(), 2.71)
    assert member.owned == {}


def test_partition_that_stays_gets_no_command_when_another_member_joins():
    member, _ = alone()
    for p in (0, 1):
        member.handle(Granted(p, 1, "0-0"), 0.0)
    member.handle(Announced(Changed(2)), 0.1)
    document = member.document.edited(2, "ib", {**member.document.members, "b": Entry("ib", 2)}, member.document.generation)
    assert member.handle(DocumentRead(document), 0.1) == [StopWork(1, 1, 1.0)]
    member.handle(Acked(1, 1, "9-0"), 0.2)
    assert member.handle(Stopped(1, 1), 0.3) == [Release(1, "ia", 1, "9-0")]
    assert member.settled


def test_partition_is_given_up_when_its_work_does_not_end_in_the_grace():
    member, _ = alone(partitions=1)
    member.handle(Granted(0, 1, "0-0"), 0.0)
    assert member.handle(StopRequested(0.5), 0.1)[0] == StopWork(0, 1, 0.5)
    assert member.handle(Tick(), 0.59) == []
    assert member.handle(Tick(), 0.61)[:2] == [AbandonWork(0, 1), Release(0, "ia", 1, "0-0")]
    assert member.owned == {}


def test_leaver_exits_a_second_after_its_grace_when_the_server_is_silent():
    member, _ = alone()
    member.handle(StopRequested(0.0), 0.1)
    for _ in range(50):
        if member.exited:
            break
        now = max(member.wake_at, 0.1)
        for command in member.handle(Tick(), now):
            if isinstance(command, Exit):
                assert now == pytest.approx(1.1)
            elif not isinstance(command, Release):
                member.handle(Failed(command), now)
    assert member.exited


def test_lock_that_another_waits_for_is_asked_for_and_given_back_when_its_answer_was_lost():
    member, _ = alone(partitions=2)
    member.handle(DocumentRead(Document(2, 2, {"a": Entry("ia", 1, (0,)), "b": Entry("ib", 2, (1,))}, "ib")), 0.0)
    member.handle(Failed(Acquire(1, "a", "ia", 1, "", 0, "0-0")), 0.1)
    (asked,) = member.handle(Announced(Wanted(1, "ia")), 0.2)
    assert isinstance(asked, Acquire)
    assert member.handle(Granted(1, 4, "3-0"), 0.3) == [Release(1, "ia", 4, "3-0")]


def test_owner_that_works_from_a_lost_position_is_told_by_who_knows_a_later_one():
    knows, owner = alone(partitions=2)[0], alone(partitions=2)[0]
    assert knows.handle(Raised(1, "ib"), 0.1) == [Announce(Raised(1, "ib"))]
    owner.handle(Granted(1, 4, "3-0"), 0.1)
    assert owner.handle(Announced(Raised(1, "another")), 0.2) == []
    assert owner.handle(Announced(Raised(77, "ia")), 0.2) == []
    assert owner.handle(Announced(Raised(1, "ia")), 0.2) == [Confirm(1, "ia", 4, "3-0")]
    assert kinds(owner.handle(Fenced(1, 4), 0.3)) == [AbandonWork, ReadDocument]
    assert owner.handle(Announced(Raised(1, "ia")), 0.4) == []  # it is being given up


def test_message_that_nobody_understands_only_makes_the_member_read():
    member, _ = alone()
    assert member.handle(Announced(None), 0.1) == [ReadDocument()]
    assert member.handle(Announced(Wanted(77, "ia")), 0.1) == []


@pytest.mark.parametrize("partitions", [0, 1])
def test_group_with_more_members_than_partitions_is_settled(partitions):
    member, _ = alone(partitions=partitions)
    for p in range(partitions):
        member.handle(Granted(p, 1, "0-0"), 0.0)
    assert member.settled


def test_lease_of_a_millisecond_never_works_and_never_spins():
    member, commands = alone(lease_s=0.001)
    now, sent = 0.0, 0
    for _ in range(1_000):
        for command in commands:
            sent += isinstance(command, SendBeat)
        now = max(now + 0.0005, member.wake_at)
        beats = [c for c in commands if isinstance(c, SendBeat)]
        commands = (
            member.handle(Beaten(Beat(1, "ia", known=True), "ia", now - 0.0005), now) if beats else member.handle(Tick(), now)
        )
        if now > 0.5:
            break
    assert now > 0.1
    assert sent < 1_000


def test_fenced_partition_is_asked_for_again_only_when_its_work_has_ended():
    member, _ = alone(partitions=1)
    member.handle(Granted(0, 1, "0-0"), 0.0)
    assert AbandonWork(0, 1) in member.handle(Fenced(0, 1), 0.1)
    assert Acquire not in kinds(member.handle(Tick(), 0.5))
    (again,) = [c for c in member.handle(Stopped(0, 1), 0.6) if isinstance(c, Acquire)]
    assert again.token == 1


def test_grant_to_an_earlier_incarnation_starts_no_work():
    member, _ = alone(partitions=1)
    member.handle(Announced(Changed(2)), 0.1)
    gone = Document(2, 1, {}, "ib", member.document.generation)
    (edit,) = [c for c in member.handle(DocumentRead(gone), 0.1) if isinstance(c, Edit)]
    assert edit.document.members["a"].incarnation == "ia.1"
    member.handle(Edited(True, 0.1), 0.1)
    assert StartWork not in kinds(member.handle(Granted(0, 1, "0-0"), 0.2))


def test_work_starts_where_the_member_remembers_when_the_server_has_lost_that():
    member, _ = alone(partitions=1)
    member.handle(Granted(0, 1, "0-0"), 0.0)
    member.handle(Acked(0, 1, "5-0"), 0.1)
    member.handle(Fenced(0, 1), 0.2)
    member.handle(Stopped(0, 1), 0.3)
    assert member.handle(Granted(0, 2, "2-0"), 0.4) == [StartWork(0, "ia", 2, "5-0")]


def test_partition_that_is_still_mine_is_not_released_when_its_work_is_fenced():
    member, _ = alone(partitions=1)
    member.handle(Granted(0, 1, "0-0"), 0.0)
    assert Release not in kinds(member.handle(Fenced(0, 1), 0.2) + member.handle(Stopped(0, 1), 0.3))


OLD = Document(5, 2, {"a": Entry("ia", 1, (0,)), "b": Entry("ib", 4, (1,))}, "ib", "ia/ia@1")


@pytest.mark.parametrize(
    ("stored", "of_b"),
    [
        (None, ("ib", 4)),
        (Document(4, 2, {"b": Entry("older", 3, (0, 1))}, "older", "ia/ia@1"), ("ib", 4)),
        (Document(5, 2, {"b": Entry("other", 4, (0, 1))}, "other", "ia/ia@1"), ("other", 4)),
        (Document(1, 2, {"b": Entry("anew", 1, (0, 1))}, "anew", "anew/anew@1"), ("anew", 6)),
    ],
)
def test_members_are_restored_with_their_shares_when_the_store_has_lost_the_document(stored, of_b):
    memory = Remembered("a", "ia", 2, 3000, OLD, 5)
    assert memory.is_lost(stored)
    restored = memory.proposed(stored, Wish.IN, frozenset())
    assert (restored.epoch, restored.generation) == (6, "ia/ia@6")
    b = restored.members["b"]
    assert (b.incarnation, b.joined) == of_b
    assert restored.target == {0: "a", 1: "b"}


def test_locks_are_confirmed_without_a_stop_when_the_document_was_restored_by_another():
    member, _ = alone(partitions=1)
    member.handle(Granted(0, 1, "3-0"), 0.0)
    member.handle(Announced(Changed(2)), 0.1)
    restored = Document(2, 1, member.document.members, "ib", "ia/ib@2")
    assert member.handle(DocumentRead(restored), 0.1) == [Confirm(0, "ia", 1, "3-0")]


def test_member_joins_again_when_a_restored_document_has_another_process_with_its_id():
    member, _ = alone(partitions=1)
    member.handle(Announced(Changed(2)), 0.1)
    restored = Document(2, 1, {"a": Entry("dead", 2, (0,))}, "ib", "ia/ib@2")
    (edit,) = [c for c in member.handle(DocumentRead(restored), 0.1) if isinstance(c, Edit)]
    assert edit.document.members["a"].incarnation == "ia.1"
    assert not member.exited


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"epoch": true}', TWO.to_json().replace('"epoch":3', '"epoch":-3')])
def test_text_that_is_no_document_is_refused_in_words(text):
    with pytest.raises(ValueError, match="It is no membership document"):
        Document.from_json(text)


def test_document_is_read_as_it_was_written():
    assert Document.from_json(TWO.to_json()) == TWO
    assert Document.from_json(TWO.to_json().replace('{"editor"', '{"later":1,"editor"')) == TWO
    assert TWO.target == {0: "a", 1: "b"}


def test_document_in_which_a_partition_has_two_members_is_refused():
    with pytest.raises(ValueError, match="a partition has two members"):
        Document.from_json(TWO.to_json().replace("[1]", "[0]"))


@pytest.mark.parametrize("message", [Changed(7), Wanted(3, "ia.1"), Raised(3, "ia.1")])
def test_message_is_read_as_it_was_written(message):
    assert from_fields(to_fields(message)) == message


@pytest.mark.parametrize("fields", [{}, {"kind": "wanted"}, {"kind": "changed", "epoch": "x"}, {"kind": "new"}])
def test_garbage_on_the_control_stream_is_no_message(fields):
    assert from_fields(fields) is None


def test_positions_are_compared_as_numbers():
    assert later("9-0", "10-0") == "10-0"
    assert later("5-10", "5-9") == "5-10"
    assert order("5") == (5, 0)
