"""Bad input over HTTP: each a clear 4xx that changes nothing, and nothing a client sends makes a 5xx."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from typing import Any
from urllib.parse import unquote

import psutil
import pytest

from tests.conftest import NO_ENGINE, StartGateway, serving
from tests.support.server import TOKEN, GatewayProcess, Response, until

MIB = 1024 * 1024
BODY_LIMIT = 16 * MIB
DEEP = 100_000


def sessions_of(gateway: GatewayProcess) -> dict[str, Any]:
    """All session models by key."""
    found: dict[str, Any] = {}
    after = ""
    while True:
        page = gateway.get(f"/v1/sessions?limit=1000{after}").json()
        found |= {model["session"]: model for model in page["sessions"]}
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def state_of(gateway: GatewayProcess, key: str) -> tuple[Any, ...]:
    """What a refused request must leave as it was: sessions, kernels in use, one session's whole record."""
    pool = gateway.get("/v1/info").json()["pool"]
    events = gateway.get(f"/v1/sessions/{key}/events").body
    # A question that is refused may be a use all the same, which puts the session's end off.
    sessions = {name: {**model, "ends": None} for name, model in sessions_of(gateway).items()}
    return sessions, pool["in_use"], pool["waiting"], events


def is_settled(gateway: GatewayProcess) -> bool:
    """Whether each kernel in use has its session, and nobody waits for one."""
    pool = gateway.get("/v1/info").json()["pool"]
    states = [model["state"] for model in sessions_of(gateway).values()]
    with_kernel = sum(state not in {"ended", "dead"} for state in states)
    return (pool["in_use"], pool["waiting"]) == (with_kernel, 0)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway for these tests alone: what others do would look like a change."""
    data = tmp_path_factory.mktemp("bad-input") / "data"
    with serving(data, "auto", docker_url=NO_ENGINE, pool_size=1) as process:
        yield process


@pytest.fixture(scope="module")
def used(gateway: GatewayProcess) -> Iterator[str]:
    """A session that has run one cell."""
    key = f"used-{uuid.uuid4().hex[:12]}"
    assert gateway.execute(key, "kept = 1")["status"] == "ok"
    yield key
    assert gateway.execute(key, "kept")["text"].strip() == "1"
    gateway.delete(f"/v1/sessions/{key}")


@pytest.fixture
def unchanged(gateway: GatewayProcess, used: str) -> Iterator[None]:
    """Checks that the test has changed nothing, once all that earlier ones began has ended."""
    until(lambda: is_settled(gateway), "a kernel without a session is left")
    before = state_of(gateway, used)
    yield
    assert state_of(gateway, used) == before


def refused(answer: Response, status: int, reason: str, *, says: str = "", sent: object = None) -> None:
    """The answer is a problem of this kind, in words for the caller and without our stack.

    `sent`: what it answers, to be shown if it is none.
    """
    assert (answer.status, answer.reason) == (status, reason), (sent, answer.body[:500])
    detail = answer.json()["detail"]
    assert says in detail
    assert len(detail) < 1000
    assert not any(word in detail for word in ("Traceback", "msgspec", ".py"))


def connect(gateway: GatewayProcess) -> socket.socket:
    """A plain connection."""
    host, port = gateway.host.split(":")
    return socket.create_connection((host, int(port)), 20)


def raw(gateway: GatewayProcess, data: bytes, *, leave: bool = False) -> bytes:
    """All that the gateway answers to `data` until it closes; with `leave` the client ends its own side."""
    answer = b""
    with closing(connect(gateway)) as connection:
        try:
            connection.sendall(data)
            if leave:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                answer += part
        except OSError:
            pass  # the gateway has closed while we still sent
    return answer


def head(gateway: GatewayProcess, line: str, *headers: str) -> bytes:
    """The head of a raw request with a token; the last one on its connection unless `headers` say else."""
    if not any(header.startswith("Connection:") for header in headers):
        headers = (*headers, "Connection: close")
    known = (f"Host: {gateway.host}", f"Authorization: Bearer {TOKEN}")
    return "\r\n".join([line, *known, *headers, "", ""]).encode("latin-1")


# ---- bodies that are no JSON, or of the wrong shape --------------------------------------------------------

CELLS = ("/v1/sessions/new/execute", "/v1/execute")
POSTS = ("/v1/sessions", *CELLS)
every_post = pytest.mark.parametrize("path", POSTS)

MALFORMED = [
    b'{"code": "1"',
    b"{'code': '1'}",
    b'{"code": "1"}{"code": "1"}',
    b'{"code": "1", "timeout": NaN}',
    b'{"code": "a\x00b"}',
    b'{"code": "\xff"}',
    b'{"code": "\xed\xa0\x80"}',  # a surrogate
    bytes(range(256)),
    b"code=1&timeout=2",
    b"[" * DEEP,
    b'{"code": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"metadata": {"a": ' + b"[" * DEEP + b"]" * DEEP + b"}}",
]


@every_post
@pytest.mark.usefixtures("unchanged")
def test_a_body_that_is_no_json_or_no_object_is_refused(gateway: GatewayProcess, path: str) -> None:
    for body in MALFORMED:
        refused(gateway.post(path, body), 400, "bad_request", says="body", sent=body[:100])
    for body in (b"null", b"true", b"1", b'"code"', b"[]", b'[{"code": "1"}]'):
        refused(gateway.post(path, body), 400, "bad_request", says="object", sent=body)


@pytest.mark.usefixtures("unchanged")
def test_an_execute_without_code_or_with_two_is_refused(gateway: GatewayProcess) -> None:
    bodies = (b"", b"{}", b'{"timeout": 5}', b'{"code": 1, "code": "1"}', b'{"code": "1", "code": 1}')
    for path, body in product(CELLS, bodies):
        refused(gateway.post(path, body), 400, "bad_request", says="code", sent=body)


# ---- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("escape", "says"),
    [
        (rb"a\u0000b", "NUL"),
        (rb"\ud800", "surrogate"),
        (rb"\udfff", "surrogate"),
        (rb"x\udc00\ud800y", "surrogate"),
        (rb"\ud800\u0041", "surrogate"),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_text_that_no_kernel_takes_is_refused_and_said_so(
    gateway: GatewayProcess, used: str, escape: bytes, says: str
) -> None:
    for form in (b'{"code": "%b"}', b'{"code": "1", "stdin": ["%b"]}', b'{"code": "1", "env": {"A": "%b"}}'):
        for path in (f"/v1/sessions/{used}/execute", *CELLS):
            refused(gateway.post(path, form % escape), 400, "bad_request", says=says, sent=form)
    refused(gateway.post("/v1/sessions", b'{"env": {"A": "%b"}}' % escape), 400, "bad_request", says=says)


BAD_TIMEOUTS = [b"0", b"-0.0", b"-1", b"-1e-9", b"2592001", b"1e308", b"1e400", b"9" * 400, b"1e-400"]


@pytest.mark.usefixtures("unchanged")
def test_a_timeout_out_of_bounds_is_refused(gateway: GatewayProcess, used: str) -> None:
    for number in BAD_TIMEOUTS:
        body = b'{"code": "1", "timeout": %b}' % number
        for path in (f"/v1/sessions/{used}/execute", *CELLS):
            refused(gateway.post(path, body), 400, "bad_request", says="timeout", sent=body)
        for name in ("cell_timeout", "idle_timeout", "lifetime"):
            body = b'{"limits": {"%b": %b}}' % (name.encode(), number)
            refused(gateway.post("/v1/sessions", body), 400, "bad_request", says=name, sent=body)


BAD_LIMITS: list[tuple[str, Any]] = [
    *(
        ("memory", value)
        for value in ("0", "-1", "lots", "", "1k", "1e3m", "1 2m", "512mm", "٣m", 0, -1, 1024)
    ),
    *(("memory", value) for value in (1.5, True, [], "999999999999999t", 10**20, "9" * 400)),
    *(("disk", value) for value in ("0", "-1", "lots", "1k", 0, -1, True, "999999999999999t", 10**20)),
    *(("cpus", value) for value in (0, -1, 0.01, 1025, 1e300, "1", True, [])),
    *(("pids", value) for value in (0, 1, 15, -1, 1_000_001, 10**30, 1.5, "64", True)),
]


@pytest.mark.usefixtures("unchanged")
def test_a_limit_out_of_bounds_is_refused_by_its_name(gateway: GatewayProcess) -> None:
    for name, value in BAD_LIMITS:
        limits = {"limits": {name: value}}
        for path, body in (("/v1/sessions", limits), ("/v1/execute", {"code": "1", **limits})):
            refused(gateway.post(path, body), 400, "bad_request", says=name, sent=body)


BAD_ENVIRONMENTS: dict[str, dict[str, str]] = {
    "too many": {f"A{number}": "" for number in range(65)},
    "empty name": {"": "x"},
    "equals sign": {"A=B": "x"},
    "newline": {"A\nB": "x"},
    "NUL": {"A\0": "x"},
    "not ASCII": {"É": "x"},
    "long name": {"A" * 129: "x"},
    "long value": {"A": "x" * (32 * 1024 + 1)},
}


@pytest.mark.usefixtures("unchanged")
def test_a_bad_environment_is_refused(gateway: GatewayProcess, used: str) -> None:
    for name, env in BAD_ENVIRONMENTS.items():
        refused(gateway.post("/v1/sessions", {"env": env}), 400, "bad_request", says="env", sent=name)
        for path in (f"/v1/sessions/{used}/execute", *CELLS):
            refused(gateway.post(path, {"code": "1", "env": env}), 400, "bad_request", says="env", sent=name)


@pytest.mark.usefixtures("unchanged")
def test_an_unknown_kernelspec_is_refused_with_the_names_there_are(
    gateway: GatewayProcess, used: str
) -> None:
    for name in ("nope", "../python3", "python3/..", "", " python3", "x" * 10_000, "%2e", "\0"):
        for path, body in (("/v1/sessions", {}), ("/v1/execute", {"code": "1"})):
            refused(gateway.post(path, {**body, "kernel": name}), 400, "bad_request", says="python3")
    refused(gateway.post("/v1/sessions", {"session": used, "kernel": "nope"}), 400, "bad_request")


OUT_OF_BOUNDS: list[dict[str, Any]] = [
    {"on_disconnect": "explode"},
    {"stdin": ["x"] * 10_001},
    {"code": "#" * (10 * MIB + 1)},
    {"stdin": ["#" * (10 * MIB + 1)]},
]


@pytest.mark.usefixtures("unchanged")
def test_other_values_out_of_bounds_are_refused(gateway: GatewayProcess) -> None:
    for fields, path in product(OUT_OF_BOUNDS, CELLS):
        refused(gateway.post(path, {"code": "1", **fields}), 400, "bad_request", says=next(iter(fields)))
    in_bytes = '{"code": "#%s"}' % ("é" * (5 * MIB))
    refused(gateway.post("/v1/execute", in_bytes.encode()), 400, "bad_request", says="code")
    refused(gateway.post("/v1/execute", {"code": "1", "wait": False}), 400, "bad_request", says="wait")
    refused(
        gateway.post("/v1/sessions", {"metadata": {"a": "x" * 70_000}}), 400, "bad_request", says="metadata"
    )


def test_metadata_as_deep_as_it_is_taken_can_be_read_back(gateway: GatewayProcess, session: str) -> None:
    """The session's model and its notebook still come out; one level more is refused."""
    depth = 32

    def deep(levels: int) -> bytes:
        return b'{"session": "%b", "metadata": {"a": %b}}' % (session.encode(), b"[" * levels + b"]" * levels)

    refused(gateway.post("/v1/sessions", deep(depth + 1)), 400, "bad_request", says="nested")
    assert gateway.post("/v1/sessions", deep(depth)).status == 201
    assert gateway.get(f"/v1/sessions/{session}").status == 200
    assert gateway.get(f"/v1/sessions/{session}/notebook").status == 200


