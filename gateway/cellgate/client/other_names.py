"""Methods of other products' clients, and what does the same here: for messages about a missing attribute."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_RUN: Final = "session.run(code)"
_END: Final = "session.end(), or a `with` block"
_SESSION: Final = "gateway.session(name), whose first use creates it"
_TITLE: Final = "session.change(title=...); session.model() has the present one"
_METADATA: Final = "session.change(metadata=...); session.model() has the present ones"
_PROGRAM: Final = 'session.run_program("ls", "-l")'

_OF_SESSION: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys(("run_code", "run_cell", "execute", "exec", "eval", "execute_code"), _RUN)
    | dict.fromkeys(("close", "kill", "stop", "shutdown", "terminate", "delete", "destroy"), _END)
    | dict.fromkeys(("commands", "run_command", "process_run", "shell", "terminal"), _PROGRAM)
    | dict.fromkeys(("upload", "upload_file", "write_file", "put_file"), "session.files.put(path, source)")
    | dict.fromkeys(("download", "download_file", "read_file", "get_file"), "session.files.get(path)")
    | dict.fromkeys(("fork", "clone"), "session.branch()")
    | dict.fromkeys(("snapshot", "save_state"), "session.checkpoint()")
    | dict.fromkeys(("restore", "rollback"), "session.roll_back()")
    | dict.fromkeys(("title", "set_title", "rename"), _TITLE)
    | dict.fromkeys(("metadata", "set_metadata"), _METADATA)
    | dict.fromkeys(("set_timeout", "set_limits"), "session.change(limits=...)")
)
_OF_GATEWAY: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys(("create", "create_sandbox", "sandbox", "new_session", "start_session"), _SESSION)
    | dict.fromkeys(("run", "run_code", "exec", "eval"), "gateway.session(name).run(code)")
    | dict.fromkeys(("files",), "gateway.session(name).files")
)


def no_attribute(kind: str, name: str) -> str:
    """Return the message about an attribute that a `kind`, ``session`` or ``gateway``, does not have."""
    meant = (_OF_SESSION if kind == "session" else _OF_GATEWAY).get(name)
    return f"A {kind} has no attribute {name!r}" + (f": use {meant}" if meant else "")
