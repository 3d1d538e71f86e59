"""One session as tools of the Model Context Protocol: what a language model may do, and what it is shown.

A client of the gateway's HTTP API (``client``), built on the protocol's SDK (the extra ``mcp``); ``cli.mcp``
starts it, and ``http`` starts one for each client. The tools that other wires have, too, are those of
``integrations.tools``; those beside them are here and in ``programs``. Pictures become image content. A cell
that raises is a normal result; a refusal by the gateway is a tool error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from cellgate.client import Session
from cellgate.client.calls import session_path
from cellgate.errors import StorageError
from cellgate.execution.answer_size import shorten
from cellgate.integrations import tools
from cellgate.integrations.tools import MAX_TEXT, undone
from cellgate.mcp.briefing import UNKNOWN, Briefing
from cellgate.mcp.calls import Content, as_content, offered, progress, text_content, told
from cellgate.mcp.programs import ProgramTools
from cellgate.mcp.tool_server import ToolServer
from cellgate_kernels.base.errors import in_brief

_INSTRUCTIONS = """
Runs code in one isolated Jupyter kernel that keeps its variables and files from call to call. Everything that
runs is recorded as a notebook. Long texts are cut in the middle; read_output and read_file return the rest.
"""
_NETWORK = """
Code reaches no network, unless the session was given one: then HTTP_PROXY and HTTPS_PROXY name a proxy, which
programs use by themselves, and whose refusals name the hosts that are allowed. Nothing else is reached.
"""


class McpTools:
    """The tools. The session is created when one is first used.

    `notebooks`: the local folder that `export_notebook` writes to; None: it only returns the address.
    """

    def __init__(self, session: Session, notebooks: Path | None, max_text: int = MAX_TEXT) -> None:
        self._session = session
        self._notebooks = notebooks
        self._max_text = max_text
        self._tools = tools.SessionTools(session, max_text=max_text)

    def server(self, version: str, about: Briefing = UNKNOWN) -> ToolServer:
        """Return a server that offers the tools. `about`: the environment, as far as it is known."""
        instructions = _INSTRUCTIONS + (f"\n{about.text}\n" if about.text else _NETWORK)
        programs = ProgramTools(self._session, self._tools)
        every: tuple[Callable[..., Awaitable[Any]], ...] = (
            *(
                offered(getattr(self._tools, name), self._session, about.languages)
                for name in tools.DEFINITIONS
            ),
            self.run_blocks,
            programs.start_program,
            programs.list_programs,
            programs.read_program,
            programs.write_program,
            programs.end_program,
            programs.open_port,
            self.make_folder,
            self.move_file,
            self.install_packages,
            self.list_variables,
            self.interrupt,
            self.restart,
            self.make_checkpoint,
            self.roll_back,
            self.export_notebook,
        )
        return ToolServer(every, instructions=instructions, version=version)

    # Running

    async def run_blocks(self, markdown: str, context: Context, timeout: float | None = None) -> Content:
        """Run the fenced blocks of a Markdown text in order, until one fails.

        Languages are python, bash, javascript and typescript; a block in another language than the session's
        runs as a separate program. A first line `# filename: NAME` saves the block under that name first.
        `timeout` is in seconds, for each block.
        """
        async with told(self._session), progress(context):
            done = await self._session.run_blocks(markdown, timeout=timeout, max_text=0)
        content = [part for result in done.blocks for part in as_content(self._tools.content(result))]
        if done.problem is not None:
            content.append(text_content(f"[cellgate: the next block did not run: {done.problem.detail}]"))
        return [*content, text_content(f"[cellgate: exit code {done.exit_code}]")]

    # Files

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
            return undone(await self._session.roll_back(checkpoint))

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
                raise ToolError(
                    f"{StorageError.reason}: {path} can't be written: {in_brief(error)}"
                ) from error
        return f"written: {path} (also at {address})"