# ---- session keys and ids ----------------------------------------------------------------------------------

BAD_KEYS = ["", "..", ".", "%2e%2e", "a" * 129, "a%00", "a%0Ab", "%1B%5B31m", "a%2Fb", "a%5Cb", "a%20b"]
BAD_KEYS += ["a%252e", "%C3%A9", "a%E2%80%AEb", "%FF", "-a", "a;b"]


@pytest.mark.usefixtures("unchanged")
def test_a_bad_session_key_is_refused_in_a_path_and_in_a_body(gateway: GatewayProcess) -> None:
    requests: list[tuple[str, str, Any]] = [
        *(("GET", path, None) for path in ("", "/events", "/notebook", "/executions", "/executions/x")),
        ("DELETE", "", None),
        *(("POST", path, None) for path in ("/interrupt", "/restart", "/executions/x/cancel")),
        ("POST", "/execute", {"code": "1"}),
        ("POST", "/executions/x/input", {"value": "x"}),
    ]
    for key in BAD_KEYS:
        for method, path, body in requests:
            answer = gateway.request(method, f"/v1/sessions/{key}{path}", body)
            refused(answer, 400, "bad_request", sent=(key, path))
        answer = gateway.post("/v1/sessions", {"session": unquote(key)})
        refused(answer, 400, "bad_request", says="session key", sent=key)


