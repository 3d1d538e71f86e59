"""``cellgate session``: sessions from the shell: list, look at, change, stop, end and watch them.

Each action is one or a few calls of the client; ``watching`` shows a session's events.
"""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import Callable, Coroutine, Iterator
from types import MappingProxyType
from typing import Any

import msgspec
from traitlets import Bool, Enum, Integer, Unicode

from cellgate.cli.actions import check_options, choose_action, forms_of
from cellgate.cli.base import UsageError, switches
from cellgate.cli.run.alternatives import alternative_lines
from cellgate.cli.run.branch_tree import tree_lines
from cellgate.cli.run.input import Lines
from cellgate.cli.run.sessions import ENDED, ListOptions, cells_of
from cellgate.cli.run.undone import checkpoint_lines, undone_text
from cellgate.cli.run.variables import print_variables
from cellgate.cli.run.watching import watch
from cellgate.cli.setting_checks import Duration
from cellgate.cli.terminal.escaping import printed, printed_line
from cellgate.cli.terminal.tables import as_json
from cellgate.client import BranchedFrom, ExecutionModel, Gateway, GatewayError, SessionModel
from cellgate.wire.answers import SessionEnd
from cellgate.wire.environments import SessionEnvironment
from cellgate.wire.models import MOST_SEED, TimesKeywords
from cellgate.wire.words import KeptBranches
from cellgate_kernels.base.resources import GIB, MIB

CONFLICT = 409
UNFINISHED = frozenset({"queued", "running"})
_OF_BYTES = frozenset({"memory", "disk"})
_OF_SECONDS = frozenset({"cell_timeout", "idle_timeout", "lifetime"})
"""Limits, by what they are counted in."""


