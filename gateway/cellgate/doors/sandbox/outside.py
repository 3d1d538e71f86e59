"""A sandbox's files outside of its workspace, such as in ``/tmp``, which the gateway itself does not see.

Programs in the sandbox move them: a file that was uploaded goes from the workspace to its place, and one that
is wanted is copied into the workspace first. Both go by a hidden name. Nothing here reads a request.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from cellgate.errors import NotFound
from cellgate.files.tree import Parts
from cellgate.processes.request import ProcessRequest
from cellgate.sessions.files import SessionFiles
from cellgate.sessions.session import Session
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.tasks import Supervisor

_MOVE = 'mkdir -p -- "$3" && mv -f -T -- "$1" "$2"'
_COPY = 'test -f "$2" && cp -- "$2" "$1"'
_ID_BYTES = 8
HIDDEN: Final = ".cellgate-"
"""How hidden names begin."""


@dataclass(frozen=True, slots=True)
class OutsideFile:
    """A file at the absolute path `path`, and its hidden name in the workspace while it is on its way."""

    path: str
    parts: Parts

    @classmethod
    def at(cls, path: str) -> OutsideFile:
        """Return the file at a path, with a hidden name that nothing else has."""
        return cls(path, (f"{HIDDEN}{secrets.token_hex(_ID_BYTES)}",))

    async def put(self, session: Session) -> None:
        """Move the file from the workspace to its place. Raises InvalidInput if it can't be there."""
        why = await self._run(session, _MOVE, posixpath.dirname(self.path))
        if why:
            raise InvalidInput(f"{self.path[:200]!r} can't be written: {why[:200]}")

    async def fetch(self, session: Session) -> None:
        """Copy the file into the workspace. Raises NotFound."""
        why = await self._run(session, _COPY)
        if why:
            raise NotFound(f"{self.path[:200]!r} is no file that can be read: {why[:200]}")

    async def _run(self, session: Session, script: str, *words: str) -> str:
        """Run a script about both names; return why it failed, in its last words."""
        argv = ("sh", "-c", script, "sh", *self.parts, self.path, *words)
        run = await session.start_process(ProcessRequest(argv, waits=True))
        await run.wait()
        done = run.model()
        if done.exit_code == 0:
            return ""
        said = done.stderr.strip().splitlines()
        return said[-1] if said else "there is none"


@asynccontextmanager
async def none_left(
    hidden: Sequence[OutsideFile], session: Session, files: SessionFiles
) -> AsyncGenerator[None]:
    """Remove at the end the hidden files that are left in the workspace, also if the body fails."""
    try:
        yield
    finally:
        await Supervisor().complete(_remove(hidden, session, files), "remove hidden files")


async def _remove(hidden: Sequence[OutsideFile], session: Session, files: SessionFiles) -> None:
    for each in hidden:
        with suppress(NotFound):
            await files.remove(session.row.principal, session.row.key, each.parts)