@pytest.mark.usefixtures("unchanged")
def test_an_unknown_session_is_not_found_and_not_made(gateway: GatewayProcess) -> None:
    base = "/v1/sessions/nobody"
    for path in ("", "/events", "/notebook", "/executions", "/executions/x"):
        refused(gateway.get(base + path), 404, "not_found", says="nobody")
    for path in ("/interrupt", "/restart", "/executions/x/cancel"):
        refused(gateway.post(base + path), 404, "not_found", says="nobody")
    refused(gateway.post(f"{base}/executions/x/input", {"value": "x"}), 404, "not_found", says="nobody")
    refused(gateway.delete(base), 404, "not_found", says="nobody")
    refused(gateway.get("/v1/sessions?after=nobody"), 404, "not_found", says="nobody")


@pytest.mark.usefixtures("unchanged")
def test_an_unknown_execution_is_not_found(gateway: GatewayProcess, used: str) -> None:
    for execution in ("", "x", "..", "%00", "%2F", "a" * 5000, "%C3%A9", "0" * 32):
        base = f"/v1/sessions/{used}/executions/{execution}"
        refused(gateway.get(base), 404, "not_found", sent=execution)
        refused(gateway.post(f"{base}/cancel"), 404, "not_found", sent=execution)
        refused(gateway.post(f"{base}/input", {"value": "x"}), 404, "not_found", sent=execution)


