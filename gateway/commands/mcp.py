"""``cellgate mcp``: a session as tools of the Model Context Protocol, over stdin and stdout.

The program of a language model starts it; it is a client of a gateway that runs. The tools are
``gateway.model_tools``.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from traitlets import Int, Unicode

from gateway.commands.base import CommandApp, UsageError


class McpApp(CommandApp):
    """``cellgate mcp``."""

    name = "cellgate-mcp"
    usage = "[options]"
    description = """
        Serves the Model Context Protocol on stdin and stdout: a language model's program starts this command
        and gets tools to run code, to read and write files, to interrupt and restart, and to export the
        notebook. They all work on one session of a gateway that runs already. Needs the extra mcp.
    """
    examples = """
        cellgate mcp
        cellgate mcp --session research          a session that stays, with its variables
    """

    session = Unicode(
        help="The session to work in, made when absent, left running; default: a fresh one, ended afterwards."
    ).tag(config=True, metavar="NAME")
    kernel = Unicode(help="The kernelspec of a new session; default: the gateway's.").tag(
        config=True, metavar="NAME"
    )
    language = Unicode(help="The language of a new session, in place of its kernelspec.").tag(
        config=True, metavar="NAME"
    )
    notebooks = Unicode(".", help="The folder that notebooks are exported to.").tag(
        config=True, metavar="DIR"
    )
    max_text = Int(8000, min=1000, help="Characters that a model is shown of one text.").tag(
        config=True, metavar="N"
    )

    aliases: Any = {  # noqa: RUF012
        "session": "McpApp.session",
        "kernel": "McpApp.kernel",
        "language": "McpApp.language",
        "notebooks": "McpApp.notebooks",
        "max-text": "McpApp.max_text",
        **CommandApp.aliases,
    }

    async def run_command(self) -> int:
        """Serves until stdin ends."""
        self.arguments()
        if find_spec("mcp") is None:
            raise UsageError("this needs the extra mcp: pip install 'cellgate[mcp]'")
        from gateway.model_tools import SessionTools  # noqa: PLC0415 - an extra, and slow to import

        folder = _folder(self.notebooks)
        session = self.gateway().session(
            self.session or None, kernel=self.kernel or None, language=self.language or None
        )
        async with session:
            await SessionTools(session, folder, self.max_text).server(self.version).run_stdio_async()
        return 0


def _folder(name: str) -> Path:
    folder = Path(name).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"--notebooks {name}: there is no such folder")
    return folder
