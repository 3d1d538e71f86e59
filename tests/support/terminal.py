"""A program in a pseudo-terminal of its own, as a user has it: keys go in, what is shown is awaited."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE = 120.0
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[=>()][0-9A-Z]?)")
_FORWARD = re.compile(rb"\x1b\[([0-9]*)C")


def _spaces(found: re.Match[bytes]) -> bytes:
    return b" " * int(found[1] or 1)


class Terminal:
    """`raw` is every byte that the program has written so far."""

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self._master = master
        self.raw = b""
        self._seen = 0
        # setsid makes the terminal the controlling one, so that Ctrl-C becomes a signal.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={**environment, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"},
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._master)

    def send(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    def until(self, pattern: str) -> str:
        """What is shown from the last match on up to the next match, without control sequences."""
        deadline = time.monotonic() + PATIENCE
        while True:
            shown = _SEQUENCE.sub(b"", _FORWARD.sub(_spaces, self.raw)).decode(errors="replace")
            if found := re.compile(pattern).search(shown, self._seen):
                before, self._seen = self._seen, found.end()
                return shown[before : found.end()]
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} is not shown:\n{shown[self._seen :]!r}"
            assert self._read(left), f"the program has ended without {pattern!r}:\n{shown[self._seen :]!r}"

    def raw_until(self, bytes_: bytes) -> None:
        """Wait until the program has written these bytes, control sequences and all."""
        deadline = time.monotonic() + PATIENCE
        while bytes_ not in self.raw:
            assert self._read(deadline - time.monotonic()), f"{bytes_!r} does not come: {self.raw!r}"

    def ended(self) -> int:
        """The exit code, once the program has left."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(PATIENCE)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, seconds))
        try:
            data = os.read(self._master, 65536) if ready else b""
        except OSError:  # Linux' way to say that the other end is closed
            data = b""
        self.raw += data
        return bool(data)
