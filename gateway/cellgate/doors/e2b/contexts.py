"""A sandbox's contexts, as E2B's clients make, list, restart and remove them."""

from __future__ import annotations

from cellgate.doors.base import Asked
from cellgate.doors.e2b.base import SandboxHandler
from cellgate.doors.sandbox.contexts import DEFAULT, ContextMaking, default_of, find_context, further_contexts
from cellgate.doors.sandbox.errors import Unsupported
from cellgate.doors.sandbox.paths import HOME
from cellgate.http.operation import requires
from cellgate.identity.principal import Permission
from cellgate_kernels.specs.languages import Language, parse_language


class ContextBody(Asked, frozen=True):
    """A context to make."""

    cwd: str | None = None
    language: str | None = None


class ContextMaker(SandboxHandler, ContextMaking):
    """A handler of this door that makes contexts."""


class ContextsHandler(ContextMaker):
    """The contexts."""

    @requires(Permission.READ)
    async def get(self) -> None:
        """List them, the default one first."""
        sandbox = self.session()
        found = further_contexts(self.services, sandbox)
        self.answer([each.told() for each in (default_of(sandbox), *found)])

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Make another one."""
        self.session()
        body = await self.body(ContextBody)
        language = parse_language(body.language or Language.PYTHON)
        path = await self.check_folder(body.cwd or HOME)
        self.answer((await self.make_context(language, path)).told())


class ContextHandler(SandboxHandler):
    """One context."""

    @requires(Permission.RUN)
    async def delete(self, identifier: str) -> None:
        """End it; the files stay, which are the sandbox's."""
        if identifier == DEFAULT:
            raise Unsupported("The default context can't be removed; restart it, or end the sandbox")
        found = find_context(self.services, self.session(), identifier)
        await self.services.sessions.manager.delete(self.owner, found.session.row.key)
        self.set_status(204)


class ContextRestartHandler(SandboxHandler):
    """A fresh kernel for a context."""

    @requires(Permission.RUN)
    async def post(self, identifier: str) -> None:
        """Replace the kernel; files stay."""
        found = find_context(self.services, self.session(), identifier)
        await found.session.restart()
        await found.session.log.commit()
        self.set_status(204)
