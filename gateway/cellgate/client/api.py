"""`Gateway`, the calls of the wire contract as methods, and `Session`, the calls of one session.

It speaks HTTP through ``transport``, returns ``values``, and knows nothing of the server's internals.
"""

from __future__ import annotations

import asyncio
import base64
import tempfile
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack
from urllib.parse import urlencode

import msgspec

from cellgate.client.blocking import Asynchronous
from cellgate.client.calls import (
    IDLE_TIMEOUT,
    REQUEST_TIMEOUT,
    RETRY_PAUSE,
    Calls,
    Progress,
    as_script,
    cell_options,
    check_code,
    check_on_cancel,
    encode,
    form_of,
    given,
    session_options,
    session_path,
    words,
)
from cellgate.client.errors import ConnectionFailed, GatewayError, InvalidInput, NotFound, gateway_error
from cellgate.client.files import Files
from cellgate.client.transport import MOST_RESULT, SYSTEM_TRUST, Server, Trust, lines
from cellgate.client.values import (
    BlocksResult,
    Exploration,
    Pages,
    Result,
    decode,
    parse_event,
    parse_opening,
)
from cellgate.wire.answers import (
    CheckpointList,
    CheckpointModel,
    Completion,
    ConsoleUrl,
    ExecutionModel,
    ExecutionPage,
    GatewayInfo,
    Inspection,
    Me,
    PackageChanges,
    Packages,
    PortUrl,
    ProcessList,
    ProcessModel,
    ReplayReport,
    SessionModel,
    SessionPage,
    SessionTree,
    VariableList,
)
from cellgate.wire.events import Event, Finished, Package, ProcessExited
from cellgate.wire.models import CellKeywords, SessionKeywords

if TYPE_CHECKING:
    from cellgate.client.kernel import KernelQuestions

_PAGE = 200
_EXECUTIONS = 1000
_CANCEL_TIMEOUT = 10.0
"""Seconds for which a caller that was cancelled waits until its cell is, too."""


def _cut_at(max_text: int | None) -> str:
    return "" if max_text is None else f"?max_text={max_text}"


