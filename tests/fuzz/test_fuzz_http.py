"""Any request at all to a real gateway: the API reference names its answer, and it leaves no traceback."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st

from tests.conftest import NO_ENGINE, serving
from tests.fuzz.budget import Fuzz
from tests.support.server import PATIENCE, TOKEN, GatewayProcess, until

ANSWERS = {100, 101, 200, 201, 202, 204, 206, 304, 400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 416, 422}
ANSWERS |= {429, 431, 503, 507}
REASONS_OF_503 = {"pool_exhausted"}
"""Of the documented ones: storage, kernels and the gateway's end are no client's to bring about."""

ODD_WORDS = ".. ../.. %00 %ff % %zz -1 0 1 1e999 nan true null text/html image/png html ipynb py bytes=0-"
ODD_TEXT = st.sampled_from(
    [*ODD_WORDS.split(), "", "\0", "a" * 300, "é", "\ud800", "1" * 400, "9" * 19, str(2**63)]
)
WORD = ODD_TEXT | st.text(max_size=12)
SESSIONS = st.sampled_from(["fuzz", "fuzz", "fuzz", "other", "missing"]) | WORD
ROUTES = (
    "/healthz /readyz /metrics /v1/info /v1/execute /v1/sessions /v1/sessions/{} "
    "/v1/sessions/{}/interrupt /v1/sessions/{}/restart /v1/sessions/{}/execute "
    "/v1/sessions/{}/execute-blocks /v1/sessions/{}/executions /v1/sessions/{}/executions/{} "
    "/v1/sessions/{}/executions/{}/cancel /v1/sessions/{}/executions/{}/input "
    "/v1/sessions/{}/executions/{}/output/{} /v1/sessions/{}/events /v1/sessions/{}/ws "
    "/v1/sessions/{}/notebook /v1/sessions/{}/replay /v1/sessions/{}/bundle /v1/sessions/{}/audit "
    "/v1/sessions/{}/audit/verify /v1/sessions/{}/packages /v1/sessions/{}/files /v1/sessions/{}/files/{} "
    "/api /api/status /api/kernelspecs /api/kernelspecs/{} /kernelspecs/{}/{} /api/kernels "
    "/api/kernels/{} /api/kernels/{}/interrupt /api/kernels/{}/restart /api/kernels/{}/channels "
    "/api/sessions /api/sessions/{} /{} //{}"
)
POSTS = (
    "/v1/execute /v1/sessions /v1/sessions/{}/execute /v1/sessions/{}/execute-blocks "
    "/v1/sessions/{}/packages /v1/sessions/{}/replay /v1/sessions/{}/files /api/kernels /api/sessions "
    "/v1/sessions/{}/executions/{}/input"
)
"""Which change something."""
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "NONSENSE"])
NAMES_IN_QUERIES = (
    "limit after state purge format outputs plain type max_text images follow token session_id wait "
    "anyway kernels"
)
QUERY = st.sampled_from(NAMES_IN_QUERIES.split())
NAMES_OF_HEADERS = (
    "Accept Range If-Match If-None-Match Last-Event-ID Idempotency-Key Content-Encoding Origin Expect "
    "Sec-WebSocket-Version Sec-WebSocket-Key Sec-WebSocket-Extensions Sec-WebSocket-Protocol Upgrade "
    "Cookie Accept-Language X-Forwarded-For Content-Disposition Host Authorization"
)
HEADERS = st.sampled_from(NAMES_OF_HEADERS.split())
TYPES = st.sampled_from(
    [
        "application/json",
        "application/json; charset=latin-1",
        "text/plain",
        "multipart/form-data; boundary=b",
        "multipart/form-data; boundary=" + "b" * 300,
        "multipart/form-data",
        "application/x-www-form-urlencoded",
        "\xff",
    ]
)

NAMES_OF_FIELDS = (
    "code timeout stdin silent on_disconnect wait env language tables packages kernel limits session "
    "metadata blocks value anyway install uninstall upgrade constraints memory cpus pids disk "
    "cell_timeout idle_timeout lifetime path name type id x"
)
FIELDS = st.sampled_from(NAMES_OF_FIELDS.split())
SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 0.5, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 1e308, -0.0])
    | st.sampled_from(
        ["1", "print(1)", "1/0", "input()", "python", "python3", "bash", "interrupt", "continue", "auto"]
    )
    | st.sampled_from(["64m", "1t", "x; os_name == 'x'", "a==1", "-e .", "a\nb", "https://x/y.whl"])
    | WORD
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS | WORD, inner, max_size=5),
    max_leaves=12,
)
USUAL = st.fixed_dictionaries(
    {"code": st.sampled_from(["1", "print(1)", "1/0", "input()", "open('f', 'w').write('x')"])},
    optional={
        "timeout": SCALARS,
        "stdin": JSON,
        "env": JSON,
        "wait": SCALARS,
        "on_disconnect": SCALARS,
        "language": SCALARS,
        "tables": SCALARS,
        "packages": SCALARS,
        "silent": SCALARS,
    },
)
RAW = st.sampled_from(
    [
        b"",
        b"{",
        b"[" * 10_000,
        b'{"code":' * 3000,
        b'"\\ud800"',
        b'{"code": "\\u0000"}',
        b'{"code": 1e999}',
        b"\xff\xfe",
        b'{"timeout": ' + b"9" * 5000 + b', "code": "1"}',
        b"NaN",
        b'{"code": "1", "code": "2"}',
        b"\xef\xbb\xbf{}",
        b'--b\r\nContent-Disposition: form-data; filename="a"\r\n\r\nx\r\n--b--\r\n',
        b'--b\r\nContent-Disposition: form-data; filename="../a"\r\n\r\nx\r\n--b--\r\n',
        b"--b\r\n" + b"X: y\r\n" * 5000 + b"\r\nx\r\n--b--\r\n",
        b"--b\r\nContent-Disposition: form-data; filename*=x''%ff",
    ]
)
BODIES = (
    st.none()
    | JSON.map(lambda value: json.dumps(value).encode())
    | USUAL.map(lambda value: json.dumps(value).encode())
    | RAW
    | st.binary(max_size=200)
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway whose sessions end soon, because every request may make one."""
    with serving(
        tmp_path_factory.mktemp("fuzzed") / "data",
        "auto",
        docker_url=NO_ENGINE,
        pool_size=1,
        max_kernels=6,
        claim_timeout=1,
        cell_timeout=1,
        interrupt_grace=0.5,
        idle_timeout=1,
        cull_interval=0.1,
        shutdown_grace=0,
        keep_alive=0.2,
    ) as process:
        process.execute("fuzz", "print(1)")
        yield process


