"""What all doors share: where foreign clients put their token, and how a cell runs in a session of its own.

Bodies are read whatever type a client says they have, and unknown fields are passed over, as the systems do
whose clients these are. Refusals keep their statuses; a door may give them its own form.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, ParamSpec, TypeVar

import msgspec

from cellgate.errors import Conflict, Forbidden, NotFound
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.results import ResultBuilder
from cellgate.files.tree import parse_path
from cellgate.http.base import BaseHandler
from cellgate.http.message import too_large
from cellgate.http.services import Services
from cellgate.http.v1.executions import ExecutionAnswers, checked_cell
from cellgate.identity.principal import Ask, Login
from cellgate.sessions.session import Session
from cellgate.wire.answers import FileChange, Result
from cellgate.wire.models import ExecuteBody, SessionBody
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.codec.structure import INLINE_BYTES

P = ParamSpec("P")
T = TypeVar("T")

MOST_FILES = 200
"""The most files in a request. Each has an event in the record."""


class Asked(msgspec.Struct, frozen=True):
    """The body of a foreign request. Fields that no door uses are ignored."""


@dataclass(frozen=True, slots=True)
class Script:
    """What a request wants to have run. `language`: None for the default kernel's.

    `timeout`: seconds, below those after which its client gives up, if they are less than the gateway's own.
    `files`: what the workspace has at first, by path. `installs`: get what it imports, if that is allowed
    here. `wants`: which of the files that it made are to be read.
    """

    code: str
    language: str | None = None
    timeout: float | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    installs: bool = False
    wants: Callable[[FileChange], bool] | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a script. `files`: the requested ones, by path."""

    result: Result
    files: Mapping[str, bytes]


class DoorAccess(BaseHandler):
    """Who is let in at a door, and with what; `door` is its name."""

    door: ClassVar[str]

    def _authenticate(self) -> Login | Ask:
        """Return the login of the request's token; a browser's sign-in counts for our own page alone."""
        headers = self.request.headers
        given = headers.get("Authorization", "").strip()
        if given and " " not in given:
            given = f"Bearer {given}"
        elif not given and (key := headers.get("X-API-Key", "").strip()):
            given = f"Bearer {key}"
        return self.services.people.access.authenticate(given, self.get_query_argument("token", None))

    def _check_body(self) -> None:
        """Check the size; the type that foreign clients name is often none that fits."""
        length = self.request.headers.get("Content-Length", "0")
        if length.isdecimal() and int(length) > self.max_body:
            raise too_large(self.max_body)


