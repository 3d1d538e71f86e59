"""A Python kernel's environment: its Python version and packages, as reported by a kernel itself.

A kernel is asked because the interpreter may be in an image that only the kernel sees. It must have no
variables from a client and must not have run anybody's code; ``launcher`` chooses it. The answer is still
data from a kernel: its size is checked before it is decoded, and it becomes an `Environment`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from cellgate_kernels.base.tasks import until
from cellgate_kernels.protocol.distributions import Distribution
from cellgate_kernels.protocol.messages import Channel, Message, new_message

if TYPE_CHECKING:  # the client, which reads environments in records, has no zmq
    from cellgate_kernels.channels.connection import KernelConnection

T = TypeVar("T")

logger = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that a kernel may take to report its environment."""

MOST_PACKAGES = 5000
MAX_ANSWER = 512 * 1024
MAX_STATUS = 4 * 1024
"""The most bytes of a reply and of a status message that are decoded while waiting for an answer."""

_PYTHON = re.compile(r"([23])\.([0-9]{1,3})\.([0-9]{1,3})(?:(?:a|b|rc)[0-9]{1,3})?\+?", re.ASCII)
_MACHINE = re.compile(r"[A-Za-z0-9_]{1,32}", re.ASCII)
_LIBC = re.compile(r"(?:glibc|musl|libc) [0-9]{1,3}(?:\.[0-9]{1,4}){0,3}", re.ASCII)

# An object whose repr is the JSON itself: the repr of a string would have to be parsed as Python.
_AS_IT_IS = "(lambda told: type('Told', (), {'__repr__': lambda self: told})())(__import__('json').dumps(%s))"

# The first of two distributions of one name is the one that is imported.
EXPRESSION = _AS_IT_IS % (
    "(lambda m, p, r: {'python': p.python_version(), 'machine': p.machine(),"
    " 'libc': ' '.join(p.libc_ver()),"
    " 'packages': dict({r.sub('[-_.]+', '-', d.metadata['Name']).lower():"
    " (d.metadata['Name'], d.version or '')"
    " for d in reversed(list(m.distributions())) if d.metadata['Name']}.values())})"
    "(__import__('importlib.metadata').metadata, __import__('platform'), __import__('re'))"
)

# The names that the code imports and the kernel lacks: not imported, not on its path. The kernel parses the
# code: slow parsing delays nobody else.
MISSING = """
def missing(code):
    import ast, sys
    from importlib.machinery import PathFinder
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    found = {*sys.modules, *sys.builtin_module_names}
    modules = sorted({name.partition(".")[0] for name in names} - found)
    return [module for module in modules if PathFinder.find_spec(module) is None]
"""
_MISSING_OF = "(lambda given: (exec(given['source'], given), given['missing'](given['code']))[1])(%r)"


class RawEnvironment(msgspec.Struct, frozen=True):
    """An environment as reported, with types checked alone. `left_out`: packages its author left out."""

    python: str
    packages: dict[str, str]
    machine: str = ""
    libc: str = ""
    left_out: int = 0


class Environment(msgspec.Struct, frozen=True):
    """The version of Python, and the packages by name, each canonical name once. Made by `accept`.

    `machine` and `libc` (such as ``x86_64`` and ``glibc 2.36``) say which wheels run there; both may be
    empty. `left_out`: installed packages whose names or versions don't fit the grammars.
    """

    python: str
    packages: tuple[Distribution, ...] = ()
    machine: str = ""
    libc: str = ""
    left_out: int = 0

    def __post_init__(self) -> None:
        if not is_python(self.python):
            raise ValueError("this is no version of Python")
        if self.machine and not _MACHINE.fullmatch(self.machine):
            raise ValueError("this is no name of a machine")
        if self.libc and not _LIBC.fullmatch(self.libc):
            raise ValueError("this is no C library")
        if len({package.canonical for package in self.packages}) != len(self.packages):
            raise ValueError("a package is told twice")
        if len(self.packages) > MOST_PACKAGES or not 0 <= self.left_out <= MOST_PACKAGES:
            raise ValueError("there are too many packages")

    @property
    def release(self) -> tuple[int, int, int]:
        """Python's version as numbers, without the pre-release part."""
        match = _PYTHON.fullmatch(self.python)
        assert match is not None
        return int(match[1]), int(match[2]), int(match[3])

    def versions(self) -> dict[str, str]:
        """Return the versions by the packages' own names."""
        return {package.name: package.version for package in self.packages}

    def told(self) -> RawEnvironment:
        """Return the form in which the environment is stored; `accept` reads it."""
        return RawEnvironment(self.python, self.versions(), self.machine, self.libc, self.left_out)


