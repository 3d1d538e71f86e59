"""A session's proxy: what gets through, what does not, what is recorded, and clients that mean harm."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from cellgate.egress import ledger, proxy
from cellgate.egress.policy import Address
from cellgate.egress.requests import MOST_HEAD
from cellgate.egress.resolver import THREADS, Lookups
from cellgate.egress.shared import PIECES_A_TURN, EgressLimits
from cellgate.fairness.turns import part_of_one
from cellgate.quotas.quotas import Policy
from cellgate.quotas.usage import Usage
from cellgate_kernels.base.threads import Lane
from tests.core.egress.world import PATIENCE, PUBLIC, Serve, echo, policy, world

GET = b"GET http://h.example/a HTTP/1.1\r\nHost: h.example\r\n\r\n"
CONNECT = b"CONNECT h.example:443 HTTP/1.1\r\nHost: h.example:443\r\n\r\n"


def answering(answer: bytes, heard: list[bytes]) -> Serve:
    """A host that hears a request until its end, as `GET` has it, and answers."""

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    return serve


async def test_a_tunnel_carries_bytes_both_ways_and_each_end() -> None:
    async with world(echo) as made:
        reader, writer = await made.tunnel()
        writer.write(b"x" * 300_000)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b"x" * 300_000
        writer.close()
        event = (await made.recorded())[0]
    assert event.pop("seconds") >= 0
    assert event == {
        "type": "connection",
        "host": "h.example",
        "port": 443,
        "address": PUBLIC,
        "verdict": "allowed",
        "cause": None,
        "sent": 300_000,
        "received": 300_000,
        "during": "cell-1",
    }
    assert made.dialed == [([PUBLIC], 443)]


async def test_a_plain_request_is_rewritten_and_answered() -> None:
    heard: list[bytes] = []
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    async with world(answering(answer, heard)) as made:
        assert await made.ask(GET) == answer
        event = (await made.recorded())[0]
    assert heard == [b"GET /a HTTP/1.1\r\nHost: h.example\r\nConnection: close\r\n\r\n"]
    assert (event["port"], event["sent"], event["received"]) == (80, len(heard[0]), len(answer))


@pytest.mark.parametrize(
    ("framing", "body", "sent"),
    [
        ("Content-Length: 5", b"hello", b"hello"),
        (
            "Transfer-Encoding: chunked",
            b"3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: 1\r\n\r\n",
            b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
        ),
    ],
)
async def test_bodies_are_sent_on_and_nothing_after_them(framing: str, body: bytes, sent: bytes) -> None:
    heard: list[bytes] = []
    over = asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        heard.append(await reader.readexactly(len(sent)))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.write_eof()
        heard.append(await reader.read())
        writer.close()
        over.set()

    smuggled = b"GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n"
    head = f"POST http://h.example/ HTTP/1.1\r\nHost: h.example\r\n{framing}\r\n\r\n".encode()
    async with world(serve) as made:
        assert await made.ask(head + body + smuggled) == b"HTTP/1.1 204 No Content\r\n\r\n"
        assert len(await made.recorded()) == 1
        async with asyncio.timeout(PATIENCE):
            await over.wait()
    assert heard == [sent, b""]


@pytest.mark.parametrize(
    "body",
    [
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"5\n",
        b"1" * 300 + b"\r\n",
        b"5\r\nhel",
        b"0\r\n" + b"a\r\n" * 200 + b"\r\n",
    ],
)
async def test_a_body_that_is_not_what_it_says_does_not_look_whole(body: bytes) -> None:
    heard: list[bytes] = []
    left = asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            while data := await reader.read(1000):
                heard.append(data)
        writer.close()
        left.set()

    head = b"POST http://h.example/ HTTP/1.1\r\nHost: h.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with world(serve) as made:
        _, writer = await made.connect()
        writer.write(head + body)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            await left.wait()
        writer.close()
        await made.recorded()
    assert b"0\r\n\r\n" not in b"".join(heard)


@pytest.mark.parametrize(
    ("request_line", "status", "cause"),
    [
        ("CONNECT other.example:443 HTTP/1.1", 403, "host_not_allowed"),
        ("CONNECT h.example:22 HTTP/1.1", 403, "host_not_allowed"),
        ("CONNECT 9.9.9.9:443 HTTP/1.1", 403, "host_not_allowed"),
        ("CONNECT 127.0.0.1:443 HTTP/1.1", 403, "host_not_allowed"),
        ("CONNECT 2130706433:443 HTTP/1.1", 400, "bad_request"),
        ("CONNECT in.example:80 HTTP/1.1", 403, "address_not_allowed"),
        ("GET / HTTP/1.1", 400, "bad_request"),
        ("nonsense", 400, "bad_request"),
    ],
)
async def test_what_is_not_allowed_is_refused_and_recorded(
    request_line: str, status: int, cause: str
) -> None:
    async with world(echo) as made:
        answer = await made.ask(f"{request_line}\r\n\r\n".encode())
        event = (await made.recorded())[0]
        assert made.dialed == []
        assert [name for name in made.asked if name != "in.example"] == []
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert f"({cause})".encode() in answer.partition(b"\r\n")[0]
    assert (event["verdict"], event["cause"]) == ("refused", cause)


async def test_a_refusal_says_what_is_allowed() -> None:
    async with world() as made:
        answer = await made.ask(b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")
    assert b"this session may not reach evil.example:443; allowed: h.example:443, h.example:80" in answer


async def test_only_the_admitted_of_several_addresses_are_called() -> None:
    async with world(echo) as made:
        made.names["h.example"] = ["10.0.0.1", "9.9.9.9", "127.0.0.1", "::ffff:8.8.8.8", "2620:fe::fe"]
        _, writer = await made.tunnel()
        writer.close()
        assert made.dialed == [(["9.9.9.9", "2620:fe::fe"], 443)]


async def test_a_name_that_changes_its_mind_is_asked_once_for_each_connection() -> None:
    async with world(echo) as made:
        _, writer = await made.tunnel()
        writer.close()
        made.names["h.example"] = ["169.254.169.254"]
        assert (await made.ask(CONNECT)).startswith(b"HTTP/1.1 403 ")
        assert made.asked == ["h.example", "h.example"]
        assert made.dialed == [([PUBLIC], 443)]


async def test_an_address_of_this_machine_is_not_reached_though_it_is_public() -> None:
    async with world(echo) as made:
        made.own = {PUBLIC}
        assert b"address_not_allowed" in await made.ask(CONNECT)
        made.policy = policy("h.example:443", allow_private=True)
        _, writer = await made.tunnel()
        writer.close()


async def test_a_redirect_is_the_clients_to_follow_and_is_checked_like_any_request() -> None:
    redirect = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/\r\n\r\n"
    async with world(answering(redirect, [])) as made:
        assert await made.ask(GET) == redirect
        answer = await made.ask(
            b"GET http://169.254.169.254/latest/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert made.dialed == [([PUBLIC], 80)]


async def test_hosts_that_are_not_there() -> None:
    async with world() as made:
        assert b"(unreachable)" in await made.ask(CONNECT)
        del made.names["h.example"]
        assert b"(name_not_found)" in await made.ask(CONNECT)
        events = await made.recorded(2)
    assert [(event["verdict"], event["cause"]) for event in events] == [
        ("allowed", "unreachable"),
        ("refused", "name_not_found"),
    ]


async def test_without_a_policy_nothing_is_reached() -> None:
    async with world(echo) as made:
        made.policy = None
        assert b"(no_policy)" in await made.ask(CONNECT)


async def test_without_a_record_nothing_is_reached() -> None:
    async with world(echo) as made:
        made.writable = False
        answer = await made.ask(CONNECT)
        assert made.dialed == []
    assert answer.startswith(b"HTTP/1.1 503 ")


async def test_a_policy_that_is_withdrawn_ends_open_connections() -> None:
    async with world(echo) as made:
        reader, writer = await made.tunnel()
        made.policy = policy("other.example:443")
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()
        assert (await made.recorded())[0]["cause"] == "policy_changed"


async def test_the_end_of_allow_private_ends_connections_to_this_machine() -> None:
    """Also to a public address of its own, which any policy seems to allow."""
    async with world(echo, given=policy("h.example:443", allow_private=True)) as made:
        made.own = {PUBLIC}
        reader, writer = await made.tunnel()
        made.policy = policy("h.example:443")
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()
        assert (await made.recorded())[0]["cause"] == "policy_changed"


async def test_a_policy_that_is_withdrawn_while_a_host_is_called_counts() -> None:
    async with world(echo) as made:
        dial = made.egress.ways.dial

        async def withdrawn(addresses: Sequence[Address], port: int) -> tuple[socket.socket, Address] | None:
            made.policy = None
            return await dial(addresses, port)

        made.egress.ways = replace(made.egress.ways, dial=withdrawn)
        answer = await made.ask(CONNECT)
        assert (await made.recorded())[0]["cause"] == "policy_changed"
    assert answer.startswith(b"HTTP/1.1 403 Forbidden (policy_changed)\r\n")


async def test_idle_connections_end() -> None:
    async with world(echo, limits=EgressLimits(idle_seconds=0.0)) as made:
        reader, writer = await made.tunnel()
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()
        assert (await made.recorded())[0]["cause"] == "idle"


async def test_the_end_of_the_kernel_ends_connections_and_records_them() -> None:
    async with world(echo) as made:
        _, writer = await made.tunnel()
        await made.proxy.close()
        writer.close()
        assert [event["cause"] for event in made.events] == ["kernel_ended"]
        assert made.egress.open.total() == 0


async def test_so_many_connections_at_once_and_no_more() -> None:
    async with world(echo, limits=EgressLimits(connections=5)) as made:
        answers = await asyncio.gather(*[_first_line(made.connect) for _ in range(10)])
        counts = sorted(line.split()[1] for line, _ in answers)
        assert counts == [b"200"] * 5 + [b"429"] * 5
        for _, writer in answers:
            writer.close()
        await made.recorded(10)
        _, writer = await made.tunnel()
        writer.close()


async def _first_line(connect: Callable[[], object]) -> tuple[bytes, StreamWriter]:
    reader, writer = await connect()  # type: ignore[misc]
    writer.write(CONNECT)
    async with asyncio.timeout(PATIENCE):
        return await reader.readline(), writer


async def test_all_sessions_together_have_so_many_connections() -> None:
    async with world(echo, limits=EgressLimits(of_all=1)) as made:
        _, writer = await made.tunnel()
        assert b"(too_many_connections)" in await made.ask(CONNECT)
        writer.close()
        await made.recorded(2)
        assert made.egress.open.total() == 0


async def test_so_many_bytes_and_no_more() -> None:
    async with world(echo, limits=EgressLimits(bytes=100_000)) as made:
        reader, writer = await made.tunnel()
        writer.write(b"x" * 40_000)
        async with asyncio.timeout(PATIENCE):
            assert await reader.readexactly(40_000)
        writer.write(b"x" * 40_000)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(40_000)
        writer.close()
        event = (await made.recorded())[0]
        assert event["cause"] == "quota_exceeded"
        assert event["sent"] + event["received"] <= 100_000
        assert b"(quota_exceeded)" in await made.ask(CONNECT)


async def test_bytes_wait_for_their_turn_and_an_end_gives_their_place_back() -> None:
    usage = Usage(Policy({"user": {"network_bytes_per_minute": 100_000}}))
    asked = 0
    too_many = asyncio.Event()

    async def pass_bytes(principal: str, count: int) -> None:
        nonlocal asked
        asked += count
        if asked > 30_000:
            too_many.set()
        await usage.pass_network(principal, count)

    async with world(echo) as made:
        made.egress.pass_bytes = pass_bytes
        reader, writer = await made.tunnel()
        writer.write(b"x" * 5_000)
        async with asyncio.timeout(PATIENCE):
            assert await reader.readexactly(5_000) == b"x" * 5_000
        # Far more than may pass at once.
        writer.write(b"y" * 60_000)
        await writer.drain()
        async with asyncio.timeout(PATIENCE):
            await too_many.wait()
        await made.proxy.close()
        writer.close()
        event = (await made.recorded())[0]
        passed = event["sent"] + event["received"]
        assert event["cause"] == "kernel_ended"
        assert 10_000 <= passed <= 25_000
        assert usage.account("ada").uses()["network_bytes_per_minute"].used == passed
        assert usage.account("ada").take_network(0) == 0


async def test_slow_names_of_one_user_leave_threads_for_others() -> None:
    """Also those of sessions that have ended: a thread can't be stopped."""
    asked = [threading.Event() for _ in range(THREADS)]
    answer = threading.Event()
    numbers = itertools.count()

    def slow(_: str) -> list[str]:
        asked[next(numbers)].set()
        answer.wait(PATIENCE)
        return [PUBLIC]

    lane = Lane("lookups", THREADS)
    lookups = Lookups(lane, slow)
    part = part_of_one(THREADS)
    try:
        of_ada = [asyncio.ensure_future(lookups.texts("ada", "slow.example")) for _ in range(2 * THREADS)]
        for event in asked[:part]:
            assert await asyncio.to_thread(event.wait, PATIENCE)
        for each in of_ada:
            each.cancel()
        await asyncio.wait(of_ada)
        again = asyncio.ensure_future(lookups.texts("ada", "slow.example"))
        of_bob = asyncio.ensure_future(lookups.texts("bob", "h.example"))
        assert await asyncio.to_thread(asked[part].wait, PATIENCE), "bob has no thread"
        assert not asked[part + 1].is_set()
        answer.set()
        assert await of_bob == [PUBLIC]
        assert await again == [PUBLIC]
        assert next(numbers) == part + 2, "names that nobody waits for are not looked up"
    finally:
        answer.set()
        await lookups.close()
        lane.close()


