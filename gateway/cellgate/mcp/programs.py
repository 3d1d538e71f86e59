"""Programs beside the session's kernel as tools: started, followed, fed and ended.

A server among them is shown to the user by the address of its port. ``tools`` has all other tools.
"""

from __future__ import annotations

import shlex

from cellgate.client import Session
from cellgate.integrations.tools import SessionTools, state_of
from cellgate.mcp.calls import told

_MOST_COMMAND = 200
"""Characters of a command in a list."""


class ProgramTools:
    """The tools. `tools`: the session's others, which know how a program is shown."""

    def __init__(self, session: Session, tools: SessionTools) -> None:
        self._session = session
        self._tools = tools

    async def start_program(self, argv: list[str], cwd: str | None = None, stdin: bool = False) -> str:
        """Start a program that goes on, such as a web server, and return its id at once.

        It runs until it ends, end_program ends it, or the kernel or the session ends; read_program shows what
        it writes. With `stdin`, write_program sends it input. A server that listens on 127.0.0.1 is reached
        at that address by run_code and run_program; open_port gives the user an address for it.
        """
        async with told(self._session):
            begun = await self._session.start_program(*argv, cwd=cwd, stdin=stdin)
        return f"{begun.process} is running"

    async def list_programs(self) -> str:
        """List the programs that run and the last that ended: id, state and command, one per line."""
        async with told(self._session):
            found = await self._session.processes()
        lines = [
            f"{each.process}  {state_of(each)}  {shlex.join(each.argv)[:_MOST_COMMAND]}" for each in found
        ]
        return "\n".join(lines) or "[no programs]"

    async def read_program(self, process: str) -> str:
        """Read what a program has written so far, and whether it has ended. `process`: its id."""
        async with told(self._session):
            found = await self._session.process(process)
        return self._tools.shown(found)

    async def write_program(self, process: str, text: str, end: bool = False) -> str:
        """Send input to a program that was started with `stdin`; with `end`, nothing comes after it.

        Lines need their line ends. `process`: its id.
        """
        async with told(self._session):
            await self._session.write_program(process, text, close=end)
        return "sent"

    async def end_program(self, process: str) -> str:
        """End a program and what it has started: by SIGTERM, and five seconds later by SIGKILL.

        `process`: its id.
        """
        async with told(self._session):
            await self._session.end_program(process)
        return "asked to end"

    async def open_port(self, port: int) -> str:
        """Get an address at which the user sees, in a browser, what a program shows on a port.

        Start the program first; it must listen on 127.0.0.1 or on all addresses. Give the address to the
        user: it works once, within a minute, and opens the program's first page.
        """
        async with told(self._session):
            return await self._session.port_url(port)
