"""What a client sees when the gateway that has its session fails, is slow, or says what it should not.

The owner is a server of the test. What reaches it is what a gateway of the cluster gets from another one.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from cellgate.http.hop.signature import HopPlace, HopSigner
from cellgate.http.listener.forwarded import Forwarded
from tests.support.free_ports import free_port
from tests.support.nodes import OWNER, Owner, Pair, pair, read_head
from tests.support.server import TOKEN, GatewayProcess, Response, send, until

__all__ = ["pair"]

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nCellgate-Owner: f00d\r\n\r\nok"
MIB = 1024 * 1024

Begin = Callable[[Callable[[socket.socket], None]], Owner]


@pytest.fixture
def begin(pair: Pair, key: str) -> Iterator[Begin]:
    """Begins a server that has the session with the key."""
    begun = []

    def begin(serve: Callable[[socket.socket], None]) -> Owner:
        owner = Owner(serve)
        begun.append(owner)
        pair.give(key, f"f00d{uuid.uuid4().hex[4:]}", owner.url)
        return owner

    yield begin
    for owner in begun:
        owner.close()


@pytest.fixture
def key() -> str:
    return f"away-{uuid.uuid4().hex[:8]}"


def get(pair: Pair, key: str, **headers: str) -> Response:
    return pair.other.get(f"/v1/sessions/{key}", headers=headers)


def fields_of(head: str, name: str) -> list[str]:
    found = [line.partition(": ") for line in head.split("\r\n")[1:]]
    return [value for named, _, value in found if named.lower() == name]


def test_the_owner_gets_the_token_and_nothing_that_only_a_gateway_may_say(
    pair: Pair, key: str, begin: Begin
) -> None:
    heads = []

    def serve(connection: socket.socket) -> None:
        heads.append(read_head(connection)[0])
        connection.sendall(ANSWER)

    begin(serve)
    sent = {
        "cellgate_hop": "f00d",
        "Cellgate-Anything": "1",
        "X-Forwarded-For": "9.9.9.9",
        "Forwarded": "for=9.9.9.9",
        "X-Real-IP": "9.9.9.9",
        "Connection": "close, Cellgate-Hop, X-Mine",
        "X-Mine": "1",
        "X-Other": "2",
        "Cookie": "a=b",
    }
    answer = get(pair, key, **sent)
    assert (answer.status, answer.body, answer.headers.get_all(OWNER)) == (200, b"ok", ["f00d"])
    (head,) = heads
    assert head.startswith(f"GET /v1/sessions/{key} HTTP/1.1\r\n")
    assert fields_of(head, "authorization") == [f"Bearer {TOKEN}"]
    assert fields_of(head, "host") == [pair.other.host]
    assert (fields_of(head, "cookie"), fields_of(head, "x-other")) == (["a=b"], ["2"])
    (hop,) = fields_of(head, "cellgate-hop")
    assert hop.split()[0] == pair.node(pair.other)
    assert hop.split()[2:4] == ["127.0.0.1", "http"]
    for word in ("9.9.9.9", "anything", "x-mine", "x-forwarded", "forwarded:", "cellgate_hop"):
        assert word not in head.lower()


def test_connections_are_kept_for_the_next_request(pair: Pair, key: str, begin: Begin) -> None:
    connections = []

    def serve(connection: socket.socket) -> None:
        connections.append(connection)
        while read_head(connection)[0]:
            connection.sendall(ANSWER)

    begin(serve)
    for _ in range(5):
        assert get(pair, key).body == b"ok"
    assert len(connections) == 1


def test_words_that_come_unasked_are_no_answer(pair: Pair, key: str, begin: Begin) -> None:
    closed = threading.Event()

    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(ANSWER)
        if not closed.is_set():
            connection.sendall(ANSWER.replace(b"ok", b"no"))
            assert connection.recv(1) == b""
            closed.set()

    begin(serve)
    assert get(pair, key).body == b"ok"
    assert closed.wait(60)
    assert get(pair, key).body == b"ok"


def test_an_owner_that_is_gone_is_a_503_and_nothing_is_begun(pair: Pair, key: str) -> None:
    pair.give(key, f"f00d{uuid.uuid4().hex[4:]}", f"http://127.0.0.1:{free_port()}")
    answer = pair.other.post(f"/v1/sessions/{key}/execute", {"code": "1"})
    assert (answer.status, answer.reason) == (503, "owner_unreachable")
    assert answer.headers["Retry-After"] == "2"
    assert answer.headers[OWNER] == pair.node(pair.other)


def test_an_owner_that_is_lost_within_the_request_is_a_502_and_asked_once(
    pair: Pair, key: str, begin: Begin
) -> None:
    heads = []

    def serve(connection: socket.socket) -> None:
        heads.append(read_head(connection)[0])

    begin(serve)
    answer = pair.other.post(f"/v1/sessions/{key}/execute", {"code": "1"})
    assert (answer.status, answer.reason) == (502, "owner_lost")
    assert "Retry-After" not in answer.headers
    assert len(heads) == 1


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nA: \x01\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"a" * 70_000,
        b"HTTP/1.1 103 Early\r\n\r\n" * 20,
    ],
)
def test_what_is_no_answer_is_a_502(pair: Pair, key: str, begin: Begin, said: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(said)

    begin(serve)
    answer = get(pair, key)
    assert (answer.status, answer.reason) == (502, "owner_lost")


def test_half_an_answer_does_not_look_like_a_whole_one(pair: Pair, key: str, begin: Begin) -> None:
    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")

    begin(serve)
    with pair.other.stream("GET", f"/v1/sessions/{key}") as answer:
        assert answer.read(2) == b"ok"
        with pytest.raises(ConnectionResetError):
            answer.read()


def test_an_early_answer_ends_an_upload(pair: Pair, key: str, begin: Begin) -> None:
    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        while connection.recv(65536):
            pass

    begin(serve)
    answer = pair.other.request("PUT", f"/v1/sessions/{key}/files/a", b"a" * 8 * MIB)
    assert (answer.status, answer.body) == (413, b"no")


def test_a_client_that_leaves_ends_the_owners_work(pair: Pair, key: str, begin: Begin) -> None:
    asked, left = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        read_head(connection)
        asked.set()
        while connection.recv(65536):
            pass
        left.set()

    begin(serve)
    connection = pair.other.connect()
    send(connection, "GET", f"/v1/sessions/{key}")
    assert asked.wait(60)
    connection.close()
    assert left.wait(60)


def test_a_client_that_leaves_within_its_body_ends_the_request(pair: Pair, key: str, begin: Begin) -> None:
    got: list[bytes] = []
    left = threading.Event()

    def serve(connection: socket.socket) -> None:
        got.append(read_head(connection)[1])
        while data := connection.recv(65536):
            got.append(data)
        left.set()

    begin(serve)
    host, _, port = pair.other.host.partition(":")
    head = (
        f"PUT /v1/sessions/{key}/files/a HTTP/1.1\r\nHost: {pair.other.host}\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Length: 100\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + b"a" * 10)
        until(lambda: b"".join(got) == b"a" * 10, "the body does not come")
    assert left.wait(60)
    assert b"".join(got) == b"a" * 10


def test_a_slow_reader_slows_the_owner_down(pair: Pair, key: str, begin: Begin) -> None:
    sent = 0
    whole = 64 * MIB

    def serve(connection: socket.socket) -> None:
        nonlocal sent
        read_head(connection)
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {whole}\r\n\r\n".encode())
        for _ in range(64):
            connection.sendall(bytes(MIB))
            sent += MIB

    begin(serve)
    with pair.other.stream("GET", f"/v1/sessions/{key}") as answer:
        assert answer.read(10) == bytes(10)
        stopped = until(lambda: _stands(lambda: sent), "the owner is never slowed down")
        assert stopped < whole
        assert len(answer.read()) == whole - 10


def test_a_slow_owner_slows_an_upload_down(pair: Pair, key: str, begin: Begin) -> None:
    go_on = threading.Event()
    got = 0
    whole = 64 * MIB

    def serve(connection: socket.socket) -> None:
        nonlocal got
        got = len(read_head(connection)[1])
        go_on.wait(60)
        while got < whole:
            got += len(connection.recv(MIB))
        connection.sendall(ANSWER)

    begin(serve)
    sent = 0
    connection = pair.other.connect()
    connection.putrequest("PUT", f"/v1/sessions/{key}/files/a")
    connection.putheader("Authorization", f"Bearer {TOKEN}")
    connection.putheader("Content-Length", str(whole))
    connection.endheaders()

    def upload() -> None:
        nonlocal sent
        for _ in range(64):
            connection.send(bytes(MIB))
            sent += MIB

    sending = threading.Thread(target=upload)
    sending.start()
    stopped = until(lambda: _stands(lambda: sent), "the client is never slowed down")
    go_on.set()
    sending.join(60)
    assert connection.getresponse().read() == b"ok"
    connection.close()
    assert stopped < whole == got


def _stands(count: Callable[[], int]) -> int | None:
    """The count, if it does not change for a while."""
    before = count()
    changed = threading.Event()
    changed.wait(0.5)
    return before if before and count() == before else None


def test_a_request_is_handed_on_once(pair: Pair, key: str, begin: Begin) -> None:
    heads = []

    def serve(connection: socket.socket) -> None:
        heads.append(read_head(connection)[0])

    begin(serve)
    sign = signer(pair, pair.one).sign(
        pair.other.url, "GET", f"/v1/sessions/{key}", Forwarded("9.9.9.9", "http")
    )
    answer = get(pair, key, **{"Cellgate-Hop": sign})
    assert (answer.status, answer.reason) == (421, "not_owner")
    assert heads == []


def signer(pair: Pair, gateway: GatewayProcess) -> HopSigner:
    """A gateway's signer."""
    return HopSigner(HopPlace(pair.node(gateway), gateway.url, pair.hop_key()))


