"""``cellgate tools``: the tools of a session as a language model's API takes them.

It talks to no gateway. ``integrations.tools`` has the tools; the Model Context Protocol's are those of
``cellgate mcp``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from traitlets import Enum

from cellgate.cli.base import BaseApp, CommandApp, UsageError


class ToolsApp(BaseApp):
    """``cellgate tools``."""

    name = "cellgate-tools"
    usage = "[NAME...] [options]"
    description = """
        Prints the tools that Cellgate has for language models as JSON, as the value of "tools" in a request
        to a provider: to run cells and programs, to read, write and list files, to undo, and to try in
        branches. With NAME, those tools only.

        cellgate.integrations has what runs them when the model calls them.
    """
    examples = """
        cellgate tools                                  for OpenAI's Chat Completions
        cellgate tools --format anthropic
        cellgate tools run_code read_file --format gemini
    """

    format = Enum(
        ("openai", "openai-responses", "anthropic", "gemini"),
        "openai",
        help="The API: openai (Chat Completions), openai-responses, anthropic or gemini.",
    ).tag(config=True, metavar="NAME")

    aliases: Any = {  # noqa: RUF012
        "format": "ToolsApp.format",
        **BaseApp.aliases,
    }

    def start(self) -> NoReturn:
        """Print the tools. Raises UsageError for an unknown name or format."""
        import msgspec  # noqa: PLC0415 - with what follows, keeps --help quick

        from cellgate.client import InvalidInput  # noqa: PLC0415
        from cellgate.integrations.tools import tool_schemas  # noqa: PLC0415

        try:
            found = tool_schemas(self.format, self.extra_args or None)
        except InvalidInput as error:
            raise UsageError(error.message) from error
        CommandApp.print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        raise SystemExit(0)
