"""A line for Jupyter's clients behind a cell that did not find a file: how to send it to the session.

A client's notebook lies on the user's machine, with its data beside it; the cell runs among the session's
files. The line is for the client that sent the cell, once for each name, and is not in the record: the cell
did not print it. Reads replies of kernels; ``door`` sends the line.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath
from typing import Final

import msgspec

from cellgate_kernels.codec.decoding import json_decoder
from cellgate_kernels.protocol.messages import Message

MOST_BYTES: Final = 1024 * 1024
"""Bytes of a reply that is read. Most of a long one is its traceback."""
MOST_NAMES: Final = 20
"""Names of one session that are told; a program that looks for many files would drown in them."""
_ERROR: Final = "FileNotFoundError"
_NOT_FOUND = re.compile(r"\[Errno 2\] No such file or directory: '([^'\\]{1,200})'")
"""How Python's own functions, and libraries that call them, name a file that they don't find."""


class _Reply(msgspec.Struct):
    """The part of an execute_reply that tells why the cell failed."""

    status: str
    ename: str = ""
    evalue: str = ""


_decode = json_decoder(_Reply).decode


class MissingFiles:
    """The files that cells of Jupyter's clients have missed in the session with this key."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._told: set[str] = set()

    def line(self, reply: Message) -> str | None:
        """Return the line to show before a cell's execute_reply; None if the reply is about no such file."""
        name = _missed(reply)
        if name is None or name in self._told or len(self._told) >= MOST_NAMES:
            return None
        self._told.add(name)
        file = shlex.quote(name)
        # Without a path, the file would be put beside the folder that it is to be in.
        words = [file, file] if "/" in name else [file]
        return (
            f"[cellgate: this session has no file {name}. Files beside a notebook stay where the notebook is;"
            f" send this one with `cellgate files put {self._key} {' '.join(words)}`, or in the gateway's"
            " console]\n"
        )


def _missed(reply: Message) -> str | None:
    """Return the relative name of the file that a failed cell did not find; None if it failed otherwise.

    Only a name with an extension is one of data: without, it is mostly that of a program.
    """
    content = reply.content_frame
    if not reply.readable or len(content) > MOST_BYTES or _ERROR.encode() not in content:
        return None
    try:
        told = _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if told.status != "error" or told.ename != _ERROR:
        return None
    found = _NOT_FOUND.fullmatch(told.evalue)
    if found is None or not found[1].isprintable():
        return None
    path = PurePosixPath(found[1])
    if path.is_absolute() or ".." in path.parts or not path.suffix or path.parts[0].startswith(("~", "-")):
        return None
    return str(path)