class SessionApp(ListOptions):
    """``cellgate session``."""

    name = "cellgate-session"
    usage = (
        "ls|info|change|variables|end|interrupt|restart|cancel|undo|checkpoint|checkpoints|rollback|branch|explore|tree"
        "|watch|port [SESSION] [options]"
    )
    actions = {  # noqa: RUF012
        "ls": "",
        "info": "SESSION",
        "change": "SESSION",
        "variables": "SESSION",
        "end": "SESSION...",
        "interrupt": "SESSION",
        "restart": "SESSION",
        "cancel": "SESSION [EXECUTION]",
        "undo": "SESSION",
        "checkpoint": "SESSION",
        "checkpoints": "SESSION",
        "rollback": "SESSION [CHECKPOINT]",
        "branch": "SESSION",
        "explore": "SESSION CODE...",
        "tree": "SESSION",
        "watch": "SESSION",
        "port": "SESSION PORT",
    }
    forms = forms_of(actions)
    description = """
        ls lists your sessions, the one used last first. info says what is known of one, with the cells that
        run or wait. variables lists the variables of a Python kernel, while no cell runs or waits.

        change gives a live session another title, other metadata, or other times. What no option names stays.

        interrupt stops the running cell, as Ctrl-C would; cells that wait then run. cancel stops one cell,
        or without EXECUTION all that run or wait. restart gives the session a fresh kernel: variables are
        lost, files stay.

        undo takes back the last cell, with what it did to variables and files. The session needs a checkpoint
        from before it: one that was created with --checkpoints, by exec or console, makes one after each
        cell. checkpoint makes one now, checkpoints lists them, and rollback goes back to one, by default the
        newest. What is undone stays in the record.

        branch makes a second session that goes on from here with a copy of everything: variables, imports
        and files. No cell may run or wait. The two go their own ways then, and either may end first. The
        copied files are in another folder: relative paths are the branch's own, absolute ones below
        /workspace are still the first session's.

        explore tries alternatives to the next cell, side by side: each CODE runs in a branch of its own. It
        shows how each ended and what it printed; the session itself is as before, or with --keep-first as
        the first one that ended well has left it. The branches end then, unless --keep-all is given; their
        records stay. Exit code: 0 if one ended well, else 1.

        tree shows the sessions that one continues as a branch, and its own branches.

        end ends sessions: variables and files are removed, the record stays and can be exported. On a
        terminal it asks first.

        watch shows what happens in a session as it happens, whoever sends the cells, from the running cell
        on, until the session ends or Ctrl-C. It then says how to go on where it stopped.

        port prints an address at which a browser sees what a program in the session shows on a port, such as
        that of a web server. It works once, within a minute; --open opens it here. The gateway must have been
        started with --ports-port.
    """
    examples = """
        cellgate session ls
        cellgate session ls --live --json
        cellgate session ls --search my-
        cellgate session ls --search revenue --cells
        cellgate session info my-session
        cellgate session change my-session --title 'Report for May' --idle-time 7200
        cellgate session change my-session --on-idle end
        cellgate session variables my-session
        cellgate session watch my-session
        cellgate session watch my-session --after 0 --json
                                                  all events so far, one JSON object a line, then new ones
        cellgate session interrupt my-session
        cellgate session cancel my-session
        cellgate session restart my-session
        cellgate session checkpoint my-session --as loaded
        cellgate session checkpoints my-session
        cellgate session rollback my-session loaded
        cellgate session undo careful
        cellgate session branch my-session --as other-way
        cellgate session explore my-session 'x = 1; x' 'x = 2; x' --timeout 60
        cellgate session explore my-session 'y = 1 / 0' 'y = 1' --keep-first
        cellgate session tree my-session
        cellgate session port my-session 8000
        cellgate session end my-session --yes
    """

    options_of_some = MappingProxyType(
        {
            "yes": "end",
            "opened": "port",
            "after": "watch",
            "title": "change",
            "metadata": "change",
            "cell_time": "change",
            "idle_time": "change",
            "on_idle": "change",
            "made_as": "checkpoint branch",
            "shared": "branch",
            "seed": "branch",
            "anyway": "checkpoint branch explore",
            "keep_all": "explore",
            "keep_first": "explore",
            "timeout": "explore",
            "state": "ls",
            "live": "ls",
            "search": "ls",
            "cells": "ls",
        }
    )

    yes = Bool(False, help="End without asking.").tag(config=True)
    opened = Bool(False, help="Open the address of a port in a browser.").tag(config=True)
    after = Integer(
        None,
        allow_none=True,
        min=0,
        help="Watch from after this event, 0 for all; default: from the running cell on.",
    ).tag(config=True, metavar="SEQ")

    title = Unicode(None, allow_none=True, help="The session's title; '' for none any more.").tag(
        config=True, metavar="TEXT"
    )
    metadata = Unicode(
        None, allow_none=True, help="The session's metadata, a JSON object, instead of the present one."
    ).tag(config=True, metavar="JSON")
    # Not named as the gateway's own settings: variables for those would change sessions, too.
    cell_time = Duration(
        None, allow_none=True, help="Seconds that a cell may run that is sent from now on."
    ).tag(config=True, metavar="SECONDS")
    idle_time = Duration(
        None, allow_none=True, help="Seconds without use until it falls asleep, or ends."
    ).tag(config=True, metavar="SECONDS")
    on_idle = Enum(
        ("sleep", "end"),
        None,
        allow_none=True,
        help="After these seconds: sleep keeps its variables until its lifetime is over or others need its"
        " room, where its kernel can sleep; end loses them.",
    ).tag(config=True, metavar="WHAT")

    made_as = Unicode(
        help="The name of the branch or checkpoint; default: one that the gateway makes up."
    ).tag(config=True, metavar="NAME")
    shared = Bool(False, help="Let the branch use the same files, instead of a copy.").tag(config=True)
    seed = Integer(
        None,
        allow_none=True,
        min=0,
        max=MOST_SEED,
        help="Seed the branch's random numbers; default: they go on as the session's do.",
    ).tag(config=True, metavar="NUMBER")
    anyway = Bool(
        False, help="Branch or make a checkpoint in spite of obstacles, such as threads, which it lacks."
    ).tag(config=True)

    keep_all = Bool(False, help="Let all branches stay in which alternatives ran.").tag(config=True)
    keep_first = Bool(
        False, help="Let the session go on as the first alternative, in the order given, that ends well."
    ).tag(config=True)
    timeout = Duration(
        None, allow_none=True, help="Seconds that an alternative may take; default: the session's own limit."
    ).tag(config=True, metavar="SECONDS")

    aliases = {  # noqa: RUF012
        "after": "SessionApp.after",
        "title": "SessionApp.title",
        "metadata": "SessionApp.metadata",
        "cell-time": "SessionApp.cell_time",
        "idle-time": "SessionApp.idle_time",
        "on-idle": "SessionApp.on_idle",
        "as": "SessionApp.made_as",
        "seed": "SessionApp.seed",
        "timeout": "SessionApp.timeout",
        **ListOptions.aliases,
    }
    flags = {  # noqa: RUF012
        **switches(
            "SessionApp", shared=shared, anyway=anyway, keep_all=keep_all, keep_first=keep_first, yes=yes
        ),
        "open": ({"SessionApp": {"opened": True}}, str(opened.help)),
        **ListOptions.flags,
    }

    async def run_command(self) -> int:
        action, words = choose_action("cellgate session", self.usage, self.actions, self.extra_args)
        check_options(self, action)
        handlers: dict[str, Callable[..., Coroutine[Any, Any, int | None]]] = {
            "ls": self.list_sessions,
            "info": self._info,
            "change": self._change,
            "variables": self._variables,
            "end": self._end,
            "interrupt": self._interrupt,
            "restart": self._restart,
            "cancel": self._cancel,
            "undo": self._undo,
            "checkpoint": self._checkpoint,
            "checkpoints": self._checkpoints,
            "rollback": self._roll_back,
            "branch": self._branch,
            "explore": self._explore,
            "tree": self._tree,
            "watch": self._watch,
            "port": self._port,
        }
        return await handlers[action](*words) or 0

    async def _info(self, name: str) -> None:
        gateway = self.gateway()
        model = await gateway.get_session(name, usage=True)  # with the number of cells
        unfinished = await unfinished_cells(gateway, model)
        if self.json:
            self.print(as_json({**msgspec.to_builtins(model), "unfinished": unfinished}))
            return
        for label, text in _facts(model):
            self.print(f"{label.ljust(14)} {printed_line(text)}")
        for execution in unfinished:
            self.print(f"{execution.status.ljust(14)} {execution.execution}, since {execution.created_at}")

    async def _change(self, name: str) -> None:
        gateway = self.gateway()
        metadata = None if self.metadata is None else _metadata(self.metadata)
        limits: TimesKeywords = {}
        if self.cell_time is not None:
            limits["cell_timeout"] = self.cell_time
        if self.idle_time is not None:
            limits["idle_timeout"] = self.idle_time
        if self.on_idle is not None:
            limits["on_idle"] = "end" if self.on_idle == "end" else "sleep"
        if self.title is None and metadata is None and not limits:
            raise UsageError("give --title, --metadata, --cell-time, --idle-time or --on-idle")
        await _live(gateway, name)
        session = gateway.session(name)
        model = await session.change(self.title, metadata=metadata, limits=limits or None)
        self.print(as_json(model) if self.json else f"changed: {name}")
        if self.on_idle == "sleep" and model.can_sleep is not True:
            sys.stderr.write(
                "Its kernel can't sleep now: unless that changes, it ends, with its variables.\n"
            )

    async def _variables(self, name: str) -> None:
        gateway = self.gateway()
        await _live(gateway, name)
        found = await gateway.variables(name)
        if self.json:
            self.print(as_json(found))
        elif found.variables:
            print_variables(found)
        else:
            self.print(f"{name} has no variables")

    async def _watch(self, name: str) -> None:
        again = self.pasted("session", "watch", name, "--after")
        await watch(self.gateway(), name, after=self.after, json=self.json, again=again)

    async def _end(self, *names: str) -> int:
        gateway = self.gateway()
        models = [await gateway.get_session(name) for name in names]
        if sys.stdin.isatty() and not self.yes and not await _agreed(models):
            sys.stderr.write("Nothing was ended.\n")
            return 1
        for model in models:
            await gateway.delete_session(model.session)
            if not self.json:
                self.print(
                    f"ended: {model.session}; the record stays: {self.pasted('export', model.session)}"
                )
        if self.json:
            self.print(as_json([await gateway.get_session(model.session) for model in models]))
        return 0

    async def _port(self, name: str, port: str) -> None:
        if not port.isascii() or not port.isdecimal():
            raise UsageError(f"PORT is a number, not {port!r}")
        opened = await self.gateway().open_port(name, int(port))
        self.print(as_json(opened) if self.json else opened.url)
        if self.opened and not await asyncio.to_thread(webbrowser.open, opened.url):
            raise UsageError("there is no browser here; open the address in yours")

    async def _interrupt(self, name: str) -> None:
        gateway = self.gateway()
        running = (await _live(gateway, name)).state == "busy"
        await gateway.interrupt(name)
        if self.json:
            self.print(as_json({"session": name, "interrupted": running}))
        else:
            self.print(f"interrupted: {name}" if running else f"nothing runs in {name}")

    async def _restart(self, name: str) -> None:
        gateway = self.gateway()
        await _live(gateway, name)
        model = await gateway.restart(name)
        if self.json:
            self.print(as_json(model))
        else:
            self.print(f"restarted: {name}; variables are gone, files are kept")

    async def _undo(self, name: str) -> None:
        gateway = self.gateway()
        await _live(gateway, name)
        model = await gateway.undo(name)
        self.print(as_json(model) if self.json else undone_text(model))

    async def _roll_back(self, name: str, checkpoint: str | None = None) -> None:
        gateway = self.gateway()
        await _live(gateway, name)
        model = await gateway.roll_back(name, checkpoint)
        self.print(as_json(model) if self.json else undone_text(model))

    async def _checkpoint(self, name: str) -> None:
        gateway = self.gateway()
        await _live(gateway, name)
        model = await gateway.checkpoint(name, self.made_as or None, anyway=self.anyway)
        back = self.pasted("session", "rollback", name, model.name)
        self.print(as_json(model) if self.json else f"checkpoint: {model.name}; back to it: {back}")

    async def _checkpoints(self, name: str) -> None:
        gateway = self.gateway()
        await _live(gateway, name)
        found = await gateway.checkpoints(name)
        if self.json:
            self.print(as_json(found))
            return
        for line in checkpoint_lines(found):
            self.print(line)
        if not found:
            self.print(f"{name} has no checkpoint")

    async def _branch(self, name: str) -> None:
        gateway = self.gateway()
        await _live(gateway, name)
        model = await gateway.branch(
            name,
            self.made_as or None,
            workspace="shared" if self.shared else "copy",
            seed=self.seed,
            anyway=self.anyway,
        )
        if self.json:
            self.print(as_json(model))
        else:
            self.print(f"branched: {model.session}; it has the variables and files of {name}")

    async def _explore(self, name: str, *cells: str) -> int:
        gateway = self.gateway()
        await _live(gateway, name)
        if self.keep_all and self.keep_first:
            raise UsageError("--keep-all and --keep-first exclude each other")
        keep: KeptBranches = "all" if self.keep_all else "first_ok" if self.keep_first else "none"
        found = await gateway.explore(name, cells, keep=keep, timeout=self.timeout, anyway=self.anyway)
        if self.json:
            self.print(as_json(found))
        else:
            for line in alternative_lines(found):
                self.print(line)
        return 0 if any(each.status == "ok" for each in found.results) else 1

    async def _tree(self, name: str) -> None:
        gateway = self.gateway()
        tree = await gateway.tree(name)
        if self.json:
            self.print(as_json(tree))
            return
        for line in tree_lines(tree, await gateway.get_session(name)):
            self.print(line)

    async def _cancel(self, name: str, execution: str | None = None) -> None:
        gateway = self.gateway()
        if execution is not None:
            await gateway.cancel(name, execution)
            cancelled = [execution]
        else:
            cancelled = await _cancel_all(gateway, name)
        if self.json:
            self.print(as_json({"session": name, "cancelled": cancelled}))
            return
        for each in cancelled:
            self.print(f"cancelled: {each}")
        if not cancelled:
            self.print(f"nothing runs or waits in {name}")