class DoorHandler(DoorAccess, ExecutionAnswers):
    """A handler of a door that runs code."""

    async def aside(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work`, which goes through `size` bytes: in a thread if it would hold up others."""
        if size <= INLINE_BYTES:
            return work(*args, **kwargs)
        return await self.services.storage.lanes.texts.run(work, *args, **kwargs)

    async def answer_made(
        self, size: int, make: Callable[P, Sequence[bytes]], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Answer with the JSON that `make` returns in parts, of `size` characters of text."""
        await self.answer_parts(await self.aside(size, make, *args, **kwargs))

    async def run_once(self, script: Script) -> Ran:
        """Run a script in a session of its own, which is recorded. The errors are those of `/v1/execute`."""
        request = self.checked(script)
        async with self.own_session(script.files, script.language) as session:
            result = await self.run_in(session, request)
            found = [] if script.wants is None else [each for each in result.files if script.wants(each)]
            return Ran(result, await self._read_all(session.row.key, found))

    def checked(self, script: Script) -> ExecuteRequest:
        """Return the cell that runs a script. Raises InvalidInput and PackagesNotAllowed."""
        services = self.services
        usual = services.sessions.terms.default_limits(self.owner).cell_timeout
        body = ExecuteBody(
            code=script.code,
            timeout=script.timeout if script.timeout is None else min(script.timeout, usual),
            packages="temporary" if script.installs and services.kernels.installer is not None else None,
        )
        return checked_cell(self, body)

    async def run_in(self, session: Session, request: ExecuteRequest) -> Result:
        """Return the result of a cell, without ANSI codes; it is interrupted when its client leaves."""
        run = session.submit(request)
        builder = run.record.builder
        self.stop_when_gone(session, run)
        await run.end.wait()
        archive, row = self.services.sessions.archive, session.row
        if builder is not None:
            return await archive.made(builder, _result)
        return await archive.result(row.principal, row.key, run.id, _result)

    @asynccontextmanager
    async def own_session(
        self,
        files: Mapping[str, bytes],
        language: str | None = None,
        *,
        environment: str | None = None,
        keep_files: bool = False,
    ) -> AsyncGenerator[Session]:
        """Yield a recorded session with these files by path, for this request alone; end it afterwards.

        `environment`: the name of one that was added. `keep_files`: whether its files stay, as those of
        sessions do that have ended by themselves.
        """
        reach, manager = self.login.reach, self.services.sessions.manager
        if reach.exact:
            raise Forbidden("This token is for one session, and each request here is a session of its own")
        if len(files) > MOST_FILES:
            raise InvalidInput(f"A request may bring {MOST_FILES} files at most")
        placed = [(parse_path(path), content) for path, content in files.items()]
        key = reach.new_key(self.node) if reach.prefix else None
        wanted = SessionBody(
            session=key, language=language, environment=environment, metadata={"door": self.door}
        )
        session = await manager.open_one_shot(self.owner, wanted, record=True)
        try:
            for path, content in placed:
                await self.services.sessions.files.write(session, path, content)
            yield session
        finally:
            manager.end_later(session, "one_shot", keep_files=keep_files)

    async def _read_all(self, key: str, files: Iterable[FileChange]) -> dict[str, bytes]:
        """Return the files by path, without those that are there no more: what a cell began may go on."""
        found = {}
        for file in files:
            with suppress(NotFound, Conflict, InvalidInput):
                found[file.path] = await self._read(key, file)
        return found

    async def _read(self, key: str, file: FileChange) -> bytes:
        """Read as much of a file as there was at the end of its cell."""
        files = self.services.sessions.files
        descriptor, state = await files.open(self.owner, key, parse_path(file.path))
        try:
            return await files.lane.run(os.pread, descriptor, min(state.size, file.size or 0), 0)
        finally:
            os.close(descriptor)


def environment_named(services: Services, name: str) -> str | None:
    """Return the name if it is that of an environment which the operator has added; else None.

    Other systems' words for what a sandbox has, such as a template, may be the name of one.
    """
    catalog = services.kernels.catalog
    catalog.refresh()
    return name if name in catalog.environments() else None


def is_hidden(path: str) -> bool:
    """Return whether a file is not worth listing: it, or a folder above it, is hidden or Python's own."""
    return any(part.startswith(".") or part == "__pycache__" for part in path.split("/"))


def _result(builder: ResultBuilder) -> Result:
    return builder.result(plain=True)


def printed(result: Result, streams: Collection[str] = ("stdout", "stderr")) -> str:
    """Return a cell's output as a script would print it on a terminal, and the traceback if any.

    Not the value of its last expression, nor what it displayed; of `streams` those that are named.
    """
    told = (each for each in result.outputs if each["output_type"] == "error" or each.get("name") in streams)
    parts = [_text(output) for output in told]
    if result.error is not None and not any(each["output_type"] == "error" for each in result.outputs):
        parts.append(f"{result.error.ename}: {result.error.evalue}\n")
    return "".join(parts)


def complaints(result: Result) -> str:
    """Return a cell's stderr as a script's, and why it ended if it did not by itself."""
    told = printed(result, ("stderr",))
    if result.status == "timeout":
        return f"{told}The cell ran longer than it may, and was ended.\n"
    if result.status in {"ok", "error"} or result.error is not None:
        return told
    why = f" ({result.cause})" if result.cause else ""
    return f"{told}The cell was ended early: {result.status}{why}.\n"


def _text(output: Mapping[str, Any]) -> str:
    if output["output_type"] == "stream":
        return str(output["text"])
    return "\n".join(output["traceback"]) + "\n"


class DoorHealthHandler(BaseHandler):
    """Whether the gateway is there, in a system's own words; for probes that have no token."""

    public = True
    answered: ClassVar[object]

    async def get(self) -> None:
        """Report that the gateway is running."""
        self.check()
        self.answer(self.answered)
