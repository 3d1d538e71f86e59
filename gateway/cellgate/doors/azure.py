"""The wire of Azure Container Apps' dynamic sessions, in both APIs: code, commands and files of a session.

Its clients are those of AutoGen, LangChain, LlamaIndex and Semantic Kernel. They name a session by an
identifier of their own and never begin one; few of them end it. So each identifier of a principal is a
session that is made when it is first used, and that ends when nobody has used it for a while, as there; its
files stay. What is answered is in ``azure_answers``.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from urllib.parse import unquote

from cellgate.doors.azure_answers import file_list, is_newer, new_cell, new_file, old_cell, shell_answer
from cellgate.doors.base import Asked, DoorAccess, DoorHandler
from cellgate.errors import Forbidden, NotFound
from cellgate.execution.run import ExecutionRun
from cellgate.files.tree import Parts, parse_folder, parse_path
from cellgate.http.message import encode
from cellgate.http.operation import requires
from cellgate.http.v1.executions import checked_cell
from cellgate.http.v1.files import FileAnswers, FolderHandler
from cellgate.identity.principal import Permission
from cellgate.processes.request import check_process
from cellgate.record.events import now
from cellgate.sessions.session import Session
from cellgate.wire.answers import FileModel, FilePage
from cellgate.wire.models import ExecuteBody, LimitsBody, ProcessBody, SessionBody
from cellgate.wire.paths import is_workspaces
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.codec.structure import INLINE_BYTES

PREFIX = "azure-"
"""The prefix of the sessions' keys."""
IDLE = 300.0
"""The seconds without use after which a session ends, Azure's default."""
MOST_IDENTIFIER = 1024
"""The most characters of an identifier. Azure takes 128."""
MOST_LISTED = 10_000
"""The most files in one answer."""
CODE_TYPES = frozenset({"inline", "inlinetext"})


class Work(Asked, frozen=True, rename="camel"):
    """A cell or a command to run. `timeout_in_seconds`: 0 for the usual."""

    code: str | None = None
    shell_command: str | None = None
    code_input_type: str = "inline"
    execution_type: str = "synchronous"
    timeout_in_seconds: float | None = None


class OldBody(Asked, frozen=True):
    """What `code/execute` gets: a cell."""

    properties: Work


class AzureHandler(DoorAccess):
    """A handler of the door, whose refusals have Azure's form."""

    door = "azure"

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        told = {"error": {"code": error.reason, "message": error.message}}
        return "application/json; charset=utf-8", encode(told)

    def parameter(self, name: str) -> str:
        """Return a parameter of the query; "" if it is missing. Raises InvalidInput."""
        try:
            return self.request.query_arguments.get(name, [b""])[-1].decode()
        except UnicodeDecodeError:
            raise InvalidInput(f"{name} is not valid UTF-8") from None

    @property
    def newer(self) -> bool:
        """Whether the request is for the newer API, where both have the same path."""
        return is_newer(self.parameter("api-version"))

    @property
    def identifier(self) -> str:
        """The session's identifier in the request. Raises InvalidInput."""
        identifier = self.parameter("identifier")
        if not 0 < len(identifier) <= MOST_IDENTIFIER:
            raise InvalidInput(f"identifier, the session's, must have 1 to {MOST_IDENTIFIER} characters")
        return identifier

    def key(self) -> str:
        """Return the session's key: an identifier may be any text. Raises Forbidden if it is out of reach."""
        key = PREFIX + hashlib.sha256(self.identifier.encode()).hexdigest()[:32]
        if not self.login.reach.covers(key):
            raise Forbidden(f"This token is for other sessions than this one, whose key is {key}")
        return key

    def session_wanted(self) -> str | None:
        return self.key()

    def wanted(self) -> SessionBody:
        """Return the session, made if there is none."""
        usual = self.services.sessions.terms.default_limits(self.owner).idle_timeout
        return SessionBody(
            session=self.key(),
            limits=LimitsBody(idle_timeout=min(IDLE, usual), on_idle="end"),
            metadata={"door": self.door, "identifier": self.identifier},
        )


class AzureRunHandler(AzureHandler, DoorHandler):
    """A handler that runs a cell or a program in the session."""

    async def run_cell(self, work: Work) -> tuple[Session, ExecutionRun]:
        """Run a cell to its end; it is interrupted when its client leaves."""
        if work.code is None:
            raise InvalidInput("There must be code to run")
        if work.code_input_type.lower() not in CODE_TYPES:
            raise InvalidInput(f"codeInputType must be inline, not {work.code_input_type[:80]!r}")
        if work.execution_type.lower() != "synchronous":
            raise InvalidInput(f"executionType must be synchronous, not {work.execution_type[:80]!r}")
        manager = self.services.sessions.manager
        timeout = self.timeout(work.timeout_in_seconds)
        body = ExecuteBody(code=work.code, timeout=timeout)
        request = checked_cell(self, body)
        arrived = asyncio.get_running_loop().time()
        until = None if timeout is None else arrived + timeout
        session, _ = await manager.get_or_create(self.owner, self.wanted(), until=until)
        run = session.submit(request, arrived=arrived)
        self.stop_when_gone(session, run)
        await run.end.wait()
        return session, run

    def timeout(self, asked: float | None) -> float | None:
        """Return the seconds that something may run: those asked for, but no more than anybody may ask for.

        None for the usual. Raises InvalidInput.
        """
        if not asked:
            return None
        if asked < 0:
            raise InvalidInput("timeoutInSeconds must not be negative")
        return min(asked, self.services.sessions.terms.ceilings(self.owner).cell_timeout)


