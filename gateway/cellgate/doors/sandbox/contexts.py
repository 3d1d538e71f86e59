"""A sandbox's contexts: further kernels on the same files, each with variables of its own.

The default context is the sandbox's own session, which is Python's; each other language has a default context
from its first cell on. Every context but Python's is a session with the workspace of that one, whose metadata
has all that is known of the context; it ends with the sandbox at the latest.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cellgate.doors.sandbox.base import SandboxDoorHandler
from cellgate.doors.sandbox.keys import key_of, whole_or_deleted
from cellgate.doors.sandbox.paths import HOME, parse_home_path, parse_program_path, program_path
from cellgate.errors import CannotShare, NotFound
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun
from cellgate.http.services import Services
from cellgate.http.v1.executions import checked_cell
from cellgate.processes.request import ProcessRequest
from cellgate.sessions.model import named_in
from cellgate.sessions.registry import SessionRegistry
from cellgate.sessions.sandboxes import Sandbox, Sandboxes
from cellgate.sessions.session import Session
from cellgate.wire.models import ExecuteBody, LimitsBody, SessionBody
from cellgate_kernels.base.errors import InvalidInput, KernelspecNotFound
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.protocol.execution import Status
from cellgate_kernels.specs.languages import Language

DEFAULT: Final = "default"
ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class CodeContext:
    """A context and its session. `cwd`: where its cells begin, as a path there.

    `is_default`: whether it takes the cells that name its language and no context.
    """

    id: str
    language: str
    cwd: str
    session: Session
    is_default: bool = False

    @property
    def begins(self) -> str | None:
        """The code that takes a fresh kernel to its folder; None where that is the workspace itself."""
        path = parse_program_path(self.cwd)
        if not path:
            return None
        match Language(self.language):
            case Language.PYTHON:
                return f"__import__('os').chdir({path!r})"
            case Language.BASH:
                return f"cd -- {shlex.quote(path)}"
            case _:
                return f"Deno.chdir({json.dumps(path)})"

    def told(self) -> dict[str, str]:
        """Return what is told of it."""
        return {"id": self.id, "language": self.language, "cwd": self.cwd}


def default_of(sandbox: Session) -> CodeContext:
    """Return the sandbox's own context."""
    return CodeContext(DEFAULT, Language.PYTHON, HOME, sandbox, is_default=True)


def find_context(services: Services, sandbox: Session, context: str) -> CodeContext:
    """Return the context of this id of a sandbox. Raises NotFound."""
    if context == DEFAULT:
        return default_of(sandbox)
    session = services.sessions.sandboxes.of(sandbox).further.get(context)
    if session is None or session.ending:
        raise NotFound(f"There is no context {context[:64]!r} in this sandbox")
    return _context_of(session)


def further_contexts(services: Services, sandbox: Session) -> list[CodeContext]:
    """Return the contexts of a sandbox but its default one, the oldest first."""
    found = services.sessions.sandboxes.of(sandbox).further.values()
    return [_context_of(session) for session in found if not session.ending]


def recover_contexts(manager: SessionRegistry, sandboxes: Sandboxes) -> None:
    """Give sandboxes that a former gateway has left their contexts again; those without one end."""
    for session in sorted(manager.everybodys(), key=lambda each: each.row.id):
        told = session.row.metadata or {}
        if "door" not in told or "context_of" not in told or session.ending:
            continue
        door, principal, sandbox = str(told["door"]), session.row.principal, str(told["context_of"])
        context = _context_of(session)
        prefix = session.row.key[: -len(key_of(door, principal, sandbox))]
        named = session.row.key == key_of(door, principal, _name(sandbox, context.id), prefix)
        if not named or context.language not in set(Language):
            continue  # a session of somebody who has written such metadata
        found = manager.get(principal, key_of(door, principal, sandbox, prefix))
        if found is None or found.ending:
            manager.end_later(session, "end_of_other", keep_files=True)
        else:
            _join(manager, sandboxes, found, context)


def _join(manager: SessionRegistry, sandboxes: Sandboxes, sandbox: Session, context: CodeContext) -> None:
    """Let a context be the sandbox's for as long as both live; it ends with it."""
    sandboxes.of(sandbox).add(context.id, context.session)
    context.session.record.instead_of_end = sandbox.record.instead_of_end
    manager.end_with(context.session, sandbox)


def _name(sandbox: str, context: str) -> str:
    """Return the name of a context, of which its session's key is made as a sandbox's is of its id."""
    return f"{sandbox}/{context}"


def prepare(context: CodeContext, sandbox: Sandbox, setup: str | None = None) -> None:
    """Prepare the context's kernel before its next cell, unless that is done: by `setup`, then its folder."""
    session, kernel = context.session, context.session.kernel
    if kernel is not None and kernel.alive and kernel.id == sandbox.set_up:
        return
    code = "\n".join(step for step in (setup, context.begins) if step is not None)
    if not code:
        return
    run = session.submit(ExecuteRequest(code, silent=True, own=True))

    def note(_: object) -> None:
        if run.machine.finished and run.machine.outcome().status is Status.OK:
            sandbox.set_up = run.ran_on

    run.end.done.add_done_callback(guarded(note, "set-up of a sandbox", execution=run.id))


