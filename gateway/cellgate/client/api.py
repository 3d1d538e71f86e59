"""`Session`, the calls of one session as methods, and `Gateway`, those of a gateway.

They speak HTTP through ``transport``, return ``values``, and know nothing of the server's internals.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import os
import tempfile
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack
from urllib.parse import quote, urlencode

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
    usage_query,
    words,
)
from cellgate.client.errors import ConnectionFailed, GatewayError, InvalidInput, NotFound, gateway_error
from cellgate.client.files import Files
from cellgate.client.other_names import no_attribute
from cellgate.client.sync import SyncGateway, SyncSession
from cellgate.client.transport import MOST_RESULT, SESSIONS, SYSTEM_TRUST, Server, Trust, lines
from cellgate.client.users import Users
from cellgate.client.values import (
    BlocksResult,
    EventLines,
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
    TableRows,
    VariableList,
)
from cellgate.wire.environments import AddedEnvironment, EnvironmentList, LockedEnvironment
from cellgate.wire.events import Event, Finished, Package, ProcessExited
from cellgate.wire.models import CellKeywords, SessionKeywords, TimesKeywords
from cellgate.wire.usage import UsageSum, UsageSums
from cellgate.wire.words import BranchWorkspace, CellOrder, KeptBranches, LanguageName, OnDisconnect, UsageBy

if TYPE_CHECKING:
    from cellgate.client.kernel import KernelQuestions

P = ParamSpec("P")
T = TypeVar("T")

_PAGE = 200
_EXECUTIONS = 1000
_CANCEL_TIMEOUT = 10.0
"""Seconds for which a caller that was cancelled waits until its cell is, too."""


def _cut_at(max_text: int | None) -> str:
    return "" if max_text is None else f"?max_text={max_text}"


class Session(Asynchronous):
    """A session of a gateway; made by `Gateway.session`. Methods raise GatewayError.

    Methods that run something create the session if it has not been used yet; others need its name. Arguments
    that can't be sent are InvalidInput.
    """

    facade = SyncSession

    def __init__(
        self,
        gateway: Gateway,
        calls: Calls,
        name: str | None,
        options: Mapping[str, Any],
        *,
        keep: bool,
        made: bool = False,
    ) -> None:
        self._gateway = gateway
        self._calls = calls
        self._name = name
        self._options = options
        self._keep = keep
        self._made = made
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
        """The session's key. Raises InvalidInput for an unnamed session that has not been used yet."""
        if self._name is None:
            raise InvalidInput("The session has no name yet; use it with `async with`, or `open` it")
        return self._name

    @property
    def files(self) -> Files:
        """The files of the session's workspace."""
        return Files(self._calls, self.name)

    def _path(self, *more: str) -> str:
        return session_path(self.name, *more)

    async def _own_path(self, *more: str) -> str:
        """Return a path below it; opens the session unless it has a name, be it live or not."""
        if self._name is None:
            await self.opened()
        return self._path(*more)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what is meant by a name that other products have for a method."""
            raise AttributeError(no_attribute("session", name), name=name, obj=self)

    # What there is of it

    async def open(self) -> SessionModel:
        """Create the session if missing; returns its model."""
        model = await self._gateway.create_session(self._name, **self._options)
        self._name = model.session
        self._made = True
        return model

    async def opened(self) -> str:
        """Return its name; opens the session unless this object has done so."""
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
        """End it, unless it is to be kept, and its branches likewise."""
        if self._keep:
            await self._end_branches()
        else:
            await self.end()

    async def _end_branches(self) -> None:
        while self._branches:
            await self._branches.pop().end()

    async def end(self) -> None:
        """End its kernel and remove its files; its record stays. It is no error if it has gone already.

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

    async def model(self, *, usage: bool = False) -> SessionModel:
        """Return the gateway's model of it; with `usage` it has `memory`, `cpu` and `executions`."""
        path = self._path() + ("?usage=true" if usage else "")
        return decode(await self._calls.call("GET", path), SessionModel)

    async def change(
        self,
        title: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        limits: TimesKeywords | None = None,
    ) -> SessionModel:
        """Change its title, its metadata as a whole, or the times of its limits, while it is live.

        `title`: of any letters; empty: none any more. What is not given stays.
        """
        body = given(title=title, metadata=metadata, limits=limits)
        return decode(await self._calls.call("PATCH", self._path(), body), SessionModel)

    async def interrupt(self) -> None:
        """Interrupt the running cell, as Ctrl-C would."""
        await self._calls.call("POST", self._path("interrupt"))

    async def restart(self) -> SessionModel:
        """Give it a fresh kernel: its variables are lost, its files stay."""
        return decode(await self._calls.call("POST", self._path("restart")), SessionModel)

    # Cells

    async def run(
        self,
        code: str,
        *,
        on_event: Callable[[Event], object] | None = None,
        on_cancel: Literal["interrupt", "continue"] = "interrupt",
        max_text: int | None = None,
        **options: Unpack[CellKeywords],
    ) -> Result:
        """Run a cell and wait for its end. A notebook displays the result.

        `timeout` in seconds; None is the session's own. `stdin`: lines, or a text, that answer `input()`.
        Code in a `language` other than the kernel's is run by a separate program, beside the kernel.
        `tables`: return pandas' tables as data too, with at most this many rows; see `Result.tables`.
        `packages`: ``auto`` installs missing packages that the cell imports, ``temporary`` for this cell.
        `env`: environment variables for this cell only. `silent`: without output and without counting.

        `max_text`: cut texts with more characters. By default the gateway cuts what is longer than 100,000,
        and limits the whole answer; 0 is all there is.
        `on_event` is called with each event while the cell runs, and awaited if it is asynchronous.
        A cell that raises is not an error here: see the result's `status`. A caller that is cancelled, as by
        `asyncio.wait_for`, interrupts the cell; with `on_cancel` ``continue`` it goes on. A lost connection
        doesn't interrupt it, unless there is an `on_event`.
        """
        check_code(code)
        check_on_cancel(on_cancel)
        given_options = cell_options(options)
        if on_event is None:
            return await self._run({"code": code, **given_options}, on_cancel, max_text)
        execution = None
        async with aclosing(self.stream(code, on_disconnect=on_cancel, **options)) as events:
            async for event in events:
                execution = event.execution or execution
                told = on_event(event)
                if inspect.isawaitable(told):
                    await told
        return await self.result(str(execution), max_text=max_text)

    async def _run(self, body: Mapping[str, Any], on_cancel: str, max_text: int | None) -> Result:
        await self.opened()
        path = self._path("execute")
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
                await self._cancel_sent({**body, "wait": False}, key)
            raise
        return decode(answer, Result)

    async def _cancel_sent(self, body: Mapping[str, Any], key: str) -> None:
        """Stop a cell that was sent with this idempotency key, by asking for it once more with the key."""
        path = self._path("execute")
        with suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(_CANCEL_TIMEOUT):
                known = await self._calls.call("POST", path, body, idempotency=key, most=MOST_RESULT)
                await self.cancel(decode(known, Result).execution)

    async def stream(
        self, code: str, *, on_disconnect: OnDisconnect | None = "interrupt", **options: Unpack[CellKeywords]
    ) -> AsyncGenerator[Event]:
        """Run a cell; yield its events as they happen, the last one `Finished`. Options as of `run`.

        Leaving the iteration early closes the connection (use `contextlib.aclosing`); `on_disconnect`,
        ``continue`` or ``interrupt``, decides what happens to the cell then.
        """
        check_code(code)
        body = given(code=code, on_disconnect=on_disconnect) | cell_options(options)
        await self.opened()
        async with aclosing(self._streamed("POST", self._path("execute"), encode(body))) as received:
            async for event in received:
                yield event
                if isinstance(event, Finished):
                    return
        raise gateway_error(0, "connection_lost", "The gateway ended the stream before the cell was finished")

    async def _streamed(self, method: str, path: str, body: bytes | None = None) -> AsyncGenerator[Event]:
        """Yield the events of one answer, as they arrive, without keep-alives."""
        request = self._calls.exchange(method, path, body=body, accept="application/x-ndjson")
        async with request as answer, aclosing(lines(answer.chunks(idle_timeout=IDLE_TIMEOUT))) as received:
            async for line in received:
                if (event := parse_event(line)) is not None:
                    yield event

    async def run_blocks(
        self,
        blocks: str | Sequence[tuple[str, str]],
        *,
        timeout: float | None = None,
        max_text: int | None = None,
        on_disconnect: OnDisconnect | None = None,
    ) -> BlocksResult:
        """Run a Markdown text's fenced blocks, or pairs of language and code, in order until one fails.

        `max_text` as of `run`. `on_disconnect`, ``continue`` or ``interrupt``, decides what happens to the
        block that runs when the connection is lost or the caller is cancelled; after an interrupted one no
        other runs.
        """
        body = given(timeout=timeout, on_disconnect=on_disconnect)
        if isinstance(blocks, str):
            body["markdown"] = blocks
        else:
            body["blocks"] = [{"language": language, "code": code} for language, code in blocks]
        await self.opened()
        path = self._path("execute-blocks") + _cut_at(max_text)
        answer = await self._calls.call("POST", path, body, timeout=None, most=MOST_RESULT)
        return decode(answer, BlocksResult)

    async def result(self, execution: str, *, max_text: int | None = None) -> Result:
        """Return an execution's result so far. `max_text` as of `run`."""
        path = self._path("executions", execution) + _cut_at(max_text)
        return decode(await self._calls.call("GET", path, most=MOST_RESULT), Result)

    async def executions(
        self, *, newest: bool = False, search: str | None = None
    ) -> AsyncGenerator[ExecutionModel]:
        """Yield its executions, oldest first unless `newest` is set; `result` has the rest of each.

        `search`: only those with this text in their code or outputs, in capital letters or not, oldest first.
        """
        pages = Pages(0)
        order = "&newest=true" if newest else ""
        if search is not None:
            order += f"&search={quote(search, safe='')}"
        while pages.after is not None:
            path = f"{self._path('executions')}?limit={_EXECUTIONS}&after={pages.after}{order}"
            page = decode(await self._calls.call("GET", path, most=MOST_RESULT), ExecutionPage)
            for model in page.executions:
                yield model
            pages.turn(page.next)

    async def cancel(self, execution: str) -> None:
        """Take the execution out of the queue, or interrupt it."""
        await self._calls.call("POST", self._path("executions", execution, "cancel"))

    async def answer_input(self, execution: str, value: str) -> None:
        """Send a line to a cell that is waiting for input (the event `InputRequest`)."""
        await self._calls.call("POST", self._path("executions", execution, "input"), {"value": value})

    async def events(self, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Event]:
        """Yield its events after the one with the `seq` `after`: those so far, then live ones to its end.

        Without `follow` only those so far. A lost connection is resumed where it broke off, so each event
        comes exactly once, in order. Use `contextlib.aclosing` to leave the iteration early.
        """
        path = self._path("events")
        if not follow:
            pages = Pages(after)
            while pages.after is not None:
                answer = await self._calls.call("GET", f"{path}?after={pages.after}", most=MOST_RESULT)
                page = decode(answer, EventLines)
                for line in page.events:
                    if (found := parse_event(bytes(line))) is not None:
                        yield found
                pages.turn(page.next)
            return
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

    # What its kernel knows

    async def complete(self, code: str, *, cursor: int | None = None) -> Completion:
        """Return what may stand at the cursor, by default at the end of the code. No cell may run or wait.

        Positions are in characters, as Python counts them. Raises Conflict for a session that is busy.
        """
        await self.opened()
        body = given(code=code, cursor=cursor)
        return decode(await self._calls.call("POST", self._path("complete"), body), Completion)

    async def inspect(self, code: str, *, cursor: int | None = None, detail: int = 0) -> Inspection:
        """Return what its kernel knows of the name at the cursor; with `detail` 1 its source too.

        No cell may run or wait. Raises Conflict for a session that is busy.
        """
        await self.opened()
        body = given(code=code, cursor=cursor) | {"detail": detail}
        return decode(await self._calls.call("POST", self._path("inspect"), body), Inspection)

    async def variables(self) -> VariableList:
        """Return its Python kernel's variables. No cell may run or wait: Conflict for a busy session."""
        await self.opened()
        return decode(await self._calls.call("GET", self._path("variables")), VariableList)

    async def rows(
        self,
        name: str,
        *,
        offset: int = 0,
        limit: int = 100,
        sort: str | None = None,
        descending: bool = False,
        matching: str | None = None,
        column: str | None = None,
        first_column: int = 0,
    ) -> TableRows:
        """Return a page of the rows of a table among its variables. No cell may run or wait.

        Tables are those of pandas, Polars, PyArrow and NumPy. `sort` names a column. `matching` is a text
        that a cell of each row must have in it; with `column`, the name of the one to look at, it may begin
        with a comparison: ``matching=">= 5"``. The next page begins after the rows of this one.

        Raises Conflict for a busy session or a variable that is no table, and NotFound if there is none.
        """
        await self.opened()
        wanted = given(sort=sort, descending="true" if descending else None, filter=matching, column=column)
        query = urlencode({"offset": offset, "limit": limit, "first_column": first_column} | wanted)
        target = f"{self._path('variables', name)}?{query}"
        return decode(await self._calls.call("GET", target), TableRows)

    def questions(self) -> KernelQuestions:
        """Make requests to its kernel other than cells, for prompts; `close` them at the end."""
        from cellgate.client.kernel import KernelQuestions  # noqa: PLC0415 - tornado, for prompts only

        return KernelQuestions(self._calls, self.name)

    # Packages

    async def install(self, *requirements: str, upgrade: bool = False) -> PackageChanges:
        """Install packages such as ``"requests>=2"``, where the gateway's operator allows them."""
        return await self._change_packages(install=requirements, upgrade=upgrade)

    async def uninstall(self, *names: str) -> PackageChanges:
        """Remove packages that were installed into this session."""
        return await self._change_packages(uninstall=names)

    async def _change_packages(
        self,
        *,
        install: Sequence[str] = (),
        uninstall: Sequence[str] = (),
        upgrade: bool = False,
        constraints: Sequence[str] = (),
    ) -> PackageChanges:
        """Install requirements into the session and remove packages by name; return the changes.

        `constraints` limit the versions of dependencies. `upgrade`: replace installed versions by newer ones.
        """
        body = {
            "install": list(install),
            "uninstall": list(uninstall),
            "upgrade": upgrade,
            "constraints": list(constraints),
        }
        await self.opened()
        return decode(
            await self._calls.call("POST", self._path("packages"), body, timeout=None), PackageChanges
        )

    async def packages(self) -> list[Package]:
        """Return the packages that it has installed beside its kernel's environment."""
        return decode(await self._calls.call("GET", self._path("packages")), Packages).packages

    # Branches and checkpoints

    async def branch(
        self,
        name: str | None = None,
        *,
        workspace: BranchWorkspace = "copy",
        seed: int | None = None,
        anyway: bool = False,
        keep: bool | None = None,
    ) -> Session:
        """Make a second session with a copy of its kernel: with all variables. No cell may run or wait in it.

        `name`: the new session's. `workspace`: ``copy`` or ``shared`` files. `seed`: for its random numbers,
        which otherwise go on as this session's. `anyway`: in spite of obstacles.

        A branch that is not to be kept (`keep`; by default, one without a name) ends with its own
        ``async with`` block or `end`, at the latest with this session's. Without any of them it stays, as a
        session with a name does.

        Raises Conflict for a session that is busy, and CannotBranch. Raises NotFound if a session with this
        name is not live: it is not made or resumed, for it would have nothing that a branch could go on with.
        """
        model = await self._branch(name, workspace=workspace, seed=seed, anyway=anyway)
        return self._branched(model.session, keep=name is not None if keep is None else keep)

    async def _branch(
        self,
        branch: str | None = None,
        *,
        workspace: BranchWorkspace = "copy",
        seed: int | None = None,
        anyway: bool = False,
    ) -> SessionModel:
        """Make a session with a copy of an idle session's kernel; return its model. See `Session.branch`."""
        body = given(session=branch, seed=seed) | {"workspace": workspace, "anyway": anyway}
        path = await self._own_path("branch")
        return decode(await self._calls.call("POST", path, body), SessionModel)

    def _branched(self, name: str, *, keep: bool) -> Session:
        """Return a branch that was made, which ends with this session unless it is to be kept."""
        branch = Session(self._gateway, self._calls, name, {}, keep=keep, made=True)
        if not keep:
            self._branches.append(branch)
        return branch

    async def explore(
        self,
        cells: Sequence[str],
        *,
        keep: KeptBranches = "none",
        timeout: float | None = None,
        anyway: bool = False,
        max_text: int | None = None,
    ) -> Exploration:
        """Run alternatives, each in a branch of it, side by side; return when all have ended.

        `keep`: ``none`` of the branches stays, or ``all``; with ``first_ok`` the session goes on as the first
        alternative, in the order given, that ends well. `timeout` is that of each cell, in seconds.
        `anyway`: in spite of obstacles. `max_text` as of `run`, of each result. No cell may run or wait.
        Raises as `branch` does if not even one cell can be run.

        Branches that stay end with this session, as those of `branch` without a name.
        """
        if isinstance(cells, str):
            raise TypeError("cells must be a list of codes, one for each alternative, not str")
        body = given(cells=list(cells), timeout=timeout) | {"keep": keep, "anyway": anyway}
        path = await self._own_path("explore") + _cut_at(max_text)
        key = uuid.uuid4().hex
        answer = await self._calls.call("POST", path, body, timeout=None, idempotency=key, most=MOST_RESULT)
        explored = decode(answer, Exploration)
        for each in explored.results:
            if each.session:
                self._calls.learn_branch(self._path(), session_path(each.session))
            if each.branch == "kept":
                self._branched(each.session, keep=False)
        return explored

    async def checkpoint(self, name: str | None = None, *, anyway: bool = False) -> CheckpointModel:
        """Keep its variables and files as they are now, to go back to with `roll_back`.

        `anyway`: in spite of obstacles. No cell may run or wait. Raises Conflict for a session that is busy
        and for a name that is taken, and CannotBranch.
        """
        body = given(name=name) | {"anyway": anyway}
        path = await self._own_path("checkpoints")
        return decode(await self._calls.call("POST", path, body), CheckpointModel)

    async def checkpoints(self) -> list[CheckpointModel]:
        """Return what it can go back to, the oldest first."""
        return decode(await self._calls.call("GET", self._path("checkpoints")), CheckpointList).checkpoints

    async def end_checkpoint(self, name: str) -> None:
        """End a checkpoint, which takes no memory then."""
        await self._calls.call("DELETE", self._path("checkpoints", name))

    async def roll_back(self, checkpoint: str | None = None) -> SessionModel:
        """Take variables and files back to what they were, by default at the newest checkpoint.

        A cell that runs is interrupted. The model's `rolled_back` says what was undone. Raises NotFound.
        """
        body = given(checkpoint=checkpoint)
        return decode(await self._calls.call("POST", self._path("rollback"), body), SessionModel)

    async def undo(self) -> SessionModel:
        """Undo its last cell; see `roll_back`. It needs a checkpoint from before the cell."""
        return decode(await self._calls.call("POST", self._path("undo")), SessionModel)

    async def tree(self) -> SessionTree:
        """Return the sessions that it continues as a branch, its branches, and its checkpoints."""
        return decode(await self._calls.call("GET", self._path("tree")), SessionTree)

    # Its record

    async def replay(self, *, anyway: bool = False, rtol: float = 0.0) -> ReplayReport:
        """Run its notebook again in a fresh kernel; return a report of the differences.

        `rtol`: how much two floating-point numbers may differ, relative to the larger one.
        """
        body = {"anyway": anyway, "rtol": rtol}
        answer = await self._calls.call("POST", self._path("replay"), body, timeout=None, most=MOST_RESULT)
        return decode(answer, ReplayReport)

    async def notebook(self, *, order: CellOrder = "record", file: str | None = None) -> dict[str, Any]:
        """Return its record as a notebook. `save_notebook` writes one of any size to a file.

        `order`: ``page`` for that of `file`, a notebook in its workspace, whose texts it has, too.
        """
        with tempfile.TemporaryDirectory(prefix="cellgate-") as folder:
            path = Path(folder) / "session.ipynb"
            await self._notebook(path, order=order, file=file)
            return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])

    async def save_notebook(
        self,
        path: Path | str,
        *,
        form: str | None = None,
        order: CellOrder = "record",
        file: str | None = None,
    ) -> None:
        """Write its record to a file; a failure leaves the file as it was.

        `order` and `file`: see `notebook`. Without `form` its name says what it is. A name that ends in
        ``.zip`` is that of a bundle, which has no other order. Raises InvalidInput for one of another kind of
        file, such as ``.pdf``, unless `form` says what it is, such as ``ipynb``.
        """
        path = Path(path)
        form = form or form_of(path)
        if form == "bundle":
            if order != "record" or file is not None:
                raise InvalidInput("A bundle has its cells in the order in which they ran")
            await self._bundle(path)
        else:
            await self._notebook(path, form=None if form == "ipynb" else form, order=order, file=file)

    async def _notebook(
        self,
        path: Path | Callable[[str], Path],
        *,
        outputs: bool = True,
        inherited: bool = True,
        undone: bool = True,
        order: CellOrder = "record",
        file: str | None = None,
        form: str | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Write the session's record to `path` as a notebook; a failure leaves `path` as it was.

        `path` may be a function of the name that the gateway gives the file. Returns it.

        `inherited`: whether a branch's begins with the cells before it was branched. `undone`: whether it
        has the cells that a rollback undid, as raw cells. `order`: ``page`` for that of `file`, a notebook in
        its workspace. `form`: ``html``, ``markdown`` or ``script``, by nbconvert. A script's name must not be
        one of another language than the session's.

        Raises OSError when the file can't be written.
        """
        shown = {"outputs": outputs, "inherited": inherited, "undone": undone}
        left_out = {name: "false" for name, wanted in shown.items() if not wanted}
        arranged = None if order == "record" else order
        query = urlencode(given(format=form, order=arranged, file=file, **left_out))
        target = self._path("notebook") + (f"?{query}" if query else "")
        if form == "script" and isinstance(path, Path):
            path = partial(as_script, path)
        return await self._calls.download(target, path, progress)

    async def _bundle(self, path: Path, *, progress: Progress | None = None) -> None:
        """Write the session with its files, lock and record to `path` as a zip file, whole or not at all."""
        await self._calls.download(self._path("bundle"), path, progress)

    async def provenance(self) -> dict[str, Any]:
        """Return its notebook without outputs: its metadata says where the cells ran."""
        target = self._path("notebook") + "?outputs=false"
        return decode(await self._calls.call("GET", target, most=MOST_RESULT), dict[str, Any])

    # Programs beside its cells

    async def run_program(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> ProcessModel:
        """Run a program beside its cells, in its sandbox, and wait for its end. No shell is used.

        `env` is added to the kernel's variables, `cwd` is a folder of the workspace. `timeout` in seconds;
        None is the session's `cell_timeout`.
        """
        return await self._program(given(argv=words(argv), env=env, cwd=cwd, timeout=timeout))

    async def start_program(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        timeout: float | None = None,
    ) -> ProcessModel:
        """Start a program as `run_program` does and don't wait; it runs until it, or its session, ends.

        With `stdin` it gets what `write_program` sends.
        """
        return await self._program(
            given(argv=words(argv), env=env, cwd=cwd, stdin=stdin, timeout=timeout, wait=False)
        )

    async def _program(self, body: Mapping[str, Any]) -> ProcessModel:
        await self.opened()
        return decode(
            await self._calls.call("POST", self._path("processes"), body, timeout=None), ProcessModel
        )

    async def follow_program(self, process: str) -> AsyncGenerator[Event]:
        """Yield all events of a process from its start, as they happen; the last one is `ProcessExited`."""
        async with aclosing(self._streamed("GET", self._path("processes", process))) as received:
            async for event in received:
                yield event
                if isinstance(event, ProcessExited):
                    return
        raise gateway_error(0, "connection_lost", "The gateway ended the stream before the process had ended")

    async def process(self, process: str) -> ProcessModel:
        """Return a process with its output so far; `follow_program` yields its events as they happen."""
        return decode(await self._calls.call("GET", self._path("processes", process)), ProcessModel)

    async def processes(self) -> list[ProcessModel]:
        """Return its processes: all that run, and the last that ended."""
        return decode(await self._calls.call("GET", self._path("processes")), ProcessList).processes

    async def write_program(self, process: str, data: str | bytes = b"", *, close: bool = False) -> None:
        """Send input to a process that was started with `stdin`; `close` is the end of it."""
        sent = data.encode() if isinstance(data, str) else data
        body = {"data_b64": base64.b64encode(sent).decode(), "close": close}
        await self._calls.call("POST", self._path("processes", process, "input"), body)

    async def signal_program(self, process: str, signal: str) -> None:
        """Send a signal such as ``SIGINT`` to a process and its group."""
        await self._calls.call("POST", self._path("processes", process, "signal"), {"signal": signal})

    async def end_program(self, process: str) -> None:
        """End a process: by SIGTERM, and five seconds later by SIGKILL. It is no error if it has ended."""
        await self._calls.call("DELETE", self._path("processes", process))

    async def port_url(self, port: int) -> str:
        """Return a URL at which a browser sees what a program in the session shows on a port.

        It works once, within a minute, where the gateway's operator serves ports.
        """
        return (await self.open_port(port)).url

    async def open_port(self, port: int) -> PortUrl:
        """Return what `port_url` answers with, and how long that works."""
        return decode(await self._calls.call("POST", self._path("ports", str(port))), PortUrl)


def _by_name(
    method: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Gateway, str, P], Coroutine[Any, Any, T]]:
    """Make of a session's method one of the gateway's, whose first argument is the session's name."""

    async def call(gateway: Gateway, session: str, *arguments: P.args, **options: P.kwargs) -> T:
        return await method(gateway._named(session), *arguments, **options)

    functools.update_wrapper(call, method)
    signature = inspect.signature(method)
    own, *others = signature.parameters.values()
    name = inspect.Parameter("session", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="str")
    call.__signature__ = signature.replace(parameters=[own, name, *others])  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]  # it takes the name as a keyword, too