@pytest.mark.usefixtures("unchanged")
def test_a_finished_execution_takes_no_cancel_and_no_input(gateway: GatewayProcess, used: str) -> None:
    listed = gateway.get(f"/v1/sessions/{used}/executions").json()["executions"]
    base = f"/v1/sessions/{used}/executions/{listed[0]['execution']}"
    refused(gateway.post(f"{base}/cancel"), 409, "conflict")
    refused(gateway.post(f"{base}/input", {"value": "x"}), 404, "not_found")
    for value in ("1", r'"\u0000"', r'"\ud800"'):
        refused(
            gateway.post(f"{base}/input", f'{{"value": {value}}}'.encode()), 400, "bad_request", sent=value
        )
    for body in (b"{}", b"[", b'{"x": "y"}'):
        refused(gateway.post(f"{base}/input", body), 400, "bad_request", sent=body)


# ---- methods, paths, headers, queries ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/sessions", "GET, HEAD, POST"),
        ("BREW", "/v1/sessions", "GET, HEAD, POST"),
        ("POST", "/v1/sessions/x", "GET, HEAD, DELETE, PATCH"),
        ("GET", "/v1/execute", "POST"),
        ("TRACE", "/v1/info", "GET, HEAD"),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_a_wrong_method_is_refused_with_the_right_ones(
    gateway: GatewayProcess, method: str, path: str, allowed: str
) -> None:
    answer = gateway.request(method, path)
    refused(answer, 405, "method_not_allowed", says=allowed)
    assert answer.headers["Allow"] == allowed