def test_login_attempts_count_for_the_client_and_only_by_a_good_signature(pair: Pair, begin: Begin) -> None:
    path = "/v1/me"
    good = signer(pair, pair.other).sign(pair.one.url, "GET", path, Forwarded("9.9.9.9", "https"))
    elsewhere = signer(pair, pair.other).sign(pair.other.url, "GET", path, Forwarded("8.8.8.8", "https"))
    assert pair.one.get(path, token="wrong", headers={"Cellgate-Hop": good}).status == 401
    for said in (elsewhere, f"{good} 1", good.replace("9.9.9.9", "7.7.7.7"), "a", "a b c d e"):
        answer = pair.one.get(path, token="wrong", headers={"Cellgate-Hop": said})
        assert (answer.status, answer.reason) == (400, "hop_refused")
    noted = until(lambda: _noted(pair, "9.9.9.9"), "the address is not noted")
    for never in ("8.8.8.8", "7.7.7.7"):
        assert never not in noted


def _noted(pair: Pair, address: str) -> str | None:
    """The audit trail, once it has the address."""
    noted = pair.one.get("/v1/audit?limit=500").body.decode()
    return noted if address in noted else None


def test_an_access_to_anothers_session_is_noted_once_by_the_gateway_that_was_asked(
    pair: Pair, key: str
) -> None:
    path = f"/v1/sessions/{key}?principal=somebody"
    pair.own(key, pair.node(pair.one), "somebody")
    answer = pair.other.get(path)
    assert (answer.status, answer.headers[OWNER]) == (404, pair.node(pair.one))
    signed = signer(pair, pair.other).sign(pair.one.url, "GET", path, Forwarded("9.9.9.9", "http"))
    assert pair.one.get(path, headers={"Cellgate-Hop": signed}).status == 404
    pair.one.get(f"/v1/sessions/{key}-later?principal=somebody")
    # Each gateway writes what it notes when it comes to it; the owner writes in order.
    until(lambda: _noted(pair, f"{key}-later"), "the last access is not noted")
    noted = until(lambda: _noted(pair, f'"session":"{key}"'), "the access is not noted")
    assert noted.count(f'"session":"{key}"') == 1


