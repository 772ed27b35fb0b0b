"""The command ``penstock``.

Exit codes: 0 done, 1 penstock or the flow failed, 2 the command was used wrongly (`penstock.cli.misuse`), which for ``match``
includes its query, 130 ended by Ctrl-C. An error is one sentence on stderr; ``--debug`` adds the traceback. ``--version``
answers before anything is imported.

Read next: `penstock.cli.commands`, the commands themselves.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

DONE, REFUSED, MISUSED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The arguments after ``penstock``; None takes those of this process.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in {"--version", "-V"}:
        from penstock.version import __version__

        print(f"penstock {__version__}")
        return DONE
    words, debug = _without_debug(words)
    with warnings.catch_warnings():
        _print_warnings()
        return _run(words, debug=debug)


def _run(words: list[str], *, debug: bool) -> int:
    from penstock.cli.misuse import MisuseError, sentence
    from penstock.errors import PenstockError

    try:
        application()(args=words, prog_name="penstock", obj=debug)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else DONE if end.code is None else REFUSED
    except PenstockError as error:
        if debug and error.cause is not None:
            raise error from error.cause
        if debug:
            raise
        print(sentence(error), file=sys.stderr)
        return MISUSED if isinstance(error, MisuseError) else REFUSED
    except Exception as error:
        if debug:
            raise
        about = " ".join(str(error).split())[:500]
        print(
            f"penstock failed with {type(error).__name__}: {about} (run it again with --debug for the traceback).",
            file=sys.stderr,
        )
        return REFUSED
    return DONE


def application() -> typer.Typer:
    """The application with every command of `penstock.cli.commands.COMMANDS`, which are functions or Typer groups."""
    import typer

    from penstock.cli import commands

    app = typer.Typer(
        help="Elastic, exactly-once stateful streaming on PySpark.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def _options(
        *,
        version: bool = typer.Option(False, "--version", "-V", help="Print the version and exit."),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    ) -> None:
        """Declared for the help text only: `main` takes both before Typer sees them."""

    _options.__doc__ = None
    for command in commands.COMMANDS:
        if isinstance(command, typer.Typer):
            app.add_typer(command)
        else:
            app.command()(command)
    return app


def _print_warnings() -> None:
    """Print penstock's warnings as one sentence, without a line of code that is not the user's."""
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        if category is UserWarning:
            print(" ".join(str(message).split()), file=sys.stderr)
        else:
            usual(message, category, *place, **more)

    warnings.showwarning = show


def _without_debug(words: list[str]) -> tuple[list[str], bool]:
    """Remove ``--debug`` before any ``--``."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return kept + words[end:], len(kept) < end