def exchange(gateway: GatewayProcess, request: bytes) -> tuple[int, bytes, bytes]:
    """Status, head and body, or what there is of the body after a moment: a stream may have no end."""
    host, _, port = gateway.host.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request)
        said = b""
        while b"\r\n\r\n" not in said:
            part = connection.recv(65536)
            assert part, f"no answer to {request[:2000]!r}, but {said!r}"
            said += part
        head, _, body = said.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        connection.settimeout(60 if length else 0.3)
        try:
            while (length is None or len(body) < int(length[1])) and (part := connection.recv(65536)):
                body += part
        except TimeoutError:
            assert length is None, f"the answer to {request[:2000]!r} has no end"
        except ConnectionResetError:
            pass
    return int(head.split()[1]), head, body


def check_log(gateway: GatewayProcess, request: bytes) -> None:
    """No traceback has come into the log since it was last looked at."""
    with gateway.log.open("r+b") as log:
        said = log.read()
        # The gateway appends to it, so this is safe; an example is not blamed for those before it.
        log.truncate(0)
    at = said.find(b"Traceback")
    assert at < 0, (request[:2000], said[max(0, at - 500) : at + 4000].decode(errors="replace"))


def check_answer(gateway: GatewayProcess, request: bytes) -> None:
    status, head, body = exchange(gateway, request)
    check_log(gateway, request)
    assert status in ANSWERS, (request[:2000], head, body[:2000])
    if status >= 500:
        assert json.loads(body)["reason"] in REASONS_OF_503, (request[:2000], body)
    assert b"Traceback" not in head
    assert gateway.process.poll() is None