class CodeHandler(AzureRunHandler):
    """Run a cell, in the older API."""

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Run a cell and answer its output and value; a failed cell is answered with 200 too."""
        session, run = await self.run_cell((await self.body(OldBody)).properties)
        if not self.disconnected:
            archive, row = self.services.sessions.archive, session.row
            await self.answer_parts(await archive.result(row.principal, row.key, run.id, old_cell))


class AzureExecutionsHandler(AzureRunHandler):
    """Run a cell or a command, in the newer API."""

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Run a cell or a command and answer its result; a failed one is answered with 200 too."""
        work = await self.body(Work)
        if (work.code is None) == (work.shell_command is None):
            raise InvalidInput("Give either code or shellCommand")
        if work.shell_command is not None:
            await self._run_command(work.shell_command, self.timeout(work.timeout_in_seconds))
            return
        session, run = await self.run_cell(work)
        if not self.disconnected:
            archive, row = self.services.sessions.archive, session.row
            parts = await archive.result(row.principal, row.key, run.id, new_cell, self.identifier)
            await self.answer_parts(parts)

    async def _run_command(self, command: str, timeout: float | None) -> None:
        """Run a command beside the cells; it is ended when its client leaves."""
        body = ProcessBody(argv=["bash", "-c", command], timeout=timeout)
        request = check_process(body, waits=True)
        session, _ = await self.services.sessions.manager.get_or_create(self.owner, self.wanted())
        loop = asyncio.get_running_loop()
        began = loop.time()
        run = await session.start_process(request)
        self._gone.add_done_callback(
            guarded(lambda _: run.terminate("client_disconnected"), "end of a command")
        )
        await run.wait()
        await run.recorded()
        if self.disconnected:
            return
        took = round(1000 * (loop.time() - began))
        told = shell_answer(run.model(self.services.front.base_url), self.identifier, took)
        if run.size > INLINE_BYTES:
            await self.answer_parts(await self.services.sessions.archive.encoded(told))
        else:
            self.answer(told)


class AzureFolderHandler(AzureHandler, FolderHandler):
    """The files of a session. Semantic Kernel sends forms as `application/json` after its first cell."""

    mislabelled_forms = True

    async def find_session(self) -> Session:
        return await self.services.sessions.files.session(self.owner, self.key(), self.wanted())

    def begin(self) -> None:
        self.key()
        self._folder = self.folder()
        super().begin()

    def folder(self) -> str:
        """Return the query's folder in the workspace; "" for the workspace itself. Raises InvalidInput."""
        path = self.parameter("path").rstrip("/")
        # Azure's clients also begin a path in its folder /mnt/data with a slash.
        return "/".join(parse_folder(path if is_workspaces(path) else path.lstrip("/")))

    def parts_of(self, name: str) -> Parts:
        with suppress(UnicodeDecodeError):
            name = unquote(name, errors="strict")
        parts = parse_path(name)
        return parse_path("/".join((self._folder, *parts))) if self._folder else parts

    async def uploaded(self) -> list[FileModel]:
        """Return the files that the form put into the session; none if the client has gone."""
        placed = await self.placed() or []
        return [FileModel(path=each.path, size=each.size or 0, modified=now()) for each in placed]


class AzureFilesHandler(AzureFolderHandler):
    """Lists, in both APIs, and uploads in the newer one."""

    @requires(Permission.FILES)
    async def get(self) -> None:
        """Answer with all files, also those in folders; with none if the session never existed."""
        key, folder, newer = self.key(), self.folder(), self.newer
        try:
            page = await self.page(key, limit=MOST_LISTED, after=f"{folder}/" if folder else "")
        except NotFound:
            page = FilePage(files=[])
        texts = self.services.storage.lanes.texts
        await self.answer_parts(await texts.run(file_list, page.files, folder, newer=newer))

    @requires(Permission.FILES)
    async def post(self) -> None:
        """Put a file into the session; of several the first is told."""
        if files := await self.uploaded():
            texts = self.services.storage.lanes.texts
            await self.answer_parts(await texts.run(new_file, files[0], self._folder))


class AzureUploadHandler(AzureFolderHandler):
    """Uploads in the older API."""

    @requires(Permission.FILES)
    async def post(self) -> None:
        """Put files into the session."""
        if files := await self.uploaded():
            texts = self.services.storage.lanes.texts
            await self.answer_parts(await texts.run(file_list, files, self._folder, newer=False))


class AzureContentHandler(AzureHandler, FileAnswers):
    """A file of a session."""

    @requires(Permission.FILES)
    async def get(self, path: str) -> None:
        """Answer a file's bytes."""
        key = self.key()
        if path.startswith("content/") and not (self.newer and path.endswith("/content")):
            name = path.removeprefix("content/")
        else:
            name = path.removesuffix("/content")
        await self.answer_file(key, parse_path(name))


class AzureSessionHandler(AzureHandler):
    """A session."""

    @requires(Permission.RUN)
    async def delete(self) -> None:
        """End the session, and remove its files; 204 also if there is none."""
        key = self.key()
        with suppress(NotFound):
            await self.services.sessions.manager.delete(self.owner, key)
        self.set_status(204)


ROUTES = (
    ("/azure/code/execute/?", CodeHandler),
    ("/azure/executions/?", AzureExecutionsHandler),
    ("/azure/files/?", AzureFilesHandler),
    ("/azure/files/upload/?", AzureUploadHandler),
    ("/azure/files/(content/.+|.+/content)", AzureContentHandler),
    ("/azure/session/?", AzureSessionHandler),
)