async def _check_there(session: Session, path: str) -> None:
    """Check a folder outside the workspace by a program that starts there. Raises InvalidInput."""
    try:
        await session.start_process(ProcessRequest(("true",), cwd=path))
    except InvalidInput as error:
        raise InvalidInput(f"cwd: {path[:200]!r} is no folder that a kernel can begin in") from error


def _context_of(session: Session) -> CodeContext:
    """Return the context that a session is, as its metadata says."""
    told = session.row.metadata or {}
    return CodeContext(
        str(told.get("context")),
        str(told.get("language")),
        str(told.get("cwd")),
        session,
        is_default=told.get("default") is True,
    )


class ContextMaking(SandboxDoorHandler):
    """A handler of a sandbox's requests that makes contexts, or runs cells in them."""

    @property
    def sandbox_id(self) -> str:
        """The id of the sandbox that the request is for."""
        raise NotImplementedError

    def session(self) -> Session:
        """Return the sandbox. Raises a CellgateError if it does not run."""
        raise NotImplementedError

    async def default_in(self, language: Language) -> CodeContext:
        """Return the context for cells that name this language and no context; the first cell makes it."""
        sandbox = self.session()
        if language is Language.PYTHON:
            return default_of(sandbox)
        async with self.services.sessions.sandboxes.of(sandbox).making:
            for context in further_contexts(self.services, self.session()):
                if context.is_default and context.language == language:
                    return context
            return await self.make_context(language, "", is_default=True)

    async def context_of(self, language: Language) -> CodeContext:
        """Return the same; the sandbox's own, where a cell is a program of its language, if that can't be."""
        try:
            return await self.default_in(language)
        except (CannotShare, KernelspecNotFound):
            return default_of(self.session())

    async def check_folder(self, text: str) -> str:
        """Return the path, as `parse_program_path` does, of a folder to begin in.

        Raises InvalidInput if there is none in the workspace, and NotFound if nothing is there.
        """
        path = parse_program_path(text)
        if path and not path.startswith("/"):
            parts, files = parse_home_path(path), self.services.sessions.files
            if not (await files.look(self.owner, self.session().row.key, parts)).is_folder:
                raise InvalidInput(f"cwd: {program_path(path)[:200]!r} is no folder")
        return path

    def submit(
        self,
        context: CodeContext,
        code: str,
        language: str | None,
        *,
        env: Mapping[str, str] | None = None,
        setup: str | None = None,
    ) -> tuple[ExecutionRun, ExecuteBody]:
        """Submit a cell in a context, and return it as it runs and as it was asked for.

        `language`: as the client names it. `env`: variables besides the sandbox's. `setup`: code that
        prepares a Python kernel before its first cell. Raises what `Session.submit` does, and InvalidInput.
        """
        manager, sandboxes = self.services.sessions.manager, self.services.sessions.sandboxes
        is_python = context.language == Language.PYTHON
        # Contexts of other languages got the sandbox's variables when they were made.
        own = sandboxes.of(self.session()).env if is_python else {}
        # There is no deadline but the client's own, at which it leaves.
        asked = ExecuteBody(
            code=code,
            timeout=manager.terms.ceilings(self.owner).cell_timeout,
            env={**own, **(env or {})},
            on_disconnect="interrupt",
        )
        session = context.session
        request = manager.terms.in_language(session.row.kernel, checked_cell(self, asked), language)
        prepare(context, sandboxes.of(session), setup if is_python else None)
        return session.submit(request), asked

    async def make_context(self, language: Language, path: str, *, is_default: bool = False) -> CodeContext:
        """Make a context that begins in the folder `path`, as `parse_program_path` returns it.

        Raises InvalidInput if it is outside the workspace and no kernel can begin there.
        """
        sandbox = self.session()
        services, manager = self.services, self.services.sessions.manager
        identifier = secrets.token_hex(ID_BYTES)
        left = max(1.0, sandbox.record.seconds_left)
        # Kernels of other languages take no variables of single cells.
        env = None if language is Language.PYTHON else dict(services.sessions.sandboxes.of(sandbox).env)
        named = named_in(sandbox.row) if language is Language.PYTHON else None
        wanted = SessionBody(
            session=self.key_of(_name(self.sandbox_id, identifier)),
            language=language,
            environment=None if named is None else named.name,
            env=env,
            limits=LimitsBody(lifetime=left, idle_timeout=left, on_idle=sandbox.limits.on_idle),
            network="allow" if sandbox.slot.profile.egress else "none",
            metadata={
                "door": self.door,
                "context": identifier,
                "context_of": self.sandbox_id,
                "language": language,
                "cwd": program_path(path),
                "default": is_default,
            },
            workspace_of=sandbox.row.key,
        )
        session, _ = await manager.get_or_create(self.owner, wanted)
        context = CodeContext(identifier, language, program_path(path), session, is_default)
        async with whole_or_deleted(manager, session):
            if path.startswith("/"):
                await _check_there(session, path)
            _join(manager, services.sessions.sandboxes, sandbox, context)
            await session.log.commit()
        return context
