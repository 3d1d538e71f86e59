"""What a Python kernel's environment holds: its Python and its packages, as the kernel itself tells.

Asked of a kernel that nobody has used yet, so no user code can have a hand in the answer, and whatever the
backend: the interpreter may be in an image that only the kernel sees. ``kernel`` asks once per kernelspec.
"""

from __future__ import annotations

import ast
import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from kernels.connection import KernelConnection
from kernels.messages import Channel, Message, new_message

logger = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that a kernel may take to list its packages."""

# The first of two distributions of one name is the one that is imported.
EXPRESSION = (
    "(lambda m, p: __import__('json').dumps({'python': p.python_version(), 'machine': p.machine(),"
    " 'libc': ' '.join(p.libc_ver()),"
    " 'packages': dict(sorted({d.metadata['Name']: d.version for d in reversed(list(m.distributions()))"
    " if d.metadata['Name']}.items(), key=lambda i: i[0].lower()))}))"
    "(__import__('importlib.metadata').metadata, __import__('platform'))"
)


class Environment(msgspec.Struct, frozen=True):
    """The version of Python, and versions of packages by their names.

    `machine` and `libc` (such as ``x86_64`` and ``glibc 2.36``) say which wheels run there.
    """

    python: str
    packages: dict[str, str]
    machine: str = ""
    libc: str = ""


# Names that are no module of the kernel's: not imported, not on its path.
MISSING = (
    "[n for n in {names!r} if n not in __import__('sys').modules and n not in"
    " __import__('sys').builtin_module_names and"
    " __import__('importlib.machinery').machinery.PathFinder.find_spec(n) is None]"
)


async def ask(connection: KernelConnection, exited: asyncio.Future[Any]) -> Environment | None:
    """The kernel's answer; None when it gives none in time, or one that makes no sense."""
    return _environment(await _evaluate(connection, exited, EXPRESSION))


async def missing_modules(
    connection: KernelConnection, exited: asyncio.Future[Any], names: Iterable[str]
) -> list[str]:
    """Which of these top-level modules an idle Python kernel can't import; none when it does not answer.

    The kernel may have been used: the answer is its user's, and is believed for that user's sake alone.
    """
    wanted = sorted(names)
    told = await _evaluate(connection, exited, MISSING.format(names=wanted)) if wanted else None
    return [name for name in wanted if name in told] if isinstance(told, list) else []


async def _evaluate(connection: KernelConnection, exited: asyncio.Future[Any], expression: str) -> Any:
    """The value of an expression whose repr is a literal; None when there is none in time."""
    content = {
        "code": "",
        "silent": True,
        "store_history": False,
        "allow_stdin": False,
        "user_expressions": {"value": expression},
    }
    request = new_message(Channel.SHELL, "execute_request", content, session=connection.session)
    reply: Message | None = None
    idle = False
    progress = asyncio.Event()

    def receive(message: Message) -> None:
        nonlocal reply, idle
        if message.parent.msg_id != request.header.msg_id:
            return
        if message.msg_type == "execute_reply":
            reply = message
        elif message.msg_type == "status":
            idle = message.content().get("execution_state") == "idle"
        progress.set()

    stop = connection.listen(receive)
    exited.add_done_callback(wake := lambda _: progress.set())
    try:
        connection.send(request)
        async with asyncio.timeout(PATIENCE):
            await _until(lambda: exited.done() or (reply is not None and idle), progress)
    except TimeoutError:
        logger.warning("A kernel did not tell of its packages within %g s", PATIENCE)
        return None
    finally:
        exited.remove_done_callback(wake)
        stop()
    return None if reply is None else _read(reply)


def _environment(told: Any) -> Environment | None:
    if told is None:
        return None
    try:
        return msgspec.json.decode(told, type=Environment)
    except (TypeError, msgspec.MsgspecError) as error:
        logger.warning("A kernel's list of its packages can't be read: %r", error)
        return None


def _read(reply: Message) -> Any:
    try:
        return ast.literal_eval(reply.content()["user_expressions"]["value"]["data"]["text/plain"])
    except (KeyError, TypeError, ValueError, SyntaxError, RecursionError) as error:
        logger.warning("What a kernel tells of its packages can't be read: %r", error)
        return None


async def _until(condition: Callable[[], bool], progress: asyncio.Event) -> None:
    while not condition():
        progress.clear()
        await progress.wait()
