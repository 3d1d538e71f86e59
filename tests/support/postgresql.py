"""A PostgreSQL server of a test's own: Debian's programs, a folder of its own, a Unix socket and no TCP port.

It runs as an ordinary user, as PostgreSQL wants it, and ends with the test. ``PostgresServer`` can be stopped
and started again in between, as by an outage.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.support.requirements import require
from tests.support.server import PATIENCE, until

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
"""Debian's, one folder for each version."""
NOT_DURABLE = ("fsync=off", "full_page_writes=off")
"""Nothing of a test need survive the machine."""


def require_postgresql() -> Path:
    """Return the folder of the newest programs; skip the test without one, or fail where it may not miss."""
    if not PROGRAMS or not (PROGRAMS[-1] / "initdb").exists():
        require("postgresql", "Debian's package postgresql is not installed")
    return PROGRAMS[-1]


class PostgresServer:
    """A server with an empty cluster in `folder`. `dsn` names its first database, `database` makes others."""

    def __init__(self, folder: Path, settings: tuple[str, ...] = NOT_DURABLE) -> None:
        self._programs = require_postgresql()
        self.folder = folder
        self._data = folder / "data"
        self._settings = settings
        self._user = pwd.getpwnam("nobody").pw_name if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = count(1)
        self.pid = 0
        if self._user is not None:
            shutil.chown(folder, self._user)
        self.run(
            "initdb", "-D", self._data, "-U", "cellgate", "-E", "UTF8", "--locale=C", "-A", "trust", "-N"
        )

    def run(self, program: str, *arguments: object) -> None:
        """Run one of its programs, as its user; it must succeed."""
        command = [str(self._programs / program), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=self.folder, user=self._user, capture_output=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    def url(self, database: str = "postgres") -> str:
        """The URL of a database of it."""
        return f"postgresql://cellgate@/{database}?host={self.folder}"

    def database(self, *options: str) -> str:
        """Make an empty database; return its URL. `options` are those of createdb."""
        name = f"record{next(self._databases)}"
        self.run("createdb", "-h", self.folder, "-U", "cellgate", *options, name)
        return self.url(name)

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-k", str(self.folder), "-h", ""]
        for setting in self._settings:
            command += ["-c", setting]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, user=self._user, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.pid = self._process.pid
        ready = [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder)]
        until(lambda: subprocess.run(ready, check=False).returncode == 0, "PostgreSQL does not answer")

    def stop(self) -> None:
        """Stop the server at once: connections break, and what was committed stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(PATIENCE)
            self._process = None

    def keep_copy(self) -> None:
        """Restart the server, and keep a copy of all that it had committed by then."""
        self.stop()
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        subprocess.run(["cp", "-a", self._data, self.folder / "copy"], check=True, timeout=PATIENCE)
        self.start()

    def put_copy_back(self) -> None:
        """Restart the server with the copy in the place of what it has now."""
        self.stop()
        shutil.rmtree(self._data)
        (self.folder / "copy").rename(self._data)
        self.start()


@contextmanager
def postgresql(settings: tuple[str, ...] = NOT_DURABLE) -> Iterator[PostgresServer]:
    """A running server, whose folder is removed at the end."""
    require_postgresql()
    folder = Path(tempfile.mkdtemp(prefix="cellgate-pg-"))
    try:
        server = PostgresServer(folder, settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
