"""Connect's streams: a message in its envelope, and the handler of a call that is answered with many.

An envelope is a byte of flags, a length of four bytes, and JSON. The last one says how the call ended.
Source: Connect's protocol, "Streaming RPCs".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from cellgate.doors.e2b.base import CODES, SandboxGone, SandboxHandler, code_of
from cellgate.http.message import encode
from cellgate.http.operation import Format
from cellgate_kernels.base.errors import CellgateError, InvalidInput

HEAD: Final = struct.Struct(">BI")
LAST: Final = 2
"""The flag of the envelope that ends a stream."""
MOST_DIGITS: Final = 10
CONNECT: Final = "application/connect+json"
BEFORE_CALLS: Final = frozenset(
    {
        *(HTTPStatus.UNAUTHORIZED, HTTPStatus.MISDIRECTED_REQUEST, HTTPStatus.METHOD_NOT_ALLOWED),
        *(HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE),
    }
)
"""The statuses of refusals that are no answer to a call."""


def envelope(told: Mapping[str, object], flags: int = 0) -> bytes:
    """Return one message of a stream."""
    data = encode(told)
    return HEAD.pack(flags, len(data)) + data


def last(code: str = "", message: str = "") -> bytes:
    """Return the end of a stream. `code`: the name of Connect's error, if it ends with one."""
    return envelope({"error": {"code": code, "message": message}} if code else {}, LAST)


def opened(body: bytes) -> bytes:
    """Return what is in the one envelope of a request. Raises InvalidInput."""
    if len(body) < HEAD.size:
        raise InvalidInput("The request body is no envelope")
    flags, length = HEAD.unpack_from(body)
    if flags or length != len(body) - HEAD.size:
        raise InvalidInput("The request body is not one whole, uncompressed envelope")
    return body[HEAD.size :]


class EnvelopesHandler(SandboxHandler):
    """A call that is answered with a stream."""

    connect = True

    def timeout(self) -> float | None:
        """Return the seconds that the call may take, if the client says. Raises InvalidInput."""
        given = self.request.headers.get("Connect-Timeout-Ms", "")
        if not given:
            return None
        if not (given.isascii() and given.isdecimal() and len(given) <= MOST_DIGITS):
            raise InvalidInput("Connect-Timeout-Ms must be a number")
        return int(given) / 1000

    def set_head(self, form: Format) -> None:
        super().set_head(form)
        self.set_header("Content-Type", CONNECT)

    def write_problem(self, error: CellgateError, form: Format) -> None:
        gone = isinstance(error, SandboxGone)
        self.write(last("unavailable" if gone else CODES.get(code_of(error), "internal"), error.message))

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        """Return the end of a stream that had no messages, as Connect has refusals of such calls: with 200.

        Of an answer with another status, Connect's clients read nothing but that. It is left to what is said
        before a call is made, here and by proxies in front: who sent it, and which gateway has the sandbox.
        """
        kind, body = super().problem_body(error)
        code = code_of(error)
        if code in BEFORE_CALLS:
            return kind, body
        self.set_status(HTTPStatus.OK)
        return CONNECT, last(CODES.get(code, "internal"), error.message)
