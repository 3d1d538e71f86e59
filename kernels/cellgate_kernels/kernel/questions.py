"""Questions to an idle kernel besides cells: completions, the meaning of a name, its variables.

They go over the shell channel, where a kernel answers one request after the other, so a kernel with a running
cell can't be asked. Nothing is executed as a cell, counted or recorded. ``inside/variables.py`` answers about
variables; the others are Jupyter's own ("Messaging in Jupyter", sections "Completion" and "Introspection").
``rows`` asks for the rows of a table.
Cells can forge a kernel's answer: its size is limited before it is read, and it becomes a typed value. A
false answer deceives only the kernel's user; an invalid one counts as empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from cellgate_kernels.base.errors import KernelBusy, KernelDied
from cellgate_kernels.base.resources import KIB, MIB
from cellgate_kernels.base.tasks import until
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.protocol.contents import content_of, printable
from cellgate_kernels.protocol.messages import Channel, Message, new_message

T = TypeVar("T", bound=msgspec.Struct)

VARIABLES: Final = "cellgate_variables_request"
FEATURE: Final = "cellgate variables"
"""Stands in the supported features of a kernel_info_reply. Both are named in ``inside/variables.py``."""

ANSWER_TIMEOUT: Final = 60.0
"""Seconds. A kernel's first completion takes two of an idle processor: jedi reads Python's own names."""
REPLY_TIMEOUT: Final = 1.0
"""Seconds to wait for a reply after the kernel says that it is done: the reply comes over another socket."""
INTERRUPT_TIMEOUT: Final = 2.0

MOST_BYTES: Final = 4 * MIB
"""Most bytes of an answer, also as objects in memory."""
MOST_MATCHES: Final = 1000
MOST_MATCH: Final = 1000
"""Characters of a match; longer ones are left out."""
MOST_TYPE: Final = 100
MOST_FORMS: Final = 8
"""MIME types of an inspection."""
MOST_FORM: Final = 128 * KIB
"""Most characters of one type's text; a longer one is left out."""
MOST_VARIABLES: Final = 1000

_TYPES: Final = "_jupyter_types_experimental"
_SHOWN: Final = 80

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Text = Annotated[str, msgspec.Meta(max_length=200)]


class KernelCompletion(msgspec.Struct, frozen=True):
    """Completions for the code from `start` to `end`, in Unicode code points.

    `types`: of each match, such as ``function``; empty if unknown. `truncated`: whether some are missing.
    """

    matches: list[str]
    start: int
    end: int
    types: list[str] = []
    truncated: bool = False


class KernelInspection(msgspec.Struct, frozen=True):
    """A kernel's information about a name: texts by MIME type; none if the name is unknown."""

    data: dict[str, str] = {}


class Variable(msgspec.Struct, frozen=True):
    """A variable. `size`: bytes of its data, if that is known. `rows`: how many a table has, that opens."""

    name: _Text
    type: _Text = ""
    summary: _Text = ""
    size: _Count | None = None
    rows: _Count | None = None


class KernelVariables(msgspec.Struct, frozen=True):
    """Variables in the order of their definition. `truncated`: whether there are more."""

    variables: Annotated[list[Variable], msgspec.Meta(max_length=MOST_VARIABLES)]
    truncated: bool = False


class _Match(msgspec.Struct, frozen=True):
    text: str = ""
    type: str = ""


class _Types(msgspec.Struct, frozen=True):
    found: list[_Match] = msgspec.field(default_factory=list, name=_TYPES)


class _Completed(msgspec.Struct, frozen=True):
    matches: list[str]
    cursor_start: int
    cursor_end: int


class _Described(msgspec.Struct, frozen=True):
    metadata: _Types


class _Inspected(msgspec.Struct, frozen=True):
    found: bool
    data: dict[str, Any]


async def complete(
    connection: KernelConnection, exited: asyncio.Future[KernelExit], code: str, cursor: int
) -> KernelCompletion:
    """Ask for completions at the cursor. Raises the errors of `ask`."""
    asked = {"code": code, "cursor_pos": cursor}
    content = await ask(connection, exited, "complete_request", asked, "complete_reply")
    return completion_of(content, len(code), cursor)


async def inspect(
    connection: KernelConnection, exited: asyncio.Future[KernelExit], code: str, cursor: int, detail: int
) -> KernelInspection:
    """Inspect the name at the cursor; with `detail` 1 its source too. Raises the errors of `ask`."""
    question = {"code": code, "cursor_pos": cursor, "detail_level": detail}
    return inspection_of(await ask(connection, exited, "inspect_request", question, "inspect_reply"))


async def variables(
    connection: KernelConnection, exited: asyncio.Future[KernelExit], *, texts: bool = True
) -> KernelVariables:
    """Return the variables of a kernel that has the `FEATURE`. Raises as `ask`.

    `texts`: whether text may be shown. The kernel cuts text, so a secret in it could not be found here.
    """
    content = await ask(connection, exited, VARIABLES, {"texts": texts}, "cellgate_variables_reply")
    return variables_of(content)