MEANT = {
    "/v1/v1/sessions": "/v1/sessions",
    "/sessions": "/v1/sessions",
    "/api/v1/sessions/x/execute": "/v1/sessions/x/execute",
    "/v1//sessions": "/v1/sessions",
    "/v1/execute/": "/v1/execute",
    "/v1/session/x/file": "/v1/sessions/x/files",
    "/v1/metrics": "/metrics",
}


@pytest.mark.usefixtures("unchanged")
def test_an_unknown_path_is_not_found_and_the_one_that_was_meant_is_told(gateway: GatewayProcess) -> None:
    for path in ("/nope", "/v1", "/v1/nope", "/v1/sessions/x/nope", "//v1/sessions", "/v1/../v1/info"):
        for method in ("GET", "POST", "DELETE", "PUT"):
            refused(gateway.request(method, path), 404, "not_found", sent=(method, path))
    for path, meant in MEANT.items():
        refused(gateway.get(path), 404, "not_found", says=f"did you mean {meant}?", sent=path)
    # The list with a slash behind it is told apart from a bad key.
    refused(gateway.get("/v1/sessions/"), 400, "bad_request", says="/v1/sessions, without a slash")
    refused(gateway.get("/v1/sessions/x/export"), 404, "not_found", says="/docs has all")


@pytest.mark.usefixtures("unchanged")
def test_a_body_that_would_have_no_effect_is_refused(gateway: GatewayProcess, used: str) -> None:
    for path in ("/interrupt", "/restart", "/undo", "/executions/x/cancel"):
        for body in (b'{"steps": 2}', b"0", b"false", b"{", b"{" + b" " * 100 + b"}"):
            answer = gateway.post(f"/v1/sessions/{used}{path}", body)
            refused(answer, 400, "bad_request", says="takes no body", sent=(path, body))


