"""A sandbox's code: cells, answered by server-sent events, and the contexts that they run in.

A cell that names no context runs in the default one of its language, so variables stay between calls. Where
such a context can't be, the cell is a program of its language.
"""

from __future__ import annotations

from contextlib import aclosing

from cellgate.doors.base import Asked
from cellgate.doors.opensandbox.base import ExecdHandler, FramesHandler
from cellgate.doors.opensandbox.frames import CellFrames, frame
from cellgate.doors.sandbox.contexts import CodeContext, ContextMaking, find_context, further_contexts
from cellgate.errors import NotFound
from cellgate.http.operation import Format, requires
from cellgate.http.services import Services
from cellgate.identity.principal import Permission
from cellgate.record.rows import EventRow
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.specs.languages import Language, parse_language


class ContextSpec(Asked, frozen=True):
    """Where a cell is to run, or a context to make."""

    id: str | None = None
    language: str | None = None
    cwd: str | None = None


class CodeBody(Asked, frozen=True):
    """A cell to run."""

    code: str
    context: ContextSpec | None = None

    @property
    def place(self) -> ContextSpec:
        """The place where it is to run."""
        return self.context or ContextSpec()


class ContextsUser(ExecdHandler, ContextMaking):
    """A handler of this door that finds or makes contexts."""


class RunCodeHandler(FramesHandler, ContextsUser):
    """Run a cell, or interrupt one."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self._frames = CellFrames()

    @requires(Permission.RUN)
    async def post(self, _: str) -> None:
        """Run a cell and stream its events. It is interrupted when its client leaves."""
        self.session()
        body = await self.body(CodeBody)
        context = await self._context(body.place)
        run, asked = self.submit(context, body.code, body.place.language)
        session = context.session
        self.interrupt_when_gone(session, run, asked)
        self.set_head(Format.SSE)
        self.write(frame("init", text=run.id))
        async with aclosing(session.log.follow_execution(run.id, run.record.first_seq - 1)) as batches:
            await self.stream(batches, Format.SSE)

    async def _context(self, wanted: ContextSpec) -> CodeContext:
        sandbox = self.session()
        language = parse_language(wanted.language or Language.PYTHON)
        if wanted.id:
            found = find_context(self.services, sandbox, wanted.id)
            if wanted.language and found.language != language:
                raise InvalidInput(f"The context {wanted.id[:64]!r} is {found.language}'s, not {language}'s")
            return found
        return await self.context_of(language)

    async def encoded(self, rows: list[EventRow], form: Format) -> list[bytes]:
        return await self.encoded_by(self._frames, rows)

    @requires(Permission.RUN)
    async def delete(self, _: str) -> None:
        """Interrupt a cell by its id, or what runs in a context by that one's."""
        sandbox, wanted = self.session(), self.get_query_argument("id", "")
        if not wanted:
            raise InvalidInput("id is missing: that of the cell, or of its context")
        for session in (sandbox, *(each.session for each in further_contexts(self.services, sandbox))):
            if session.runs.find(wanted) is not None:
                session.stop(wanted, by=self.principal.name)
                return
        try:
            find_context(self.services, sandbox, wanted).session.interrupt(self.principal.name)
        except NotFound as error:
            raise NotFound(f"This sandbox has neither a cell nor a context {wanted[:64]!r}") from error


def told_of(context: CodeContext) -> dict[str, str]:
    """Return what is told of a context."""
    return {"id": context.id, "language": context.language}


class NewContextHandler(ContextsUser):
    """The making of contexts."""

    @requires(Permission.RUN)
    async def post(self, _: str) -> None:
        """Make one."""
        self.session()
        body = await self.body(ContextSpec)
        language = parse_language(body.language or Language.PYTHON)
        path = await self.check_folder(body.cwd or "")
        self.answer(told_of(await self.make_context(language, path)))


class ContextListHandler(ExecdHandler):
    """The contexts that clients have made."""

    def _found(self, language: str) -> list[CodeContext]:
        wanted = parse_language(language) if language else None
        return [
            each
            for each in further_contexts(self.services, self.session())
            if not each.is_default and wanted in {None, each.language}
        ]

    @requires(Permission.READ)
    async def get(self, _: str) -> None:
        """List them, those of one language if the query names it."""
        self.answer([told_of(each) for each in self._found(self.get_query_argument("language", ""))])

    @requires(Permission.RUN)
    async def delete(self, _: str) -> None:
        """End those of a language."""
        language = self.get_query_argument("language", "")
        if not language:
            raise InvalidInput("language is missing")
        for each in self._found(language):
            await self.services.sessions.manager.delete(self.owner, each.session.row.key)


class OneContextHandler(ExecdHandler):
    """One context."""

    @requires(Permission.READ)
    async def get(self, _: str, identifier: str) -> None:
        """Tell of it."""
        self.answer(told_of(find_context(self.services, self.session(), identifier)))

    @requires(Permission.RUN)
    async def delete(self, _: str, identifier: str) -> None:
        """End it; the files stay, which are the sandbox's."""
        found = find_context(self.services, sandbox := self.session(), identifier)
        if found.session is sandbox:
            raise InvalidInput("The default context can't be deleted; delete the sandbox")
        await self.services.sessions.manager.delete(self.owner, found.session.row.key)
