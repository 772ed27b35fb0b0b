"""What commands have in common: the flow of a file, the option that names a checkpoint."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Annotated, Any

import typer

from penstock.cli.misuse import MisuseError
from penstock.errors import DeclarationError, PenstockError, raised

CheckpointOption = Annotated[str, typer.Option("--checkpoint", help="Folder that keeps the flow's state.")]


@contextlib.contextmanager
def _made_by(path: str) -> Iterator[None]:
    """Raise an exception of the user's own file with its line."""
    try:
        yield
    except PenstockError:
        raise
    except SystemExit as end:
        raise DeclarationError(
            f"{path!r} cannot be loaded: it ends its process, {raised(end)}; put what is not about the flow under if __name__ == '__main__'."
        ) from end
    except Exception as error:
        raise DeclarationError(f"{path!r} cannot be loaded: {raised(error)}; fix it.") from error


class _Compiled(SourceFileLoader):
    """Compiles a file each time: Python would run code of before if a change kept the file's size, within the second of the last one."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _stands_in(file: Path) -> bool:
    """Whether a file, once loaded, would stand in for another module that has its name."""
    known = sys.modules.get(file.stem)
    if known is None or isinstance(getattr(known, "__loader__", None), _Compiled):
        return file.stem in sys.stdlib_module_names
    return Path(getattr(known, "__file__", None) or "").resolve() != file.resolve()


def load_flow(target: str) -> Any:
    """Import ``app.py:flow``.

    Raises:
        MisuseError: There is no such file or name, or it is not a flow; or the file would stand in for a module that others import.
        DeclarationError: The file itself raises.
    """
    path, _, name = target.partition(":")
    file = Path(path)
    if not file.is_file():
        raise MisuseError(f"There is no file {path!r}; give file.py:name, as in app.py:flow.")
    if _stands_in(file):
        raise MisuseError(f"{path!r} has the name of a module that others import, {file.stem!r}; rename it.")
    spec = importlib.util.spec_from_file_location(file.stem, file, loader=_Compiled(file.stem, str(file)))
    assert spec is not None and spec.loader is not None  # noqa: PT018  (it is a Python file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.parent.resolve()))
    with _made_by(path):
        spec.loader.exec_module(module)
    flow = getattr(module, name or "flow", None)
    from penstock.flow.flow import Flow

    if flow is None:
        there = [f"{path}:{known}" for known, value in vars(module).items() if isinstance(value, Flow)]
        wanted = " or ".join(there) or "file.py:name of a penstock.Flow"
        raise MisuseError(f"{path} has no {name or 'flow'!r}; give {wanted}.")
    with _made_by(path):
        flow = flow() if callable(flow) and not isinstance(flow, Flow) else flow
    if not isinstance(flow, Flow):
        raise MisuseError(f"{target} is a {type(flow).__name__}; it must be a penstock.Flow, or a function that returns one.")
    return flow


__all__ = ["CheckpointOption", "load_flow"]
