"""Bytes of a sandbox's files, streamed both ways.

Those in the workspace go directly, those elsewhere by programs (``outside``), for which a token needs the
permission to run some.
"""

from __future__ import annotations

from typing import Final

from cellgate.doors.sandbox.base import SandboxDoorHandler
from cellgate.doors.sandbox.outside import OutsideFile, none_left
from cellgate.doors.sandbox.paths import parse_file_path, parse_home_path, parse_program_path
from cellgate.files.tree import Parts
from cellgate.http.services import Services
from cellgate.http.v1.files import FileAnswers, UploadHandler
from cellgate.identity.principal import Permission
from cellgate.sessions.files import Staged
from cellgate.sessions.session import Session
from cellgate_kernels.base.errors import InvalidInput

PROGRAMS: Final = frozenset({Permission.RUN})
"""What a token needs for files outside of the workspace."""


class SandboxTransfer(SandboxDoorHandler):
    """A handler of the bytes of a sandbox's files."""

    def session(self) -> Session:
        """Return the sandbox. Raises a CellgateError if it does not run."""
        raise NotImplementedError


class SandboxDownload(SandboxTransfer, FileAnswers):
    """A handler that answers with a file of a sandbox."""

    async def answer_path(self, path: str) -> None:
        """Answer with the file at a path. Raises NotFound, Forbidden, and InvalidInput for the workspace."""
        session = self.session()
        there = parse_program_path(path)
        if not there:
            raise InvalidInput("path is missing, or that of the workspace, which is a folder")
        if not there.startswith("/"):
            await self.answer_file(session.row.key, parse_home_path(path))
            return
        self.login.check(PROGRAMS)
        outside = OutsideFile.at(there)
        async with none_left([outside], session, self.services.sessions.files):
            await outside.fetch(session)
            await self.answer_file(session.row.key, outside.parts)


class SandboxUpload(SandboxTransfer, UploadHandler):
    """A handler whose body has files for a sandbox."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self.staged: dict[int, Staged] = {}
        """The files that have begun to arrive, by their numbers in the body."""
        self._outside: list[OutsideFile] = []

    async def find_session(self) -> Session:
        session = self.session()
        session.record.check_writable()
        session.account.check_record()
        return session

    def take(self, path: str) -> Parts:
        """Return the names under which the file for a path is put into the workspace, for now or for good.

        Raises InvalidInput, and Forbidden for a path outside of the workspace without the permission.
        """
        there = parse_program_path(path)
        if not there.startswith("/"):
            return parse_file_path(path)
        self.login.check(PROGRAMS)
        self._outside.append(OutsideFile.at(there))
        return self._outside[-1].parts

    async def put_all(self) -> bool:
        """Put all files in their places, and make missing folders; False if the client has gone meanwhile.

        Those in the workspace are placed all or none, before those elsewhere.
        """
        session = self.session()
        async with none_left(self._outside, session, self.services.sessions.files):
            if await self.place(list(self.staged.values())) is None:
                return False
            for each in self._outside:
                await each.put(session)
        return True
