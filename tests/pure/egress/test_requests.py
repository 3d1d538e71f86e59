"""Heads of requests to the proxy: what is understood, what is sent on, and what is refused."""

from __future__ import annotations

import pytest

from cellgate.egress.requests import MOST_FIELDS, BadHead, ProxyRequest, parse_head


def head(*lines: str) -> bytes:
    """A head of these lines."""
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")


def test_a_tunnel_names_its_host_and_port() -> None:
    request = parse_head(head("CONNECT PyPI.org:443 HTTP/1.1", "Host: pypi.org:443"))
    assert request == ProxyRequest("pypi.org", 443, tunnel=True)
    assert parse_head(head("CONNECT [2620:fe::fe]:443 HTTP/1.0")).host == "2620:fe::fe"


def test_an_absolute_address_becomes_a_request_to_its_host() -> None:
    request = parse_head(
        head(
            "POST http://Example.org:8080/a?b=c HTTP/1.1",
            "Host: example.org:8080",
            "Content-Length: 5",
            "Connection: keep-alive, X-Private",
            "Proxy-Connection: keep-alive",
            "Proxy-Authorization: Basic c2VjcmV0",
            "X-Private: 1",
            "Upgrade: websocket",
            "TE: trailers",
            "X-Kept: a  b",
        )
    )
    assert (request.host, request.port, request.tunnel, request.length) == ("example.org", 8080, False, 5)
    assert request.head == head(
        "POST /a?b=c HTTP/1.1",
        "Host: Example.org:8080",
        "Content-Length: 5",
        "X-Kept: a  b",
        "Connection: close",
    )


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://h.example", "/"),
        ("http://h.example?q", "/?q"),
        ("HTTP://h.example/x", "/x"),
        ("http://h.example:80/", "/"),
    ],
)
def test_paths(target: str, path: str) -> None:
    request = parse_head(head(f"GET {target} HTTP/1.1", "Host: h.example"))
    assert request.head.startswith(f"GET {path} HTTP/1.1\r\n".encode())
    assert (request.host, request.port) == ("h.example", 80)


def test_bodies_in_chunks_stay_so() -> None:
    request = parse_head(
        head("PUT http://h.example/ HTTP/1.1", "Host: h.example", "Transfer-Encoding: Chunked")
    )
    assert request.length is None
    assert request.head.count(b"Transfer-Encoding: chunked\r\n") == 1


GET = "GET http://h.example/ HTTP/1.1"
HOST = "Host: h.example"


@pytest.mark.parametrize(
    "lines",
    [
        ["GET / HTTP/1.1", HOST],
        ["GET https://h.example/ HTTP/1.1", HOST],
        ["GET ftp://h.example/ HTTP/1.1", HOST],
        ["GET http:///x HTTP/1.1", HOST],
        ["GET http://u:p@h.example/ HTTP/1.1", HOST],
        ["GET http://h.example/#x HTTP/1.1", HOST],
        ["GET http://h.example\\@evil.net/ HTTP/1.1", HOST],
        ["GET http://0x7f.1/ HTTP/1.1", "Host: 0x7f.1"],
        ["GET http://h.example/ HTTP/2.0", HOST],
        ["GET http://h.example/ HTTP/1.1 x", HOST],
        ["GET  http://h.example/ HTTP/1.1", HOST],
        ["G\tET http://h.example/ HTTP/1.1", HOST],
        ["CONNECT h.example HTTP/1.1"],
        ["CONNECT http://h.example:443 HTTP/1.1"],
        ["CONNECT h.example:443/x HTTP/1.1"],
        ["CONNECT h.example:99999 HTTP/1.1"],
        [GET],
        [GET, HOST, HOST],
        [GET, "Host: evil.net"],
        [GET, "Host: h.example:81"],
        [GET, "Host : h.example"],
        [GET, HOST, " folded: 1"],
        [GET, HOST, "no colon"],
        [GET, HOST, "bad\x00: 1"],
        [GET, HOST, "bad: \x00"],
        [GET, HOST, "bad: a\nEvil: 1"],
        [GET, HOST, "bad: a\rEvil: 1"],
        [GET, HOST, "Content-Length: 1", "Content-Length: 2"],
        [GET, HOST, "Content-Length: 1", "content-length: 1"],
        [GET, HOST, "Content-Length: 1, 1"],
        [GET, HOST, "Content-Length: +1"],
        [GET, HOST, "Content-Length: -1"],
        [GET, HOST, "Content-Length: 0x1"],
        [GET, HOST, "Content-Length: \xb2"],
        [GET, HOST, "Content-Length: 1", "Transfer-Encoding: chunked"],
        [GET, HOST, "Transfer-Encoding: gzip, chunked"],
        [GET, HOST, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        [GET, HOST, "Transfer-Encoding: xchunked"],
        ["GET http://h.example/ HTTP/1.0", "Transfer-Encoding: chunked"],
        [GET, HOST, "Connection: close, Content-Length", "Content-Length: 5"],
        [GET, HOST, "Connection: host"],
        ["", GET, HOST],
        [GET, HOST, *(f"X-{number}: 1" for number in range(MOST_FIELDS))],
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(lines: list[str]) -> None:
    with pytest.raises(BadHead):
        parse_head(head(*lines))


def test_an_old_client_needs_no_host_field() -> None:
    assert parse_head(head("GET http://h.example/ HTTP/1.0")).head == head(
        "GET / HTTP/1.0", "Host: h.example", "Connection: close"
    )
