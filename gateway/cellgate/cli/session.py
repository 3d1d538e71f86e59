"""``cellgate session``: sessions from the shell: list, look at, stop, end and watch them.

Each action is one or a few calls of the client; ``watching`` shows a session's events.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import msgspec
from traitlets import Bool, Integer

from cellgate.cli.actions import choose_action, forms_of
from cellgate.cli.base import UsageError
from cellgate.cli.escaping import printed, printed_line
from cellgate.cli.sessions import ENDED, ListOptions
from cellgate.cli.tables import as_json
from cellgate.cli.watching import watch
from cellgate.client import ExecutionModel, Gateway, GatewayError, SessionModel
from cellgate_kernels.errors import InvalidInput

CONFLICT = 409
UNFINISHED = frozenset({"queued", "running"})


class SessionApp(ListOptions):
    """``cellgate session``."""

    name = "cellgate-session"
    usage = "ls|info|end|interrupt|restart|cancel|watch [SESSION] [options]"
    actions = {  # noqa: RUF012
        "ls": "",
        "info": "SESSION",
        "end": "SESSION...",
        "interrupt": "SESSION",
        "restart": "SESSION",
        "cancel": "SESSION [EXECUTION]",
        "watch": "SESSION",
    }
    forms = forms_of(actions)
    description = """
        ls lists your sessions, the one used last first. info says what is known of one, with the cells that
        run or wait.

        interrupt stops the running cell, as Ctrl-C would; cells that wait then run. cancel stops one cell,
        or without EXECUTION all that run or wait. restart gives the session a fresh kernel: variables are
        lost, files stay.

        end ends sessions: variables and files are removed, the record stays and can be exported. On a
        terminal it asks first.

        watch shows what happens in a session as it happens, whoever sends the cells, from the running cell
        on, until the session ends or Ctrl-C. It then says how to go on where it stopped.
    """
    examples = """
        cellgate session ls
        cellgate session ls --live --json
        cellgate session info my-session
        cellgate session watch my-session
        cellgate session watch my-session --after 0 --json
                                                  all events so far, one JSON object a line, then new ones
        cellgate session interrupt my-session
        cellgate session cancel my-session
        cellgate session restart my-session
        cellgate session end my-session --yes
    """

    yes = Bool(False, help="End without asking.").tag(config=True)
    after = Integer(
        None,
        allow_none=True,
        min=0,
        help="Watch from after this event, 0 for all; default: from the running cell on.",
    ).tag(config=True, metavar="SEQ")

    aliases = {"after": "SessionApp.after", **ListOptions.aliases}  # noqa: RUF012
    flags = {  # noqa: RUF012
        "yes": ({"SessionApp": {"yes": True}}, "End without asking."),
        **ListOptions.flags,
    }

    async def run_command(self) -> int:
        """Runs the action of the first argument."""
        action, words = choose_action("cellgate session", self.usage, self.actions, self.extra_args)
        match action:
            case "ls":
                await self.list_sessions()
            case "info":
                await self._info(words[0])
            case "end":
                return await self._end(words)
            case "interrupt":
                await self._interrupt(words[0])
            case "restart":
                await self._restart(words[0])
            case "cancel":
                await self._cancel(*words)
            case _:
                await watch(self.gateway(), words[0], after=self.after, json=self.json)
        return 0

    async def _info(self, name: str) -> None:
        gateway = self.gateway()
        model = await gateway.get_session(name)
        unfinished = await unfinished_cells(gateway, model)
        if self.json:
            self.print(as_json({**msgspec.to_builtins(model), "unfinished": unfinished}))
            return
        for label, text in _facts(model):
            self.print(f"{label.ljust(14)} {printed_line(text)}")
        for execution in unfinished:
            self.print(f"{execution.status.ljust(14)} {execution.execution}, since {execution.created_at}")

    async def _end(self, names: list[str]) -> int:
        gateway = self.gateway()
        models = [await gateway.get_session(name) for name in names]
        if sys.stdin.isatty() and not self.yes and not await asyncio.to_thread(_agreed, models):
            sys.stderr.write("Nothing was ended.\n")
            return 1
        for model in models:
            await gateway.delete_session(model.session)
            self.print(f"ended: {model.session}; the record stays: cellgate export {model.session}")
        return 0

    async def _interrupt(self, name: str) -> None:
        gateway = self.gateway()
        running = (await _live(gateway, name)).state == "busy"
        await gateway.interrupt(name)
        self.print(f"interrupted: {name}" if running else f"nothing runs in {name}")

    async def _restart(self, name: str) -> None:
        gateway = self.gateway()
        await _live(gateway, name)
        await gateway.restart(name)
        self.print(f"restarted: {name}; variables are gone, files are kept")

    async def _cancel(self, name: str, execution: str | None = None) -> None:
        gateway = self.gateway()
        if execution is not None:
            await gateway.cancel(name, execution)
            self.print(f"cancelled: {execution}")
            return
        cells = await unfinished_cells(gateway, await _live(gateway, name))
        if not cells:
            self.print(f"nothing runs or waits in {name}")
        # From the last one on: no cell that waits starts because the one before it is gone.
        for cell in reversed(cells):
            try:
                await gateway.cancel(name, cell.execution)
            except GatewayError as error:
                if error.status != CONFLICT:  # it has ended in the meantime
                    raise
            else:
                self.print(f"cancelled: {cell.execution}")


async def unfinished_cells(gateway: Gateway, model: SessionModel) -> list[ExecutionModel]:
    """The session's executions that run or wait, in their order."""
    if model.state == ENDED:
        return []
    return [each async for each in gateway.executions(model.session) if each.status in UNFINISHED]


async def _live(gateway: Gateway, name: str) -> SessionModel:
    """The model of a session. Raises UsageError for one that has ended."""
    model = await gateway.get_session(name)
    if model.state == ENDED:
        raise UsageError(f"{name} has ended; a cell, such as cellgate exec 1 --session {name}, resumes it")
    return model


def _agreed(models: list[SessionModel]) -> bool:
    """Whether the user says yes. Raises InvalidInput for input that is not text."""
    names = ", ".join(printed(model.session) for model in models)
    sys.stderr.write(f"End {names}? Variables and files are removed, the record stays. [y/N] ")
    sys.stderr.flush()
    try:
        return sys.stdin.readline().strip().lower() in {"y", "yes"}
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the answer is not text: {error}") from error


def _facts(model: SessionModel) -> Iterator[tuple[str, str]]:
    """What is known of a session, as labels and texts."""
    yield "session", model.session
    if model.title:
        yield "title", model.title
    yield "owner", model.principal
    gone = model.state in {"dead", ENDED}  # of others the cause says how they began
    yield "state", f"{model.state} ({model.cause})" if gone and model.cause else model.state
    if isinstance(model.problem, str):
        yield "problem", model.problem
    yield "kernel", model.kernel
    yield "isolation", model.isolation or "-"
    yield "created", model.created_at
    yield "last activity", model.last_activity
    yield "cells", f"{model.execution_count}, {model.queue_length} waiting"
    yield "limits", ", ".join(f"{name} {_amount(value)}" for name, value in model.limits.items())
    yield "network", model.network
    if model.metadata:
        yield "metadata", msgspec.json.encode(model.metadata).decode()
    yield "record", f"{model.seq} events, head {model.head}"


def _amount(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)