def test_a_host_that_only_the_other_gateway_has_is_believed_by_a_good_signature(pair: Pair) -> None:
    path = "/v1/me"
    good = signer(pair, pair.other).sign(pair.one.url, "GET", path, Forwarded("9.9.9.9", "https"))
    named = {"Host": "other.example"}
    assert pair.one.get(path, headers=named).status == 403
    assert pair.one.get(path, headers=named | {"Cellgate-Hop": good}).status == 200
    assert pair.one.get(path, headers=named | {"Cellgate-Hop": good[:-1]}).status == 400


def test_a_body_beside_a_bad_signature_is_not_read(pair: Pair) -> None:
    headers = {"Cellgate-Hop": "a"}
    answer = pair.one.request("PUT", "/v1/sessions/never/files/a", b"a" * MIB, headers=headers)
    assert (answer.status, answer.reason) == (400, "hop_refused")
    assert pair.one.get("/v1/sessions/never").status == 404


def test_the_log_says_once_for_each_gateway_why_its_requests_are_refused(pair: Pair) -> None:
    """Digits that only begin a gateway's id, and the reader's own id, are nobody's."""
    path, client = "/v1/me", Forwarded("9.9.9.9", "https")
    node = pair.node(pair.other)
    place = HopPlace(node, pair.other.url, pair.hop_key())
    late = HopSigner(place, lambda: time.time() - 1000).sign(pair.one.url, "GET", path, client)
    foreign = HopSigner(replace(place, key=b"another")).sign(pair.one.url, "GET", path, client)
    unknown = HopSigner(HopPlace("f" * 32, "", b"another")).sign(pair.one.url, "GET", path, client)
    nodes = "/v1/cluster"
    until(lambda: node.encode() in pair.one.get(nodes).body, "the gateways do not know each other")
    parts = [f"{node[:length]} 1" for length in range(8, len(node))]
    for said in (late, foreign, unknown, late, foreign, unknown, "a", *parts, f"{pair.node(pair.one)} 1"):
        assert pair.one.get(path, headers={"Cellgate-Hop": said}).reason == "hop_refused"
    log = pair.one.log.read_text()
    assert log.count("hands on: ") == 2
    assert log.count(f"the node {node} hands on: the clocks are 100") == 1
    assert log.count(f"the node {node} hands on: its signature is not good here") == 1
    assert log.count("no gateway of the cluster has sent") == 1


