"""One session as tools of the Model Context Protocol: what a language model may do, and what it is shown.

A client of the gateway's HTTP API (``client``), built on the protocol's SDK (the extra ``mcp``); ``cli.mcp``
starts it, and ``http`` starts one for each client. Texts are cut to what a model can read, with a note on
where the rest is; pictures become image content. A cell that raises is a normal result; a refusal by the
gateway is a tool error.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ImageContent, TextContent
from msgspec import UnsetType

from cellgate.client import Result, Rollback, Session, SessionModel
from cellgate.client.calls import session_path
from cellgate.execution.answer_size import shorten
from cellgate.mcp.calls import progress, text_content, told
from cellgate.mcp.programs import ProgramTools
from cellgate_kernels.errors import in_words

Content = list[TextContent | ImageContent]

MAX_TEXT = 8000
"""Maximum number of characters of one text that a model is shown."""

_MOST_IMAGES = 8
_MOST_TABLES = 8
_MOST_FILES = 200
_MOST_TRIED = 1024
_MAX_IMAGE = 5 * 1024 * 1024
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_SUFFIXES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif"}
_INSTRUCTIONS = """
Runs code in one isolated Jupyter kernel that keeps its variables and files from call to call. Everything that
runs is recorded as a notebook. Long texts are cut in the middle; read_output and read_file return the rest.
"""
_NETWORK = """
Code reaches no network, unless the session was given one: then HTTP_PROXY and HTTPS_PROXY name a proxy, which
programs use by themselves, and whose refusals name the hosts that are allowed. Nothing else is reached.
"""


class SessionTools:
    """The tools. The session is created when one is first used.

    `notebooks`: the local folder that `export_notebook` writes to; None: it only returns the address.
    """

    def __init__(self, session: Session, notebooks: Path | None, max_text: int = MAX_TEXT) -> None:
        self._session = session
        self._notebooks = notebooks
        self._max_text = max_text
        self._branches: dict[str, Session] = {}
        # The branches of alternatives, which have ended: there is only their output to read.
        self._tried: deque[str] = deque(maxlen=_MOST_TRIED)

    def server(self, version: str, briefing: str = "") -> MCPServer[Any]:
        """A server that offers the tools. `briefing`: on the environment, if it is known."""
        instructions = _INSTRUCTIONS + (f"\n{briefing}\n" if briefing else _NETWORK)
        server: MCPServer[Any] = MCPServer(
            "cellgate", instructions=instructions, version=version, log_level="WARNING"
        )
        programs = ProgramTools(self._session, self._max_text)
        for tool in (
            self.run_code,
            self.run_blocks,
            self.read_output,
            programs.run_program,
            programs.start_program,
            programs.list_programs,
            programs.read_program,
            programs.write_program,
            programs.end_program,
            programs.open_port,
            self.list_files,
            self.read_file,
            self.write_file,
            self.make_folder,
            self.move_file,
            self.install_packages,
            self.list_variables,
            self.interrupt,
            self.restart,
            self.make_checkpoint,
            self.roll_back,
            self.undo_last_cell,
            self.branch_session,
            self.try_alternatives,
            self.export_notebook,
        ):
            server.tool(structured_output=False)(tool)
        return server

    # Running

    async def run_code(
        self,
        code: str,
        context: Context,
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
        async with told(self._session), progress(context):
            # Streamed, so that cancelling the call also stops its cell.
            events = session.stream(code, timeout=timeout, stdin=[], language=language, tables=tables)
            async with aclosing(events):
                async for event in events:
                    execution = event.execution or execution
            return self._content(await session.result(execution, max_text=0), branch)

    async def run_blocks(self, markdown: str, context: Context, timeout: float | None = None) -> Content:
        """Run the fenced blocks of a Markdown text in order, until one fails.

        Languages are python, bash, javascript and typescript; a block in another language than the session's
        runs as a separate program. A first line `# filename: NAME` saves the block under that name first.
        `timeout` is in seconds, for each block.
        """
        async with told(self._session), progress(context):
            done = await self._session.run_blocks(markdown, timeout=timeout, max_text=0)
        content = [part for result in done.blocks for part in self._content(result)]
        if done.problem is not None:
            content.append(text_content(f"[cellgate: the next block did not run: {done.problem.detail}]"))
        return [*content, text_content(f"[cellgate: exit code {done.exit_code}]")]

    async def read_output(
        self, execution: str, start: int = 0, length: int = MAX_TEXT, branch: str | None = None
    ) -> str:
        """Read more of an execution's text that was cut: `length` characters from `start`.

        `branch`: the one that it ran in, if it did, also one of try_alternatives.
        """
        name = branch if branch is not None and branch in self._tried else self._branch(branch).name
        async with told(self._session):
            whole = (await self._session.gateway.result(name, execution, max_text=0)).text
        return _window(whole, start, length)

    def _content(self, result: Result, branch: str | None = None) -> Content:
        where = f"read_output with execution {result.execution!r}"
        if branch is not None:
            where += f" and branch {branch!r}"
        parts = [f"[cellgate: {result.loss}]"] if result.loss else []
        if result.text:
            parts.append(shorten(result.text, self._max_text, where))
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
        images = list(_images(result))
        if len(images) > _MOST_IMAGES:
            parts.append(f"[cellgate: {len(images)} images; the first {_MOST_IMAGES} are shown]")
        return [text_content("\n".join(parts) or "[no output]"), *images[:_MOST_IMAGES]]

    # Files

    async def list_files(self) -> str:
        """List the session's files and folders, one per line: size in bytes and path of a file.

        The path of a folder ends with a slash.
        """
        lines: list[str] = []
        async with told(self._session):
            listed = self._session.files.list(folders=True)
            async with aclosing(listed):
                async for file in listed:
                    if len(lines) == _MOST_FILES:
                        lines.append("[cellgate: there are more; list a folder with run_code]")
                        break
                    lines.append(file.path if file.folder is True else f"{file.size}  {file.path}")
        return "\n".join(lines) or "[no files]"

    async def read_file(self, path: str, start: int = 0, length: int = MAX_TEXT) -> Content:
        """Read a file of the session: `length` bytes of text from `start`, or a whole image."""
        start = max(0, start)
        length = max(1, min(length, 10 * MAX_TEXT))
        async with told(self._session):
            if mime := _SUFFIXES.get(Path(path).suffix.lower()):
                data = await self._session.files.get(path, length=_MAX_IMAGE + 1)
                if len(data) > _MAX_IMAGE:
                    raise ToolError(
                        f"{path} is larger than {_MAX_IMAGE} bytes; make it smaller with run_code"
                    )
                return [ImageContent(type="image", data=base64.b64encode(data).decode(), mime_type=mime)]
            data = await self._session.files.get(path, start=start, length=length + 1)
        if b"\0" in data:
            raise ToolError(f"{path} is not text; examine it with run_code")
        more = f"\n[cellgate: there is more; read on at start {start + length}]" if len(data) > length else ""
        return [text_content(data[:length].decode(errors="replace") + more)]

    async def write_file(self, path: str, text: str) -> str:
        """Write a text file into the session. Replaces an existing file; creates missing folders."""
        async with told(self._session):
            model = await self._session.files.put(path, text)
        return f"{model.action} {model.path}, {model.size} bytes"

    async def make_folder(self, path: str) -> str:
        """Make a folder in the session, and those above it. It is no error if it exists."""
        async with told(self._session):
            await self._session.files.make_folder(path)
        return f"{path} is there"

    async def move_file(self, path: str, to: str) -> str:
        """Rename or move a file or a folder of the session. Nothing is replaced; missing folders are made."""
        async with told(self._session):
            moved = await self._session.files.move(path, to)
        return f"moved, with {len(moved)} {'file' if len(moved) == 1 else 'files'}"

    async def install_packages(self, requirements: list[str]) -> str:
        """Install Python packages such as "requests>=2", if the gateway's operator allows them."""
        async with told(self._session):
            changed = await self._session.install(*requirements)
        named = [f"{package.name} {package.version}" for package in changed.installed]
        return f"installed: {', '.join(named)}" if named else "all of them were there already"

    async def list_variables(self) -> str:
        """List the session's variables, one per line: name, type, and a summary such as a shape or a length.

        Only of Python, and only while nothing runs.
        """
        async with told(self._session):
            found = await self._session.variables()
        lines = [f"{each.name}: {each.type}  {each.summary}".rstrip() for each in found.variables]
        text = shorten("\n".join(lines), self._max_text, "run_code with %whos") or "[no variables]"
        return f"{text}\n[cellgate: there are more]" if found.truncated else text

    # The kernel and its record

    async def interrupt(self) -> str:
        """Interrupt the running code, as Ctrl-C would."""
        async with told(self._session):
            await self._session.interrupt()
        return "interrupted"

    async def restart(self) -> str:
        """Start over with a fresh kernel: variables are lost, files stay."""
        async with told(self._session):
            await self._session.restart()
        return "a fresh kernel; variables are lost, files are there"

    async def make_checkpoint(self, name: str | None = None, anyway: bool = False) -> str:
        """Keep all variables and files as they are now, to go back to with roll_back; returns its name.

        Use it before something that may go wrong. It takes a fraction of a second, however large the data.
        Nothing may run. What can't be kept, such as threads, is refused by name; `anyway` makes it without.
        """
        async with told(self._session):
            return (await self._session.checkpoint(name, anyway=anyway)).name

    async def roll_back(self, checkpoint: str | None = None) -> str:
        """Take variables and files back to a checkpoint, by default the newest, and interrupt what runs."""
        async with told(self._session):
            return _undone(await self._session.roll_back(checkpoint))

    async def undo_last_cell(self) -> str:
        """Undo the last cell, with what it did to variables and files, even if the kernel died of it.

        It goes to the newest checkpoint from before that cell, and says how many cells that undid.
        """
        async with told(self._session):
            return _undone(await self._session.undo())

    async def branch_session(self, shared_files: bool = False, anyway: bool = False) -> str:
        """Make a branch: a second session with a copy of all variables, imports and files as they are now.

        Use it to try something without changing this session, or alternatives side by side; it takes a
        fraction of a second, however large the data. Returns its name, for `branch` of run_code. With
        `shared_files` both have the same files. What can't be copied, such as threads, is refused by name;
        `anyway` makes a branch without it. Nothing may run in this session. Branches end with it. Use
        relative paths there: absolute ones below /workspace are still this session's files.
        """
        async with told(self._session):
            workspace = "shared" if shared_files else "copy"
            branch = await self._session.branch(workspace=workspace, anyway=anyway, keep=False)
        self._branches[branch.name] = branch
        return branch.name

    async def try_alternatives(
        self, cells: list[str], timeout: float | None = None, anyway: bool = False, keep_first: bool = False
    ) -> Content:
        """Run alternatives to the next cell, each in a branch of its own, side by side; returns all results.

        This session stays as it is: run the best one with run_code then. With `keep_first` it goes on as the
        first one that ends without an error, in the order given, and those after that may be left out.
        `timeout` is in seconds, for each. `anyway` as of branch_session. At most 16 cells.
        """
        keep = "first_ok" if keep_first else "none"
        async with told(self._session):
            found = await self._session.explore(cells, keep=keep, timeout=timeout, anyway=anyway, max_text=0)
        content: Content = []
        for number, each in enumerate(found.results, 1):
            chosen = ", as which the session goes on" if each.branch == "chosen" else ""
            content.append(text_content(f"[cellgate: alternative {number}{chosen}]"))
            if each.branch == "skipped":
                content.append(text_content("[cellgate: it was not needed, or the exploration was stopped]"))
                continue
            if not isinstance(each.problem, UnsetType):
                content.append(text_content(f"[cellgate: it did not run: {each.problem.detail}]"))
                continue
            content += self._content(each, each.session)
            self._tried.append(each.session)
        return content

    def _branch(self, name: str | None) -> Session:
        """The branch of this name, or the session itself. Raises ToolError."""
        if name is None:
            return self._session
        if name not in self._branches:
            raise ToolError(f"There is no branch {name!r}; branch_session makes one and returns its name")
        return self._branches[name]

    async def export_notebook(self) -> str:
        """Export everything that ran so far as a notebook for the user; returns where it is."""
        async with told(self._session):
            address = f"{session_path(self._session.name, 'notebook')} of the gateway"
            if self._notebooks is None:
                return f"the notebook is at {address}"
            path = self._notebooks / f"{self._session.name}.ipynb"
            try:
                await self._session.save_notebook(path)
            except OSError as error:
                raise ToolError(f"{path} can't be written: {in_words(error, file=False)}") from error
        return f"written: {path} (also at {address})"


