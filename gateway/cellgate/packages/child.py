"""Runs a child program to its end: uv, or a compilation.

It gets its own process group, exactly the given environment, a deadline, and a limit on its files below a
folder. The end of its output is kept, to be searched and logged; no client sees it. Its stdout may go into a
file in that folder instead. When the waiting task is cancelled, the child's whole group is killed; when this
process dies, the operating system kills the child.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from cellgate.errors import PackageError, PackageIndexUnavailable, QuotaExceeded
from cellgate_kernels.base import trees
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.resources import GIB
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

LOG_BYTES = 16 * 1024
MOST_ENTRIES = 1_000_000
FAR_TOO_MUCH = 1 << 62
MEMORY = 4 * GIB
LOOK = 0.25
"""Least seconds between two checks of the folder's size."""
PAUSE = 4
"""The pause after a check, as a multiple of its duration."""
LOW_PRIORITY = 10


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """`timeout` in seconds; at most `most` bytes may be below `folder`. `nice`: run with low priority."""

    timeout: float
    folder: Path
    most: int
    nice: bool = False


async def run(
    argv: Sequence[str], env: Mapping[str, str], limits: ChildLimits, output: Path | None = None
) -> tuple[int, str]:
    """Run a child; return its exit code and the end of its stderr and, unless `output` takes it, stdout.

    Raises PackageIndexUnavailable at the deadline, QuotaExceeded when too much was written, PackageError when
    the program can't be started.
    """
    try:
        with nullcontext() if output is None else output.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *_tied(argv),
                env=dict(env),
                cwd=limits.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file or asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE if file else asyncio.subprocess.STDOUT,
                start_new_session=True,
                umask=0o022,
            )
    except OSError as error:
        logger.error("%s can't be started: %s", argv[0], in_words(error))
        raise PackageError("The installer's program can't be started; the gateway's log says why") from error
    try:
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limits.most, limits.most))
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
            if limits.nice:
                os.setpriority(os.PRIO_PROCESS, process.pid, LOW_PRIORITY)
        async with asyncio.timeout(limits.timeout):
            said = await _until_end(process, limits)
    except TimeoutError as error:
        raise PackageIndexUnavailable(
            f"Installing took more than {limits.timeout:g} s and was stopped; try again, ask for fewer"
            " packages at once, or let the operator raise ServeApp.package_timeout"
        ) from error
    finally:
        # Kills its children too; the group id can't be reused while the leader is not reaped.
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return process.returncode or 0, said


def too_large(most: int) -> QuotaExceeded:
    """Return the error for packages that take more than `most` bytes."""
    return QuotaExceeded(
        f"These packages take more than the {most} bytes that a session may have of them; ask for fewer,"
        " remove some, or let the operator raise ServeApp.package_disk"
    )


def _tied(argv: Sequence[str]) -> list[str]:
    """Return the command, run so that it is killed when this process dies, if the system has ``setpriv``."""
    setpriv = shutil.which("setpriv", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if setpriv is None:
        return list(argv)
    return [setpriv, "--pdeathsig", "KILL", "--", *argv]


async def _until_end(process: asyncio.subprocess.Process, limits: ChildLimits) -> str:
    said = process.stdout or process.stderr
    assert said is not None
    tail = b""
    pause = LOOK
    tasks = Supervisor()
    reading = tasks.start(said.read(LOG_BYTES), "output of a program")
    try:
        while True:
            await asyncio.wait({reading}, timeout=pause)
            if not reading.done():
                begun = time.monotonic()
                if await asyncio.to_thread(folder_bytes, limits.folder) > limits.most:
                    raise too_large(limits.most)
                pause = max(LOOK, PAUSE * (time.monotonic() - begun))
                continue
            part = reading.result()
            if not part:
                break
            tail = (tail + part)[-LOG_BYTES:]
            reading = tasks.start(said.read(LOG_BYTES), "output of a program")
    finally:
        await tasks.cancel()
    await process.wait()
    return tail.decode(errors="replace")


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below `folder` in bytes; files that disappear during the walk don't count.

    Blocks. A folder that is too deep or has too many entries counts as far too large. Raises OSError when no
    more files can be opened.
    """
    walk = trees.Walk(folder, most=MOST_ENTRIES)
    total = sum(entry.found.st_size for entry in walk if not entry.is_folder)
    if walk.hindered is not None:
        raise walk.hindered
    return total if walk.complete else FAR_TOO_MUCH