# Clients that mean harm


async def test_a_giant_head_is_refused() -> None:
    async with world(echo) as made:
        answer = await made.ask(b"GET http://h.example/ HTTP/1.1\r\nX: " + b"x" * 2 * MOST_HEAD)
    assert b"400 Bad Request (bad_request)" in answer


async def test_a_head_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "HEAD_SECONDS", 0.05)
    async with world(echo) as made:
        assert b"a head must come within" in await made.ask(b"GET http://h.example/ HTTP/1.1\r\n")


async def test_a_client_that_leaves_at_once_is_no_event() -> None:
    async with world(echo) as made:
        _, writer = await made.connect()
        writer.close()
        await writer.wait_closed()
        assert b"(host_not_allowed)" in await made.ask(b"CONNECT evil.example:1 HTTP/1.1\r\n\r\n")
        assert len(await made.recorded()) == 1


async def test_a_flood_is_counted_rather_than_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "PACE", 0.0)
    async with world(echo) as made:
        _, tunnel = await made.tunnel()
        for _ in range(100):
            await made.ask(b"CONNECT evil.example:1 HTTP/1.1\r\n\r\n")
        tunnel.close()
        await made.recorded(ledger.MOST_REFUSED + 1)
        await made.proxy.close()
        events = made.events
    assert [event["type"] for event in events].count("connection") == ledger.MOST_REFUSED + 1
    assert events[-1] == {
        "type": "connections",
        "allowed": 0,
        "refused": 100 - ledger.MOST_REFUSED,
        "sent": 0,
        "received": 0,
        "hosts": [],
    }
    # What was refused has not crowded out what was allowed.
    assert [event["host"] for event in events if event.get("verdict") == "allowed"] == ["h.example"]


