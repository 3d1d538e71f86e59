"""The wire of LibreChat's Code Interpreter (@librechat/agents 3): scripts with files in and out.

Each request is a script in a fresh kernel, as there: what goes on from one to the next are files alone, which
both sides name by a session and an id. A session is one request's, and its files stay when it has ended. The
id of a file is its path, in letters that LibreChat takes.

LibreChat sends no token of its own unless it is told to make one for each user (``principals.librechat``), so
the address that it is given has one in its path. Logs show that path without it (``http.described``).
"""

from __future__ import annotations

import base64
import binascii
import math
import os
import re
from dataclasses import dataclass
from types import MappingProxyType

from cellgate.doors.base import MOST_FILES, Asked, DoorAccess, DoorHandler, Script, complaints, is_hidden
from cellgate.errors import Forbidden, NotFound, status_of
from cellgate.files.listing import file_model
from cellgate.files.tree import Parts, parse_path
from cellgate.http.access import token_of
from cellgate.http.message import encode
from cellgate.http.operation import requires
from cellgate.http.v1.files import FileAnswers, FolderHandler
from cellgate.identity.jwt import issuer_of
from cellgate.identity.librechat import ISSUER, PREFIX
from cellgate.identity.principal import Ask, Login, Permission
from cellgate.sessions.session import Session
from cellgate.wire.answers import FileModel, Result
from cellgate.wire.models import SessionBody
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.codec.encoding import encode_in_steps

LANGUAGES = MappingProxyType({"py": "python", "js": "javascript", "ts": "typescript", "bash": "bash"})
"""LibreChat's names, and ours."""
MOST_LISTED = 10_000
TOO_MANY = 429

_ID = re.compile(r"[A-Za-z0-9_-]{1,6000}")


class Named(Asked, frozen=True):
    """A file that a script gets. `name`: the path where it finds it. `session_id`: of older clients."""

    id: str
    name: str = ""
    storage_session_id: str = ""
    session_id: str = ""


class ExecBody(Asked, frozen=True):
    """A script to run."""

    lang: str
    code: str
    args: list[str] = []  # noqa: RUF012 - of a struct, made anew for each
    files: list[Named] = []  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file to copy: where it is, and where it goes."""

    key: str
    parts: Parts
    target: Parts


class LibreChatAccess(DoorAccess):
    """A handler of the door, whose refusals LibreChat can read. The first part of its paths is the key."""

    door = "librechat"

    def _authenticate(self) -> Login | Ask:
        """See `DoorAccess`. A key in the path counts before any other, but for LibreChat's own for a user."""
        key = self.path_args[0]
        if not key or self._is_for_user():
            return super()._authenticate()
        return self.services.people.access.authenticate(f"Bearer {key}", None)

    def _is_for_user(self) -> bool:
        """Return whether LibreChat says whose request this is, at a gateway that can tell."""
        if not self.services.people.access.authentication.has_users_of(PREFIX):
            return False
        return issuer_of(token_of(self.request.headers.get("Authorization", ""), None)) == ISSUER

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        told: dict[str, object] = {"error": error.reason, "message": error.message}
        if status_of(error) == TOO_MANY:
            seconds = getattr(error, "retry_after", None) or 1.0
            told |= {"error": "rate_limited", "retry_after_seconds": max(1, math.ceil(seconds))}
        return "application/json; charset=utf-8", encode(told)

    def session_wanted(self) -> str | None:
        return self.path_args[1] if len(self.path_args) > 1 else None

    def reached(self, key: str) -> str:
        """Return the key of a session. Raises NotFound if the token does not reach it."""
        return self.login.reach.check(key)


class ExecHandler(LibreChatAccess, DoorHandler):
    """Run a script."""

    @requires(Permission.RUN, Permission.FILES)
    async def post(self, _: str | None) -> None:
        """Run a script and answer its output and the files that it made."""
        body = await self.body(ExecBody)
        language = LANGUAGES.get(body.lang)
        if language is None:
            raise InvalidInput(f"There is no language {body.lang[:80]!r}; there are {', '.join(LANGUAGES)}")
        if body.args and language != "python":
            raise InvalidInput("Only scripts of Python take args")
        if len(body.files) > MOST_FILES:
            raise InvalidInput(f"A script may get {MOST_FILES} files at most")
        sources = [self._source(each) for each in body.files]
        arguments = [f"import sys\nsys.argv[1:] = {body.args!r}"] if body.args else []
        cells = [self.checked(Script(code)) for code in (*arguments, body.code)]
        async with self.own_session({}, language, keep_files=True) as session:
            for each in sources:
                files = self.services.sessions.files
                await files.copy(self.owner, each.key, each.parts, session, each.target)
            for cell in cells:
                result = await self.run_in(session, cell)
        if not self.disconnected:
            await self.answer_parts(await self.aside(len(result.text), _answer, session.row.key, result))

    def _source(self, named: Named) -> FileSource:
        parts = _parts(named.id)
        target = parse_path(named.name) if named.name else parts
        return FileSource(self.reached(named.storage_session_id or named.session_id), parts, target)