def test_a_body_that_says_nothing_is_taken_with_any_request(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    for body in (b"", b"{}", b" {}\n", b"null", b"{ }", b"{\n}", b"[]", b'""', b" \n"):
        assert gateway.post(f"/v1/sessions/{session}/interrupt", body).status == 204


@every_post
@pytest.mark.usefixtures("unchanged")
def test_a_body_in_another_coding_or_of_another_type_is_refused(gateway: GatewayProcess, path: str) -> None:
    for coding in ("gzip", "BR", "utf-8, X-Gzip", "zstd"):
        answer = gateway.post(path, b'{"code": "1"}', headers={"Content-Encoding": coding})
        refused(answer, 415, "unsupported_media", says=coding.lower())
    for coding in ("identity", "utf-8", "UTF-8", "application/json"):
        # That is no coding, and leaves the body as it is.
        answer = gateway.post(path, b"[]", headers={"Content-Encoding": coding})
        refused(answer, 400, "bad_request", says="object", sent=coding)
    for kind in ("text/plain", "application/xml", "multipart/form-data; boundary=x", "nonsense"):
        answer = gateway.post(path, b'{"code": "1"}', headers={"Content-Type": kind})
        refused(answer, 415, "unsupported_media", says="application/json", sent=kind)


@pytest.mark.usefixtures("unchanged")
def test_an_unacceptable_accept_is_refused(gateway: GatewayProcess, used: str) -> None:
    for accept in ("text/html", "image/png", "application/pdf, text/csv", "nonsense"):
        for path in (f"/v1/sessions/{used}/execute", *CELLS):
            answer = gateway.post(path, {"code": "1"}, headers={"Accept": accept})
            refused(answer, 406, "not_acceptable", says="application/x-ndjson", sent=accept)
        refused(gateway.get(f"/v1/sessions/{used}/events", headers={"Accept": accept}), 406, "not_acceptable")
    refused(gateway.get(f"/v1/sessions/{used}/notebook?format=pdf"), 406, "not_acceptable")


BAD_QUERIES = [
    *(f"?limit={value}" for value in ("0", "-1", "x", "1e3", "1.5", "1001", "", "%D9%A3", "%FF", "9" * 5000)),
    *(f"?state={value}" for value in ("nope", "", "IDLE", "%FF")),
    *(f"?after={value}" for value in ("", "..", "%00", "%FF")),
]


@pytest.mark.usefixtures("unchanged")
def test_a_bad_query_of_the_list_is_refused(gateway: GatewayProcess) -> None:
    for query in BAD_QUERIES:
        refused(gateway.get(f"/v1/sessions{query}"), 400, "bad_request", sent=query)


@pytest.mark.parametrize("number", ["-1", "x", "1e3", "1.5", "", "%D9%A3", "%FF", "9" * 20, "9" * 5000])
@pytest.mark.usefixtures("unchanged")
def test_a_bad_number_in_a_query_is_refused(gateway: GatewayProcess, used: str, number: str) -> None:
    base = f"/v1/sessions/{used}"
    for path in (
        f"/events?after={number}",
        f"/executions?after={number}",
        f"/executions?limit={number}",
        f"/executions/x?max_text={number}",
        f"/executions/x?plain={number}",
        f"/notebook?outputs={number}",
    ):
        refused(gateway.get(base + path), 400, "bad_request")
    for query in (f"max_text={number}", f"plain={number}"):
        for path in (f"{base}/execute", *CELLS):
            refused(gateway.post(f"{path}?{query}", {"code": "1"}), 400, "bad_request")
    if number.isascii() and "%" not in number:
        answer = gateway.get(f"{base}/events", headers={"Last-Event-ID": number})
        refused(answer, 400, "bad_request", says="Last-Event-ID")


@pytest.mark.usefixtures("unchanged")
def test_a_bad_idempotency_key_is_refused(gateway: GatewayProcess, used: str) -> None:
    for path in (f"/v1/sessions/{used}/execute", CELLS[0]):
        for key in ("", "x" * 256, "x" * 10_000):
            answer = gateway.post(path, {"code": "1"}, headers={"Idempotency-Key": key})
            refused(answer, 400, "bad_request", says="Idempotency-Key")


# ---- bodies that are too large -----------------------------------------------------------------------------


def memory(gateway: GatewayProcess) -> int:
    """Resident bytes of the gateway."""
    return int(psutil.Process(gateway.process.pid).memory_info().rss)


@every_post
@pytest.mark.parametrize(
    ("declared", "most"), [({"Content-Length": str(50 * MIB)}, 25 * MIB), ({}, BODY_LIMIT + 20 * MIB)]
)
@pytest.mark.usefixtures("unchanged")
def test_a_body_of_50_mb_is_refused_and_held_no_further_than_the_limit(
    gateway: GatewayProcess, path: str, declared: dict[str, str], most: int
) -> None:
    """One whose length is declared is not held at all; other work takes some megabytes too."""
    highest = before = memory(gateway)

    def pieces() -> Iterator[bytes]:
        nonlocal highest
        for _ in range(50):
            yield b" " * MIB
            highest = max(highest, memory(gateway))

    with closing(gateway.connect()) as connection:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **declared}
        connection.request("POST", path, pieces(), headers, encode_chunked=not declared)
        answer = connection.getresponse()
        refused(Response(answer.status, answer.headers, answer.read()), 413, "too_large", says="larger")
    assert highest - before < most


