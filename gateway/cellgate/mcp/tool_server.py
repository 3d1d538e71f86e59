"""The SDK's server with our refusals: each begins with a stable reason, and unknown arguments are refused.

The SDK passes over arguments that a tool does not have, so that a misspelt one would have no effect, and puts
its own words before a refusal. It knows the tools only by their names; ``tools`` has them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import ValidationError

from cellgate_kernels.base.errors import GatewayFault, InvalidInput, nearest

_LONGEST_NAME: Final = 100
_LONGEST_SAID: Final = 500


def _reads() -> ToolAnnotations:
    return ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)


def _adds(*, idempotent: bool = False) -> ToolAnnotations:
    return ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=idempotent)


def _changes(*, idempotent: bool = False) -> ToolAnnotations:
    return ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=idempotent)


ANNOTATIONS: Final[Mapping[str, ToolAnnotations]] = MappingProxyType(
    {
        "run_code": _changes(),
        "run_blocks": _changes(),
        "read_output": _reads(),
        "run_program": _changes(),
        "start_program": _changes(),
        "list_programs": _reads(),
        "read_program": _reads(),
        "write_program": _changes(),
        "end_program": _changes(idempotent=True),
        "open_port": _adds(),
        "list_files": _reads(),
        "read_file": _reads(),
        "write_file": _changes(idempotent=True),
        "make_folder": _adds(idempotent=True),
        "move_file": _changes(),
        "install_packages": _adds(idempotent=True),
        "list_variables": _reads(),
        "interrupt": _changes(idempotent=True),
        "restart": _changes(idempotent=True),
        "make_checkpoint": _adds(),
        "roll_back": _changes(idempotent=True),
        "undo_last_cell": _changes(),
        "branch_session": _adds(),
        "try_alternatives": _changes(),
        "export_notebook": _adds(idempotent=True),
    }
)
"""Whether a tool only reads, only adds, or may change something, and whether a repeat changes no more."""


class ToolServer(MCPServer[Any]):
    """A server of tools, whose refusals begin with a reason such as ``bad_request``."""

    def __init__(
        self, tools: Iterable[Callable[..., Awaitable[Any]]], *, instructions: str, version: str
    ) -> None:
        offered = [
            Tool.from_function(each, annotations=ANNOTATIONS[each.__name__], structured_output=False)
            for each in tools
        ]
        super().__init__(
            "cellgate", instructions=instructions, version=version, log_level="WARNING", tools=offered
        )
        self._parameters = {tool.name: tuple(tool.parameters["properties"]) for tool in offered}

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool. Raises ToolError, which begins with a reason."""
        self._check(name, arguments)
        try:
            return await super().call_tool(name, arguments, context)
        except UnexpectedToolError as error:
            raise UnexpectedToolError(
                f"{GatewayFault.reason}: {name} failed; its server's log says why"
            ) from (error.__cause__)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                raise _bad(f"the arguments of {name} can't be used: {_told(cause)}") from cause
            # A refusal of ours, before which the SDK has put the tool's name.
            raise ToolError(str(error if cause is None else cause)) from cause

    def _check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Check that there is such a tool, and that it has such arguments. Raises ToolError."""
        known = self._parameters.get(name)
        if known is None:
            raise _bad(f"there is no tool {name[:_LONGEST_NAME]!r}{_near(name, self._parameters)}")
        for given in arguments:
            if given not in known:
                raise _bad(f"{name} has no argument {given[:_LONGEST_NAME]!r}{_near(given, known)}")


def _bad(message: str) -> ToolError:
    return ToolError(f"{InvalidInput.reason}: {message}")


def _near(word: str, known: Iterable[str]) -> str:
    """Return the name that was probably meant, or all there are, to append to a refusal."""
    names = list(known)
    if found := nearest(word, names):
        return f"; did you mean {found}?"
    return f"; there are {', '.join(names)}" if names else "; it has none"


def _told(error: ValidationError) -> str:
    """Return which arguments are wrong, and why, without their values."""
    found = (
        f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_input=False)
    )
    return "; ".join(found)[:_LONGEST_SAID]