def runs_a_cell(gateway: GatewayProcess) -> bool:
    """Whether a kernel comes free in time, and runs a cell however long it takes."""
    answer = gateway.post("/v1/sessions/last/execute", {"code": "1 + 1", "timeout": PATIENCE})
    return answer.status == 200 and answer.json()["text"] == "2"


def encoded(text: str) -> bytes:
    """As a client would that knows no rules: what can't be in a request line at all is left out."""
    raw = text.encode(errors="surrogatepass")
    return bytes(byte for byte in raw if byte > 32 and byte != 127)


def field(text: str) -> bytes:
    return text.encode(errors="surrogatepass").translate(None, b"\r\n\0")


def build(
    method: str,
    route: str,
    names: list[str],
    query: list[tuple[str, str]],
    headers: list[tuple[str, str]],
    kind: str,
    body: bytes | None,
    *,
    authorized: bool,
) -> bytes:
    target = re.sub(r"\{\}", lambda _: names.pop() if names else "x", route)
    arguments = "&".join(f"{name}={value}" for name, value in query)
    lines = [
        f"{method} ".encode() + encoded(target) + (b"?" + encoded(arguments) if query else b"") + b" HTTP/1.1"
    ]
    given = {name.lower() for name, _ in headers}
    if "host" not in given:
        lines.append(b"Host: 127.0.0.1")
    if authorized and "authorization" not in given:
        lines.append(b"Authorization: Bearer " + TOKEN.encode())
    lines += [name.encode() + b": " + field(value) for name, value in headers]
    if body is not None:
        lines += [b"Content-Type: " + field(kind), b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""]) + (body or b"")


REQUESTS = st.builds(
    build,
    METHODS,
    st.sampled_from(ROUTES.split()),
    st.lists(SESSIONS, min_size=3, max_size=3),
    st.lists(st.tuples(QUERY | WORD, WORD), max_size=3),
    st.lists(st.tuples(HEADERS, WORD), max_size=3, unique_by=lambda header: header[0]),
    TYPES,
    BODIES,
    authorized=st.sampled_from([True, True, True, True, False]),
)


def test_every_request_has_an_answer_that_is_documented(fuzz: Fuzz, fuzzed: GatewayProcess) -> None:
    def check(request: bytes) -> None:
        check_answer(fuzzed, request)

    fuzz.run(check, REQUESTS, examples=150)
    assert fuzzed.get("/healthz").status == 200
    until(lambda: runs_a_cell(fuzzed), "no cell runs any more")


def test_every_body_has_an_answer_that_is_documented(fuzz: Fuzz, fuzzed: GatewayProcess) -> None:
    """More of the requests that change something, with bodies that nearly fit."""
    requests = st.builds(
        build,
        st.just("POST"),
        st.sampled_from(POSTS.split()),
        st.lists(SESSIONS, min_size=2, max_size=2),
        st.just([]),
        st.lists(st.tuples(HEADERS.filter(lambda n: n not in {"Host", "Authorization"}), WORD), max_size=1),
        TYPES,
        BODIES.filter(lambda body: body is not None),
        authorized=st.just(value=True),
    )

    def check(request: bytes) -> None:
        check_answer(fuzzed, request)

    fuzz.run(check, requests, examples=100)


def test_bytes_that_are_no_request_are_refused(fuzz: Fuzz, fuzzed: GatewayProcess) -> None:
    """Heads cut, doubled, with bytes changed: an answer, or the end of the connection, and nothing else."""

    def check(request: bytes, at: int, wrong: bytes) -> None:
        at %= len(request)
        broken = request[:at] + wrong + request[at + 1 :]
        host, _, port = fuzzed.host.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            try:
                connection.sendall(broken)
                connection.shutdown(socket.SHUT_WR)
                said = connection.recv(65536)
            except (ConnectionResetError, BrokenPipeError):
                said = b""
        if said:
            assert int(said.split()[1]) in ANSWERS, (broken[:2000], said)
        check_log(fuzzed, broken)

    fuzz.run(check, REQUESTS, st.integers(0, 10_000), st.binary(max_size=4), examples=100)
    assert fuzzed.get("/healthz").status == 200
