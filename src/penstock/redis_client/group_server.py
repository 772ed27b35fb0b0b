"""The steps of a group at a server, in plain values; `penstock.group.store` gives them the types of the protocol.

Steps that do not depend on one another can be sent together (`GroupServer.many`). A script is sent by its hash, and whole where the server does
not know it, as after a restart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import GroupError
from penstock.redis_client import group_scripts, keys, library
from penstock.redis_client.connection import connect, shown, why

HASH: Final = "xxh64 of the key's bytes, seed 0, modulo partitions"
"""How producers choose the partition of a key: part of what all who use a stream must agree on."""
OLDEST: Final = (6, 2)
"""The oldest version of Redis that has what the scripts use."""

if TYPE_CHECKING:
    Unanswered = library.RedisError
    """A step got no answer, or the server could not carry it out: it may or may not have been done. Try again, or ask what there is."""
else:

    def __getattr__(name: str) -> type[Exception]:
        """`Unanswered`, once somebody asks for it: the package redis is loaded then, and not by flows without it."""
        if name == "Unanswered":
            return library.RedisError
        raise AttributeError(f"{__name__} has no {name}")


@dataclass(frozen=True)
class Step:
    """One script with its keys and arguments."""

    script: str
    keys: tuple[str, ...]
    arguments: tuple[str | int | bytes, ...]

    @cached_property
    def sha(self) -> str:
        """By what the server knows the script."""
        return _sha(self.script)

    def words(self, *, whole: bool = False) -> tuple[Any, ...]:
        """The command."""
        name = ("EVAL", self.script) if whole else ("EVALSHA", self.sha)
        return (*name, len(self.keys), *self.keys, *self.arguments)


_HASHES: dict[str, str] = {}


def _sha(script: str) -> str:
    if script not in _HASHES:
        _HASHES[script] = sha1(script.encode(), usedforsecurity=False).hexdigest()
    return _HASHES[script]


class ForeignKeyError(GroupError):
    """A key of the group holds something that penstock did not write. It was left alone."""


class GroupServer:
    """Connections to the server of one group of one stream. Threads may share it.

    Args:
        url: The server's address.
        stream: The stream.
        group: The group.
        timeout_s: Seconds to wait for an answer.
    """

    def __init__(self, url: str, stream: str, group: str, *, timeout_s: float) -> None:
        self._url, self._stream, self._group = url, stream, group
        self._client: Any = connect(url, timeout_s=timeout_s, tries=1)
        self._membership = keys.members_key(stream, group)
        self._alive, self._changes = keys.alive_key(stream, group), keys.changes_key(stream, group)

    # -- the steps as values, to be sent alone (`one`) or together (`many`)

    def edit(self, expected: int, epoch: int, editor: str, document: str, leases_ms: Mapping[str, int]) -> Step:
        """Answer: 1 if the document was replaced, else 0. `leases_ms`: of its members, by incarnation."""
        return Step(
            group_scripts.EDIT,
            (self._membership, self._alive, self._changes),
            (expected, epoch, editor, document, *(word for pair in leases_ms.items() for word in pair)),
        )

    def beat(self, incarnation: str, lease_ms: int) -> Step:
        """Answer: epoch, editor, known, ms until the next deadline or −1, the server's run, and the dead."""
        return Step(group_scripts.BEAT, (self._membership, self._alive), (incarnation, lease_ms))

    def acquire(
        self, partition: int, member: str, incarnation: str, epoch: int, instead_of: str, token: int, position: str
    ) -> Step:
        """Answer: ``granted``, token, position; or ``busy``, member, incarnation, token; or ``stale``, epoch."""
        return self._on(group_scripts.ACQUIRE, partition, member, incarnation, epoch, instead_of, token, position)

    def release(self, partition: int, incarnation: str, token: int, position: str) -> Step:
        """Answer: the incarnation that is fenced by what the caller remembers, or None."""
        return self._on(group_scripts.RELEASE, partition, incarnation, token, position)

    def ack(
        self,
        partition: int,
        incarnation: str,
        token: int,
        position: str,
        dead_letters: Sequence[Sequence[str | bytes]] = (),
        added: int | None = None,
    ) -> Step:
        """Answer: 1 if the position was committed, with how many entries the stream had been given until there if that is known, and the dead
        letters (each as name, value, …) were stored; else 0.
        """
        flat = [word for letter in dead_letters for word in (len(letter), *letter)]
        key = keys.group_partition_key(self._stream, partition, self._group)
        letters = keys.dead_letters_key(self._stream, partition, self._group)
        return Step(group_scripts.ACK, (key, letters), (incarnation, token, position, "" if added is None else added, *flat))

    def _on(self, script: str, partition: int, *arguments: str | int) -> Step:
        return Step(script, (keys.group_partition_key(self._stream, partition, self._group),), arguments)

    # -- sending

    def one(self, step: Step) -> Any:
        """The answer to a step.

        Raises:
            Unanswered: Nobody knows whether it was carried out.
            ForeignKeyError: The key holds something else; nothing was changed.
        """
        try:
            return self._client.execute_command(*step.words())
        except library.NoScriptError:
            return self._whole(step)
        except library.ResponseError as error:
            raise self._translated(error, step) from error

    def many(self, steps: Sequence[Step]) -> list[Any]:
        """The answers to steps that are sent together, in their order; instead of an answer, the error that `one` would raise."""
        if len(steps) == 1:
            try:
                return [self.one(steps[0])]
            except (library.RedisError, ForeignKeyError) as error:
                return [error]
        pipe = self._client.pipeline(transaction=False)
        for step in steps:
            pipe.execute_command(*step.words())
        try:
            answers = pipe.execute(raise_on_error=False)
        except library.RedisError as error:
            return [error] * len(steps)
        return [self._second(step, answer) for step, answer in zip(steps, answers, strict=True)]

    def _second(self, step: Step, answer: Any) -> Any:
        if isinstance(answer, library.NoScriptError):
            try:
                return self._whole(step)
            except (library.RedisError, ForeignKeyError) as error:
                return error
        return self._translated(answer, step) if isinstance(answer, library.ResponseError) else answer

    def _whole(self, step: Step) -> Any:
        try:
            return self._client.execute_command(*step.words(whole=True))
        except library.ResponseError as error:
            raise self._translated(error, step) from error

    def _translated(self, error: library.ResponseError, step: Step) -> library.RedisError | ForeignKeyError:
        if "FOREIGN" not in str(error) and "WRONGTYPE" not in str(error):
            return error
        return ForeignKeyError(
            f"Key {step.keys[0]} at {shown(self._url)} holds something that penstock did not write; it was left as it is: rename or delete it, or "
            "give the group another name."
        )

    # -- what is read

    def document(self) -> bytes | None:
        """The membership document."""
        return self._client.hget(self._membership, "document")  # type: ignore[no-any-return]

    def announce(self, fields: dict[str, str]) -> None:
        """Append an entry to the control stream."""
        self._client.xadd(self._changes, fields, maxlen=group_scripts.CHANGES_KEPT, approximate=True)

    def last_change(self) -> str:
        """Id of the last entry of the control stream; ``0-0``: there is none."""
        found: Any = self._client.xrevrange(self._changes, count=1)
        return found[0][0].decode() if found else "0-0"

    def changes(self, after: str, block_ms: int) -> list[tuple[str, dict[str, str]]]:
        """Entries of the control stream behind an id; waits until there are some, or so long. The connection's timeout must be longer."""
        answer: Any = self._client.xread({self._changes: after}, block=block_ms)
        return [
            (entry.decode(), {n.decode(errors="replace"): v.decode(errors="replace") for n, v in fields.items()})
            for entry, fields in (entries_by_stream(answer).get(self._changes.encode(), []))
        ]

    # -- agreements

    def check(self, partitions: int, protocol: int) -> None:
        """Refuse a server that is too old, and a stream that others use in another way; the first who uses it says how.

        Args:
            partitions: How many partitions the stream has.
            protocol: Version of the group's protocol.

        Raises:
            GroupError: The server cannot be reached or is too old, or the stream's settings are other ones. Nothing was changed.
        """
        try:
            self._check_version()
            answer = self.agree(partitions, protocol)
        except library.RedisError as error:
            of = f"group {self._group!r}" if self._group else f"stream {self._stream!r}"
            raise GroupError(f"The server of {of} at {shown(self._url)} cannot be used: {why(error)}.") from error
        if answer:
            raise GroupError(_refused(self._stream, answer[0].decode(), answer[1].decode(), _settings(partitions, protocol)))

    def agree(self, partitions: int, protocol: int) -> list[bytes]:
        """Say how the stream is used, unless somebody has; the name and value of a setting that is another one, or nothing.

        Raises:
            Unanswered: Nobody knows whether it was done.
        """
        words = tuple(word for pair in _settings(partitions, protocol).items() for word in pair)
        return self.one(Step(group_scripts.AGREE, (keys.settings_key(self._stream),), words))  # type: ignore[no-any-return]

    def _check_version(self) -> None:
        try:
            said: Any = self._client.info("server")
        except library.NoPermissionError:  # the user may not ask; then the scripts will show it
            return
        version = tuple(int(n) for n in re.findall(r"\d+", str(said.get("redis_version", "")))[:2])
        if version and version < OLDEST:
            raise GroupError(
                f"The server at {shown(self._url)} is Redis {said['redis_version']}; groups need Redis 6.2 or newer, or Valkey."
            )

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()


def _settings(partitions: int, protocol: int) -> dict[str, str | int]:
    return {"partitions": partitions, "protocol": protocol, "hash": HASH}


def _refused(stream: str, name: str, there: str, mine: dict[str, str | int]) -> str:
    match name:
        case "partitions":
            return f"Stream {stream!r} has {there} partitions, not {mine[name]}; give partitions={there}."
        case "protocol":
            return (
                f"The groups of stream {stream!r} speak version {there} of the protocol, and this process version {mine[name]}; use one version of "
                "penstock for all of them."
            )
        case _:
            return (
                f"Producers of stream {stream!r} choose the partition of a key by {there!r}, and this process by {mine[name]!r}; a key would be in two "
                "partitions: use one version of penstock for all of them."
            )


def entries_by_stream(answer: Any) -> dict[bytes, list[tuple[bytes, dict[bytes, bytes]]]]:
    """What XREAD answers, in either version of the wire protocol: entries by stream."""
    if isinstance(answer, dict):
        return {key: [entry for part in parts for entry in part] for key, parts in answer.items()}
    return dict(answer or ())


__all__ = ["HASH", "OLDEST", "ForeignKeyError", "GroupServer", "Step", "Unanswered", "entries_by_stream"]
