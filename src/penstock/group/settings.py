"""What an application says of the group that it wants to be a member of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import DeclarationError
from penstock.redis_client.connection import connect, shown
from penstock.types import Duration, duration_us

SHORTEST_LEASE_MS: Final = 100
LONGEST_LEASE_MS: Final = 3_600_000
LONGEST_GRACE_S: Final = 86_400.0
MOST_PARTITIONS: Final = 10_000
_NAME: Final = re.compile(r"[^\s{}#\x00-\x1f\x7f]{1,200}")


@dataclass(frozen=True)
class Group:
    """A group of applications that share the partitions of a stream over Redis or Valkey.

    Applications with the same server, group name and stream share its partitions: each partition is one application's at a time, and as many are
    each one's, within one.

    Args:
        url: Address of the server: ``redis://[[user]:password@]host[:port][/db]``, with TLS ``rediss://…``.
        name: The group's name.
        member: A name of this application that stays the same when it is started again, and that no other has: then a quick restart moves no
            partition. None: a new one at each start.
        lease: How long others wait for an application that is silent before they take over what it had. From 0.1 seconds to 1 hour.
        grace: How long a leaving application may take to finish what it has begun, before it lets go of it unfinished.
            At most a day.

    Raises:
        DeclarationError: An argument is not of its kind. Nothing was sent.

    Example:
        >>> Group("redis://localhost:6379", "billing", lease="2 seconds").lease_ms
        2000
    """

    url: str
    name: str
    member: str | None = field(default=None, kw_only=True)
    lease: Duration = field(default="10 seconds", kw_only=True)
    grace: Duration = field(default="8 seconds", kw_only=True)

    def __post_init__(self) -> None:
        connect(self.url).close()
        checked_name("A group's name", self.name)
        if self.member is not None:
            checked_name("A member's name", self.member)
        if not SHORTEST_LEASE_MS <= self.lease_ms <= LONGEST_LEASE_MS:
            raise DeclarationError(f"A group's lease is {self.lease!r}; give one from 0.1 seconds to 1 hour.")
        if self.grace_s > LONGEST_GRACE_S:
            raise DeclarationError(f"A group's grace is {self.grace!r}; give one of at most a day.")

    @property
    def lease_ms(self) -> int:
        """The lease, in milliseconds.

        Example:
            >>> Group("redis://localhost:6379", "billing", lease="2 seconds").lease_ms
            2000
        """
        return duration_us(self.lease, "A group's lease") // 1000

    @property
    def grace_s(self) -> float:
        """The grace period, in seconds.

        Example:
            >>> Group("redis://localhost:6379", "billing", grace="1 minute").grace_s
            60.0
        """
        return duration_us(self.grace, "A group's grace") / 1e6

    def __repr__(self) -> str:  # a password is not for logs
        more = "".join(
            f", {name}={value!r}"
            for name, value, usual in (
                ("member", self.member, None),
                ("lease", self.lease, "10 seconds"),
                ("grace", self.grace, "8 seconds"),
            )
            if value != usual
        )
        return f"Group({shown(self.url)!r}, {self.name!r}{more})"


def checked_name(what: str, name: object) -> str:
    """A name that can be part of a key's name in Redis.

    Raises:
        DeclarationError: It is no such name.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{what} is {name!r}; give 1 to 200 characters without white space and without {{, }} and #, such as 'billing'."
        )
    return name


def checked_partitions(stream: str, partitions: object) -> int:
    """A number of partitions.

    Raises:
        DeclarationError: It is none.
    """
    if not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= MOST_PARTITIONS:
        raise DeclarationError(
            f"Stream {stream!r} cannot have {partitions!r} partitions; give a whole number from 1 to {MOST_PARTITIONS:,}."
        )
    return partitions


__all__ = ["LONGEST_GRACE_S", "LONGEST_LEASE_MS", "SHORTEST_LEASE_MS", "Group", "checked_name", "checked_partitions"]
