"""Bad input over HTTP: each a clear 4xx that changes nothing, and nothing a client sends makes a 5xx."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import unquote

import psutil
import pytest

from tests.conftest import NO_ENGINE, StartGateway, serving
from tests.support.commands import INSTALLED
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
    return sessions_of(gateway), pool["in_use"], pool["waiting"], events


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
    with serving(data, "auto", command=INSTALLED, docker_url=NO_ENGINE, pool_size=1) as process:
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


def refused(answer: Response, status: int, reason: str, *, says: str = "") -> None:
    """The answer is a problem of this kind, in words for the caller and without our stack."""
    assert (answer.status, answer.reason) == (status, reason), answer.body[:500]
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

POSTS = {"session": "/v1/sessions", "execute": "/v1/sessions/new/execute", "one-shot": "/v1/execute"}
every_post = pytest.mark.parametrize("path", POSTS.values(), ids=POSTS.keys())

MALFORMED = {
    "cut": b'{"code": "1"',
    "single quotes": b"{'code': '1'}",
    "two values": b'{"code": "1"}{"code": "1"}',
    "NaN": b'{"code": "1", "timeout": NaN}',
    "raw NUL": b'{"code": "a\x00b"}',
    "invalid UTF-8": b'{"code": "\xff"}',
    "surrogate in UTF-8": b'{"code": "\xed\xa0\x80"}',
    "garbage": bytes(range(256)),
    "form": b"code=1&timeout=2",
    "brackets": b"[" * DEEP,
    "nested": b'{"code": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "nested metadata": b'{"metadata": {"a": ' + b"[" * DEEP + b"]" * DEEP + b"}}",
}


@every_post
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.usefixtures("unchanged")
def test_a_body_that_is_no_json_is_refused(gateway: GatewayProcess, path: str, body: bytes) -> None:
    refused(gateway.post(path, body), 400, "bad_request", says="body")


@every_post
@pytest.mark.parametrize("body", [b"null", b"true", b"1", b'"code"', b"[]", b'[{"code": "1"}]'])
@pytest.mark.usefixtures("unchanged")
def test_a_body_that_is_no_object_is_refused(gateway: GatewayProcess, path: str, body: bytes) -> None:
    refused(gateway.post(path, body), 400, "bad_request", says="object")


@every_post
@pytest.mark.usefixtures("unchanged")
def test_an_unknown_field_is_refused_by_its_name(gateway: GatewayProcess, path: str) -> None:
    body = {"tiemout": 5} if path == "/v1/sessions" else {"code": "1", "tiemout": 5}
    says = "unknown field `tiemout`" + ("" if path == "/v1/sessions" else "; did you mean `timeout`?")
    refused(gateway.post(path, body), 400, "bad_request", says=says)
    limits = {"limits": {"mem": "1g"}} if path != POSTS["execute"] else {"env": {}, "limits": {}}
    refused(gateway.post(path, {**body, **limits}), 400, "bad_request")


WRONG_SESSION_FIELDS: list[tuple[str, Any]] = [
    *(("session", value) for value in (1, True, [], {}, ["a"])),
    *(("kernel", value) for value in (1, True, [], {})),
    *(("env", value) for value in (1, "A=B", ["A=B"], {"A": 1}, {"A": None}, {"A": ["x"]})),
    *(("limits", value) for value in (1, "512m", [])),
    *(("metadata", value) for value in (1, "x", [], [["a", 1]])),
]


@pytest.mark.parametrize(("field", "value"), WRONG_SESSION_FIELDS)
@pytest.mark.usefixtures("unchanged")
def test_a_session_field_of_a_wrong_type_is_refused_by_its_name(
    gateway: GatewayProcess, field: str, value: Any
) -> None:
    refused(gateway.post("/v1/sessions", {field: value}), 400, "bad_request", says=field)


WRONG_EXECUTE_FIELDS: list[tuple[str, Any]] = [
    *(("code", value) for value in (None, 1, True, [], {}, ["1"])),
    *(("timeout", value) for value in ("5", True, [], {})),
    *(("stdin", value) for value in ("line", 1, [1], [None], {})),
    *(("silent", value) for value in (0, "no", None)),
    *(("wait", value) for value in (0, "no", None)),
    *(("on_disconnect", value) for value in (1, None, [])),
    *(("env", value) for value in (1, "A=B", {"A": 1})),
]


@pytest.mark.parametrize(("field", "value"), WRONG_EXECUTE_FIELDS)
@pytest.mark.usefixtures("unchanged")
def test_an_execute_field_of_a_wrong_type_is_refused_by_its_name(
    gateway: GatewayProcess, used: str, field: str, value: Any
) -> None:
    for path in (f"/v1/sessions/{used}/execute", "/v1/sessions/new/execute", "/v1/execute"):
        refused(gateway.post(path, {"code": "1", field: value}), 400, "bad_request", says=field)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"timeout": 5}'])
@pytest.mark.usefixtures("unchanged")
def test_an_execute_without_code_is_refused(gateway: GatewayProcess, body: bytes) -> None:
    refused(gateway.post("/v1/sessions/new/execute", body), 400, "bad_request", says="code")
    refused(gateway.post("/v1/execute", body), 400, "bad_request", says="code")


@pytest.mark.usefixtures("unchanged")
def test_a_field_given_twice_is_refused_when_either_value_is_bad(gateway: GatewayProcess) -> None:
    for body in (b'{"code": 1, "code": "1"}', b'{"code": "1", "code": 1}'):
        refused(gateway.post("/v1/sessions/new/execute", body), 400, "bad_request", says="code")


# ---- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("escape", "says"),
    [
        (rb"\u0000", "NUL"),
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
    bodies = {
        "code": b'{"code": "%b"}' % escape,
        "stdin": b'{"code": "1", "stdin": ["%b"]}' % escape,
        "env": b'{"code": "1", "env": {"A": "%b"}}' % escape,
    }
    for body in bodies.values():
        for path in (f"/v1/sessions/{used}/execute", "/v1/sessions/new/execute", "/v1/execute"):
            refused(gateway.post(path, body), 400, "bad_request", says=says)
    refused(gateway.post("/v1/sessions", b'{"env": {"A": "%b"}}' % escape), 400, "bad_request", says=says)


BAD_TIMEOUTS = [
    b"0",
    b"-0.0",
    b"-1",
    b"-1e-9",
    b"1e12",
    b"1e308",
    b"1e400",
    b"9" * 400,
    b"1e-400",
    b"2592001",
]


@pytest.mark.parametrize("number", BAD_TIMEOUTS, ids=lambda number: number[:10].decode())
@pytest.mark.usefixtures("unchanged")
def test_a_timeout_out_of_bounds_is_refused(gateway: GatewayProcess, used: str, number: bytes) -> None:
    body = b'{"code": "1", "timeout": %b}' % number
    for path in (f"/v1/sessions/{used}/execute", "/v1/sessions/new/execute", "/v1/execute"):
        refused(gateway.post(path, body), 400, "bad_request", says="timeout")
    for name in ("cell_timeout", "idle_timeout", "lifetime"):
        body = b'{"limits": {"%b": %b}}' % (name.encode(), number)
        refused(gateway.post("/v1/sessions", body), 400, "bad_request", says=name)


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


@pytest.mark.parametrize(("name", "value"), BAD_LIMITS, ids=lambda value: str(value)[:20])
@pytest.mark.usefixtures("unchanged")
def test_a_limit_out_of_bounds_is_refused_by_its_name(gateway: GatewayProcess, name: str, value: Any) -> None:
    limits = {"limits": {name: value}}
    refused(gateway.post("/v1/sessions", limits), 400, "bad_request", says=name)
    refused(gateway.post("/v1/execute", {"code": "1", **limits}), 400, "bad_request", says=name)


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


@pytest.mark.parametrize("env", BAD_ENVIRONMENTS.values(), ids=BAD_ENVIRONMENTS.keys())
@pytest.mark.usefixtures("unchanged")
def test_a_bad_environment_is_refused(gateway: GatewayProcess, used: str, env: dict[str, str]) -> None:
    refused(gateway.post("/v1/sessions", {"env": env}), 400, "bad_request", says="env")
    for path in (f"/v1/sessions/{used}/execute", "/v1/sessions/new/execute", "/v1/execute"):
        refused(gateway.post(path, {"code": "1", "env": env}), 400, "bad_request", says="env")


@pytest.mark.parametrize(
    "name", ["nope", "../python3", "python3/..", "", " python3", "x" * 10_000, "%2e", "\0"]
)
@pytest.mark.usefixtures("unchanged")
def test_an_unknown_kernelspec_is_refused_with_the_names_there_are(
    gateway: GatewayProcess, name: str
) -> None:
    refused(gateway.post("/v1/sessions", {"kernel": name}), 400, "bad_request", says="python3")
    refused(gateway.post("/v1/execute", {"code": "1", "kernel": name}), 400, "bad_request", says="python3")


@pytest.mark.usefixtures("unchanged")
def test_an_unknown_kernelspec_contradicts_no_existing_session(gateway: GatewayProcess, used: str) -> None:
    refused(gateway.post("/v1/sessions", {"session": used, "kernel": "nope"}), 400, "bad_request")


@pytest.mark.parametrize(
    "fields",
    [
        {"on_disconnect": "explode"},
        {"stdin": ["x"] * 10_001},
        {"code": "#" * (10 * MIB + 1)},
        {"stdin": ["#" * (10 * MIB + 1)]},
    ],
    ids=["on_disconnect", "too many lines", "long code", "long line"],
)
@pytest.mark.usefixtures("unchanged")
def test_other_values_out_of_bounds_are_refused(gateway: GatewayProcess, fields: dict[str, Any]) -> None:
    says = next(iter(fields))
    for path in ("/v1/sessions/new/execute", "/v1/execute"):
        refused(gateway.post(path, {"code": "1", **fields}), 400, "bad_request", says=says)


@pytest.mark.usefixtures("unchanged")
def test_the_length_of_code_is_counted_in_bytes(gateway: GatewayProcess) -> None:
    body = '{"code": "#%s"}' % ("é" * (5 * MIB))
    refused(gateway.post("/v1/execute", body.encode()), 400, "bad_request", says="code")


@pytest.mark.usefixtures("unchanged")
def test_metadata_that_is_too_large_is_refused(gateway: GatewayProcess) -> None:
    refused(
        gateway.post("/v1/sessions", {"metadata": {"a": "x" * 70_000}}), 400, "bad_request", says="metadata"
    )


@pytest.mark.usefixtures("unchanged")
def test_a_one_shot_that_nobody_waits_for_is_refused(gateway: GatewayProcess) -> None:
    refused(gateway.post("/v1/execute", {"code": "1", "wait": False}), 400, "bad_request", says="wait")


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

BAD_KEYS_IN_PATHS = {
    "empty": "",
    "dots": "..",
    "dot": ".",
    "quoted dots": "%2e%2e",
    "129 characters": "a" * 129,
    "NUL": "a%00",
    "newline": "a%0Ab",
    "escape": "%1B%5B31m",
    "slash": "a%2Fb",
    "backslash": "a%5Cb",
    "blank": "a%20b",
    "quoted twice": "a%252e",
    "letter outside ASCII": "%C3%A9",
    "right to left": "a%E2%80%AEb",
    "invalid UTF-8": "%FF",
    "hyphen first": "-a",
    "semicolon": "a;b",
}


@pytest.mark.parametrize("key", BAD_KEYS_IN_PATHS.values(), ids=BAD_KEYS_IN_PATHS.keys())
@pytest.mark.usefixtures("unchanged")
def test_a_bad_session_key_in_a_path_is_refused(gateway: GatewayProcess, key: str) -> None:
    base = f"/v1/sessions/{key}"
    requests: list[tuple[str, str, Any]] = [
        *(("GET", path, None) for path in ("", "/events", "/notebook", "/executions", "/executions/x")),
        ("DELETE", "", None),
        *(("POST", path, None) for path in ("/interrupt", "/restart", "/executions/x/cancel")),
        ("POST", "/execute", {"code": "1"}),
        ("POST", "/executions/x/input", {"value": "x"}),
    ]
    for method, path, body in requests:
        refused(gateway.request(method, base + path, body), 400, "bad_request")


BAD_KEYS = sorted({unquote(key) for key in BAD_KEYS_IN_PATHS.values()})


@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: ascii(key)[:20])
@pytest.mark.usefixtures("unchanged")
def test_a_bad_session_key_in_a_body_is_refused(gateway: GatewayProcess, key: str) -> None:
    refused(gateway.post("/v1/sessions", {"session": key}), 400, "bad_request", says="session key")


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


@pytest.mark.parametrize("execution", ["", "x", "..", "%00", "%2F", "a" * 5000, "%C3%A9", "0" * 32])
@pytest.mark.usefixtures("unchanged")
def test_an_unknown_execution_is_not_found(gateway: GatewayProcess, used: str, execution: str) -> None:
    base = f"/v1/sessions/{used}/executions/{execution}"
    refused(gateway.get(base), 404, "not_found")
    refused(gateway.post(f"{base}/cancel"), 404, "not_found")
    refused(gateway.post(f"{base}/input", {"value": "x"}), 404, "not_found")


@pytest.mark.usefixtures("unchanged")
def test_a_finished_execution_takes_no_cancel_and_no_input(gateway: GatewayProcess, used: str) -> None:
    listed = gateway.get(f"/v1/sessions/{used}/executions").json()["executions"]
    base = f"/v1/sessions/{used}/executions/{listed[0]['execution']}"
    refused(gateway.post(f"{base}/cancel"), 409, "conflict")
    refused(gateway.post(f"{base}/input", {"value": "x"}), 404, "not_found")
    for body in (
        b"{}",
        b'{"value": 1}',
        b'{"value": "\\u0000"}',
        b'{"value": "\\ud800"}',
        b"[",
        b'{"x": "y"}',
    ):
        refused(gateway.post(f"{base}/input", body), 400, "bad_request")


# ---- methods, paths, headers, queries ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/sessions", "GET, POST"),
        ("BREW", "/v1/sessions", "GET, POST"),
        ("POST", "/v1/sessions/x", "GET, DELETE"),
        ("GET", "/v1/execute", "POST"),
        ("TRACE", "/v1/info", "GET"),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_a_wrong_method_is_refused_with_the_right_ones(
    gateway: GatewayProcess, method: str, path: str, allowed: str
) -> None:
    answer = gateway.request(method, path)
    refused(answer, 405, "method_not_allowed", says=allowed)
    assert answer.headers["Allow"] == allowed


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
@pytest.mark.parametrize(
    "path", ["/nope", "/v1", "/v1/nope", "/v1/sessions/x/nope", "//v1/sessions", "/v1/../v1/info"]
)
@pytest.mark.usefixtures("unchanged")
def test_an_unknown_path_is_not_found(gateway: GatewayProcess, method: str, path: str) -> None:
    refused(gateway.request(method, path), 404, "not_found")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/v1/sessions", "/v1/sessions"),
        ("/sessions", "/v1/sessions"),
        ("/api/v1/sessions/x/execute", "/v1/sessions/x/execute"),
        ("/v1//sessions", "/v1/sessions"),
        ("/v1/execute/", "/v1/execute"),
        ("/v1/session/x/file", "/v1/sessions/x/files"),
        ("/v1/metrics", "/metrics"),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_a_path_that_is_not_there_is_answered_with_the_one_that_was_meant(
    gateway: GatewayProcess, path: str, meant: str
) -> None:
    refused(gateway.get(path), 404, "not_found", says=f"did you mean {meant}?")


@pytest.mark.usefixtures("unchanged")
def test_the_list_with_a_slash_behind_it_is_told_apart_from_a_bad_key(gateway: GatewayProcess) -> None:
    refused(gateway.get("/v1/sessions/"), 400, "bad_request", says="/v1/sessions, without a slash")
    refused(gateway.get("/v1/sessions/x/export"), 404, "not_found", says="/docs has all")


@pytest.mark.parametrize("path", ["/interrupt", "/restart", "/undo", "/executions/x/cancel"])
@pytest.mark.usefixtures("unchanged")
def test_a_body_that_would_have_no_effect_is_refused(gateway: GatewayProcess, used: str, path: str) -> None:
    for body in (b'{"steps": 2}', b"0", b"false", b"{", b"{" + b" " * 100 + b"}"):
        answer = gateway.post(f"/v1/sessions/{used}{path}", body)
        refused(answer, 400, "bad_request", says="takes no body")


def test_a_body_that_says_nothing_is_taken_with_any_request(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    for body in (b"", b"{}", b" {}\n", b"null", b"{ }", b"{\n}", b"[]", b'""', b" \n"):
        assert gateway.post(f"/v1/sessions/{session}/interrupt", body).status == 204


@pytest.mark.parametrize("coding", ["gzip", "BR", "utf-8, X-Gzip", "zstd"])
@pytest.mark.usefixtures("unchanged")
def test_a_body_in_another_coding_is_refused(gateway: GatewayProcess, coding: str) -> None:
    for path in POSTS.values():
        answer = gateway.post(path, b'{"code": "1"}', headers={"Content-Encoding": coding})
        refused(answer, 415, "unsupported_media", says=coding.lower())


@pytest.mark.parametrize("coding", ["identity", "utf-8", "UTF-8", "application/json"])
@pytest.mark.usefixtures("unchanged")
def test_what_is_no_coding_leaves_a_body_as_it_is(gateway: GatewayProcess, coding: str) -> None:
    answer = gateway.post("/v1/sessions", b"[]", headers={"Content-Encoding": coding})
    refused(answer, 400, "bad_request", says="object")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "multipart/form-data; boundary=x", "nonsense"]
)
@pytest.mark.usefixtures("unchanged")
def test_a_body_of_another_type_is_refused(gateway: GatewayProcess, kind: str) -> None:
    for path in POSTS.values():
        answer = gateway.post(path, b'{"code": "1"}', headers={"Content-Type": kind})
        refused(answer, 415, "unsupported_media", says="application/json")


@pytest.mark.usefixtures("unchanged")
def test_a_chunked_body_of_another_type_is_refused(gateway: GatewayProcess) -> None:
    request = head(
        gateway, "POST /v1/sessions HTTP/1.1", "Content-Type: text/plain", "Transfer-Encoding: chunked"
    )
    answer = raw(gateway, request + b'D\r\n{"nope": "1"}\r\n0\r\n\r\n')
    assert answer.startswith(b"HTTP/1.1 415 "), answer[:200]


@pytest.mark.parametrize("accept", ["text/html", "image/png", "application/pdf, text/csv", "nonsense"])
@pytest.mark.usefixtures("unchanged")
def test_an_unacceptable_accept_is_refused(gateway: GatewayProcess, used: str, accept: str) -> None:
    for path in (f"/v1/sessions/{used}/execute", "/v1/sessions/new/execute", "/v1/execute"):
        answer = gateway.post(path, {"code": "1"}, headers={"Accept": accept})
        refused(answer, 406, "not_acceptable", says="application/x-ndjson")
    refused(gateway.get(f"/v1/sessions/{used}/events", headers={"Accept": accept}), 406, "not_acceptable")
    refused(gateway.get(f"/v1/sessions/{used}/notebook?format=pdf"), 406, "not_acceptable")


BAD_QUERIES = [
    *(f"?limit={value}" for value in ("0", "-1", "x", "1e3", "1.5", "1001", "", "%D9%A3", "%FF", "9" * 5000)),
    *(f"?state={value}" for value in ("nope", "", "IDLE", "%FF")),
    *(f"?after={value}" for value in ("", "..", "%00", "%FF")),
]


@pytest.mark.parametrize("query", BAD_QUERIES, ids=lambda query: query[:20])
@pytest.mark.usefixtures("unchanged")
def test_a_bad_query_of_the_list_is_refused(gateway: GatewayProcess, query: str) -> None:
    refused(gateway.get(f"/v1/sessions{query}"), 400, "bad_request")


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
        for path in (f"{base}/execute", "/v1/sessions/new/execute", "/v1/execute"):
            refused(gateway.post(f"{path}?{query}", {"code": "1"}), 400, "bad_request")
    if number.isascii() and "%" not in number:
        answer = gateway.get(f"{base}/events", headers={"Last-Event-ID": number})
        refused(answer, 400, "bad_request", says="Last-Event-ID")


@pytest.mark.parametrize("key", ["", "x" * 256, "x" * 10_000])
@pytest.mark.usefixtures("unchanged")
def test_a_bad_idempotency_key_is_refused(gateway: GatewayProcess, used: str, key: str) -> None:
    for session in (used, "new"):
        answer = gateway.post(
            f"/v1/sessions/{session}/execute", {"code": "1"}, headers={"Idempotency-Key": key}
        )
        refused(answer, 400, "bad_request", says="Idempotency-Key")


# ---- bodies that are too large -----------------------------------------------------------------------------


def memory(gateway: GatewayProcess) -> int:
    """Resident bytes of the gateway."""
    return int(psutil.Process(gateway.process.pid).memory_info().rss)


@every_post
@pytest.mark.usefixtures("unchanged")
def test_a_body_of_50_mb_is_refused_without_being_held(gateway: GatewayProcess, path: str) -> None:
    before = memory(gateway)
    highest = before
    with closing(gateway.connect()) as connection:
        connection.putrequest("POST", path)
        connection.putheader("Authorization", f"Bearer {TOKEN}")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(50 * MIB))
        connection.endheaders()
        for _ in range(50):
            connection.send(b" " * MIB)
            highest = max(highest, memory(gateway))
        answer = connection.getresponse()
        refused(Response(answer.status, answer.headers, answer.read()), 413, "too_large", says="larger")
    # Other work of this gateway takes some megabytes too; a body that is held would take 50.
    assert highest - before < 25 * MIB


@every_post
@pytest.mark.usefixtures("unchanged")
def test_a_chunked_body_of_50_mb_is_refused_and_held_no_further_than_the_limit(
    gateway: GatewayProcess, path: str
) -> None:
    before = memory(gateway)
    highest = before

    def pieces() -> Iterator[bytes]:
        nonlocal highest
        for _ in range(50):
            yield b" " * MIB
            highest = max(highest, memory(gateway))

    with closing(gateway.connect()) as connection:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request("POST", path, pieces(), headers, encode_chunked=True)
        answer = connection.getresponse()
        refused(Response(answer.status, answer.headers, answer.read()), 413, "too_large", says="larger")
    assert highest - before < BODY_LIMIT + 20 * MIB


@pytest.mark.parametrize("length", [200_000_000, 10**15])
@pytest.mark.usefixtures("unchanged")
def test_a_body_declared_as_huge_is_refused_before_it_is_sent(gateway: GatewayProcess, length: int) -> None:
    request = head(gateway, "POST /v1/sessions HTTP/1.1", f"Content-Length: {length}")
    answer = raw(gateway, request + b'{"session": ')
    assert answer.startswith(b"HTTP/1.1 413 "), answer[:200]
    assert b"application/problem+json" in answer


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

Raw = Callable[[GatewayProcess], bytes]

RAW: dict[str, tuple[Raw, bytes]] = {  # the bytes, and how the answer begins if there must be one
    "no HTTP": (lambda _: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"HTTP/1.1 400 "),
    "other version": (lambda g: head(g, "GET /healthz HTTP/9.9"), b"HTTP/1.1 400 "),
    "no host": (lambda _: b"GET /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
    "two hosts": (lambda g: head(g, "GET /healthz HTTP/1.1", "Host: evil.example"), b"HTTP/1.1 400 "),
    "header without colon": (lambda g: head(g, "GET /healthz HTTP/1.1", "nonsense"), b"HTTP/1.1 400 "),
    "negative length": (
        lambda g: head(g, "POST /v1/sessions HTTP/1.1", "Content-Length: -5"),
        b"HTTP/1.1 400 ",
    ),
    "length in words": (
        lambda g: head(g, "POST /v1/sessions HTTP/1.1", "Content-Length: x"),
        b"HTTP/1.1 400 ",
    ),
    "two lengths": (
        lambda g: head(g, "POST /v1/sessions HTTP/1.1", "Content-Length: 2", "Content-Length: 3") + b"{} ",
        b"HTTP/1.1 400 ",
    ),
    "length and chunks": (
        lambda g: (
            head(g, "POST /v1/sessions HTTP/1.1", "Content-Length: 2", "Transfer-Encoding: chunked") + b"{}"
        ),
        b"HTTP/1.1 400 ",
    ),
    "bad chunk": (
        lambda g: head(g, "POST /v1/sessions HTTP/1.1", "Transfer-Encoding: chunked") + b"zz\r\n{}\r\n",
        b"HTTP/1.1 400 ",
    ),
    "control character": (
        lambda g: head(g, "POST /v1/sessions/a/execute HTTP/1.1", "Idempotency-Key: \x01"),
        b"HTTP/1.1 400 ",
    ),
    "long header": (lambda g: head(g, "GET /healthz HTTP/1.1", "X: " + "y" * 1_000_000), b""),
    "many headers": (
        lambda g: head(g, "GET /healthz HTTP/1.1", *(f"X-{n}: y" for n in range(100_000))),
        b"",
    ),
    "endless path": (lambda g: head(g, f"GET /{'y' * 1_000_000} HTTP/1.1"), b""),
    "half a head": (lambda g: head(g, "GET /healthz HTTP/1.1")[:-3], b""),
    "half a body": (
        lambda g: head(g, "POST /v1/sessions HTTP/1.1", "Content-Length: 500") + b'{"session": "half"',
        b"",
    ),
}


@pytest.mark.parametrize(("request_of", "answers"), RAW.values(), ids=RAW.keys())
@pytest.mark.usefixtures("unchanged")
def test_a_broken_request_ends_its_connection_only(
    gateway: GatewayProcess, request_of: Raw, answers: bytes
) -> None:
    """Refused as 4xx, or closed where there is nobody to answer; never a hang, never work done."""
    answer = raw(gateway, request_of(gateway), leave=not answers)
    assert answer.startswith(answers)
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