class _Progress:
    """A kernel's progress with one request."""

    def __init__(self, reply_type: str, exited: asyncio.Future[KernelExit], most_bytes: int) -> None:
        self.reply: Message | None = None
        self.begun = False
        self.over = False
        self._reply_type = reply_type
        self._most_bytes = most_bytes
        self._exited = exited
        self._changed = asyncio.Event()

    def room(self, message: Message) -> int:
        """Return at once: only the reply is read."""
        return self._most_bytes if self._is_reply(message) else 0

    def _is_reply(self, message: Message) -> bool:
        return message.channel is Channel.SHELL and message.msg_type == self._reply_type

    def receive(self, message: Message) -> None:
        """Note a message about the request."""
        if self._is_reply(message):
            self.reply = message
        elif message.channel is Channel.IOPUB and message.msg_type == "status":
            state = content_of(message).get("execution_state")
            self.begun = self.begun or state == "busy"
            self.over = self.over or state == "idle"
        self._changed.set()

    def wake(self, _: object = None) -> None:
        """Wake the waiter: the kernel may have ended."""
        self._changed.set()

    async def finished(self) -> None:
        """Return when there is a reply, or can be none any more.

        Raises TimeoutError. The reply may come after the idle status, because it uses another socket.
        """
        async with asyncio.timeout(ANSWER_TIMEOUT):
            await until(lambda: self.over or self._has_ended(), self._changed)
        async with asyncio.timeout(REPLY_TIMEOUT):
            await until(self._has_ended, self._changed)

    def _has_ended(self) -> bool:
        return self.reply is not None or self._exited.done()


async def ask(
    connection: KernelConnection,
    exited: asyncio.Future[KernelExit],
    msg_type: str,
    question: Mapping[str, Any],
    reply_type: str,
    most_bytes: int = MOST_BYTES,
) -> dict[str, Any]:
    """Return the content of an idle kernel's reply; empty if the kernel has none, or an unreadable one.

    A reply of more than `most_bytes`, as they come or as objects in memory, is not decoded.

    The caller lets no cell begin until this returns. Raises KernelBusy without a reply in time: then a kernel
    that works on it has been interrupted. Raises KernelDied when the kernel has ended.
    """
    request = new_message(Channel.SHELL, msg_type, question, session=connection.session)
    progress = _Progress(reply_type, exited, most_bytes)
    stop = connection.follow(request.header.msg_id, progress.receive, room=progress.room)
    exited.add_done_callback(progress.wake)
    try:
        connection.send(request)
        await progress.finished()
    except TimeoutError:
        if progress.over:
            return {}
        if progress.begun:
            # This question keeps the kernel from its next cell.
            await _interrupt(connection, exited)
        raise KernelBusy(f"The kernel has not answered within {ANSWER_TIMEOUT:g} s") from None
    finally:
        exited.remove_done_callback(progress.wake)
        stop()
    if progress.reply is None:
        raise KernelDied(f"The kernel ended while it was asked. {exited.result().message}")
    content = content_of(progress.reply)
    return content if content.get("status") == "ok" else {}


async def _interrupt(connection: KernelConnection, exited: asyncio.Future[KernelExit]) -> None:
    """Interrupt the kernel's work; once this returns, the interrupt can't hit later work."""
    answer = connection.ask(Channel.CONTROL, "interrupt_request", {})
    waited: set[asyncio.Future[Any]] = {answer, exited}
    try:
        await asyncio.wait(waited, timeout=INTERRUPT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    finally:
        answer.cancel()


# What a kernel says, as values


def completion_of(content: Mapping[str, Any], length: int, cursor: int) -> KernelCompletion:
    """Return the completions in a reply to code of this length; none if it makes no sense."""
    told = _as(content, _Completed)
    if told is None or not 0 <= told.cursor_start <= told.cursor_end <= length:
        return KernelCompletion([], cursor, cursor)
    fitting = [match for match in told.matches if 0 < len(match) <= MOST_MATCH]
    matches = fitting[:MOST_MATCHES]
    described = _as(content, _Described)
    types: list[str] = []
    if described is not None and described.metadata.found:
        by_text = {each.text: printable(each.type, MOST_TYPE) for each in described.metadata.found}
        types = [by_text.get(match, "") for match in matches]
    return KernelCompletion(
        matches, told.cursor_start, told.cursor_end, types, truncated=len(matches) < len(told.matches)
    )


def inspection_of(content: Mapping[str, Any]) -> KernelInspection:
    """Read an inspect_reply; empty if it is invalid."""
    told = _as(content, _Inspected)
    if told is None or not told.found:
        return KernelInspection()
    texts = {
        mime: text
        for mime, text in told.data.items()
        if isinstance(text, str) and len(text) <= MOST_FORM and len(mime) <= MOST_TYPE and mime.isascii()
    }
    return KernelInspection(dict(list(texts.items())[:MOST_FORMS]))


def variables_of(content: Mapping[str, Any]) -> KernelVariables:
    """Return the variables in a reply; none if it makes no sense."""
    told = _as(content, KernelVariables)
    if told is None:
        return KernelVariables([], truncated=True)
    shown = [
        Variable(
            printable(each.name, len(each.name)),
            printable(each.type, _SHOWN),
            printable(each.summary, _SHOWN),
            each.size,
            each.rows,
        )
        for each in told.variables
    ]
    return KernelVariables(shown, told.truncated)


def _as(content: Mapping[str, Any], kind: type[T]) -> T | None:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError:
        return None
