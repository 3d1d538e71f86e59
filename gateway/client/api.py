"""`Gateway`: the calls of the wire contract as methods.

It speaks HTTP through ``gateway.client.transport``, returns ``gateway.client.values``, and knows nothing of
the server's inside.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from gateway.client.blocking import Asynchronous
from gateway.client.calls import IDLE_TIMEOUT, Calls, Progress, encode, given, session_path
from gateway.client.errors import gateway_error
from gateway.client.kernel import KernelQuestions
from gateway.client.session import Session
from gateway.client.transport import Server, lines
from gateway.client.values import (
    BlocksResult,
    Event,
    Finished,
    GatewayInfo,
    Package,
    PackageChanges,
    Result,
    SessionModel,
    SessionPage,
    decode,
    parse_event,
)

_PAGE = 200


class Gateway(Asynchronous):
    """A gateway at `url`. Each call is one request on its own connection; calls may run at once.

    All methods raise GatewayError, and InvalidInput for an argument that can't be sent. What may be repeated
    without a second effect (looking, and `execute`, by an idempotency key) is tried up to `attempts` times
    when the connection is lost. `Gateway.sync(...)` makes one whose methods block.
    """

    def __init__(self, url: str, token: str | None = None, *, attempts: int = 3) -> None:
        self._calls = Calls(Server(url, token), attempts)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open between calls."""

    def __repr__(self) -> str:
        return f"Gateway({self._calls.url!r})"

    def session(
        self,
        name: str | None = None,
        *,
        kernel: str | None = None,
        language: str | None = None,
        env: Mapping[str, str] | None = None,
        limits: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        keep: bool | None = None,
    ) -> Session:
        """A session to work with, made when it is first used; the options are for one that is not there.

        As a context manager it is ended behind the block, unless `keep`; by default one with a name is kept.
        """
        wishes = given(kernel=kernel, language=language, env=env, limits=limits, metadata=metadata)
        return Session(self, self._calls, name, wishes, keep=name is not None if keep is None else keep)

    async def info(self) -> GatewayInfo:
        """The gateway's version, isolation and ceilings."""
        return decode(await self._calls.call("GET", "/v1/info"), GatewayInfo)

    async def create_session(
        self,
        session: str | None = None,
        *,
        kernel: str | None = None,
        language: str | None = None,
        env: Mapping[str, str] | None = None,
        limits: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionModel:
        """The session of this name, made when absent; without a name, a new one."""
        wishes = given(kernel=kernel, language=language, env=env, limits=limits, metadata=metadata)
        body = given(session=session, **wishes)
        return decode(await self._calls.call("POST", "/v1/sessions", body), SessionModel)

    async def get_session(self, session: str) -> SessionModel:
        """The session's model."""
        return decode(await self._calls.call("GET", session_path(session)), SessionModel)

    async def sessions(self, *, state: str | None = None) -> AsyncGenerator[SessionModel]:
        """All sessions of this principal, those that have ended too; `state` keeps one state only."""
        after: str | None = ""
        while after is not None:
            query = urlencode(given(state=state, limit=_PAGE, after=after or None))
            page = decode(await self._calls.call("GET", f"/v1/sessions?{query}"), SessionPage)
            for model in page.sessions:
                yield model
            after = page.next

    async def execute(
        self,
        session: str,
        code: str,
        *,
        timeout: float | None = None,
        stdin: list[str] | None = None,
        tables: int | None = None,
        on_event: Callable[[Event], object] | None = None,
        language: str | None = None,
        packages: str | None = None,
    ) -> Result:
        """Runs a cell and waits for its end. `timeout` in seconds; None is the session's own.

        Code in another `language` than the kernel's is run by a program of its own, beside the kernel.
        `tables`: give pandas' tables as data too, of so many rows at most; see `Result.tables`.
        `packages`: ``auto`` installs what the cell imports and is missing, ``temporary`` for this cell only.

        `on_event` is called with each event while the cell runs. A cell that raises is no error here:
        see the result's `status`.
        """
        if on_event is None:
            wishes = given(timeout=timeout, stdin=stdin, tables=tables, language=language, packages=packages)
            path, key = session_path(session, "execute"), uuid.uuid4().hex
            body = {"code": code, **wishes}
            return decode(await self._calls.call("POST", path, body, timeout=None, idempotency=key), Result)
        execution = None
        stream = self.stream_execute(
            session, code, timeout=timeout, stdin=stdin, tables=tables, language=language, packages=packages
        )
        async with aclosing(stream) as events:
            async for event in events:
                execution = event.execution or execution
                on_event(event)
        return await self.result(session, str(execution))

    async def stream_execute(
        self,
        session: str,
        code: str,
        *,
        timeout: float | None = None,
        stdin: list[str] | None = None,
        tables: int | None = None,
        on_disconnect: str | None = None,
        language: str | None = None,
        packages: str | None = None,
    ) -> AsyncGenerator[Event]:
        """Runs a cell; yields its events as they happen, the last one `Finished`.

        Leaving the iteration early closes the connection (use `contextlib.aclosing`); `on_disconnect`,
        ``continue`` or ``interrupt``, says what then becomes of the cell.
        """
        wishes = given(timeout=timeout, stdin=stdin, tables=tables, on_disconnect=on_disconnect)
        body = given(code=code, language=language, packages=packages, **wishes)
        request = self._calls.exchange(
            "POST", session_path(session, "execute"), body=encode(body), accept="application/x-ndjson"
        )
        async with request as answer, aclosing(lines(answer.chunks(idle_timeout=IDLE_TIMEOUT))) as received:
            async for line in received:
                event = parse_event(line)
                if event is None:
                    continue
                yield event
                if isinstance(event, Finished):
                    return
        raise gateway_error(0, "connection_lost", "The gateway ended the stream before the cell was finished")

    async def execute_blocks(
        self,
        session: str,
        blocks: str | Sequence[tuple[str, str]],
        *,
        timeout: float | None = None,
    ) -> BlocksResult:
        """Runs Markdown's fences, or pairs of language and code, in order until one fails."""
        listed = None if isinstance(blocks, str) else [{"language": x, "code": y} for x, y in blocks]
        body = given(markdown=blocks if listed is None else None, blocks=listed, timeout=timeout)
        path = session_path(session, "execute-blocks")
        return decode(await self._calls.call("POST", path, body, timeout=None), BlocksResult)

    async def packages(
        self,
        session: str,
        *,
        install: Sequence[str] = (),
        uninstall: Sequence[str] = (),
        upgrade: bool = False,
        constraints: Sequence[str] = (),
    ) -> PackageChanges:
        """Installs requirements into the session and removes packages by name; what was changed.

        `constraints` bound the versions of whatever comes along. `upgrade`: newer versions are wanted, too.
        """
        body = {
            "install": list(install),
            "uninstall": list(uninstall),
            "upgrade": upgrade,
            "constraints": list(constraints),
        }
        path = session_path(session, "packages")
        return decode(await self._calls.call("POST", path, body, timeout=None), PackageChanges)

    async def installed(self, session: str) -> list[Package]:
        """What the session has installed beside its kernel's environment."""
        path = session_path(session, "packages")
        return decode(await self._calls.call("GET", path), PackageChanges).packages

    async def restart(self, session: str) -> SessionModel:
        """Gives the session a fresh kernel: its variables are lost, its files stay."""
        return decode(await self._calls.call("POST", session_path(session, "restart")), SessionModel)

    async def replay(self, session: str, *, anyway: bool = False, rtol: float = 0.0) -> dict[str, Any]:
        """Runs the session's notebook again in a fresh kernel; the report of what differs.

        `rtol`: how far two floating-point numbers may be apart, relative to the larger one.
        """
        body = {"anyway": anyway, "rtol": rtol}
        path = session_path(session, "replay")
        return decode(await self._calls.call("POST", path, body, timeout=None), dict[str, Any])

    async def execute_once(
        self, code: str, *, kernel: str | None = None, language: str | None = None
    ) -> Result:
        """Runs a cell in a fresh kernel that is thrown away."""
        body = given(code=code, kernel=kernel, language=language)
        return decode(await self._calls.call("POST", "/v1/execute", body), Result)

    async def result(self, session: str, execution: str) -> Result:
        """The execution's result so far."""
        return decode(await self._calls.call("GET", session_path(session, "executions", execution)), Result)

    async def cancel(self, session: str, execution: str) -> None:
        """Takes the execution out of the queue, or interrupts it."""
        await self._calls.call("POST", session_path(session, "executions", execution, "cancel"))

    async def interrupt(self, session: str) -> None:
        """Interrupts the running cell, as Ctrl-C would."""
        await self._calls.call("POST", session_path(session, "interrupt"))

    async def delete_session(self, session: str) -> None:
        """Ends the session's kernel; its record stays."""
        await self._calls.call("DELETE", session_path(session))

    async def notebook(
        self,
        session: str,
        path: Path,
        *,
        outputs: bool = True,
        form: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Writes the session's record to `path` as a notebook; a failure leaves `path` as it was.

        `form`: ``html``, ``markdown`` or ``script`` for what nbconvert makes of it.

        Raises OSError when the file can't be written.
        """
        query = urlencode(given(format=form, outputs=None if outputs else "false"))
        target = session_path(session, "notebook") + (f"?{query}" if query else "")
        await self._calls.download(target, path, progress)

    async def bundle(self, session: str, path: Path, *, progress: Progress | None = None) -> None:
        """Writes the session with its files, lock and record to `path` as a zip file, as `notebook` does."""
        await self._calls.download(session_path(session, "bundle"), path, progress)

    async def provenance(self, session: str) -> dict[str, Any]:
        """The session's notebook without outputs: its metadata tell where the cells ran."""
        target = session_path(session, "notebook") + "?outputs=false"
        return decode(await self._calls.call("GET", target), dict[str, Any])

    async def answer_input(self, session: str, execution: str, value: str) -> None:
        """Gives a line to a cell that waits for input (the event `InputRequest`)."""
        await self._calls.call(
            "POST", session_path(session, "executions", execution, "input"), {"value": value}
        )

    def questions(self, session: str) -> KernelQuestions:
        """Questions to a live session's kernel that are no cells, for prompts; `close` them in the end."""
        return KernelQuestions(self._calls, session)

    async def purge_session(self, session: str) -> None:
        """Ends the session and removes its record for good; only a tombstone stays."""
        await self._calls.call("DELETE", session_path(session) + "?purge=true")