class Gateway(Asynchronous):
    """A gateway at `url`. Each call is one request on its own connection; calls may run concurrently.

    All methods raise GatewayError, and InvalidInput for an argument that can't be sent. Calls that can safely
    be repeated (reads, and `execute`, by an idempotency key) are tried up to `attempts` times when the
    connection is lost. `Gateway.sync(...)` makes one whose methods block.

    An https gateway's certificate must be one that the system trusts, or match `trust`.
    """

    def __init__(
        self, url: str, token: str | None = None, *, attempts: int = 3, trust: Trust = SYSTEM_TRUST
    ) -> None:
        self._calls = Calls(Server(url, token, trust), attempts)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing: nothing is open between calls."""

    def __repr__(self) -> str:
        return f"Gateway({self._calls.url!r})"

    def session(
        self,
        name: str | None = None,
        *,
        keep: bool | None = None,
        **options: Unpack[SessionKeywords],
    ) -> Session:
        """A session to work with, created when first used; the options apply only if it does not exist.

        As a context manager it ends after the block, unless `keep`; by default one with a name is kept.
        """
        wanted = session_options(options)
        return Session(self, self._calls, name, wanted, keep=name is not None if keep is None else keep)

    async def info(self) -> GatewayInfo:
        """The gateway's version, isolation and ceilings."""
        return decode(await self._calls.call("GET", "/v1/info"), GatewayInfo)

    async def me(self) -> Me:
        """Whose token this is, what it permits, and how much of their quotas its owner uses."""
        return decode(await self._calls.call("GET", "/v1/me"), Me)

    async def console_url(self) -> ConsoleUrl:
        """Where a browser is signed in to the console as this token's user: once, within a minute."""
        return decode(await self._calls.call("POST", "/v1/console"), ConsoleUrl)

    async def create_session(
        self,
        session: str | None = None,
        *,
        on_wait: Callable[[int], object] | None = None,
        **options: Unpack[SessionKeywords],
    ) -> SessionModel:
        """The session of this name, created if missing; without a name, a new one.

        `on_wait` is called with its position in line while all kernels are in use: how many get one first.
        """
        body = given(session=session, **session_options(options))
        path = None if session is None else session_path(session)
        if on_wait is None:
            made = await self._calls.call("POST", "/v1/sessions", body, session=path)
            return decode(made, SessionModel)
        now = asyncio.get_running_loop().time
        request = self._calls.exchange(
            "POST", "/v1/sessions", body=encode(body), accept="application/x-ndjson", session=path
        )
        try:
            async with (
                asyncio.timeout(REQUEST_TIMEOUT) as silence,
                request as answer,
                aclosing(lines(answer.chunks(idle_timeout=IDLE_TIMEOUT))) as received,
            ):
                async for line in received:
                    found = parse_opening(line)
                    if isinstance(found, SessionModel):
                        # The answer began before the session had a name.
                        self._calls.learn(session_path(found.session), answer)
                        return found
                    if found is not None:
                        on_wait(found)
                    silence.reschedule(now() + REQUEST_TIMEOUT)
        except TimeoutError as error:
            raise gateway_error(0, "no_answer", "The gateway gave no answer") from error
        raise gateway_error(0, "connection_lost", "The gateway ended the answer before there was a session")

    async def get_session(self, session: str, *, usage: bool = False) -> SessionModel:
        """The session's model; with `usage` it has `memory`, `cpu` and `executions`."""
        path = session_path(session) + ("?usage=true" if usage else "")
        return decode(await self._calls.call("GET", path), SessionModel)

    async def sessions(
        self,
        *,
        state: str | None = None,
        search: str | None = None,
        newest: bool = False,
        usage: bool = False,
    ) -> AsyncGenerator[SessionModel]:
        """All sessions of this principal, ended ones included, in the order in which they were created.

        `state` selects those in one state, ``live`` all that have not ended; `search` those whose key or
        title has this text. `newest`: the last ones first. `usage`: with `memory`, `cpu` and `executions`.
        """
        wanted = given(state=state, search=search, limit=_PAGE)
        wanted |= {name: "true" for name, asked in (("newest", newest), ("usage", usage)) if asked}
        pages = Pages("")
        while pages.after is not None:
            query = urlencode(wanted | given(after=pages.after or None))
            page = decode(await self._calls.call("GET", f"/v1/sessions?{query}"), SessionPage)
            for model in page.sessions:
                yield model
            pages.turn(page.next)

    async def execute(
        self,
        session: str,
        code: str,
        *,
        on_event: Callable[[Event], object] | None = None,
        on_cancel: Literal["interrupt", "continue"] = "interrupt",
        max_text: int | None = None,
        **options: Unpack[CellKeywords],
    ) -> Result:
        """Runs a cell and waits for its end.

        `timeout` in seconds; None is the session's own. `stdin`: lines, or a text, that answer `input()`.
        Code in a `language` other than the kernel's is run by a separate program, beside the kernel.
        `tables`: return pandas' tables as data too, with at most this many rows; see `Result.tables`.
        `packages`: ``auto`` installs missing packages that the cell imports, ``temporary`` for this cell.
        `env`: environment variables for this cell only. `silent`: without output and without counting.

        `max_text`: cut texts with more characters. By default the gateway cuts what is longer than 100,000,
        and limits the whole answer; 0 is all there is.
        `on_event` is called with each event while the cell runs. A cell that raises is not an error here:
        see the result's `status`. A caller that is cancelled, as by `asyncio.wait_for`, interrupts the cell;
        with `on_cancel` ``continue`` it goes on. A lost connection doesn't interrupt it, unless there is an
        `on_event`.
        """
        check_code(code)
        given_options = cell_options(options)
        check_on_cancel(on_cancel)
        if on_event is None:
            body = {"code": code, **given_options}
            return await self._execute(session, body, on_cancel, max_text)
        execution = None
        stream = self.stream_execute(session, code, on_disconnect=on_cancel, **options)
        async with aclosing(stream) as events:
            async for event in events:
                execution = event.execution or execution
                on_event(event)
        return await self.result(session, str(execution), max_text=max_text)

    async def _execute(
        self, session: str, body: Mapping[str, Any], on_cancel: str, max_text: int | None
    ) -> Result:
        path = session_path(session, "execute")
        key = uuid.uuid4().hex
        sent = asyncio.Event()
        try:
            answer = await self._calls.call(
                "POST",
                path + _cut_at(max_text),
                body,
                timeout=None,
                idempotency=key,
                on_send=sent.set,
                most=MOST_RESULT,
            )
        except asyncio.CancelledError:
            # Not by `on_disconnect`: a connection that is lost would interrupt the cell before its repeat.
            if sent.is_set() and on_cancel == "interrupt":
                await self._cancel_sent(session, {**body, "wait": False}, key)
            raise
        return decode(answer, Result)

    async def _cancel_sent(self, session: str, body: Mapping[str, Any], key: str) -> None:
        """Stops a cell that was sent with this idempotency key, by asking for it once more with the key."""
        path = session_path(session, "execute")
        with suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(_CANCEL_TIMEOUT):
                known = await self._calls.call("POST", path, body, idempotency=key, most=MOST_RESULT)
                await self.cancel(session, decode(known, Result).execution)

    async def stream_execute(
        self,
        session: str,
        code: str,
        *,
        on_disconnect: str | None = None,
        **options: Unpack[CellKeywords],
    ) -> AsyncGenerator[Event]:
        """Runs a cell; yields its events as they happen, the last one `Finished`. Options as of `execute`.

        Leaving the iteration early closes the connection (use `contextlib.aclosing`); `on_disconnect`,
        ``continue`` or ``interrupt``, decides what happens to the cell then.
        """
        check_code(code)
        body = given(code=code, on_disconnect=on_disconnect) | cell_options(options)
        path = session_path(session, "execute")
        async with aclosing(self._streamed("POST", path, encode(body))) as received:
            async for event in received:
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
        max_text: int | None = None,
        on_disconnect: str | None = None,
    ) -> BlocksResult:
        """Runs a Markdown text's fenced blocks, or pairs of language and code, in order until one fails.

        `max_text` as of `execute`. `on_disconnect`, ``continue`` or ``interrupt``, decides what happens to
        the block that runs when the connection is lost or the caller is cancelled; after an interrupted one
        no other runs.
        """
        if isinstance(blocks, str):
            body = given(markdown=blocks, timeout=timeout, on_disconnect=on_disconnect)
        else:
            listed = [{"language": language, "code": code} for language, code in blocks]
            body = given(blocks=listed, timeout=timeout, on_disconnect=on_disconnect)
        path = session_path(session, "execute-blocks") + _cut_at(max_text)
        return decode(
            await self._calls.call("POST", path, body, timeout=None, most=MOST_RESULT), BlocksResult
        )

    async def packages(
        self,
        session: str,
        *,
        install: Sequence[str] = (),
        uninstall: Sequence[str] = (),
        upgrade: bool = False,
        constraints: Sequence[str] = (),
    ) -> PackageChanges:
        """Installs requirements into the session and removes packages by name; returns the changes.

        `constraints` limit the versions of dependencies. `upgrade`: replace installed versions by newer ones.
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
        """The packages that the session has installed beside its kernel's environment."""
        path = session_path(session, "packages")
        return decode(await self._calls.call("GET", path), Packages).packages

    async def complete(self, session: str, code: str, *, cursor: int | None = None) -> Completion:
        """What the kernel of an idle session says may stand at the cursor, by default at the end of the code.

        Positions are in characters, as Python counts them. Raises Conflict for a session that is busy.
        """
        body = given(code=code, cursor=cursor)
        return decode(await self._calls.call("POST", session_path(session, "complete"), body), Completion)

    async def inspect(
        self, session: str, code: str, *, cursor: int | None = None, detail: int = 0
    ) -> Inspection:
        """What the kernel of an idle session knows of the name at the cursor; with `detail` 1 its source too.

        Raises Conflict for a session that is busy.
        """
        body = given(code=code, cursor=cursor) | {"detail": detail}
        return decode(await self._calls.call("POST", session_path(session, "inspect"), body), Inspection)

    async def variables(self, session: str) -> VariableList:
        """The variables of an idle session's Python kernel. Raises Conflict for one that is busy."""
        return decode(await self._calls.call("GET", session_path(session, "variables")), VariableList)

    async def restart(self, session: str) -> SessionModel:
        """Gives the session a fresh kernel: its variables are lost, its files stay."""
        return decode(await self._calls.call("POST", session_path(session, "restart")), SessionModel)

    async def branch(
        self,
        session: str,
        branch: str | None = None,
        *,
        workspace: str = "copy",
        seed: int | None = None,
        anyway: bool = False,
    ) -> SessionModel:
        """Makes a new session that goes on with a copy of an idle session's kernel: with all its variables.

        `branch`: the new session's name. `workspace`: ``copy`` or ``shared`` files. `seed`: for its random
        numbers, which otherwise go on as the session's. `anyway`: in spite of obstacles. Raises Conflict for
        a session that is busy, and CannotBranch.
        """
        body = given(session=branch, seed=seed) | {"workspace": workspace, "anyway": anyway}
        return decode(await self._calls.call("POST", session_path(session, "branch"), body), SessionModel)

    async def explore(
        self,
        session: str,
        cells: Sequence[str],
        *,
        keep: str = "none",
        timeout: float | None = None,
        anyway: bool = False,
        max_text: int | None = None,
    ) -> Exploration:
        """Runs alternatives, each in a branch of an idle session, side by side; returns when all have ended.

        `keep`: ``none`` of the branches stays, or ``all``; with ``first_ok`` the session goes on as the first
        alternative, in the order given, that ends well. `timeout` is that of each cell, in seconds.
        `anyway`: in spite of obstacles. `max_text` as of `execute`, of each result. Raises as `branch` does
        if not even one cell can be run.
        """
        body = given(cells=list(cells), timeout=timeout) | {"keep": keep, "anyway": anyway}
        path = session_path(session, "explore") + _cut_at(max_text)
        key = uuid.uuid4().hex
        answer = await self._calls.call("POST", path, body, timeout=None, idempotency=key, most=MOST_RESULT)
        explored = decode(answer, Exploration)
        for each in explored.results:
            if each.session:
                self._calls.learn_branch(session_path(session), session_path(each.session))
        return explored

    async def checkpoint(
        self, session: str, name: str | None = None, *, anyway: bool = False
    ) -> CheckpointModel:
        """Keeps an idle session's variables and files as they are now, to go back to with `roll_back`.

        `anyway`: in spite of obstacles. Raises Conflict for a session that is busy and for a name that is
        taken, and CannotBranch.
        """
        body = given(name=name) | {"anyway": anyway}
        path = session_path(session, "checkpoints")
        return decode(await self._calls.call("POST", path, body), CheckpointModel)

    async def checkpoints(self, session: str) -> list[CheckpointModel]:
        """What the session can go back to, the oldest first."""
        path = session_path(session, "checkpoints")
        return decode(await self._calls.call("GET", path), CheckpointList).checkpoints

    async def end_checkpoint(self, session: str, name: str) -> None:
        """Ends a checkpoint, which takes no memory then."""
        path = session_path(session, "checkpoints", name)
        await self._calls.call("DELETE", path)

    async def roll_back(self, session: str, checkpoint: str | None = None) -> SessionModel:
        """Takes variables and files back to what they were, by default at the newest checkpoint.

        A cell that runs is interrupted. The model's `rolled_back` says what was undone. Raises NotFound.
        """
        path = session_path(session, "rollback")
        return decode(await self._calls.call("POST", path, given(checkpoint=checkpoint)), SessionModel)

    async def undo(self, session: str) -> SessionModel:
        """Undoes the session's last cell; see `roll_back`. The session needs a checkpoint from before it."""
        return decode(await self._calls.call("POST", session_path(session, "undo")), SessionModel)

    async def tree(self, session: str) -> SessionTree:
        """The sessions that it continues as a branch, its branches, and its checkpoints."""
        return decode(await self._calls.call("GET", session_path(session, "tree")), SessionTree)

    async def replay(self, session: str, *, anyway: bool = False, rtol: float = 0.0) -> ReplayReport:
        """Runs the session's notebook again in a fresh kernel; returns a report of the differences.

        `rtol`: how much two floating-point numbers may differ, relative to the larger one.
        """
        body = {"anyway": anyway, "rtol": rtol}
        path = session_path(session, "replay")
        return decode(
            await self._calls.call("POST", path, body, timeout=None, most=MOST_RESULT), ReplayReport
        )

    async def execute_once(
        self,
        code: str,
        *,
        kernel: str | None = None,
        language: str | None = None,
        max_text: int | None = None,
    ) -> Result:
        """Runs a cell in a fresh kernel, which is discarded afterwards. `max_text` as of `execute`."""
        body = given(code=code, kernel=kernel, language=language)
        return decode(
            await self._calls.call("POST", "/v1/execute" + _cut_at(max_text), body, most=MOST_RESULT), Result
        )

    async def events(self, session: str, *, after: int = 0) -> AsyncGenerator[Event]:
        """The session's events after the one with the `seq` `after`: those so far, then live ones to its end.

        A lost connection is resumed where it broke off, so each event comes exactly once, in order. Use
        `contextlib.aclosing` to leave the iteration early.
        """
        path = session_path(session, "events")
        failures = 0
        while True:
            try:
                async with aclosing(self._streamed("GET", f"{path}?after={after}")) as received:
                    async for event in received:
                        yield event
                        after = event.seq
                        failures = 0
                    return
            except ConnectionFailed:
                failures += 1
                if failures >= self._calls.attempts:
                    raise
            await asyncio.sleep(RETRY_PAUSE * 2 ** (failures - 1))

    async def _streamed(self, method: str, path: str, body: bytes | None = None) -> AsyncGenerator[Event]:
        """The events of one answer, as they arrive, without keep-alives."""
        async with aclosing(self._lines(method, path, body)) as received:
            async for line in received:
                if (event := parse_event(line)) is not None:
                    yield event

    async def _lines(self, method: str, path: str, body: bytes | None = None) -> AsyncGenerator[bytes]:
        """The lines of one answer, as they arrive."""
        request = self._calls.exchange(method, path, body=body, accept="application/x-ndjson")
        async with request as answer, aclosing(lines(answer.chunks(idle_timeout=IDLE_TIMEOUT))) as received:
            async for line in received:
                yield line

    async def executions(self, session: str, *, newest: bool = False) -> AsyncGenerator[ExecutionModel]:
        """The session's executions, oldest first unless `newest` is set; `result` has the rest of each."""
        pages = Pages(0)
        order = "&newest=true" if newest else ""
        while pages.after is not None:
            path = f"{session_path(session, 'executions')}?limit={_EXECUTIONS}&after={pages.after}{order}"
            page = decode(await self._calls.call("GET", path, most=MOST_RESULT), ExecutionPage)
            for model in page.executions:
                yield model
            pages.turn(page.next)

    async def result(self, session: str, execution: str, *, max_text: int | None = None) -> Result:
        """The execution's result so far. `max_text` as of `execute`."""
        path = session_path(session, "executions", execution) + _cut_at(max_text)
        return decode(await self._calls.call("GET", path, most=MOST_RESULT), Result)

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
        path: Path | Callable[[str], Path],
        *,
        outputs: bool = True,
        inherited: bool = True,
        undone: bool = True,
        form: str | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Writes the session's record to `path` as a notebook; a failure leaves `path` as it was.

        `path` may be a function of the name that the gateway gives the file. Returns it.

        `inherited`: whether a branch's begins with the cells before it was branched. `undone`: whether it
        has the cells that a rollback undid, as raw cells. `form`: ``html``, ``markdown`` or ``script``, by
        nbconvert. A script's name must not be one of another language than the session's.

        Raises OSError when the file can't be written.
        """
        shown = {"outputs": outputs, "inherited": inherited, "undone": undone}
        left_out = {name: "false" for name, wanted in shown.items() if not wanted}
        query = urlencode(given(format=form, **left_out))
        target = session_path(session, "notebook") + (f"?{query}" if query else "")
        if form == "script" and isinstance(path, Path):
            path = partial(as_script, path)
        return await self._calls.download(target, path, progress)

    async def bundle(self, session: str, path: Path, *, progress: Progress | None = None) -> None:
        """Writes the session with its files, lock and record to `path` as a zip file, as `notebook` does."""
        await self._calls.download(session_path(session, "bundle"), path, progress)

    async def provenance(self, session: str) -> dict[str, Any]:
        """The session's notebook without outputs: its metadata says where the cells ran."""
        target = session_path(session, "notebook") + "?outputs=false"
        return decode(await self._calls.call("GET", target, most=MOST_RESULT), dict[str, Any])

    async def run_program(
        self,
        session: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> ProcessModel:
        """Runs a program beside the session's cells, in its sandbox, and waits for its end. No shell is used.

        `env` is added to the kernel's variables, `cwd` is a folder of the workspace. `timeout` in seconds;
        None is the session's `cell_timeout`.
        """
        body = given(argv=words(argv), env=env, cwd=cwd, timeout=timeout)
        path = session_path(session, "processes")
        return decode(await self._calls.call("POST", path, body, timeout=None), ProcessModel)

    async def start_program(
        self,
        session: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        timeout: float | None = None,
    ) -> ProcessModel:
        """Starts a program as `run_program` does and doesn't wait; it runs until it, or its session, ends.

        With `stdin` it gets what `write_program` sends.
        """
        body = given(argv=words(argv), env=env, cwd=cwd, stdin=stdin, timeout=timeout, wait=False)
        path = session_path(session, "processes")
        return decode(await self._calls.call("POST", path, body, timeout=None), ProcessModel)

    async def follow_program(self, session: str, process: str) -> AsyncGenerator[Event]:
        """Yields all events of a process from its start, as they happen; the last one is `ProcessExited`."""
        path = session_path(session, "processes", process)
        async with aclosing(self._streamed("GET", path)) as received:
            async for event in received:
                yield event
                if isinstance(event, ProcessExited):
                    return
        raise gateway_error(0, "connection_lost", "The gateway ended the stream before the process had ended")

    async def process(self, session: str, process: str) -> ProcessModel:
        """A process of a live session, with its output so far."""
        path = session_path(session, "processes", process)
        return decode(await self._calls.call("GET", path), ProcessModel)

    async def processes(self, session: str) -> list[ProcessModel]:
        """A live session's processes: all that run, and the last that ended."""
        path = session_path(session, "processes")
        return decode(await self._calls.call("GET", path), ProcessList).processes

    async def write_program(
        self, session: str, process: str, data: str | bytes = b"", *, close: bool = False
    ) -> None:
        """Sends input to a process that was started with `stdin`; `close` is the end of it."""
        sent = data.encode() if isinstance(data, str) else data
        body = {"data_b64": base64.b64encode(sent).decode(), "close": close}
        await self._calls.call("POST", session_path(session, "processes", process, "input"), body)

    async def signal_program(self, session: str, process: str, signal: str) -> None:
        """Sends a signal such as ``SIGINT`` to a process and its group."""
        path = session_path(session, "processes", process, "signal")
        await self._calls.call("POST", path, {"signal": signal})

    async def end_program(self, session: str, process: str) -> None:
        """Ends a process: by SIGTERM, and five seconds later by SIGKILL. It is no error if it has ended."""
        await self._calls.call("DELETE", session_path(session, "processes", process))

    async def port_url(self, session: str, port: int) -> str:
        """A URL at which a browser sees what a program in the session shows on a port.

        It works once, within a minute, where the gateway's operator serves ports.
        """
        return (await self.open_port(session, port)).url

    async def open_port(self, session: str, port: int) -> PortUrl:
        """What `port_url` answers with, and how long that works."""
        path = session_path(session, "ports", str(port))
        return decode(await self._calls.call("POST", path), PortUrl)

    async def answer_input(self, session: str, execution: str, value: str) -> None:
        """Sends a line to a cell that is waiting for input (the event `InputRequest`)."""
        await self._calls.call(
            "POST", session_path(session, "executions", execution, "input"), {"value": value}
        )

    def questions(self, session: str) -> KernelQuestions:
        """Requests to a live session's kernel other than cells, for prompts; `close` it at the end."""
        from cellgate.client.kernel import KernelQuestions  # noqa: PLC0415 - tornado, for prompts only

        return KernelQuestions(self._calls, session)

    async def purge_session(self, session: str) -> None:
        """Ends the session and removes its record for good; only a tombstone stays."""
        await self._calls.call("DELETE", session_path(session) + "?purge=true")


class Session(Asynchronous):
    """A session of a gateway; made by `Gateway.session`. Methods raise GatewayError."""

    def __init__(
        self, gateway: Gateway, calls: Calls, name: str | None, options: Mapping[str, Any], *, keep: bool
    ) -> None:
        self._gateway = gateway
        self._calls = calls
        self._name = name
        self._options = options
        self._keep = keep
        self._made = False
        self._opening = asyncio.Lock()
        self._branches: list[Session] = []

    def __repr__(self) -> str:
        return f"Session({self._name!r})"

    @property
    def gateway(self) -> Gateway:
        """The gateway that it is a session of."""
        return self._gateway

    @property
    def name(self) -> str:
        """Its key. Raises InvalidInput for an unnamed session that has not been used yet."""
        if self._name is None:
            raise InvalidInput("The session has no name yet; use it with `async with`, or `open` it")
        return self._name

    @property
    def files(self) -> Files:
        """Its files."""
        return Files(self._calls, self.name)

    async def open(self) -> SessionModel:
        """Creates the session if missing; returns its model."""
        model = await self._gateway.create_session(self._name, **self._options)
        self._name = model.session
        self._made = True
        return model

    async def opened(self) -> str:
        """Its name; opens the session unless this object has done so."""
        async with self._opening:
            if not self._made:
                await self.open()
        return self.name

    async def __aenter__(self) -> Self:
        await self.opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it, unless it is to be kept, and its branches likewise."""
        if self._keep:
            await self._end_branches()
        else:
            await self.end()

    async def run(
        self,
        code: str,
        *,
        on_event: Callable[[Event], object] | None = None,
        on_cancel: Literal["interrupt", "continue"] = "interrupt",
        max_text: int | None = None,
        **options: Unpack[CellKeywords],
    ) -> Result:
        """Runs a cell and waits for its end; see `Gateway.execute`. A notebook displays the result."""
        check_code(code)
        check_on_cancel(on_cancel)
        cell_options(options)
        session = await self.opened()
        return await self._gateway.execute(
            session, code, on_event=on_event, on_cancel=on_cancel, max_text=max_text, **options
        )

    async def stream(self, code: str, **options: Unpack[CellKeywords]) -> AsyncGenerator[Event]:
        """Runs a cell; yields its events as they happen. Leaving the iteration early interrupts the cell.

        Options as of `Gateway.execute`.
        """
        check_code(code)
        cell_options(options)
        events = self._gateway.stream_execute(await self.opened(), code, on_disconnect="interrupt", **options)
        async with aclosing(events):
            async for event in events:
                yield event

    async def run_blocks(
        self,
        blocks: str | Sequence[tuple[str, str]],
        *,
        timeout: float | None = None,
        max_text: int | None = None,
        on_disconnect: str | None = None,
    ) -> BlocksResult:
        """Runs a Markdown text's fenced blocks, or pairs of language and code, in order until one fails.

        `max_text` as of `Gateway.execute`, `on_disconnect` as of `Gateway.execute_blocks`.
        """
        session = await self.opened()
        return await self._gateway.execute_blocks(
            session, blocks, timeout=timeout, max_text=max_text, on_disconnect=on_disconnect
        )

    async def install(self, *requirements: str, upgrade: bool = False) -> PackageChanges:
        """Installs packages such as ``"requests>=2"``, where the gateway's operator allows them."""
        return await self._gateway.packages(await self.opened(), install=requirements, upgrade=upgrade)

    async def uninstall(self, *names: str) -> PackageChanges:
        """Removes packages that were installed into this session."""
        return await self._gateway.packages(await self.opened(), uninstall=names)

    async def packages(self) -> list[Package]:
        """The packages that it has installed beside its kernel's environment."""
        return await self._gateway.installed(self.name)

    async def events(self, *, after: int = 0) -> AsyncGenerator[Event]:
        """Its events after `after`, those so far and then live ones to its end; see `Gateway.events`."""
        async with aclosing(self._gateway.events(self.name, after=after)) as events:
            async for event in events:
                yield event

    async def run_program(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> ProcessModel:
        """Runs a program beside its cells and waits for its end; see `Gateway.run_program`."""
        name = await self.opened()
        return await self._gateway.run_program(name, argv, env=env, cwd=cwd, timeout=timeout)

    async def start_program(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        timeout: float | None = None,
    ) -> ProcessModel:
        """Starts a program and doesn't wait for it; see `Gateway.start_program`."""
        name = await self.opened()
        return await self._gateway.start_program(name, argv, env=env, cwd=cwd, stdin=stdin, timeout=timeout)

    async def processes(self) -> list[ProcessModel]:
        """Its processes: all that run, and the last that ended."""
        return await self._gateway.processes(self.name)

    async def process(self, process: str) -> ProcessModel:
        """A process with its output so far; `Gateway.follow_program` yields its events as they happen."""
        return await self._gateway.process(self.name, process)

    async def write_program(self, process: str, data: str | bytes = b"", *, close: bool = False) -> None:
        """Sends input to a process that was started with `stdin`; `close` is the end of it."""
        await self._gateway.write_program(self.name, process, data, close=close)

    async def signal_program(self, process: str, signal: str) -> None:
        """Sends a signal such as ``SIGINT`` to a process and its group."""
        await self._gateway.signal_program(self.name, process, signal)

    async def end_program(self, process: str) -> None:
        """Ends a process; see `Gateway.end_program`."""
        await self._gateway.end_program(self.name, process)

    async def port_url(self, port: int) -> str:
        """A URL at which a browser sees what a program in it shows on a port; see `Gateway.port_url`."""
        return await self._gateway.port_url(self.name, port)

    async def result(self, execution: str, *, max_text: int | None = None) -> Result:
        """An execution's result so far. `max_text` as of `Gateway.execute`."""
        return await self._gateway.result(self.name, execution, max_text=max_text)

    async def model(self, *, usage: bool = False) -> SessionModel:
        """The gateway's model of it; with `usage` it has `memory`, `cpu` and `executions`."""
        return await self._gateway.get_session(self.name, usage=usage)

    async def complete(self, code: str, *, cursor: int | None = None) -> Completion:
        """What may stand at the cursor of the code; see `Gateway.complete`. No cell may run or wait."""
        return await self._gateway.complete(await self.opened(), code, cursor=cursor)

    async def inspect(self, code: str, *, cursor: int | None = None, detail: int = 0) -> Inspection:
        """What its kernel knows of the name at the cursor; see `Gateway.inspect`. No cell may run or wait."""
        return await self._gateway.inspect(await self.opened(), code, cursor=cursor, detail=detail)

    async def variables(self) -> VariableList:
        """Its Python kernel's variables; see `Gateway.variables`. No cell may run or wait."""
        return await self._gateway.variables(await self.opened())

    async def interrupt(self) -> None:
        """Interrupts the running cell, as Ctrl-C would."""
        await self._gateway.interrupt(self.name)

    async def restart(self) -> SessionModel:
        """Gives it a fresh kernel: its variables are lost, its files stay."""
        return await self._gateway.restart(self.name)

    async def branch(
        self,
        name: str | None = None,
        *,
        workspace: str = "copy",
        seed: int | None = None,
        anyway: bool = False,
        keep: bool | None = None,
    ) -> Session:
        """Makes a second session with all its variables; see `Gateway.branch`. No cell may run or wait in it.

        A branch that is not to be kept (`keep`; by default, one without a name) ends with its own
        ``async with`` block or `end`, at the latest with this session's. Without any of them it stays, as a
        session with a name does.

        Raises NotFound if a session with this name is not live: it is not made or resumed, for it would have
        nothing that a branch could go on with.
        """
        parent = await self.opened() if self._name is None else self._name
        model = await self._gateway.branch(parent, name, workspace=workspace, seed=seed, anyway=anyway)
        kept = name is not None if keep is None else keep
        branch = Session(self._gateway, self._calls, model.session, {}, keep=kept)
        branch._made = True
        if not kept:
            self._branches.append(branch)
        return branch

    async def explore(
        self,
        cells: Sequence[str],
        *,
        keep: str = "none",
        timeout: float | None = None,
        anyway: bool = False,
        max_text: int | None = None,
    ) -> Exploration:
        """Runs alternatives in branches of it, side by side; see `Gateway.explore`. No cell may run or wait.

        Branches that stay end with this session, as those of `branch` without a name.
        """
        parent = await self.opened() if self._name is None else self._name
        found = await self._gateway.explore(
            parent, cells, keep=keep, timeout=timeout, anyway=anyway, max_text=max_text
        )
        for each in found.results:
            if each.branch == "kept":
                branch = Session(self._gateway, self._calls, each.session, {}, keep=False)
                branch._made = True
                self._branches.append(branch)
        return found

    async def checkpoint(self, name: str | None = None, *, anyway: bool = False) -> CheckpointModel:
        """Keeps its variables and files as they are; see `Gateway.checkpoint`. No cell may run or wait."""
        session = await self.opened() if self._name is None else self._name
        return await self._gateway.checkpoint(session, name, anyway=anyway)

    async def checkpoints(self) -> list[CheckpointModel]:
        """What it can go back to, the oldest first."""
        return await self._gateway.checkpoints(self.name)

    async def roll_back(self, checkpoint: str | None = None) -> SessionModel:
        """Takes variables and files back to what they were; see `Gateway.roll_back`."""
        return await self._gateway.roll_back(self.name, checkpoint)

    async def undo(self) -> SessionModel:
        """Undoes its last cell; see `Gateway.undo`."""
        return await self._gateway.undo(self.name)

    async def tree(self) -> SessionTree:
        """The sessions that it continues as a branch, its branches, and its checkpoints."""
        return await self._gateway.tree(self.name)

    async def _end_branches(self) -> None:
        while self._branches:
            await self._branches.pop().end()

    async def replay(self, *, anyway: bool = False, rtol: float = 0.0) -> ReplayReport:
        """Runs its notebook again in a fresh kernel; returns a report. See `Gateway.replay`."""
        return await self._gateway.replay(self.name, anyway=anyway, rtol=rtol)

    async def notebook(self) -> dict[str, Any]:
        """Its record as a notebook. `save_notebook` writes one of any size to a file."""
        with tempfile.TemporaryDirectory(prefix="cellgate-") as folder:
            path = Path(folder) / "session.ipynb"
            await self._gateway.notebook(self.name, path)
            return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])

    async def save_notebook(self, path: Path | str, *, form: str | None = None) -> None:
        """Writes its record to a file; see `Gateway.notebook`. Without `form` its name says what it is.

        A name that ends in ``.zip`` is that of a bundle. Raises InvalidInput for one of another kind of file,
        such as ``.pdf``, unless `form` says what it is, such as ``ipynb``.
        """
        path = Path(path)
        form = form or form_of(path)
        if form == "bundle":
            await self._gateway.bundle(self.name, path)
        else:
            await self._gateway.notebook(self.name, path, form=None if form == "ipynb" else form)

    async def end(self) -> None:
        """Ends its kernel and removes its files; its record stays. It is no error if it has gone already.

        Ends its branches too, except those that are kept.
        """
        if self._name is None:
            return
        await self._end_branches()
        try:
            await self._gateway.delete_session(self._name)
        except NotFound:
            # Purged in the meantime: there is nothing left to end.
            return
        finally:
            self._made = False
