"""One session as tools of a language model: what the model may do, and the texts and pictures it is shown.

Built on the Python client and on nothing of any provider. ``openai`` and ``anthropic`` speak providers'
wires, ``cellgate.mcp`` the Model Context Protocol, where there are more tools; all take these methods as they
are. Texts are cut to what a model can read, with a note on where the rest is. A cell that raises is a normal
result.
"""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType, TracebackType
from typing import Any, Final, Protocol, Self, TypeVar, cast

import msgspec
from msgspec import UnsetType

from cellgate.client import InvalidInput, ProcessModel, Result, Rollback, Session, SessionModel, SyncSession
from cellgate.client.blocking import Asynchronous, behind
from cellgate.client.images import ENCODED
from cellgate.execution.answer_size import shorten
from cellgate.integrations import definitions
from cellgate.integrations.definitions import Definition, define
from cellgate.integrations.sync import SyncSessionTools
from cellgate.wire.words import BranchWorkspace, KeptBranches, language_name
from cellgate_kernels.base.errors import CellgateError, nearest

F_co = TypeVar("F_co", covariant=True)

MAX_TEXT: Final = 8000
"""Maximum number of characters of one text that a model is shown."""

_MOST_IMAGES = 8
_MOST_TABLES = 8
_MOST_FILES = 200
_MOST_TRIED = 1024
_MOST_ENCODED = 5 * 1024 * 1024
"""Characters of a picture in base64. Providers refuse the whole request for a larger one."""
_MOST_OF_ALL = 15 * 1024 * 1024
"""Characters of all pictures of one answer."""
_MAX_IMAGE = _MOST_ENCODED // 4 * 3
_SUFFIXES: Final = MappingProxyType(
    {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif"}
)
_PATH = re.compile(r"(?<![^\s\"'(])/[^\s\"':,]++")
_CELL_FILE = re.compile(r"/ipykernel_[0-9]++/[0-9]++\.py\Z")
"""The end of the path that a kernel gives to a cell's code."""
_ELSEWHERE = "a file that it writes"
INHERITED_PATHS: Final = (
    "[cellgate: use relative paths there; absolute ones below /workspace are still this session's files]"
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that a model is shown: its type, such as ``image/png``, and its content in base64."""

    type: str
    data: str


AnySession = Session | SyncSession
"""A session of the asynchronous client, or of the blocking one."""

Content = list[str | Picture]
"""What a tool returns: texts and pictures, in their order."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What came of a call by name. `failed`: it was refused, and the text says why."""

    content: Content
    failed: bool = False

    @property
    def text(self) -> str:
        """The texts of the answer in one, without the pictures."""
        return "\n".join(part for part in self.content if isinstance(part, str))

    @property
    def pictures(self) -> list[Picture]:
        """The pictures of the answer."""
        return [part for part in self.content if isinstance(part, Picture)]


class _Faced(Protocol[F_co]):
    """A class of tools, by the class of its blocking facade."""

    @property
    def facade(self) -> type[F_co]: ...


class SessionTools(Asynchronous):
    """The tools. The session is created when one is first used; as a context manager they end it.

    `max_text`: how many characters of one text are shown. Methods raise GatewayError; `answer` tells of it
    instead. ``SessionTools.sync(...)`` makes tools whose methods block. The session may be a blocking one.
    """

    facade = SyncSessionTools

    def __init__(self, session: AnySession, *, max_text: int = MAX_TEXT) -> None:
        self._session: Session = behind(session)
        self._max_text = max_text
        self._branches: dict[str, Session] = {}
        # The branches of alternatives, which have ended: there is only their output to read.
        self._tried: deque[str] = deque(maxlen=_MOST_TRIED)

    @classmethod
    def sync(cls: type[_Faced[F_co]], session: AnySession, *, max_text: int = MAX_TEXT) -> F_co:
        """Return tools whose methods block, for code without ``await``; `close` them, or use ``with``."""
        # mypy looks for it in the protocol.
        return cast(F_co, super().sync(session, max_text=max_text))  # type: ignore[misc]

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the session as its own ``async with`` block would."""
        await self._session.__aexit__(kind, error, trace)

    @property
    def session(self) -> Session:
        """The session that they work in."""
        return self._session

    async def answer(self, name: str, arguments: Mapping[str, object] | str | bytes = b"") -> ToolAnswer:
        """Call a tool by its name, with arguments as an object or as JSON; a refusal is an answer, too."""
        try:
            definition = DEFINITIONS.get(name)
            if definition is None:
                raise InvalidInput(f"there is no tool {name!r}{_near(name)}")
            return ToolAnswer(await getattr(self, definition.name)(**definition.read(arguments)))
        except CellgateError as error:
            told = shorten(f"{error.reason}: {error.message}", self._max_text, "the gateway")
            return ToolAnswer([told], failed=True)

    # Running

    async def run_code(
        self,
        code: str,
        timeout: float | None = None,
        language: str | None = None,
        tables: int | None = None,
        branch: str | None = None,
    ) -> Content:
        """Run code as a notebook cell, in Python unless the session has another language. Variables stay.

        `timeout` is in seconds. If `language` (python, bash, javascript, typescript) is not the session's,
        the code runs as a separate program, with the same files and without the session's variables. The
        value of the last expression is shown, as in a notebook; figures are returned as images. With
        `tables`, a number of rows, DataFrames are also returned as JSON: schema, the first rows, total_rows.
        With `branch`, the name of one that branch_session made, it runs there instead.
        """
        execution = ""
        session = self._branch(branch)
        # Streamed, so that cancelling the call also stops its cell.
        named = language_name(language)
        events = session.stream(code, timeout=timeout, stdin=[], language=named, tables=tables)
        async with aclosing(events):
            async for event in events:
                execution = event.execution or execution
        return self.content(await session.result(execution, max_text=0), branch)

    async def read_output(
        self, execution: str, start: int = 0, length: int = MAX_TEXT, branch: str | None = None
    ) -> Content:
        """Read more of an execution's text that was cut: `length` characters from `start`.

        `branch`: the one that it ran in, if it did, also one of try_alternatives.
        """
        await self._session.opened()
        name = branch if branch is not None and branch in self._tried else self._branch(branch).name
        whole = (await self._session.gateway.result(name, execution, max_text=0)).text
        return [_window(_without_paths(whole), start, length)]

    async def run_program(
        self, argv: list[str], cwd: str | None = None, timeout: float | None = None
    ) -> Content:
        """Run a program such as ["git", "status"] and wait for its end, without a shell, beside the kernel.

        It runs even while code runs, and must end by itself. `cwd` is a folder of the session's files;
        `timeout` is in seconds. For a shell's features, run ["bash", "-c", "..."].
        """
        return [self.shown(await self._session.run_program(*argv, cwd=cwd, timeout=timeout))]

    # Files

    async def list_files(self) -> Content:
        """List the session's files and folders, one per line: size in bytes and path of a file.

        The path of a folder ends with a slash.
        """
        lines: list[str] = []
        await self._session.opened()
        listed = self._session.files.list(folders=True)
        async with aclosing(listed):
            async for file in listed:
                if len(lines) == _MOST_FILES:
                    lines.append("[cellgate: there are more; list a folder with run_code]")
                    break
                lines.append(file.path if file.folder is True else f"{file.size}  {file.path}")
        return ["\n".join(lines) or "[no files]"]

    async def read_file(self, path: str, start: int = 0, length: int = MAX_TEXT) -> Content:
        """Read a file of the session: `length` bytes of text from `start`, or a whole image."""
        start = max(0, start)
        length = max(1, min(length, 10 * MAX_TEXT))
        await self._session.opened()
        if kind := _SUFFIXES.get(PurePosixPath(path).suffix.lower()):
            data = await self._session.files.get(path, length=_MAX_IMAGE + 1)
            if len(data) > _MAX_IMAGE:
                raise InvalidInput(f"{path} is larger than {_MAX_IMAGE} bytes; make it smaller with run_code")
            return [Picture(kind, base64.b64encode(data).decode())]
        data = await self._session.files.get(path, start=start, length=length + 1)
        if b"\0" in data:
            raise InvalidInput(f"{path} is not text; examine it with run_code")
        more = f"\n[cellgate: there is more; read on at start {start + length}]" if len(data) > length else ""
        return [data[:length].decode(errors="replace") + more]

    async def write_file(self, path: str, text: str) -> Content:
        """Write a text file into the session. Replaces an existing file; creates missing folders."""
        await self._session.opened()
        model = await self._session.files.put(path, text)
        return [f"{model.action} {model.path}, {model.size} bytes"]

    # Going back, and trying

    async def undo_last_cell(self) -> Content:
        """Undo the last cell, with what it did to variables and files, even if the kernel died of it.

        It goes to the newest checkpoint from before that cell, and says how many cells that undid.
        """
        await self._session.opened()
        return [undone(await self._session.undo())]

    async def branch_session(self, shared_files: bool = False, anyway: bool = False) -> Content:
        """Make a branch: a second session with a copy of all variables, imports and files as they are now.

        Use it to try something without changing this session, or alternatives side by side; it takes a
        fraction of a second, however large the data. Returns its name, for `branch` of run_code. With
        `shared_files` both have the same files. What can't be copied, such as threads, is refused by name;
        `anyway` makes a branch without it. Nothing may run in this session. Branches end with it. Paths
        name the branch's own files there, unless the answer says otherwise.
        """
        await self._session.opened()
        workspace: BranchWorkspace = "shared" if shared_files else "copy"
        branch = await self._session.branch(workspace=workspace, anyway=anyway, keep=False)
        self._branches[branch.name] = branch
        if (await branch.model()).absolute_paths == "inherited":
            return [branch.name, INHERITED_PATHS]
        return [branch.name]

    async def try_alternatives(
        self, cells: list[str], timeout: float | None = None, anyway: bool = False, keep_first: bool = False
    ) -> Content:
        """Run alternatives to the next cell, each in a branch of its own, side by side; returns all results.

        This session stays as it is: run the best one with run_code then. With `keep_first` it goes on as the
        first one that ends without an error, in the order given, and those after that may be left out.
        `timeout` is in seconds, for each. `anyway` as of branch_session. At most 16 cells.
        """
        keep: KeptBranches = "first_ok" if keep_first else "none"
        await self._session.opened()
        found = await self._session.explore(cells, keep=keep, timeout=timeout, anyway=anyway, max_text=0)
        content: Content = []
        for number, each in enumerate(found.results, 1):
            chosen = ", as which the session goes on" if each.branch == "chosen" else ""
            content.append(f"[cellgate: alternative {number}{chosen}]")
            if each.branch == "skipped":
                content.append("[cellgate: it was not needed, or the exploration was stopped]")
                continue
            if not isinstance(each.problem, UnsetType):
                content.append(f"[cellgate: it did not run: {each.problem.detail}]")
                continue
            content += self.content(each, each.session)
            self._tried.append(each.session)
        return _together(content)

    # What a model is shown

    def content(self, result: Result, branch: str | None = None) -> Content:
        """Return what a model is shown of a cell's result: one text, and pictures after it."""
        where = f"read_output with execution {result.execution!r}"
        if branch is not None:
            where += f" and branch {branch!r}"
        parts = [f"[cellgate: {result.loss}]"] if result.loss else []
        if result.text:
            parts.append(shorten(_without_paths(result.text), self._max_text, where))
        if result.status not in {"ok", "error"}:
            parts.append(f"[cellgate: {result.status}" + (f", {result.cause}]" if result.cause else "]"))
        if result.files:
            named = ", ".join(f"{file.path} ({file.size} bytes)" for file in result.files[:_MOST_FILES])
            parts.append(shorten(f"[files written: {named}]", self._max_text, "list_files"))
        tables = result.tables
        parts += [_fitting(table, self._max_text) for table in tables[:_MOST_TABLES]]
        if len(tables) > _MOST_TABLES:
            parts.append(f"[cellgate: {len(tables)} tables; the first {_MOST_TABLES} are shown]")
        if problems := result.table_problems:
            parts.append(
                shorten(f"[cellgate: a table is not returned as JSON: {problems[0]}]", self._max_text, where)
            )
        every = list(_pictures(result))
        pictures = list(_small_enough(every[:_MOST_IMAGES]))
        if len(every) > _MOST_IMAGES:
            parts.append(f"[cellgate: {len(every)} images; the first {_MOST_IMAGES} are shown]")
        if large := min(len(every), _MOST_IMAGES) - len(pictures):
            parts.append(f"[cellgate: {large} of the images can't be shown, because of their size]")
        return ["\n".join(parts) or "[no output]", *pictures]

    def shown(self, process: ProcessModel) -> str:
        """Return what a program wrote, and its state below that."""
        written = [text for text in (process.stdout, process.stderr) if text]
        parts = [shorten(text, self._max_text, _ELSEWHERE) for text in written]
        return "\n".join([*parts, f"[cellgate: {state_of(process)}]"])

    def _branch(self, name: str | None) -> Session:
        """Return the branch of this name, or the session itself. Raises InvalidInput."""
        if name is None:
            return self._session
        if name not in self._branches:
            raise InvalidInput(f"there is no branch {name!r}; branch_session makes one and returns its name")
        return self._branches[name]


DEFINITIONS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        method.__name__: define(method)
        for method in (
            SessionTools.run_code,
            SessionTools.read_output,
            SessionTools.run_program,
            SessionTools.list_files,
            SessionTools.read_file,
            SessionTools.write_file,
            SessionTools.undo_last_cell,
            SessionTools.branch_session,
            SessionTools.try_alternatives,
        )
    }
)
"""The tools by their names, in the order in which models are told of them."""


