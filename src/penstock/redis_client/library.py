"""The package redis, for the other modules of this folder. It is loaded by the first connection, as it takes a tenth of a second that flows
without Redis need not wait. Where it is not installed, all else of penstock works, and the first connection says what to install.

Use its names through the module, as in ``library.RedisError``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import MissingToolError

if TYPE_CHECKING:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.exceptions import AuthenticationError, MovedError, NoPermissionError, NoScriptError, RedisError, ResponseError
    from redis.exceptions import ConnectionError as LostError
    from redis.exceptions import TimeoutError as LateError
    from redis.retry import Retry

_ELSEWHERE: Final = {"Redis": "redis", "NoBackoff": "redis.backoff", "Retry": "redis.retry"}
_THEIR_NAMES: Final = {"LateError": "TimeoutError", "LostError": "ConnectionError"}


class _NeverError(Exception):
    """Stands for every error of a package that is not there: nothing raises it."""


def _loaded(name: str) -> Any:
    """A name of the package, loaded on its first use."""
    if name not in __all__:
        raise AttributeError(f"{__name__} has no {name}")
    try:
        found = getattr(import_module(_ELSEWHERE.get(name, "redis.exceptions")), _THEIR_NAMES.get(name, name))
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "hiredis"):
            raise
        found = _NeverError
    globals()[name] = found
    return found


if not TYPE_CHECKING:  # a checker that saw it would let every name pass
    __getattr__ = _loaded


def require_redis() -> None:
    """Check that the package is installed.

    Raises:
        MissingToolError: It is not.
    """
    if issubclass(_loaded("RedisError"), _NeverError):
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