def is_python(text: str) -> bool:
    """Return whether this is a version of Python, as ``platform.python_version`` gives it."""
    return _PYTHON.fullmatch(text) is not None


def accept(told: RawEnvironment) -> Environment | None:
    """Return the environment without packages that don't fit; None when the rest does not fit."""
    packages, left_out = distributions(told.packages)
    try:
        if len(told.packages) > MOST_PACKAGES:
            raise ValueError("there are too many packages")
        return Environment(
            told.python,
            packages,
            told.machine if _MACHINE.fullmatch(told.machine) else "",
            told.libc if _LIBC.fullmatch(told.libc) else "",
            min(count(told.left_out) + left_out, MOST_PACKAGES),
        )
    except ValueError as error:
        logger.warning("A kernel's report of its environment is not valid and is ignored: %s", error)
        return None


def count(told: object) -> int:
    """Return the reported number of packages left out; 0 for an invalid one."""
    return told if type(told) is int and 0 <= told <= MOST_PACKAGES else 0


def distributions(told: Mapping[Any, Any]) -> tuple[tuple[Distribution, ...], int]:
    """Return the packages of a mapping from names to versions, sorted by name, and how many did not fit.

    Of two with the same canonical name the first counts.
    """
    found: dict[str, Distribution] = {}
    left_out = 0
    for name, version in told.items():
        try:
            package = Distribution.read(name, version)
        except (TypeError, ValueError):
            left_out += 1
        else:
            found.setdefault(package.canonical, package)
    return tuple(sorted(found.values(), key=lambda package: package.name.lower())), left_out


async def ask(connection: KernelConnection, exited: asyncio.Future[Any]) -> Environment | None:
    """Return the kernel's answer; None if it is late or invalid."""
    answer = _decode(await _evaluate(connection, exited, EXPRESSION), RawEnvironment)
    return None if answer is None else accept(answer)


async def missing_modules(
    connection: KernelConnection, exited: asyncio.Future[Any], code: str, names: Collection[str]
) -> list[str]:
    """Return top-level modules that this code imports and an idle kernel lacks; none without an answer.

    The kernel may have run its user's code, so the answer is trusted only for that user. It can only select
    from `names`; without any, the kernel is not asked.
    """
    if not names:
        return []
    expression = _AS_IT_IS % (_MISSING_OF % ({"source": MISSING, "code": code},))
    answer = _decode(await _evaluate(connection, exited, expression), list[str])
    return sorted({*(answer or ())} & {*names})


class _Value(msgspec.Struct, frozen=True):
    data: dict[str, msgspec.Raw] = {}


class _Expressions(msgspec.Struct, frozen=True):
    value: _Value = _Value()


class _Reply(msgspec.Struct, frozen=True):
    user_expressions: _Expressions = _Expressions()


class _Status(msgspec.Struct, frozen=True):
    execution_state: str = ""


async def _evaluate(
    connection: KernelConnection, exited: asyncio.Future[Any], expression: str
) -> Message | None:
    """Return the reply to a request that evaluates an expression; None when it does not come in time."""
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
            idle = _is_idle(message.content_frame)
        progress.set()

    stop = connection.listen(receive)
    exited.add_done_callback(wake := lambda _: progress.set())
    try:
        connection.send(request)
        async with asyncio.timeout(PATIENCE):
            await until(lambda: exited.done() or (reply is not None and idle), progress)
    except TimeoutError:
        logger.warning("A kernel did not report its environment within %g s", PATIENCE)
        return None
    finally:
        exited.remove_done_callback(wake)
        stop()
    return reply


def _is_idle(content: bytes) -> bool:
    if len(content) > MAX_STATUS:
        return False
    try:
        return msgspec.json.decode(content, type=_Status).execution_state == "idle"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _decode(reply: Message | None, kind: type[T]) -> T | None:
    """Return the value of the reply's expression, as `kind`; None when it is too large or something else."""
    if reply is None:
        return None
    if len(reply.content_frame) > MAX_ANSWER:
        size = len(reply.content_frame)
        logger.warning("A kernel's report of its environment is too large and is ignored: %d bytes", size)
        return None
    try:
        shown = msgspec.json.decode(reply.content_frame, type=_Reply).user_expressions.value.data
        text = msgspec.json.decode(shown.get("text/plain", b"null"), type=str)
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        logger.warning("A kernel's report of its environment can't be read: %s", type(error).__name__)
        return None
