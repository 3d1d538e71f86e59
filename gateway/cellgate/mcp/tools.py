"""One session as tools of the Model Context Protocol: what a language model may do, and what it is shown.

A client of the gateway's HTTP API (``client``), built on the protocol's SDK (the extra ``mcp``); ``cli.mcp``
starts it, and ``http`` starts one for each client. Texts are cut to what a model can read, with a note on
where the rest is; pictures become image content. A cell that raises is a normal result; a refusal by the
gateway is a tool error.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ImageContent, TextContent

from cellgate.client import Result, Session
from cellgate.client.calls import session_path
from cellgate.execution.answer_size import shorten
from cellgate_kernels.errors import CellgateError
from cellgate_kernels.tasks import Supervisor

Content = list[TextContent | ImageContent]

MAX_TEXT = 8000
"""Maximum number of characters of one text that a model is shown."""

_PROGRESS = 2.0  # seconds between two progress reports
_MOST_IMAGES = 8
_MOST_TABLES = 8
_MOST_FILES = 200
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

    def server(self, version: str, told: str = "") -> MCPServer[Any]:
        """A server that offers the tools. `told`: the briefing on the environment, if it is known."""
        instructions = _INSTRUCTIONS + (f"\n{told}\n" if told else _NETWORK)
        server: MCPServer[Any] = MCPServer(
            "cellgate", instructions=instructions, version=version, log_level="WARNING"
        )
        for tool in (
            self.run_code,
            self.run_blocks,
            self.run_program,
            self.read_output,
            self.list_files,
            self.read_file,
            self.write_file,
            self.install_packages,
            self.interrupt,
            self.restart,
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
    ) -> Content:
        """Run code as a notebook cell, in Python unless the session has another language. Variables stay.

        `timeout` is in seconds. If `language` (python, bash, javascript, typescript) is not the session's,
        the code runs as a separate program, with the same files and without the session's variables. The
        value of the last expression is shown, as in a notebook; figures are returned as images. With
        `tables`, a number of rows, DataFrames are also returned as JSON: schema, the first rows, total_rows.
        """
        execution = ""
        async with self._told(), _progress(context):
            # Streamed, so that cancelling the call also stops its cell.
            events = self._session.stream(code, timeout=timeout, stdin=[], language=language, tables=tables)
            async with aclosing(events):
                async for event in events:
                    execution = event.execution or execution
            return self._content(await self._session.result(execution, max_text=0))

    async def run_blocks(self, markdown: str, context: Context, timeout: float | None = None) -> Content:
        """Run the fenced blocks of a Markdown text in order, until one fails.

        Languages are python, bash, javascript and typescript; a block in another language than the session's
        runs as a separate program. A first line `# filename: NAME` saves the block under that name first.
        `timeout` is in seconds, for each block.
        """
        async with self._told(), _progress(context):
            done = await self._session.run_blocks(markdown, timeout=timeout, max_text=0)
        content = [part for result in done.blocks for part in self._content(result)]
        if done.problem is not None:
            content.append(_text(f"[cellgate: the next block did not run: {done.problem.detail}]"))
        return [*content, _text(f"[cellgate: exit code {done.exit_code}]")]

    async def run_program(
        self, argv: list[str], context: Context, cwd: str | None = None, timeout: float | None = None
    ) -> Content:
        """Run a program such as ["git", "status"] and wait for its end, without a shell, beside the kernel.

        It runs even while code runs. `cwd` is a folder of the session's files; `timeout` is in seconds. For
        a shell's features, run ["bash", "-c", "..."].
        """
        async with self._told(), _progress(context):
            done = await self._session.run_program(*argv, cwd=cwd, timeout=timeout)
        parts = [
            shorten(text, self._max_text, "a file that it writes")
            for text in (done.stdout, done.stderr)
            if text
        ]
        if done.exit_code is not None:
            parts.append(f"[cellgate: exit code {done.exit_code}]")
        else:
            parts.append(f"[cellgate: ended by {done.signal or 'its kernel'}, {done.cause or 'by itself'}]")
        return [_text("\n".join(parts))]

    async def read_output(self, execution: str, start: int = 0, length: int = MAX_TEXT) -> str:
        """Read more of an execution's text that was cut: `length` characters from `start`."""
        async with self._told():
            whole = (await self._session.result(execution, max_text=0)).text
        return _window(whole, start, length)

    def _content(self, result: Result) -> Content:
        where = f"read_output with execution {result.execution!r}"
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
        images = list(_images(result))
        if len(images) > _MOST_IMAGES:
            parts.append(f"[cellgate: {len(images)} images; the first {_MOST_IMAGES} are shown]")
        return [_text("\n".join(parts) or "[no output]"), *images[:_MOST_IMAGES]]

    # Files

    async def list_files(self) -> str:
        """List the session's files: size in bytes and path, one per line."""
        lines: list[str] = []
        async with self._told():
            listed = self._session.files.list()
            async with aclosing(listed):
                async for file in listed:
                    if len(lines) == _MOST_FILES:
                        lines.append("[cellgate: there are more; list a folder with run_code]")
                        break
                    lines.append(f"{file.size}  {file.path}")
        return "\n".join(lines) or "[no files]"

    async def read_file(self, path: str, start: int = 0, length: int = MAX_TEXT) -> Content:
        """Read a file of the session: `length` bytes of text from `start`, or a whole image."""
        start = max(0, start)
        length = max(1, min(length, 10 * MAX_TEXT))
        async with self._told():
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
        return [_text(data[:length].decode(errors="replace") + more)]

    async def write_file(self, path: str, text: str) -> str:
        """Write a text file into the session. Replaces an existing file; creates missing folders."""
        async with self._told():
            model = await self._session.files.put(path, text)
        return f"{model.action} {model.path}, {model.size} bytes"

    async def install_packages(self, requirements: list[str]) -> str:
        """Install Python packages such as "requests>=2", if the gateway's operator allows them."""
        async with self._told():
            changed = await self._session.install(*requirements)
        named = [f"{package.name} {package.version}" for package in changed.installed]
        return f"installed: {', '.join(named)}" if named else "all of them were there already"

    # The kernel and its record

    async def interrupt(self) -> str:
        """Interrupt the running code, as Ctrl-C would."""
        async with self._told():
            await self._session.interrupt()
        return "interrupted"

    async def restart(self) -> str:
        """Start over with a fresh kernel: variables are lost, files stay."""
        async with self._told():
            await self._session.restart()
        return "a fresh kernel; variables are lost, files are there"

    async def export_notebook(self) -> str:
        """Export everything that ran so far as a notebook for the user; returns where it is."""
        async with self._told():
            address = f"{session_path(self._session.name, 'notebook')} of the gateway"
            if self._notebooks is None:
                return f"the notebook is at {address}"
            path = self._notebooks / f"{self._session.name}.ipynb"
            try:
                await self._session.save_notebook(path)
            except OSError as error:
                raise ToolError(f"{path} can't be written: {error.strerror or error}") from error
        return f"written: {path} (also at {address})"

    @asynccontextmanager
    async def _told(self) -> AsyncIterator[None]:
        """Work on the session, reporting a refusal by the gateway to the model."""
        try:
            await self._session.opened()
            yield
        except CellgateError as error:
            raise ToolError(f"{error.reason}: {error.message}") from error


@asynccontextmanager
async def _progress(context: Context) -> AsyncIterator[None]:
    """Reports progress to the client every few seconds, if it has requested that."""

    async def tell() -> None:
        begun = time.monotonic()
        while True:
            await asyncio.sleep(_PROGRESS)
            seconds = round(time.monotonic() - begun, 1)
            await context.report_progress(seconds, message=f"running for {seconds:.0f} s")

    tasks = Supervisor()
    tasks.start(tell(), "progress")
    try:
        yield
    finally:
        await tasks.cancel()


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


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
