"""`Gateway`: the calls of the wire contract as methods.

It speaks HTTP through ``gateway.client.transport``, returns ``gateway.client.values``, and knows nothing of
the server's inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from gateway.client.transport import Answer, GatewayError, Server, lines
from gateway.client.values import Event, Finished, Result, SessionModel, SessionPage, decode, parse_event
from kernels.errors import InvalidInput

_PAGE = 200
_IDLE_TIMEOUT = 60.0  # of a stream: the gateway sends a keep-alive every 15 s
_REQUEST_TIMEOUT = 120.0  # of all else: a session may wait for a kernel


class Gateway:
    """A gateway at `url`. Each call is one request on its own connection; calls may run at once.

    All methods raise GatewayError, and InvalidInput for an argument that can't be sent.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._server = Server(url, token)

    async def create_session(
        self,
        session: str | None = None,
        *,
        kernel: str | None = None,
        env: Mapping[str, str] | None = None,
        limits: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionModel:
        """The session of this name, made when absent; without a name, a new one."""
        body = _given(session=session, kernel=kernel, env=env, limits=limits, metadata=metadata)
        return decode(await self._call("POST", "/v1/sessions", body), SessionModel)

    async def get_session(self, session: str) -> SessionModel:
        """The session's model."""
        return decode(await self._call("GET", _path(session)), SessionModel)

    async def sessions(self, *, state: str | None = None) -> AsyncGenerator[SessionModel]:
        """All sessions of this principal, those that have ended too; `state` keeps one state only."""
        after: str | None = ""
        while after is not None:
            query = urlencode(_given(state=state, limit=_PAGE, after=after or None))
            page = decode(await self._call("GET", f"/v1/sessions?{query}"), SessionPage)
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
        on_event: Callable[[Event], object] | None = None,
    ) -> Result:
        """Runs a cell and waits for its end. `timeout` in seconds; None is the session's own.

        `on_event` is called with each event while the cell runs. A cell that raises is no error here:
        see the result's `status`.
        """
        if on_event is None:
            body = _given(code=code, timeout=timeout, stdin=stdin)
            return decode(await self._call("POST", _path(session, "execute"), body, timeout=None), Result)
        execution = None
        async with aclosing(self.stream_execute(session, code, timeout=timeout, stdin=stdin)) as events:
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
        on_disconnect: str | None = None,
    ) -> AsyncGenerator[Event]:
        """Runs a cell; yields its events as they happen, the last one `Finished`.

        Leaving the iteration early closes the connection (use `contextlib.aclosing`); `on_disconnect`,
        ``continue`` or ``interrupt``, says what then becomes of the cell.
        """
        body = _given(code=code, timeout=timeout, stdin=stdin, on_disconnect=on_disconnect)
        request = self._server.exchange(
            "POST", _path(session, "execute"), body=_encode(body), accept="application/x-ndjson"
        )
        async with request as answer, aclosing(lines(answer.chunks(idle_timeout=_IDLE_TIMEOUT))) as received:
            async for line in received:
                event = parse_event(line)
                if event is None:
                    continue
                yield event
                if isinstance(event, Finished):
                    return
        raise GatewayError(0, "connection_lost", "The gateway ended the stream before the cell was finished")

    async def execute_once(self, code: str, *, kernel: str | None = None) -> Result:
        """Runs a cell in a fresh kernel that is thrown away."""
        body = _given(code=code, kernel=kernel)
        return decode(await self._call("POST", "/v1/execute", body), Result)

    async def result(self, session: str, execution: str) -> Result:
        """The execution's result so far."""
        return decode(await self._call("GET", _path(session, "executions", execution)), Result)

    async def cancel(self, session: str, execution: str) -> None:
        """Takes the execution out of the queue, or interrupts it."""
        await self._call("POST", _path(session, "executions", execution, "cancel"))

    async def interrupt(self, session: str) -> None:
        """Interrupts the running cell, as Ctrl-C would."""
        await self._call("POST", _path(session, "interrupt"))

    async def delete_session(self, session: str) -> None:
        """Ends the session's kernel; its record stays."""
        await self._call("DELETE", _path(session))

    async def notebook(
        self, session: str, path: Path, *, outputs: bool = True, form: str | None = None
    ) -> None:
        """Writes the session's record to `path` as a notebook; a failure leaves `path` as it was.

        `form`: ``html``, ``markdown`` or ``script`` for what nbconvert makes of it.

        Raises OSError when the file can't be written.
        """
        query = urlencode(_given(format=form, outputs=None if outputs else "false"))
        target = _path(session, "notebook") + (f"?{query}" if query else "")
        async with self._server.exchange("GET", target, accept="*/*") as answer:
            await _save(answer, path)

    async def bundle(self, session: str, path: Path) -> None:
        """Writes the session with its files, lock and record to `path` as a zip file, as `notebook` does."""
        async with self._server.exchange("GET", _path(session, "bundle"), accept="*/*") as answer:
            await _save(answer, path)

    async def provenance(self, session: str) -> dict[str, Any]:
        """The session's notebook without outputs: its metadata tell where the cells ran."""
        return decode(await self._call("GET", _path(session, "notebook") + "?outputs=false"), dict[str, Any])

    async def put_file(self, session: str, path: str, content: bytes) -> None:
        """Puts a file into the session's workspace."""
        target = _path(session, "files", *path.split("/"))
        async with self._server.exchange("PUT", target, body=content) as answer:
            await answer.body()

    async def purge_session(self, session: str) -> None:
        """Ends the session and removes its record for good; only a tombstone stays."""
        await self._call("DELETE", _path(session) + "?purge=true")

    async def _call(
        self,
        method: str,
        target: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = _REQUEST_TIMEOUT,
    ) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                request = self._server.exchange(method, target, body=None if body is None else _encode(body))
                async with request as answer:
                    return await answer.body()
        except TimeoutError as error:
            raise GatewayError(0, "no_answer", f"The gateway gave no answer in {timeout:.0f} s") from error


async def _save(answer: Answer, path: Path) -> None:
    """Streams the body to a file beside `path`, then puts that in its place."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            async with aclosing(answer.chunks(idle_timeout=_IDLE_TIMEOUT)) as chunks:
                async for chunk in chunks:
                    await asyncio.to_thread(file.write, chunk)
        await asyncio.to_thread(os.replace, name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(os.unlink, name)
        raise


def _path(session: str, *more: str) -> str:
    if not session:
        raise InvalidInput("a session's name can't be empty")
    return "/v1/sessions/" + "/".join(quote(part, safe="~") for part in (session, *more))


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise InvalidInput("the text holds lone surrogates, which can't be sent") from error