def _undone(model: SessionModel) -> str:
    """What a model is told of a rollback."""
    found = model.rolled_back
    if not isinstance(found, Rollback):
        return "rolled back"
    return f"went back to the checkpoint {found.checkpoint!r}; cells undone: {found.undone}"


def _fitting(table: dict[str, Any], limit: int) -> str:
    """The table as JSON of at most `limit` characters, with only its first rows if necessary."""
    text = msgspec.json.encode(table).decode()
    rows = table.get("data")
    while len(text) > limit and isinstance(rows, list) and rows:
        rows = rows[: len(rows) // 2]
        text = msgspec.json.encode({**table, "data": rows}).decode()
    return shorten(text, limit, "the result at the gateway")


def _window(text: str, start: int, length: int) -> str:
    start = max(0, start)
    end = start + max(1, min(length, 10 * MAX_TEXT))
    more = f"\n[cellgate: {len(text)} characters in all; read on at start {end}]" if end < len(text) else ""
    return text[start:end] + more


def _images(result: Result) -> Iterator[ImageContent]:
    for output in result.outputs:
        data = output.get("data", {})
        mime = next((each for each in _IMAGES if isinstance(data.get(each), str)), None)
        if mime is not None and len(data[mime]) <= 2 * _MAX_IMAGE:
            yield ImageContent(type="image", data=data[mime].replace("\n", ""), mime_type=mime)