def test_nothing_in_the_database_signs_for_a_gateway(pair: Pair) -> None:
    key = pair.hop_key()
    with psycopg.connect(pair.database) as db:
        columns = db.execute(
            "SELECT table_schema, table_name, column_name FROM information_schema.columns"
            " WHERE data_type IN ('bytea', 'text')"
            " AND table_schema NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        assert len(columns) > 20
        for schema, table, column in columns:
            place = sql.Identifier(schema, table), sql.Identifier(column)
            for (value,) in db.execute(sql.SQL("SELECT {1} FROM {0}").format(*place)):
                kept = value if isinstance(value, bytes) else str(value).encode()
                assert key not in kept
                assert key.hex().encode() not in kept


def test_a_method_that_there_is_not_is_refused_at_once(pair: Pair) -> None:
    """Not by the owner: nothing of the request is passed on."""
    key = f"no-method-{uuid.uuid4().hex[:8]}"
    pair.one.execute(key, "1")
    for method in ("PUT", "HEAD"):
        body = b"{}" if method == "PUT" else None
        answer = pair.other.request(method, f"/v1/sessions/{key}/interrupt", body)
        assert (answer.status, answer.headers[OWNER]) == (405, pair.node(pair.other))
    assert pair.other.get(f"/v1/sessions/{key}").headers[OWNER] == pair.node(pair.one)
