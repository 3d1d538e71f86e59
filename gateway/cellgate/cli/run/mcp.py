"""``cellgate mcp``: sessions as tools of the Model Context Protocol, over stdin and stdout or over HTTP.

It is a client of a running gateway. Over stdin and stdout it is started by a language model's program, for
one session; over HTTP it serves many clients, each with its own session. The tools are in ``mcp.tools``, the
HTTP side in ``mcp.door``.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from traitlets import Bool, Float, Int, List, Unicode
from traitlets import Enum as EnumTrait

from cellgate.cli.base import UsageError, expanded
from cellgate.cli.run.cell_options import KernelOption
from cellgate.wire.words import NetworkAccess, language_name
from cellgate_kernels.base.errors import in_brief


class McpApp(KernelOption):
    """``cellgate mcp``."""

    name = "cellgate-mcp"
    usage = "[options]"
    description = """
        Serves the Model Context Protocol: tools to run code, to read and write files, to interrupt and
        restart, and to export the notebook, in a session of a running gateway. Needs the extra mcp.

        A language model's program starts it and talks over stdin and stdout. With --http it serves programs
        that connect, each with a session of its own and with a token for the gateway as its bearer token.
    """
    examples = """
        cellgate mcp
        cellgate mcp --session research          a session that stays, with its variables
        cellgate mcp --http --port 8889          at http://127.0.0.1:8889/mcp
    """

    session = Unicode(
        help="The session to work in, created if missing and left running; default: a fresh one, ended "
        "afterwards. Not with --http."
    ).tag(config=True, metavar="NAME")
    language = Unicode(help="A new session's language, instead of a kernelspec.").tag(
        config=True, metavar="NAME"
    )
    network = EnumTrait(
        ("none", "allow"),
        "none",
        help="allow: a new session reaches the hosts that the operator's policy names for you.",
    ).tag(config=True)
    notebooks = Unicode(
        help="The folder that notebooks are exported to; default: the current folder; with --http none, and "
        "clients get the notebook's address."
    ).tag(config=True, metavar="DIR")
    max_text = Int(8000, min=1000, help="The characters of a text that a model is shown.").tag(
        config=True, metavar="N"
    )
    http = Bool(False, help="Serve over HTTP.").tag(config=True)
    ip = Unicode("127.0.0.1", help="With --http: the address to listen on.").tag(
        config=True, metavar="ADDRESS"
    )
    port = Int(8889, min=0, max=65535, help="The port, with --http; 0: a free one.").tag(
        config=True, metavar="PORT"
    )
    allowed_hosts = List(Unicode(), help="Host names of this server besides loopback, with --http.").tag(
        config=True, metavar="NAME"
    )
    allowed_origins = List(
        Unicode(), help="Origins of web pages that may use it besides its own, with --http."
    ).tag(config=True, metavar="ORIGIN")
    idle_timeout = Float(
        1800.0, help="Seconds without a request, and without an open stream, that end a client's session."
    ).tag(config=True, metavar="SECONDS")

    aliases: Any = {  # noqa: RUF012
        "session": "McpApp.session",
        "language": "McpApp.language",
        "network": "McpApp.network",
        "notebooks": "McpApp.notebooks",
        "max-text": "McpApp.max_text",
        "ip": "McpApp.ip",
        "port": "McpApp.port",
        "allow-host": "McpApp.allowed_hosts",
        "allow-origin": "McpApp.allowed_origins",
        "idle-timeout": "McpApp.idle_timeout",
        **KernelOption.aliases,
    }
    flags = {  # noqa: RUF012
        "http": ({"McpApp": {"http": True}}, "Serve over HTTP."),
        **KernelOption.flags,
    }

    async def run_command(self) -> int:
        self.arguments()
        if find_spec("mcp") is None:
            raise UsageError("this needs the extra mcp: pip install 'cellgate[mcp]'")
        return await (self._serve_http() if self.http else self._serve_stdio())

    async def _serve_stdio(self) -> int:
        from cellgate.mcp.briefing import SessionWish, ask_for_briefing  # noqa: PLC0415 - an extra
        from cellgate.mcp.tools import McpTools  # noqa: PLC0415 - an extra, and slow to import

        folder = _folder(self.notebooks or ".")
        wanted = SessionWish(
            self.kernel or None,
            language_name(self.language),
            self._network(),
            self.checkpoint,
            self.kernel_environment or None,
        )
        gateway = self.gateway()
        session = gateway.session(
            self.session or None,
            kernel=wanted.kernel,
            language=wanted.language,
            network=wanted.network,
            checkpoint=wanted.checkpoint,
            environment=wanted.environment,
        )
        told = await ask_for_briefing(gateway, wanted)
        if sys.stdin is not None and sys.stdin.isatty():
            # What reads there does not end at Ctrl-C.
            sys.stderr.write("A language model's program starts this, not a person. Ctrl-D ends it.\n")
        async with session:
            await McpTools(session, folder, self.max_text).server(self.version, told).run_stdio_async()
        return 0

    def _network(self) -> NetworkAccess | None:
        """Return the network to request; None accepts a session with or without one."""
        return "allow" if self.network == "allow" else None

    async def _serve_http(self) -> int:
        from cellgate.mcp.briefing import SessionWish  # noqa: PLC0415 - an extra
        from cellgate.mcp.server import Serving, serve  # noqa: PLC0415 - an extra, and slow to import

        if self.session:
            raise UsageError("--session: over HTTP each client has a session of its own")
        if not self.idle_timeout > 0:
            raise UsageError("--idle-timeout must be a number of seconds above 0")
        folder = _folder(self.notebooks) if self.notebooks else None
        listener = await asyncio.to_thread(self._listen)
        what = Serving(
            url=self.address(),
            trust=self.trust(),
            version=self.version,
            new=SessionWish(
                self.kernel or None,
                network=self._network(),
                checkpoint=self.checkpoint,
                environment=self.kernel_environment or None,
            ),
            notebooks=folder,
            max_text=self.max_text,
            hosts=self.allowed_hosts,
            origins=self.allowed_origins,
            idle=self.idle_timeout,
        )
        await serve(listener, what, lambda url: self.print(f"serving MCP at {url}"))
        return 0

    def _listen(self) -> socket.socket:
        try:
            return socket.create_server(
                (self.ip, self.port), family=socket.AF_INET6 if ":" in self.ip else socket.AF_INET
            )
        except OSError as error:
            raise UsageError(f"can't listen on {self.ip} port {self.port}: {in_brief(error)}") from error


def _folder(name: str) -> Path:
    folder = expanded(name).absolute()
    if not folder.is_dir():
        raise UsageError(f"--notebooks {name}: there is no such folder")
    return folder
