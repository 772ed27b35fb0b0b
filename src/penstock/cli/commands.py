"""The commands of ``penstock``. Each imports what it needs when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

COMMANDS: Final[tuple[Callable[..., Any] | typer.Typer, ...]] = ()
"""What `penstock.cli.application` registers: functions under their names, Typer groups under theirs."""
