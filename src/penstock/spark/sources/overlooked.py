"""Files of a folder that Spark will never read, found before a flow is started: it says nothing of them.

Only folders of this machine are looked at, and only as they are now.

Read next: `penstock.spark.sources.files`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from penstock.errors import DeclarationError
from penstock.sources.files import Files

_PATTERN: Final = re.compile(r"[*?{\[\\]")


def check_folder(name: str, files: Files) -> None:
    """Refuse a path that is a file, or the very name of a folder that Spark takes for a pattern.

    Args:
        name: The source's name.
        files: Its declaration.

    Raises:
        DeclarationError: It is one of these.
    """
    path = _local(files)
    if path is None:
        return
    if _PATTERN.search(files.path):
        if path.is_dir():
            raise DeclarationError(
                f"Source {name!r} reads {files.path!r}, which is a folder, but is taken for a pattern of names; put a backslash before each of "
                r"[ ] { } * ? ^ \ in it, or rename it."
            )
    elif path.is_file():
        raise DeclarationError(
            f"Source {name!r} reads {files.path!r}, which is a file; give the folder that it is in, or a pattern such as "
            f"{str(path.parent / f'*{path.suffix}')!r}."
        )


def overlooked(name: str, files: Files, encoding: str) -> list[str]:
    """A sentence for each kind of file in a source's folder that Spark does not read.

    Args:
        name: The source's name.
        files: Its declaration.
        encoding: Of names of files, as Spark's Java has it.
    """
    path = _local(files)
    if path is None:
        return []
    found = []
    utf_8 = encoding.upper() in ("UTF-8", "UTF8")
    if not utf_8:
        found.append(
            f"Spark's Java has the encoding {encoding} for names of files, so source {name!r} does not see files whose names have other letters; "
            "set LC_ALL=C.UTF-8 before Spark is started."
        )
    if _PATTERN.search(files.path):
        return found
    deep = {name.lower(): value for name, value in files.options.items()}.get("recursivefilelookup") == "true"
    nested = odd = ""
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError:
        return found  # Spark says that better
    for entry in entries:
        if _hidden(entry.name):
            continue
        if utf_8 and not odd and not _is_utf_8(entry.name):
            odd = entry.name
        if not nested and not deep and "=" not in entry.name and entry.is_dir():
            nested = _file_within(Path(entry.path))
    if odd:
        found.append(f"Source {name!r} does not see the file {os.fsencode(odd)!r}, whose name is not in UTF-8; rename it.")
    if nested:
        found.append(
            f"Source {name!r} does not read {os.path.relpath(nested, path)!r} and other files in folders within its folder, unless these are named "
            "after columns, as in day=1; declare files(..., recursiveFileLookup=True) to read all of them."
        )
    return found


def _local(files: Files) -> Path | None:
    """The path, where it is one of this machine."""
    path = re.sub("^file:(//)?(?=/)", "", files.path)
    return None if "://" in path else Path(path)


def _file_within(folder: Path) -> str:
    """A file in a folder at any depth; empty: there is none."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not _hidden(f))
        if shown := sorted(n for n in names if not _hidden(n)):
            return str(Path(where) / shown[0])
    return ""


def _hidden(name: str) -> bool:
    """Whether Spark passes over it as hidden."""
    return name.startswith((".", "_")) and not (name.startswith("_") and "=" in name)


def _is_utf_8(name: str) -> bool:
    try:
        os.fsencode(name).decode()
    except UnicodeDecodeError:
        return False
    return True


__all__ = ["check_folder", "overlooked"]