class ProgrammaticHandler(LibreChatAccess):
    """Scripts that call tools of LibreChat's."""

    @requires(Permission.RUN)
    async def post(self, _: str | None) -> None:
        """Say that there are none."""
        self.answer({"error": "not_implemented", "message": "Scripts can't call tools here"}, 501)


class UploadedHandler(LibreChatAccess, FolderHandler):
    """Files for scripts to come."""

    async def find_session(self) -> Session:
        reach = self.login.reach
        if reach.exact:
            raise Forbidden("This token is for one session, and each upload here is a session of its own")
        wanted = SessionBody(metadata={"door": self.door})
        return await self.services.sessions.files.session(self.owner, reach.new_key(self.node), wanted)

    def parts_of(self, name: str) -> Parts:
        return parse_path(name)

    @requires(Permission.RUN, Permission.FILES)
    async def post(self, _: str | None) -> None:
        """Keep the uploaded files, and answer the names under which clients find them."""
        placed = await self.placed()
        if placed and self._session is not None:
            key = self._session.row.key
            named = [
                {"fileId": _id(each.path), "filename": each.path, "status": "success"} for each in placed
            ]
            told = {"message": "success", "session_id": key, "storage_session_id": key, "files": named}
            self.answer(told | {"succeeded": len(named), "failed": 0})

    def _discard(self) -> None:
        """End the session as well: its kernel was only needed to have it."""
        super()._discard()
        if self._session is not None and not self._session.ending:
            self.services.sessions.manager.end_later(self._session, "one_shot", keep_files=True)


class LibreChatDownloadHandler(LibreChatAccess, FileAnswers):
    """A file."""

    @requires(Permission.FILES)
    async def get(self, _: str | None, key: str, file: str) -> None:
        """Answer a file's bytes."""
        await self.answer_file(self.reached(key), _parts(file))


class ObjectHandler(LibreChatAccess):
    """Whether a file is there still, and since when."""

    @requires(Permission.FILES)
    async def get(self, _: str | None, key: str, file: str) -> None:
        """Answer the time of a file's last change."""
        files = self.services.sessions.files
        descriptor, state = await files.open(self.owner, self.reached(key), _parts(file))
        os.close(descriptor)
        self.answer({"lastModified": file_model(state, None).modified})


class ListHandler(LibreChatAccess, FolderHandler):
    """The files of a session."""

    uploads = frozenset[str]()

    @requires(Permission.FILES)
    async def get(self, _: str | None, key: str) -> None:
        """Answer with all files."""
        page = await self.page(self.reached(key), limit=MOST_LISTED, after="")
        await self.answer_parts(await self.services.storage.lanes.texts.run(_listed, key, page.files))


def _answer(key: str, result: Result) -> list[bytes]:
    """Encode a script's result in parts. Files of one that failed do not count: its model is told so."""
    made = [each for each in result.files if not is_hidden(each.path)] if result.status == "ok" else []
    return encode_in_steps(
        {
            "session_id": key,
            "stdout": result.stdout,
            "stderr": complaints(result),
            "files": [{"id": _id(each.path), "name": each.path, "storage_session_id": key} for each in made],
        }
    )


def _listed(key: str, files: list[FileModel]) -> list[bytes]:
    found = []
    for file in files:
        identity = _id(file.path)
        found.append(
            {
                "name": f"{key}/{identity}",
                "id": identity,
                "session_id": key,
                "storage_session_id": key,
                "size": file.size,
                "lastModified": file.modified,
                "metadata": {"original-filename": file.path},
            }
        )
    return encode_in_steps(found)


def _id(path: str) -> str:
    """Return a file's id: its path, in letters that LibreChat takes."""
    return base64.urlsafe_b64encode(path.encode()).decode().rstrip("=")


def _parts(identity: str) -> Parts:
    """Return the path that an id names. Raises NotFound for one that is none of ours, and InvalidInput."""
    try:
        if not _ID.fullmatch(identity):
            raise NotFound("There is no file of this id")
        return parse_path(base64.urlsafe_b64decode(identity + "=" * (-len(identity) % 4)).decode())
    except (binascii.Error, UnicodeDecodeError):
        raise NotFound("There is no file of this id") from None


_BEGIN = "/librechat(?:/key/([^/]+))?"
ROUTES = (
    (f"{_BEGIN}/exec/?", ExecHandler),
    (f"{_BEGIN}/exec/programmatic/?", ProgrammaticHandler),
    (f"{_BEGIN}/upload(?:/batch)?/?", UploadedHandler),
    (f"{_BEGIN}/download/([^/]+)/([^/]+)", LibreChatDownloadHandler),
    (f"{_BEGIN}/sessions/([^/]+)/objects/([^/]+)", ObjectHandler),
    (f"{_BEGIN}/files/([^/]+)", ListHandler),
)