def chosen(names: Iterable[str] | None = None) -> list[Definition]:
    """Return all definitions, or those of these names. Raises InvalidInput for a name of none."""
    wanted = list(DEFINITIONS if names is None else names)
    for name in wanted:
        if name not in DEFINITIONS:
            raise InvalidInput(f"there is no tool {name!r}{_near(name)}")
    return [DEFINITIONS[name] for name in wanted]


def tool_schemas(form: str, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return all or the named tools for a provider's API. `form`: of `FORMATS`. Raises InvalidInput."""
    return definitions.schemas(form, chosen(names))


def undone(model: SessionModel) -> str:
    """Return what a model is told of a rollback."""
    found = model.rolled_back
    if not isinstance(found, Rollback):
        return "rolled back"
    return f"went back to the checkpoint {found.checkpoint!r}; cells undone: {found.undone}"


def state_of(process: ProcessModel) -> str:
    """Return whether a program runs, or how it ended."""
    if process.state == "running":
        return "running"
    if process.exit_code is not None:
        return f"exit code {process.exit_code}"
    return f"ended by {process.signal or 'its kernel'}, {process.cause or 'by itself'}"


def _near(name: str) -> str:
    found = nearest(name[:100], list(DEFINITIONS))
    return f"; did you mean {found}?" if found else f"; there are {', '.join(DEFINITIONS)}"


def _fitting(table: dict[str, Any], limit: int) -> str:
    """Return the table as JSON of at most `limit` characters, cut to its first rows if necessary."""
    text = msgspec.json.encode(table).decode()
    rows = table.get("data")
    while len(text) > limit and isinstance(rows, list) and rows:
        rows = rows[: len(rows) // 2]
        text = msgspec.json.encode({**table, "data": rows}).decode()
    return shorten(text, limit, "the result at the gateway")


def _without_paths(text: str) -> str:
    """Return a cell's text without the names of the files that a kernel gives to cells, as in warnings."""
    return _PATH.sub(lambda found: "<cell>" if _CELL_FILE.search(found[0]) else found[0], text)


def _window(text: str, start: int, length: int) -> str:
    start = max(0, start)
    end = start + max(1, min(length, 10 * MAX_TEXT))
    more = f"\n[cellgate: {len(text)} characters in all; read on at start {end}]" if end < len(text) else ""
    return text[start:end] + more


def _pictures(result: Result) -> Iterator[Picture]:
    for output in result.outputs:
        data = output.get("data", {})
        kind = next((each for each in ENCODED if isinstance(data.get(each), str)), None)
        if kind is not None:
            yield Picture(kind, data[kind].replace("\n", ""))


def _together(content: Content) -> Content:
    """Return the content of several cells without the pictures that are too many for one answer."""
    kept: Content = []
    room = _MOST_OF_ALL
    left = 0
    for part in content:
        size = len(part.data) if isinstance(part, Picture) else 0
        if size > room:
            left += 1
            continue
        room -= size
        kept.append(part)
    return (
        [*kept, f"[cellgate: {left} of the images can't be shown, because of their size]"] if left else kept
    )


def _small_enough(pictures: Iterable[Picture]) -> Iterator[Picture]:
    """Yield the pictures that fit, each by itself and all together."""
    room = _MOST_OF_ALL
    for each in pictures:
        if len(each.data) <= min(room, _MOST_ENCODED):
            room -= len(each.data)
            yield each