async def unfinished_cells(gateway: Gateway, model: SessionModel) -> list[ExecutionModel]:
    """Return the session's executions that run or wait, in their order."""
    if model.state == ENDED:
        return []
    return [each async for each in gateway.executions(model.session) if each.status in UNFINISHED]


async def _cancel_all(gateway: Gateway, name: str) -> list[str]:
    """Cancel all running and queued executions of a session; return their ids."""
    cancelled = []
    # From the last one on: no cell that waits starts because the one before it is gone.
    for cell in reversed(await unfinished_cells(gateway, await _live(gateway, name))):
        try:
            await gateway.cancel(name, cell.execution)
        except GatewayError as error:
            if error.status != CONFLICT:  # it has ended in the meantime
                raise
        else:
            cancelled.append(cell.execution)
    return cancelled


async def _live(gateway: Gateway, name: str) -> SessionModel:
    """Return the model of a session. Raises UsageError for one that has ended."""
    model = await gateway.get_session(name)
    if model.state == ENDED:
        raise UsageError(f"{name} has ended; a cell, such as cellgate exec 1 --session {name}, resumes it")
    return model


def _metadata(text: str) -> dict[str, Any]:
    """Return the metadata in an option's text. Raises UsageError."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except ValueError as error:
        raise UsageError(f'--metadata is a JSON object, such as \'{{"team": "ml"}}\': {error}') from error


async def _agreed(models: list[SessionModel]) -> bool:
    """Return whether the user says yes. Raises InvalidInput for input that is not text."""
    names = ", ".join(printed(model.session) for model in models)
    sys.stderr.write(f"End {names}? Variables and files are removed, the record stays. [y/N] ")
    sys.stderr.flush()
    # Not by a thread, whose end Ctrl-C would wait for.
    answer = await Lines(sys.stdin.fileno()).next()
    return (answer or "").strip().lower() in {"y", "yes"}


def _facts(model: SessionModel) -> Iterator[tuple[str, str]]:
    """Yield a session's properties as labels and texts."""
    yield "session", model.session
    if model.title:
        yield "title", model.title
    yield "owner", model.principal
    gone = model.state in {"dead", ENDED}  # of others the cause says how they began
    yield "state", f"{model.state} ({model.cause})" if gone and model.cause else model.state
    if isinstance(model.problem, str):
        yield "problem", model.problem
    yield "kernel", model.kernel
    if isinstance(model.environment, SessionEnvironment):
        yield "environment", f"{model.environment.name} {model.environment.digest}"
    yield "isolation", model.isolation or "-"
    yield "created", model.created_at
    yield "last activity", model.last_activity
    yield "cells", f"{cells_of(model)}, {model.queue_length} waiting"
    yield "limits", ", ".join(f"{name} {_amount(name, value)}" for name, value in model.limits.items())
    yield from _times(model)
    yield "network", model.network
    if model.checkpoint == "auto":
        yield "checkpoints", "after each cell"
    if isinstance(model.branched_from, BranchedFrom):
        yield "branched from", f"{model.branched_from.session}, event {model.branched_from.seq}"
    if isinstance(model.shares_sandbox_with, list):
        yield "same sandbox", ", ".join(model.shares_sandbox_with)
    if model.absolute_paths == "inherited":
        yield "absolute paths", "of the session that it was branched from"
    if isinstance(model.shares_workspace_with, list):
        yield "same files", ", ".join(model.shares_workspace_with)
    if model.metadata:
        yield "metadata", msgspec.json.encode(model.metadata).decode()
    yield "record", f"{model.seq} events, head {model.head}"


def _times(model: SessionModel) -> Iterator[tuple[str, str]]:
    """Yield when a session falls asleep and when it ends, if it does either by itself."""
    if isinstance(model.sleeps_at, str):
        yield "falls asleep", f"{model.sleeps_at} unless it is used"
    if isinstance(model.ends, SessionEnd):
        yield "ends", f"{model.ends.at} ({model.ends.cause})"


def _amount(name: str, value: object) -> str:
    """Return a limit with its unit."""
    if not isinstance(value, int | float):
        return str(value)
    if name in _OF_BYTES:
        return f"{value / GIB:.4g} GiB" if value >= GIB else f"{value / MIB:.4g} MiB"
    return f"{value:.15g} s" if name in _OF_SECONDS else f"{value:.15g}"
