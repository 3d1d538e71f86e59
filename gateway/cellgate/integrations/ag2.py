"""AG2 1.x: where its tools run code and commands, on a session of Cellgate.

    async with Gateway(url, token).session() as session:
        agent = Agent(..., tools=[
            SandboxCodeTool(CellgateCode(session)),                            # cells: variables stay
            SandboxShellTool(SingletonFactory(CellgateSandbox(session))),      # programs
        ])

AG2 0.x has a Jupyter executor, which needs nothing of this.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

from cellgate.client import GatewayError, RequestRefused, Session
from cellgate.client.blocking import behind
from cellgate.execution.answer_size import shorten
from cellgate.integrations.tools import AnySession

try:
    from ag2.tools.code import CodeLanguage, CodeRunResult
    from ag2.tools.sandbox import ExecResult, SandboxBase
except ImportError as error:
    raise ImportError("cellgate.integrations.ag2 needs ag2 1.x: pip install 'cellgate[ag2]'") from error

WORKSPACE: Final = PurePosixPath("/workspace")
"""A session's files as its sandbox or container has them. Kernels as plain processes have no such path."""
_MOST_OUTPUT = 100_000
_TIMED_OUT = 124
_NOT_FOUND = 127
_FAILED = 1


class CellgateSandbox(SandboxBase):  # type: ignore[misc]  # has no type without ag2
    """Programs beside the session's kernel; whoever made the session ends it."""

    def __init__(self, session: AnySession) -> None:
        self._session: Session = behind(session)

    @property
    def workdir(self) -> PurePosixPath:
        """The workspace as programs see it."""
        return WORKSPACE

    @property
    def host_workdir(self) -> Path | None:
        """None: the files are the gateway's."""
        return None

    async def exec(
        self, argv: list[str], *, env: dict[str, str] | None = None, timeout: float | None = None
    ) -> ExecResult:
        """Run a program and wait for its end."""
        try:
            done = await self._session.run_program(*argv, env=env, timeout=timeout)
        except RequestRefused as error:
            return ExecResult(error.message, _NOT_FOUND)
        code = done.exit_code if done.exit_code is not None else _FAILED
        if done.cause == "timeout":
            code = _TIMED_OUT
        output = shorten((done.stdout + done.stderr).strip(), _MOST_OUTPUT, "the record")
        return ExecResult(output, code)

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        """Write a file of the workspace. Raises ValueError for a path that is not relative."""
        await self._session.opened()
        await self._session.files.put(_relative(path), content)

    async def remove_file(self, path: PurePosixPath) -> None:
        """Remove a file of the workspace; it is no error if it is not there."""
        name = _relative(path)
        await self._session.opened()
        try:
            await self._session.files.remove(name)
        except GatewayError as error:
            if error.reason != "not_found":
                raise

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """AG2 copies tools; the session stays the same."""
        return self


class CellgateCode:
    """Code as cells of the session, whose variables stay; the protocol is AG2's `CodeEnvironment`."""

    def __init__(self, session: AnySession, *, timeout: float | None = None) -> None:
        self._session: Session = behind(session)
        self._timeout = timeout

    @property
    def supported_languages(self) -> tuple[CodeLanguage, ...]:
        """The languages that a session of Python runs."""
        return ("python", "bash", "javascript", "typescript")

    async def run(self, code: str, language: CodeLanguage, *, context: Any = None) -> CodeRunResult:
        """Run a cell. A caller that is cancelled interrupts it."""
        try:
            done = await self._session.run_blocks(
                [(language, code)], timeout=self._timeout, on_disconnect="interrupt"
            )
        except RequestRefused as error:
            return CodeRunResult(error.message, _FAILED)
        return CodeRunResult(done.output.strip(), done.exit_code)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """AG2 copies tools; the session stays the same."""
        return self


def _relative(path: PurePosixPath) -> str:
    if path.is_absolute():
        raise ValueError(f"the path of a file must be relative to the workspace: {path}")
    return str(path)
