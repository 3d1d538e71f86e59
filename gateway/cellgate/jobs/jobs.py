"""Heavy work on the output of user code, in separate processes: conversions, comparisons.

A job is one of our modules that reads stdin and writes stdout, both of them files. In its own process it
can't block the loop, a crash or a decompression bomb affects only the job, and a deadline can end it. `Jobs`
runs a few at a time and does not know what a job does.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import sys
from functools import partial
from pathlib import Path

from cellgate.errors import JobFailed, QueueFull
from cellgate.fairness.turns import Turns
from cellgate.jobs.job_files import PART, JobFile
from cellgate.record.spill_ledger import SpillEnds, SpillLedger
from cellgate_kernels.base.errors import in_brief
from cellgate_kernels.base.resources import GIB
from cellgate_kernels.base.threads import Lane

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 2
MOST_WAITING = 16
DEADLINE = 300.0
MEMORY = 4 * GIB
NICE = 10
MOST_SAID = 2000
"""Most bytes of the end of a job's messages in the log."""


class Jobs:
    """Runs jobs, two at a time; sixteen more may wait, each for up to `deadline` seconds; others are refused.

    Their files are in `folder`, are read and written by the threads of `lane`, and are counted by `ledger`.
    """

    def __init__(self, folder: Path, ledger: SpillLedger, lane: Lane, deadline: float = DEADLINE) -> None:
        self._folder = folder
        self._ledger = ledger
        self._ends = SpillEnds(lane)
        self._deadline = deadline
        refusal = "Too many conversions are under way; try again later"
        self._turns = Turns(MOST_AT_ONCE, MOST_WAITING, deadline, refusal)

    def file(self, principal: str) -> JobFile:
        """Return a new file for a job of this principal. Raises StorageError."""
        return JobFile(self._folder, partial(self._ledger.open, principal), self._ends)

    async def finished(self) -> None:
        """Return when all files whose users are done are gone from the disk."""
        await self._ends.finished()

    async def run(self, principal: str, module: str, *arguments: str, given: JobFile, made: JobFile) -> None:
        """Run the module with stdin `given` and stdout `made`, for this principal.

        Raises JobFailed, QueueFull and StorageError.
        A job that finds no room for its output exits with EX_IOERR.
        """
        async with self._turns.turn(principal):
            given.check()
            await self._run(module, arguments, given, made)

    async def _run(self, module: str, arguments: tuple[str, ...], given: JobFile, made: JobFile) -> None:
        # Concurrent jobs must not count on the same free space.
        room = made.room // MOST_AT_ONCE
        try:
            process = await self._start(module, arguments, given, made)
        except OSError as error:
            raise QueueFull(f"No job can be started now: {in_brief(error)}", retry_after=5) from error
        try:
            # Cells and the event loop take precedence.
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (room, room))
            async with asyncio.timeout(self._deadline):
                assert process.stderr is not None
                said = await _end_of(process.stderr)
                await process.wait()
        except TimeoutError as error:
            raise JobFailed(f"This took more than {self._deadline:g} s and was given up") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        # Its input, or output, may have given way meanwhile.
        given.check()
        made.check()
        if process.returncode == os.EX_IOERR or (process.returncode and made.size >= room):
            raise made.explained(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        await made.count()
        if process.returncode:
            logger.warning(
                "Job %s failed (%d): %s", module, process.returncode, said.decode(errors="replace")
            )
            raise JobFailed("What this session shows can't be converted; the gateway's log says why")

    @staticmethod
    async def _start(
        module: str, arguments: tuple[str, ...], given: JobFile, made: JobFile
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=given.file.fileno(),
            stdout=made.file.fileno(),
            stderr=asyncio.subprocess.PIPE,
            # Not the gateway's environment, which may contain its token; only the path to our modules.
            env={
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "LANG": "C.UTF-8",
                "HOME": "/nonexistent",
            },
        )


async def _end_of(stream: asyncio.StreamReader) -> bytes:
    """Return the end of a stream, however long: hostile outputs may make a job print anything."""
    said = b""
    while part := await stream.read(PART):
        said = (said + part)[-MOST_SAID:]
    return said
