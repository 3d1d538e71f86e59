"""The programs that make environments: venv and uv, one after another, and the files that they leave behind.

Used by ``install`` and ``added_environments``, which say what is to be run. It waits for child processes: not
for the event loop.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.specs.addresses import without_secrets

_LINES_SHOWN = 12  # of a failed program's output


def wait_for(lock: TextIO, step: Callable[[str], None]) -> None:
    """Take the lock. It is held as long as any program of the set-up that inherited it runs."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        step("waiting for another set-up in the same place to end")
        fcntl.flock(lock, fcntl.LOCK_EX)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file as a whole: kernels that start in the meantime read the old one or the new one."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as draft:
        try:
            draft.write(content)
            draft.flush()
            os.fchmod(draft.fileno(), 0o644)
            Path(draft.name).rename(path)
        except BaseException:
            Path(draft.name).unlink()
            raise


class SetupPrograms:
    """Runs programs one after another, and logs their output.

    They run in Cellgate's own `folder`, and so ignore uv settings and Python modules in the folder from which
    the set-up was called. They inherit the lock: if the set-up is killed, the next set-up waits for them.
    """

    def __init__(self, folder: Path, log: TextIO, lock: TextIO, detail: Callable[[str], None]) -> None:
        self._folder = folder
        self._log = log
        self._lock = lock
        self._detail = detail

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None) -> None:
        """Run a program and log its output. Raises BackendUnavailable when it fails."""
        last: deque[str] = deque(maxlen=_LINES_SHOWN)
        with subprocess.Popen(
            command,
            env=environment,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            pass_fds=[self._lock.fileno()],
        ) as process:
            try:
                assert process.stdout is not None
                for output in process.stdout:
                    line = without_secrets(output)
                    self._log.write(line)
                    last.append(line)
                    self._detail(line.strip()[:200])
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if process.returncode:
            reason = "".join(last)[-1500:].strip()
            raise BackendUnavailable(
                f"The kernel environment can't be made. Fix the cause and call this again. The whole"
                f" output is in {self._log.name}; it ends with:\n{reason}"
            )
