"""An archive of the classes that Java loads, by which the next session starts in half the time.

Java writes the archive itself, when a user's first session has ended (``-XX:ArchiveClassesAtExit``), and reads it when the next one starts. It
checks that the same Java made it with the same jars, and does without one that it cannot use; but it crashes over one that is cut short. So Java
writes a draft, which becomes an archive, with its size in its name, only when Java's log says that it was written to the end. The packaged
Java lacks the archive of its own classes on which the other one is built; it is made first. Sessions that penstock did not start are left
as they are.

Read next: `penstock.spark.session.java`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

KEPT: Final = 3
"""How many archives are kept, for as many Javas and Sparks; one has 170 MB. Those that were used longest ago go."""
WAIT_S: Final = 24 * 3600
"""Seconds after which a draft is given up. Until then no other one is begun."""
_QUIET: Final = "-Xlog:cds*=off"  # Java warns of each class that it leaves out, and of an archive that it cannot use
_WRITTEN: Final = re.compile(r"Written dynamic archive .*, ([0-9]+) bytes total\]")
_THEIRS: Final = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
_PLAIN: Final = re.compile(r"[\w./+@-]+")


def archive_options(
    folder: Path, java_home: str, spark_home: str, environment: Mapping[str, str], given: str = ""
) -> list[str]:
    """Options for a Java that is about to start: it uses the archive of an earlier one, or makes one when it ends.

    Args:
        folder: Where archives are kept; only the user can write to it.
        java_home: Home of the Java.
        spark_home: Home of the Spark that it runs.
        environment: The environment of the process. In continuous integration (``CI`` is set) none is made: it would be waited for and
            thrown away.
        given: The user's own options for Java. If they name an archive, or forbid them, none is used or made.

    Returns:
        The options. None where no archive can be had: that costs time and nothing else.
    """
    said = " ".join((given, *(environment.get(name, "") for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS"))))
    if any(word in said for word in _THEIRS) or not _PLAIN.fullmatch(str(folder)):
        return []
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # others may adopt or sweep at the same time
        base = _base(folder, Path(java_home))
        name = f"classes-{_digest(Path(java_home, 'lib', 'modules'), Path(spark_home, 'jars'))}"
        _adopt(folder, name)
        for archive in folder.glob(f"{name}-*.jsa"):
            if archive.stat().st_size == int(archive.stem.rpartition("-")[2]):
                os.utime(archive)
                return [f"-XX:SharedArchiveFile={':'.join((*base, str(archive)))}", _QUIET]
            archive.unlink()
        if not environment.get("CI") and not any(folder.glob(f"{name}.*.draft")):
            draft = folder / f"{name}.{uuid.uuid4().hex}.draft"
            draft.touch()  # Java replaces it
            log = f"-Xlog:cds+dynamic=info:file={draft.with_suffix('.log')}:none:filecount=0"
            return [*(f"-XX:SharedArchiveFile={file}" for file in base), f"-XX:ArchiveClassesAtExit={draft}", _QUIET, log]
    return []


def _base(folder: Path, java_home: Path) -> tuple[str, ...]:
    """An archive of Java's own classes, if Java has none; made now, within a second."""
    if (java_home / "lib" / "server" / "classes.jsa").exists():
        return ()
    archive = folder / f"java-{_digest(java_home / 'lib' / 'modules')}.jsa"
    if not archive.exists():
        draft = folder / f"{archive.name}.{uuid.uuid4().hex}"
        dump = [str(java_home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={draft}"]
        try:
            subprocess.run(dump, check=True, capture_output=True, timeout=60)
            draft.rename(archive)
        finally:
            draft.unlink(missing_ok=True)
    return (str(archive),)


def _adopt(folder: Path, name: str) -> None:
    """Make archives of drafts that are complete; remove drafts that never will be, and archives that were used longest ago."""
    for draft in folder.glob(f"{name}.*.draft"):
        log, stat = draft.with_suffix(".log"), draft.stat()
        found = _WRITTEN.search(log.read_text(errors="replace")) if log.exists() else None
        if found and stat.st_size >= int(found[1]):
            with draft.open("rb") as file:
                os.fsync(file.fileno())  # no machine that stops leaves an archive cut short
            draft.rename(folder / f"{name}-{stat.st_size}.jsa")
        elif time.time() - stat.st_mtime > WAIT_S:
            draft.unlink()
        else:
            continue
        log.unlink(missing_ok=True)
    for archive in sorted(folder.glob("classes-*-*.jsa"), key=lambda found: found.stat().st_mtime, reverse=True)[KEPT:]:
        archive.unlink()


def _digest(*files: Path) -> str:
    """What tells files or folders from those that they may become."""
    return hashlib.sha256(repr([(os.path.realpath(file), file.stat().st_mtime_ns) for file in files]).encode()).hexdigest()[:12]


__all__ = ["archive_options"]
