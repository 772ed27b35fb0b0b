"""The package redis, for the other modules of this folder. Where it is not installed, all else of penstock works, and the first connection
says what to install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.errors import MissingToolError

try:
    import redis as _redis
except ModuleNotFoundError as _error:
    if _error.name not in ("redis", "hiredis"):
        raise
    _redis = None  # type: ignore[assignment]  # until a connection is wanted

INSTALLED: Final = _redis is not None

if TYPE_CHECKING or INSTALLED:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.exceptions import AuthenticationError, MovedError, NoPermissionError, NoScriptError, RedisError, ResponseError
    from redis.exceptions import ConnectionError as LostError
    from redis.exceptions import TimeoutError as LateError
    from redis.retry import Retry
else:  # nothing raises these, nor makes one

    class RedisError(Exception):
        """Any error of a server."""

    Redis = NoBackoff = Retry = Any
    AuthenticationError = MovedError = LostError = LateError = ResponseError = NoScriptError = NoPermissionError = RedisError


def require_redis() -> None:
    """Check that the package is installed.

    Raises:
        MissingToolError: It is not.
    """
    if not INSTALLED:
        raise MissingToolError(
            "Redis streams and groups need the package redis, which is not installed: run `pip install 'penstock[redis]'`."
        )


__all__ = [
    "AuthenticationError",
    "LateError",
    "LostError",
    "MovedError",
    "NoBackoff",
    "NoPermissionError",
    "NoScriptError",
    "Redis",
    "RedisError",
    "ResponseError",
    "Retry",
    "require_redis",
]