async def test_connections_that_say_nothing_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "OVERFLOW", 4)
    async with world(echo, limits=EgressLimits(connections=4)) as made:
        silent = [await made.connect() for _ in range(20)]
        async with asyncio.timeout(PATIENCE):
            ended = [await reader.read() for reader, _ in silent[8:]]
        assert set(ended) == {b""}
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("connections", [1, 4])
async def test_chunks_of_one_byte_are_sent_on_a_few_in_each_turn(connections: int) -> None:
    count, arrived = 3000, 0
    over = asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        nonlocal arrived
        await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"0\r\n\r\n")
        arrived += 1
        if arrived == connections:
            over.set()
        writer.close()

    head = b"POST http://h.example/ HTTP/1.1\r\nHost: h.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with world(serve) as made:
        asking = [
            asyncio.create_task(made.ask(head + b"1\r\nx\r\n" * count + b"0\r\n\r\n"))
            for _ in range(connections)
        ]
        turns = 0
        async with asyncio.timeout(PATIENCE):
            while not over.is_set():
                turns += 1
                await asyncio.sleep(0)
            await asyncio.gather(*asking)
    assert turns >= connections * count / PIECES_A_TURN


async def test_a_client_that_does_not_read_holds_up_only_its_own_host() -> None:
    begun = asyncio.Event()
    written = 0

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        nonlocal written
        begun.set()
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                written += 65536
        except ConnectionError:
            writer.close()

    async with world(serve) as made:
        _, writer = await made.tunnel()
        await begun.wait()
        before = -1
        while written > before:
            before = written
            await asyncio.sleep(0.2)
        # Sockets' buffers of the system, and ours.
        assert written < 32 * 1024 * 1024
        writer.close()
        await made.recorded()


async def test_the_socket_of_an_earlier_gateway_is_replaced() -> None:
    async with world(echo) as made:
        await made.proxy.close()
        assert made.path.is_socket()
        made.proxy.listen(made.path.parent)
        _, writer = await made.tunnel()
        writer.close()
