"""Connections to a Redis or Valkey server, of a URL; its errors as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from penstock.errors import DeclarationError
from penstock.redis_client import library

SCHEMES: Final = ("redis", "rediss", "unix")
TIMEOUT_S: Final = 5.0
_OF_SCRIPTS: Final = ("ACL failure in script", "can't run this command")
"""What Valkey and Redis say if a script gives a command that its user may not give."""


def connect(url: str, *, timeout_s: float = TIMEOUT_S, tries: int | None = None) -> library.Redis:
    """A client with a pool of connections; nothing is sent yet. Replies are bytes.

    Args:
        url: ``redis://[[user]:password@]host[:port][/db]``, with TLS ``rediss://…``, or ``unix://[[user]:password@]/path[?db=0]``.
        timeout_s: Seconds for connecting, and for each reply that does not block.
        tries: How often a command is sent at most if no answer comes; 1: none is carried out twice. None: as the library does.

    Raises:
        DeclarationError: It is no such URL.
        MissingToolError: The package redis is not installed.
    """
    library.require_redis()
    if not isinstance(url, str) or urlsplit(url).scheme not in SCHEMES:
        raise DeclarationError(f"{url!r} is no address of a Redis server; give one like redis://localhost:6379/0.")
    try:
        options = {} if tries is None else {"retry": library.Retry(library.NoBackoff(), tries - 1)}
        return library.Redis.from_url(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, health_check_interval=15, **options
        )
    except (ValueError, TypeError) as error:
        raise DeclarationError(f"{shown(url)} is no address of a Redis server: {error}.") from error


def shown(url: str) -> str:
    """A URL without its password, for messages."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":…@")))


def is_refused(error: Exception) -> bool:
    """Whether a server does not let this user do something, or is the wrong one, so that trying again is of no use."""
    return isinstance(error, library.AuthenticationError | library.NoPermissionError | library.MovedError) or any(
        part in str(error) for part in _OF_SCRIPTS
    )


def why(error: Exception) -> str:
    """What an error of the server or of the connection says, without its full stop, and what to do, where that is known."""
    said = str(error).rstrip(".")
    if isinstance(error, library.MovedError):
        return f"it is a node of a cluster, and another one ({said}) has the key; give the address of a server that is no cluster's"
    if isinstance(error, library.AuthenticationError):
        return f"{said}; give user and password in the URL, as redis://user:password@host"
    if is_refused(error):
        return f"{said}; allow it with ACL SETUSER"
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return f"{said}; name the file of its authority in the URL, as rediss://host:6379?ssl_ca_certs=ca.pem"
    return said


@contextmanager
def translated(url: str, kind: type[Exception], what: str) -> Iterator[None]:
    """Raise errors of the server as one of penstock's own.

    Args:
        url: The server's.
        kind: The error to raise.
        what: What was tried, for the sentence.
    """
    try:
        yield
    except library.RedisError as error:
        raise kind(f"{what} failed at {shown(url)}: {why(error)}.") from error
