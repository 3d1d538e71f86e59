"""The head of a request to the proxy: read strictly, and rewritten for its host.

Pure: bytes in, a `ProxyRequest` out. Two forms are understood: CONNECT, for a tunnel, and any other method
with an absolute ``http://`` address. What different programs would read differently is refused: hosts that
contradict each other, lengths that do, lines that do not end in CRLF. ``proxy`` relays what follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cellgate.egress.policy import split_authority
from cellgate.wire.http_fields import OF_THE_CONNECTION

MOST_HEAD = 32 * 1024
"""Bytes of a request's head."""
MOST_FIELDS = 100

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):([\t\x20-\x7e\x80-\xff]*+)")
_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)
_SCHEME = "http://"

_OF_THE_MESSAGE = frozenset({"content-length", "host", "transfer-encoding"})
"""Fields that a Connection field must not name."""


class BadHead(ValueError):
    """The head is invalid for the proxy; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A request. `head`: what is sent to the host before the body; empty for a tunnel.

    `length`: the bytes of the following body, None if it comes in chunks; a tunnel has no end.
    """

    host: str
    port: int
    tunnel: bool = False
    head: bytes = b""
    length: int | None = 0


def parse_head(data: bytes) -> ProxyRequest:
    """Return the request of a head, which ends with its empty line. Raises BadHead."""
    lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    start = _REQUEST_LINE.fullmatch(lines[0])
    if start is None:
        raise BadHead("the first line is no request of HTTP/1")
    method, target, minor = start[1].decode(), start[2].decode(), int(start[3])
    fields = _fields(lines[1:])
    if method == "CONNECT":
        host, port = _authority(target)
        return ProxyRequest(host, port, tunnel=True)
    return _absolute(method, target, minor, fields)


def _fields(lines: list[bytes]) -> list[tuple[str, str]]:
    if len(lines) > MOST_FIELDS:
        raise BadHead("there are too many header fields")
    fields = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise BadHead("a line is no header field")
        fields.append((match[1].decode(), match[2].strip(b" \t").decode("latin-1")))
    return fields


def _authority(text: str, default_port: int | None = None) -> tuple[str, int]:
    try:
        return split_authority(text, default_port)
    except ValueError as error:
        raise BadHead(str(error)) from None


def _absolute(method: str, target: str, minor: int, fields: list[tuple[str, str]]) -> ProxyRequest:
    """Return a request of plain HTTP with the fields for the host, without those for the proxy."""
    if target[: len(_SCHEME)].lower() != _SCHEME:
        raise BadHead("this is a proxy: it takes CONNECT, and addresses that begin with http://")
    rest = target[len(_SCHEME) :]
    end = next((place for place, letter in enumerate(rest) if letter in "/?#"), len(rest))
    authority, path = rest[:end], rest[end:]
    if "#" in path:
        raise BadHead("an address has no fragment here")
    host, port = _authority(authority, 80)
    _check_host(fields, minor, (host, port))
    length = _body_length(fields, minor)
    hop = _hop_by_hop(fields)
    lines = [
        f"{method} {path if path.startswith('/') else f'/{path}'} HTTP/1.{minor}",
        f"Host: {authority}",
        *(f"{name}: {value}" for name, value in fields if name.lower() not in hop | {"host"}),
        *(["Transfer-Encoding: chunked"] if length is None else []),
        "Connection: close",
        "\r\n",
    ]
    return ProxyRequest(host, port, head="\r\n".join(lines).encode("latin-1"), length=length)


def _values(fields: list[tuple[str, str]], wanted: str) -> list[str]:
    return [value for name, value in fields if name.lower() == wanted]


def _check_host(fields: list[tuple[str, str]], minor: int, expected: tuple[str, int]) -> None:
    """Check that the Host field equals the address's host: a server may use either."""
    hosts = _values(fields, "host")
    if len(hosts) > 1 or (not hosts and minor > 0):
        raise BadHead("there must be one Host field")
    if hosts and _authority(hosts[0], 80) != expected:
        raise BadHead("the Host field names another host than the address")


def _body_length(fields: list[tuple[str, str]], minor: int) -> int | None:
    """Return the length of the body; None if it comes in chunks."""
    lengths = _values(fields, "content-length")
    encodings = _values(fields, "transfer-encoding")
    if encodings:
        if lengths or minor == 0 or [each.lower() for each in encodings] != ["chunked"]:
            raise BadHead("the body's length is not clear")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise BadHead("the body's length is not clear")
    return int(lengths[0])


def _hop_by_hop(fields: list[tuple[str, str]]) -> frozenset[str]:
    """Return the names of fields that are for the proxy alone."""
    listed = (name.strip() for value in _values(fields, "connection") for name in value.split(","))
    named = {name.lower() for name in listed if name}
    if named & _OF_THE_MESSAGE:
        raise BadHead("a Connection field names a field that belongs to the message")
    return OF_THE_CONNECTION | named