class Gateway(Asynchronous):
    """A gateway at `url`. Each call is one request on its own connection; calls may run concurrently.

    All methods raise GatewayError, and InvalidInput for an argument that can't be sent. Calls that can safely
    be repeated (reads, the opening and the end of a session, and `execute`, by an idempotency key) are tried
    up to `attempts` times when the connection is lost. Unless that is 1, all wait for a while for the gateway
    of a cluster that has the session. `Gateway.sync(...)` makes one whose methods block.

    Methods whose first argument is a session's name are those of `Session`, for a session that there is.

    An https gateway's certificate must be one that the system trusts, or match `trust`.

    With `principal`, which administrators and auditors may name, sessions are that principal's; with ``*``
    the list of `sessions` is everybody's. No session can be created then.

    Without a `url` it is the one in CELLGATE_URL, or http://127.0.0.1:8888, and the token is by default the
    one in CELLGATE_TOKEN. White space around a token is none of it.
    """

    facade = SyncGateway

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        attempts: int = 3,
        trust: Trust = SYSTEM_TRUST,
        principal: str | None = None,
    ) -> None:
        if url is None:
            # Not with an address of the program's own: the token in the environment may be for another one.
            token = token or os.environ.get("CELLGATE_TOKEN")
            url = os.environ.get("CELLGATE_URL") or "http://127.0.0.1:8888"
        self._calls = Calls(Server(url, token and token.strip(), trust, principal), attempts)

    @classmethod
    def sync(
        cls,
        url: str | None = None,
        token: str | None = None,
        *,
        attempts: int = 3,
        trust: Trust = SYSTEM_TRUST,
        principal: str | None = None,
    ) -> SyncGateway:
        """Return a gateway whose methods block, for code without ``await``.

        `close` it, or use it with ``with``, to stop its thread; the exit of the interpreter does so too.
        """
        made: SyncGateway = super().sync(url, token, attempts=attempts, trust=trust, principal=principal)
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: nothing is open between calls."""

    def __repr__(self) -> str:
        return f"Gateway({self._calls.url!r})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what is meant by a name that other products have for a method."""
            raise AttributeError(no_attribute("gateway", name), name=name, obj=self)

    async def info(self) -> GatewayInfo:
        """Return the gateway's version, isolation and ceilings."""
        return decode(await self._calls.call("GET", "/v1/info"), GatewayInfo)

    async def environments(self) -> list[AddedEnvironment]:
        """Return the environments that the operator has added, which new sessions can name."""
        return decode(await self._calls.call("GET", "/v1/environments"), EnvironmentList).environments

    async def environment(self, name: str) -> LockedEnvironment:
        """Return an environment that the operator has added, with the lock of its packages."""
        path = f"/v1/environments/{quote(name, safe='')}"
        return decode(await self._calls.call("GET", path), LockedEnvironment)

    async def me(self) -> Me:
        """Return whose token this is, what it permits, and how much of their quotas its owner uses."""
        return decode(await self._calls.call("GET", "/v1/me"), Me)

    @property
    def users(self) -> Users:
        """The gateway's users, their tokens and secrets; for administrators, or about oneself."""
        return Users(self._calls)

    async def console_url(self) -> ConsoleUrl:
        """Return where a browser is signed in to the console as this token's user: once, within a minute."""
        return decode(await self._calls.call("POST", "/v1/console"), ConsoleUrl)

    async def execute_once(
        self,
        code: str,
        *,
        kernel: str | None = None,
        language: LanguageName | None = None,
        environment: str | None = None,
        max_text: int | None = None,
    ) -> Result:
        """Run a cell in a fresh kernel, which is discarded afterwards. `max_text` as of `execute`."""
        body = given(code=code, kernel=kernel, language=language, environment=environment)
        path = "/v1/execute" + _cut_at(max_text)
        return decode(await self._calls.call("POST", path, body, most=MOST_RESULT), Result)

    # Sessions

    def session(
        self, name: str | None = None, *, keep: bool | None = None, **options: Unpack[SessionKeywords]
    ) -> Session:
        """Return a session to work with, created when first used.

        The options apply only if it does not exist. As a context manager it ends after the block, unless
        `keep`; by default one with a name is kept.
        """
        wanted = session_options(options)
        return Session(self, self._calls, name, wanted, keep=name is not None if keep is None else keep)

    def _named(self, session: str) -> Session:
        """Return the session of this name, which no method creates."""
        return Session(self, self._calls, session, {}, keep=True, made=True)

    async def create_session(
        self,
        session: str | None = None,
        *,
        on_wait: Callable[[int], object] | None = None,
        **options: Unpack[SessionKeywords],
    ) -> SessionModel:
        """Return the session of this name, created if missing; without a name, a new one.

        `on_wait` is called with its position in line while all kernels are in use: how many get one first.
        """
        body = given(session=session, **session_options(options))
        path = None if session is None else session_path(session)
        # A repeat after a lost answer finds the session, which has a name of the gateway's then.
        key = uuid.uuid4().hex if session is None else None
        if on_wait is None:
            made = await self._calls.call("POST", SESSIONS, body, session=path, idempotency=key)
            return decode(made, SessionModel)
        now = asyncio.get_running_loop().time
        request = self._calls.exchange(
            "POST", SESSIONS, body=encode(body), accept="application/x-ndjson", session=path
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

    async def sessions(
        self,
        *,
        state: str | None = None,
        search: str | None = None,
        cells: bool = False,
        newest: bool = False,
        usage: bool = False,
    ) -> AsyncGenerator[SessionModel]:
        """Yield all sessions of this principal, ended ones included, in the order in which they were created.

        `state` selects those in one state, ``live`` all that have not ended; `search` those whose key or
        title has this text, and with `cells` also those whose cells have it in their code or outputs.
        `newest`: the last ones first. `usage`: with `memory`, `cpu` and `executions`.
        """
        wanted = given(state=state, search=search, limit=_PAGE)
        switches = (("cells", cells), ("newest", newest), ("usage", usage))
        wanted |= {name: "true" for name, asked in switches if asked}
        pages = Pages("")
        while pages.after is not None:
            query = urlencode(wanted | given(after=pages.after or None))
            page = decode(await self._calls.call("GET", f"/v1/sessions?{query}"), SessionPage)
            for model in page.sessions:
                yield model
            pages.turn(page.next)

    async def usage(
        self, *, by: UsageBy = "principal", begin: str | None = None, end: str | None = None
    ) -> AsyncGenerator[UsageSum]:
        """Yield what this principal's cells used that ended from `begin` on and before `end`, in sums.

        `by`: what each sum is of, a ``principal``, a ``session`` or a ``day`` in UTC. Times are days, such as
        ``2026-11-01``, or times of RFC 3339; by default this month so far.
        """
        pages = Pages("")
        while pages.after is not None:
            query = usage_query(by, begin, end) | given(limit=_PAGE, after=pages.after or None)
            page = decode(await self._calls.call("GET", f"/v1/usage/sums?{urlencode(query)}"), UsageSums)
            # The next page is of the same time.
            begin, end = page.begin, page.end
            for each in page.sums:
                yield each
            pages.turn(page.next)

    async def save_usage(
        self,
        path: Path | str,
        *,
        by: UsageBy = "principal",
        begin: str | None = None,
        end: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Write the sums of `usage` to a file; a failure leaves the file as it was.

        A name that ends in ``.csv`` is that of a table, one that ends in ``.zip`` that of an archive with the
        table, its hash and the gateway's signature. Raises InvalidInput for another one.
        """
        path = Path(path)
        form = path.suffix.lower().removeprefix(".")
        if form not in {"csv", "zip"}:
            raise InvalidInput(f"{path}: a table's name ends in .csv, and that of one with a seal in .zip")
        query = usage_query(by, begin, end) | {"format": form}
        await self._calls.download(f"/v1/usage/export?{urlencode(query)}", path, progress)

    async def delete_session(self, session: str) -> None:
        """End the session's kernel; its record stays."""
        path = session_path(session)
        await self._calls.call("DELETE", path, session=path)

    async def purge_session(self, session: str) -> None:
        """End the session and remove its record for good; only a tombstone stays."""
        await self._calls.call("DELETE", session_path(session) + "?purge=true")

    # Calls of the session of this name

    get_session = _by_name(Session.model)
    interrupt = _by_name(Session.interrupt)
    restart = _by_name(Session.restart)
    execute = _by_name(Session.run)
    execute_blocks = _by_name(Session.run_blocks)
    result = _by_name(Session.result)
    cancel = _by_name(Session.cancel)
    answer_input = _by_name(Session.answer_input)
    complete = _by_name(Session.complete)
    inspect = _by_name(Session.inspect)
    variables = _by_name(Session.variables)
    rows = _by_name(Session.rows)
    packages = _by_name(Session._change_packages)
    installed = _by_name(Session.packages)
    branch = _by_name(Session._branch)
    explore = _by_name(Session.explore)
    checkpoint = _by_name(Session.checkpoint)
    checkpoints = _by_name(Session.checkpoints)
    end_checkpoint = _by_name(Session.end_checkpoint)
    roll_back = _by_name(Session.roll_back)
    undo = _by_name(Session.undo)
    tree = _by_name(Session.tree)
    replay = _by_name(Session.replay)
    notebook = _by_name(Session._notebook)
    bundle = _by_name(Session._bundle)
    provenance = _by_name(Session.provenance)
    process = _by_name(Session.process)
    processes = _by_name(Session.processes)
    write_program = _by_name(Session.write_program)
    signal_program = _by_name(Session.signal_program)
    end_program = _by_name(Session.end_program)
    port_url = _by_name(Session.port_url)
    open_port = _by_name(Session.open_port)

    def stream_execute(
        self,
        session: str,
        code: str,
        *,
        on_disconnect: OnDisconnect | None = None,
        **options: Unpack[CellKeywords],
    ) -> AsyncGenerator[Event]:
        """Run a cell; see `Session.stream`. Without `on_disconnect` it goes on when the iteration is left."""
        return self._named(session).stream(code, on_disconnect=on_disconnect, **options)

    def events(self, session: str, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Event]:
        """Yield the session's events, those so far and then live ones to its end; see `Session.events`."""
        return self._named(session).events(after=after, follow=follow)

    def executions(
        self, session: str, *, newest: bool = False, search: str | None = None
    ) -> AsyncGenerator[ExecutionModel]:
        """Yield the session's executions, oldest first unless `newest` is set; see `Session.executions`."""
        return self._named(session).executions(newest=newest, search=search)

    def follow_program(self, session: str, process: str) -> AsyncGenerator[Event]:
        """Yield all events of a process from its start, as they happen; see `Session.follow_program`."""
        return self._named(session).follow_program(process)

    async def run_program(
        self,
        session: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> ProcessModel:
        """Run a program and wait for its end; see `Session.run_program`."""
        return await self._named(session).run_program(*words(argv), env=env, cwd=cwd, timeout=timeout)

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
        """Start a program and don't wait for it; see `Session.start_program`."""
        return await self._named(session).start_program(
            *words(argv), env=env, cwd=cwd, stdin=stdin, timeout=timeout
        )

    def questions(self, session: str) -> KernelQuestions:
        """Make requests to a live session's kernel other than cells; see `Session.questions`."""
        return self._named(session).questions()