@pytest.mark.usefixtures("unchanged")
def test_a_refused_body_leaves_the_connection_usable(gateway: GatewayProcess) -> None:
    with closing(gateway.connect()) as connection:
        for body in (b" " * (BODY_LIMIT + 1), b"{", b'{"nope": 1}'):
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
            connection.request("POST", "/v1/sessions", body, headers)
            assert connection.getresponse().read().startswith(b'{"type":')
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200


# ---- connections that misbehave ----------------------------------------------------------------------------

RAW: dict[str, Callable[[GatewayProcess], bytes]] = {  # what must be answered is in test_connections
    "long header": lambda g: head(g, "GET /healthz HTTP/1.1", "X: " + "y" * 1_000_000),
    "many headers": lambda g: head(g, "GET /healthz HTTP/1.1", *(f"X-{n}: y" for n in range(100_000))),
    "endless path": lambda g: head(g, f"GET /{'y' * 1_000_000} HTTP/1.1"),
    "half a head": lambda g: head(g, "GET /healthz HTTP/1.1")[:-3],
    "half a body": lambda g: (
        head(g, "POST /v1/sessions HTTP/1.1", "Content-Length: 500") + b'{"session": "half"'
    ),
}


@pytest.mark.parametrize("request_of", RAW.values(), ids=RAW.keys())
@pytest.mark.usefixtures("unchanged")
def test_a_broken_request_ends_its_connection_only(
    gateway: GatewayProcess, request_of: Callable[[GatewayProcess], bytes]
) -> None:
    """Refused as 4xx, or closed where there is nobody to answer; never a hang, never work done."""
    answer = raw(gateway, request_of(gateway), leave=True)
    assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 5"))
    assert gateway.get("/healthz", token=None).status == 200


@pytest.mark.usefixtures("unchanged")
def test_garbage_behind_a_good_request_is_refused_after_its_answer(gateway: GatewayProcess) -> None:
    good = head(gateway, "GET /healthz HTTP/1.1", "Connection: keep-alive")
    answer = raw(gateway, good + b"GARBAGE\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 400 ") == 1


@pytest.mark.usefixtures("unchanged")
def test_bad_requests_sent_ahead_are_answered_in_order(gateway: GatewayProcess) -> None:
    keep = "Connection: keep-alive"
    bad = head(gateway, "POST /v1/sessions HTTP/1.1", "Content-Length: 1", keep) + b"["
    answer = raw(gateway, bad * 3 + head(gateway, "GET /healthz HTTP/1.1"))
    assert answer.count(b"HTTP/1.1 400 ") == 3
    assert answer.count(b"HTTP/1.1 200 ") == 1
    assert answer.index(b"HTTP/1.1 200 ") > answer.rindex(b"HTTP/1.1 400 ")


def test_clients_that_leave_in_their_body_leave_nothing_behind(start_gateway: StartGateway) -> None:
    """Their requests are over when they have gone, not when the gateway stops, and are no failures."""
    gateway = start_gateway()
    request = head(gateway, "POST /v1/sessions HTTP/1.1", "Content-Length: 500") + b'{"session": "half"'
    for _ in range(20):
        with closing(connect(gateway)) as connection:
            connection.sendall(request)
    for _ in range(20):
        raw(gateway, head(gateway, "POST /v1/sessions HTTP/1.1", "Content-Length: -1"))
    assert sessions_of(gateway) == {}
    assert gateway.stop() == 0
    assert " 500 " not in gateway.log.read_text()


def test_a_client_that_sends_half_a_body_and_waits_does_not_hinder_the_end(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway()
    with closing(connect(gateway)) as connection:
        connection.sendall(head(gateway, "POST /v1/sessions HTTP/1.1", "Content-Length: 500") + b"{")
        assert gateway.get("/healthz").status == 200
        assert gateway.stop() == 0
