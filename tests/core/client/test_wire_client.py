"""The client against answers that no sound gateway gives: broken, refused, endless, foreign."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import re
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellgate.client import (
    Event,
    Finished,
    Gateway,
    GatewayError,
    NotFound,
    Overloaded,
    Stream,
    api,
    calls,
    files,
    transport,
    values,
)
from cellgate_kernels.base.errors import InvalidInput

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(
    *scripts: Script | bytes, read_body: bool = True
) -> AsyncIterator[tuple[Gateway, list[bytes]]]:
    """A client of a server that reads each request's head and body, then does as its script says, in turn."""
    requests: list[bytes] = []

    connections: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())  # type: ignore[arg-type]
        with contextlib.suppress(ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = [int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if b"content-length" in x]
            script = scripts[min(len(requests), len(scripts) - 1)]
            requests.append(head + await reader.readexactly(sum(length) if read_body else 0))
            if isinstance(script, bytes):
                writer.write(script)
            else:
                await script(reader, writer)
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Gateway(f"http://127.0.0.1:{port}/base/", "secret"), requests
        await asyncio.gather(*connections)


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def chunked(*parts: bytes, end: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head + body + (b"0\r\n\r\n" if end else b"")


def line(event_type: str, seq: int = 1, **fields: Any) -> bytes:
    return (
        json.dumps({"seq": seq, "session": "s", "type": event_type, "execution": "e", **fields}).encode()
        + b"\n"
    )


async def events(gateway: Gateway) -> list[Event]:
    return [event async for event in gateway.stream_execute("s", "1")]


async def test_a_request_carries_the_token_the_prefix_and_only_what_was_given() -> None:
    async with answering(answer(b'{"session": "s", "later": 1}')) as (gateway, requests):
        assert (await gateway.create_session("s", kernel="python3")).session == "s"
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /base/v1/sessions HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret" in head
    assert json.loads(body) == {"session": "s", "kernel": "python3"}


async def test_odd_names_stay_one_part_of_the_path() -> None:
    async with answering(answer(b'{"session": "s"}')) as (gateway, requests):
        await gateway.get_session("a/../b?c#d ü")
    assert requests[0].startswith(b"GET /base/v1/sessions/a%2F..%2Fb%3Fc%23d%20%C3%BC HTTP/1.1\r\n")


async def test_a_refusal_gives_status_reason_detail_and_the_time_to_wait() -> None:
    problem = b'{"title": "Too Many", "status": 429, "detail": "The queue is full", "reason": "queue_full"}'
    refusal = answer(problem, "429 Too Many Requests", "Retry-After: 7\r\n")
    async with answering(refusal) as (gateway, _):
        with pytest.raises(GatewayError) as caught:
            await gateway.execute("s", "1")
    error = caught.value
    assert (error.status, error.reason, error.detail, error.retry_after) == (
        429,
        "queue_full",
        "The queue is full",
        7.0,
    )


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"[]", b"", b"\xff"])
async def test_a_refusal_by_something_else_still_is_a_gateway_error(body: bytes) -> None:
    async with answering(answer(body, "502 Bad Gateway")) as (gateway, _):
        with pytest.raises(GatewayError) as caught:
            await gateway.get_session("s")
    assert (caught.value.status, caught.value.reason) == (502, "http_error")
    assert caught.value.detail


def problem(reason: str, wait: int) -> bytes:
    """A refusal that will pass."""
    body = json.dumps({"title": "No", "status": 503, "detail": "Not now", "reason": reason}).encode()
    return answer(body, "503 Service Unavailable", f"Retry-After: {wait}\r\n")


def in_turn(*answers: bytes) -> Script:
    """Gives one answer after the other."""
    left = list(answers)

    async def part(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0))

    return part


@pytest.mark.parametrize(
    ("refusal", "times"), [(problem("owner_unreachable", 0), 5), (problem("shutting_down", 0), 2)]
)
async def test_a_request_that_a_gateway_of_a_cluster_could_not_take_is_repeated(
    refusal: bytes, times: int
) -> None:
    """Whatever it is, as nothing has been done: while the session's gateway is replaced, and by a proxy's
    connection to one that stops.
    """
    async with answering(in_turn(*[refusal] * times, answer(b'{"session": "s"}'))) as (gateway, requests):
        assert (await gateway.create_session("s")).session == "s"
    assert len(requests) == times + 1


@pytest.mark.parametrize(
    ("refusal", "reason", "times"),
    [
        (problem("owner_unreachable", 31), "owner_unreachable", 1),
        (problem("shutting_down", 0), "shutting_down", 3),
    ],
)
async def test_a_gateway_that_takes_no_work_for_long_is_reported(
    refusal: bytes, reason: str, times: int
) -> None:
    async with answering(refusal) as (gateway, requests):
        with pytest.raises(GatewayError) as caught:
            await gateway.create_session("s")
    assert (caught.value.reason, len(requests)) == (reason, times)


async def test_the_time_that_a_cell_has_run_does_not_count_as_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its gateway is replaced only then."""
    monkeypatch.setattr(calls, "OWNER_PATIENCE", 0.5)
    answers = [problem("owner_unreachable", 0), answer(b'{"session": "s", "execution": "e"}')]
    begun = asyncio.Event()

    async def part(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(0.6)
        else:
            writer.write(answers.pop(0))

    async with answering(part) as (gateway, requests):
        assert (await gateway.execute("s", "1")).execution == "e"
    assert len(requests) == 3


async def test_what_a_gateways_end_has_cancelled_is_repeated_if_that_is_safe() -> None:
    """It may have been begun; with `Cellgate-Full` it was not."""
    cancelled = problem("shutting_down", 0)
    async with answering(cancelled) as (gateway, requests):
        for call in (gateway.execute_blocks("s", [("python", "1")]), gateway.restart("s")):
            requests.clear()
            with pytest.raises(GatewayError, match="Not now"):
                await call
            assert len(requests) == 1
    refused = cancelled.replace(b"Retry-After", b"Cellgate-Full: 1\r\nRetry-After")
    async with answering(refused, answer(b'{"session": "s"}')) as (gateway, requests):
        await gateway.restart("s")
        assert len(requests) == 2


async def test_a_cell_that_a_proxy_has_lost_is_repeated_at_its_own_gateway_alone() -> None:
    """Another one knows nothing of its idempotency key."""
    lost = answer(b"<html>", "502 Bad Gateway")
    done = answer(b'{"session": "s", "execution": "e"}', headers=f"Cellgate-Owner: {'a' * 32}\r\n")
    async with answering(lost) as (gateway, requests):
        with pytest.raises(GatewayError):
            await gateway.execute("s", "1")
        assert len(requests) == 1
    async with answering(done, lost, done) as (gateway, requests):
        for _ in range(2):
            await gateway.execute("s", "1")
        assert len(requests) == 3
    async with answering(done, lost) as (gateway, requests):
        await gateway.execute("s", "1")
        for call in (gateway.undo("s"), gateway.interrupt("s"), gateway.restart("s")):
            requests.clear()
            requests.append(b"")
            with pytest.raises(GatewayError):
                await call
            assert len(requests) == 2, "what has no key is sent once"
    cut = answer(
        b'{"reason": "owner_lost", "detail": "The gateway that has the session is gone"}', "502 Bad Gateway"
    )
    async with answering(cut, done) as (gateway, requests):
        await gateway.execute("s", "1")
        assert len(requests) == 2


@pytest.mark.parametrize(
    "lost",
    [b"", problem("shutting_down", 0), answer(b"<html>", "502 Bad Gateway")],
    ids=["cut", "end", "proxy"],
)
async def test_a_session_without_a_name_is_opened_and_ended_again_after_a_lost_answer(lost: bytes) -> None:
    """The repeat has the key of the first request, so the gateway finds what that has opened."""
    head = f"Cellgate-Owner: {'a' * 32}\r\nLocation: /v1/sessions/s\r\n"
    opened = answer(b'{"session": "s"}', "201 Created", head)
    ended = answer(b"", "204 No Content")
    async with answering(in_turn(lost, opened, lost, ended)) as (gateway, requests):
        assert (await gateway.create_session()).session == "s"
        await gateway.delete_session("s")
    first, second, *ends = requests
    key = re.search(rb"(?i)idempotency-key: (\S+)", first)
    assert key is not None
    assert key[0] in second
    assert [request.split()[:2] for request in ends] == [[b"DELETE", b"/base/v1/sessions/s"]] * 2
    async with answering(in_turn(lost, opened, opened)) as (gateway, requests):
        await gateway.create_session()
        await gateway.create_session()
    keys = [re.search(rb"(?i)idempotency-key: (\S+)", request) for request in requests]
    assert len({found[1] for found in keys if found}) == 2, "another session has a key of its own"


@pytest.mark.parametrize("status", ["502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout"])
async def test_what_a_proxy_has_lost_is_repeated_if_that_is_safe(status: str) -> None:
    """The session's gateway is known from a former answer."""
    lost = answer(b"<html>", status)
    owner = f"Cellgate-Owner: {'a' * 32}\r\n"
    result = answer(b'{"session": "s", "execution": "e"}', headers=owner)
    async with answering(in_turn(result, lost, lost, result)) as (gateway, requests):
        await gateway.result("s", "e")
        assert (await gateway.execute("s", "1")).execution == "e"
    keys = {re.search(rb"(?i)idempotency-key: (\S+)", request) for request in requests[1:]}
    assert len({found and found[1] for found in keys}) == 1
    assert None not in keys
    async with answering(lost) as (gateway, requests):
        with pytest.raises(GatewayError, match="A proxy"):
            await gateway.create_session("s")
    assert len(requests) == 1


@pytest.mark.parametrize(
    "body", [b'{"message": "Not Found", "reason": null}', b"<!DOCTYPE html>\n<title>Jupyter Server</title>"]
)
async def test_another_program_on_the_port_is_said_to_be_one(body: bytes) -> None:
    """JupyterLab's server has the same port by default; these are its answers."""
    async with answering(answer(body, "404 Not Found")) as (gateway, _):
        with pytest.raises(GatewayError, match=r"no gateway, such as JupyterLab.*HTTP status 404") as caught:
            await gateway.get_session("s")
    assert "<" not in caught.value.detail


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("502 Bad Gateway", "that the gateway runs"),
        ("504 Timeout", "time limit"),
        ("413 Too Large", "bodies"),
    ],
)
async def test_a_proxy_that_answers_itself_is_told_from_a_gateway(status: str, said: str) -> None:
    async with answering(answer(b"<html>nginx</html>", status)) as (gateway, _):
        with pytest.raises(GatewayError, match=f"^A proxy at .* status {status[:3]}\\): .*{said}"):
            await gateway.get_session("s")


async def test_a_redirection_is_not_followed() -> None:
    async with answering(answer(b"", "302 Found", "Location: http://example.org/\r\n")) as (
        gateway,
        requests,
    ):
        with pytest.raises(GatewayError, match="302"):
            await gateway.get_session("s")
    assert len(requests) == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"session": 3}', b"\xff"])
async def test_an_answer_that_is_no_model_is_a_gateway_error(body: bytes) -> None:
    async with answering(answer(body)) as (gateway, _):
        with pytest.raises(GatewayError) as caught:
            await gateway.get_session("s")
    assert caught.value.reason == "bad_answer"


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"HTTP/1.1 200",
        b"no http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
        chunked(line("started"), end=False),
        chunked(line("started")),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_a_broken_stream_is_a_lost_connection(broken: bytes) -> None:
    async with answering(broken) as (gateway, _):
        with pytest.raises(GatewayError) as caught:
            await events(gateway)
    assert caught.value.reason == "connection_lost"


async def test_nobody_listening_says_how_to_start_a_gateway(free_port: int) -> None:
    with pytest.raises(GatewayError, match="cellgate serve") as caught:
        await Gateway(f"http://127.0.0.1:{free_port}").get_session("s")
    assert caught.value.reason == "unreachable"


async def test_an_unknown_host_is_unreachable() -> None:
    with pytest.raises(GatewayError) as caught:
        await Gateway("http://no-such-host.invalid:1").get_session("s")
    assert caught.value.reason == "unreachable"


@pytest.mark.parametrize("url", ["", "127.0.0.1:8888", "ftp://x", "http://", "http://x:99999", "http://[::1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        Gateway(url)


@pytest.mark.parametrize("token", ["a b", "a\r\nX: y", "ü"])
def test_a_token_that_fits_no_header_is_refused(token: str) -> None:
    with pytest.raises(InvalidInput):
        Gateway("http://127.0.0.1:1", token)


async def test_lone_surrogates_are_refused_before_anything_is_sent(free_port: int) -> None:
    with pytest.raises(InvalidInput):
        await Gateway(f"http://127.0.0.1:{free_port}").execute("s", "'\ud800'")


@pytest.mark.parametrize("option", ["tiemout", "wait", "code_"])
async def test_a_keyword_that_is_no_option_of_a_cell_is_refused_before_a_kernel_is_started(
    option: str,
) -> None:
    async with answering(b"") as (gateway, requests):
        session = gateway.session("s")
        for calls in (session.stream("1", **{option: 1}), gateway.stream_execute("s", "1", **{option: 1})):  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=option):
                await anext(calls)
        for call in (session.run("1", **{option: 1}), gateway.execute("s", "1", **{option: 1})):  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=option):
                await call
    assert requests == []


async def test_what_happens_on_a_disconnect_is_no_option_of_a_cell_that_is_waited_for() -> None:
    async with answering(b"") as (gateway, requests):
        for callback in (None, print):
            with pytest.raises(TypeError, match="on_disconnect"):
                await gateway.execute("s", "1", on_event=callback, on_disconnect="interrupt")  # type: ignore[call-arg]
    assert requests == []


@pytest.mark.parametrize(
    ("by_name", "own", "arguments"),
    [
        ("get_session", "model", {"usage": True}),
        ("execute", "run", {"code": "1", "timeout": 5, "max_text": 0}),
        ("execute_blocks", "run_blocks", {"blocks": "text", "on_disconnect": "continue"}),
        ("stream_execute", "stream", {"code": "1", "on_disconnect": "interrupt", "stdin": "a"}),
        ("executions", "executions", {"newest": True}),
        ("events", "events", {"after": 3}),
        ("complete", "complete", {"code": "a.", "cursor": 1}),
        ("installed", "packages", {}),
        ("branch", "branch", {"workspace": "shared", "seed": 0, "anyway": True}),
        ("explore", "explore", {"cells": ["1"], "keep": "all"}),
        ("follow_program", "follow_program", {"process": "p"}),
        ("port_url", "port_url", {"port": 8000}),
    ],
)
async def test_a_call_by_a_session_s_name_is_that_of_the_session_and_makes_none(
    by_name: str, own: str, arguments: dict[str, Any]
) -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made = requests[-1].startswith(b"POST /base/v1/sessions HTTP")
        missing = answer(b'{"status": 404, "reason": "not_found"}', "404 Not Found")
        writer.write(answer(b'{"session": "s"}') if made else missing)

    async def refused(call: Any) -> bytes:
        """The request with which the call failed, without the key of its own."""
        with pytest.raises(NotFound):
            await (anext(call) if inspect.isasyncgen(call) else call)
        return re.sub(rb"(?i)(idempotency-key: )\w+", rb"\1", requests[-1])

    async with answering(script) as (gateway, requests):
        found = await refused(getattr(gateway, by_name)("s", **arguments))
        assert len(requests) == 1
        assert await refused(getattr(gateway.session("s"), own)(**arguments)) == found
    assert next(iter(inspect.signature(getattr(gateway, by_name)).parameters)) == "session"


async def test_events_are_typed_whatever_way_they_are_cut_into_packets() -> None:
    whole = (
        line("started", code="1")
        + b"\n"
        + line("stream", 2, name="stderr", text="é\u2028")
        + line("finished", 3, status="ok", kernel={"state": "idle", "replaced": False})
    )
    async with answering(chunked(*(whole[i : i + 1] for i in range(len(whole))))) as (gateway, _):
        started, stream, finished = await events(gateway)
    assert started.type == "started"
    assert isinstance(stream, Stream)
    assert (stream.name, stream.text) == ("stderr", "é\u2028")
    assert isinstance(finished, Finished)
    assert finished.status == "ok"


async def test_an_event_of_a_newer_gateway_is_passed_on() -> None:
    async with answering(chunked(line("telepathy", thought="x"), line("finished", 2, new=1))) as (gateway, _):
        assert [event.type for event in await events(gateway)] == ["telepathy", "finished"]


async def test_signs_of_life_are_no_events() -> None:
    body = chunked(b'{"type":"keepalive"}\n', line("started"), b'{"type":"keepalive"}\n', line("finished", 2))
    async with answering(body) as (gateway, _):
        assert [event.type for event in await events(gateway)] == ["started", "finished"]


async def test_who_makes_a_session_is_told_its_position_in_line() -> None:
    told: list[int] = []
    waiting = [b'{"type":"keepalive","waiting_for":"kernel","position":%d}\n' % number for number in (2, 0)]
    body = chunked(waiting[0], b'{"type":"keepalive"}\n', waiting[1], b'{"session":"s"}\n')
    async with answering(body) as (gateway, requests):
        assert (await gateway.create_session("s", on_wait=told.append)).session == "s"
    assert told == [2, 0]
    assert b"Accept: application/x-ndjson\r\n" in requests[0]
    refused = b'{"type":"problem","status":503,"reason":"pool_exhausted","detail":"All are in use"}\n'
    async with answering(chunked(waiting[0], refused)) as (gateway, _):
        with pytest.raises(GatewayError, match="All are in use") as caught:
            await gateway.create_session("s", on_wait=told.append)
    assert (caught.value.status, caught.value.reason) == (503, "pool_exhausted")
    for nonsense in (line("started"), b""):
        async with answering(chunked(nonsense)) as (gateway, _):
            with pytest.raises(GatewayError):
                await gateway.create_session("s", on_wait=told.append)


async def test_sessions_are_known_to_be_where_they_were_made() -> None:
    """Also those without a name before the answer, and branches: nobody goes on in another gateway's."""

    async def made(gateway: Gateway, call: str) -> str:
        match call:
            case "named by the gateway":
                return (await gateway.create_session()).session
            case "named while it waits":
                return (await gateway.create_session(on_wait=lambda _: None)).session
            case "branch":
                return (await gateway.branch("other")).session
            case _:
                (explored,) = (await gateway.explore("other", ["1"])).results
                return explored.session

    at = "Cellgate-Owner: 0a\r\n"
    alternative = b'{"session":"s","execution":"e","status":"ok","branch":"kept"}'
    for call, said in {
        "named by the gateway": answer(b'{"session":"s"}', headers=f"{at}Location: /base/v1/sessions/s\r\n"),
        "named while it waits": answer(b'{"session":"s"}\n', headers=at),
        "branch": answer(b'{"session":"s"}', headers=f"{at}Location: /base/v1/sessions/s\r\n"),
        "explore": answer(b'{"results":[%s]}' % alternative, headers=at),
    }.items():
        async with answering(said) as (gateway, requests):
            assert await made(gateway, call) == "s"
            await gateway.interrupt("s")
        assert b"Cellgate-Owner: 0a\r\n" in requests[1], call


async def test_a_failure_in_the_middle_of_a_stream_is_raised() -> None:
    problem = b'{"type":"problem","status":507,"reason":"storage_full","detail":"The disk is full"}\n'
    async with answering(chunked(line("started"), problem)) as (gateway, _):
        with pytest.raises(GatewayError, match="disk is full") as caught:
            await events(gateway)
    assert (caught.value.status, caught.value.reason) == (507, "storage_full")


async def test_a_very_long_line_arrives_whole() -> None:
    text = "x" * 5_000_000
    async with answering(chunked(line("stream", text=text), line("finished", 2))) as (gateway, _):
        first, _ = await events(gateway)
    assert isinstance(first, Stream)
    assert first.text == text


async def test_a_slow_reader_slows_the_server() -> None:
    """The client keeps a few chunks at most, so a server that sends without end has to wait."""
    sent = 0

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(chunked(end=False))
        piece = line("stream", text="x" * 60_000)
        while True:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            sent += len(piece)

    async with answering(endless) as (gateway, _), aclosing(gateway.stream_execute("s", "1")) as stream:
        await anext(stream)
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 30_000_000
        for _number in range(50):
            assert isinstance(await anext(stream), Stream)


async def test_leaving_a_stream_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(line("started"), end=False))
        assert await reader.read() == b""
        closed.set()

    async with AsyncExitStack() as stack:
        gateway, _ = await stack.enter_async_context(answering(quiet))
        async with aclosing(gateway.stream_execute("s", "1")) as stream:
            assert (await anext(stream)).type == "started"
        async with asyncio.timeout(60):
            await closed.wait()


async def test_a_refusal_before_the_body_is_read_is_understood() -> None:
    """A server may refuse a large body without reading it, and close: the answer still says why."""
    body = b'{"detail": "too large", "reason": "too_large"}'

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(body, "413 Payload Too Large"))
        writer.write_eof()
        while await reader.read(1 << 20):
            pass

    async with answering(refuse, read_body=False) as (gateway, _):
        with pytest.raises(GatewayError, match="too large"):
            await gateway.execute("s", "#" * 20_000_000)


async def test_a_refusal_is_read_although_the_rest_of_the_body_can_not_be_sent() -> None:
    """Whoever refuses a large upload closes, with unread bytes: the system then resets the connection."""
    refusal = answer(b'{"detail": "too large", "reason": "too_large"}', "413 Payload Too Large")
    async with answering(refusal, read_body=False) as (gateway, _):
        with pytest.raises(GatewayError, match="too large"):
            await gateway.session("s").files.put("a", bytes(50_000_000))


async def test_a_line_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_LINE", 100_000)
    async with answering(chunked(line("stream", text="x" * 300_000))) as (gateway, _):
        with pytest.raises(GatewayError, match="100000") as caught:
            await events(gateway)
    assert caught.value.reason == "bad_answer"


async def test_nothing_is_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, free_port: int, tmp_path: Path
) -> None:
    """A proxy would be told the token; the credentials in a netrc file would take its place."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port}")
    (tmp_path / "netrc").write_text("default login a password b")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with answering(answer(b'{"session": "s"}')) as (gateway, requests):
        await gateway.get_session("s")
    assert b"Authorization: Bearer secret" in requests[0]


async def test_the_token_is_in_one_header_and_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with answering(answer(b'{"session": "s"}')) as (gateway, requests):
        await gateway.get_session("s")
    assert requests[0].count(b"secret") == 1
    assert "send_request_headers" in caplog.text
    assert "secret" not in caplog.text


async def test_all_pages_of_sessions_are_read() -> None:
    pages = [{"sessions": [{"session": "a"}], "next": "a"}, {"sessions": [{"session": "b"}], "next": None}]

    async def page(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(json.dumps(pages.pop(0)).encode()))

    async with answering(page) as (gateway, requests):
        assert [model.session async for model in gateway.sessions(state="idle")] == ["a", "b"]
    assert [request.split()[1] for request in requests] == [
        b"/base/v1/sessions?state=idle&limit=200",
        b"/base/v1/sessions?state=idle&limit=200&after=a",
    ]


async def test_a_search_of_cells_goes_on_after_pages_without_a_session() -> None:
    pages = [([], "a:100"), ([], "a:200"), (["b"], None)]

    async def page(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        names, following = pages.pop(0)
        told = {"sessions": [{"session": name} for name in names], "next": following}
        writer.write(answer(json.dumps(told).encode()))

    async with answering(page) as (gateway, requests):
        assert [model.session async for model in gateway.sessions(search="x", cells=True)] == ["b"]
    assert [request.split()[1].partition(b"&after=")[2] for request in requests] == [
        b"",
        b"a%3A100",
        b"a%3A200",
    ]


async def test_followed_events_go_on_where_a_lost_connection_broke_off() -> None:
    answers = [
        chunked(line("started", 5), line("stream", 6, text="a"), end=False),
        chunked(line("stream", 7, text="b")[:20], end=False),
        chunked(line("stream", 7, text="b"), line("finished", 8)),
    ]

    async def part(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.pop(0))

    async with answering(part) as (gateway, requests):
        assert [event.seq async for event in gateway.events("s", after=4)] == [5, 6, 7, 8]
    assert [request.split()[1] for request in requests] == [
        b"/base/v1/sessions/s/events?after=4",
        b"/base/v1/sessions/s/events?after=6",
        b"/base/v1/sessions/s/events?after=6",
    ]


async def test_following_gives_up_when_the_connection_is_lost_each_time() -> None:
    async with answering(chunked(end=False)) as (gateway, requests):
        with pytest.raises(GatewayError, match="ended early"):
            assert [event async for event in gateway.events("s")] == []
    assert len(requests) == 3


async def test_all_pages_of_executions_are_read() -> None:
    rest = {"session": "s", "status": "ok", "created_at": "", "first_seq": 1, "last_seq": 2}
    pages = [
        {"executions": [{"execution": name, "number": number, **rest}], "next": after}
        for name, number, after in (("a", 1, 1), ("b", 2, None))
    ]

    async def page(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(json.dumps(pages.pop(0)).encode()))

    async with answering(page) as (gateway, requests):
        assert [model.execution async for model in gateway.executions("s")] == ["a", "b"]
    assert [request.split()[1].partition(b"?")[2] for request in requests] == [
        b"limit=1000&after=0",
        b"limit=1000&after=1",
    ]


async def test_a_notebook_that_breaks_off_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text("old")
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nnew") as (gateway, _):
        with pytest.raises(GatewayError):
            await gateway.notebook("s", path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.ipynb"]  # noqa: PTH208


async def test_a_notebook_is_stored_byte_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    async with answering(chunked(b"ab", b"c" * 300_000)) as (gateway, requests):
        await gateway.notebook("s", path, outputs=False)
        assert path.read_bytes() == b"ab" + b"c" * 300_000
        await gateway.notebook("s", path, order="page", file="a b.ipynb")
    assert requests[0].startswith(b"GET /base/v1/sessions/s/notebook?outputs=false ")
    assert requests[1].startswith(b"GET /base/v1/sessions/s/notebook?order=page&file=a+b.ipynb ")


@pytest.mark.parametrize(
    ("text", "lines"),
    [("Ada\n36\n", ["Ada", "36"]), ("Ada", ["Ada"]), ("", []), ("\n", [""]), ("a\n\nb", ["a", "", "b"])],
)
async def test_stdin_may_be_a_text(text: str, lines: list[str]) -> None:
    result = b'{"session": "s", "execution": "e", "status": "ok"}'
    async with answering(answer(result)) as (gateway, requests):
        await gateway.execute("s", "input()", stdin=text)
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2])["stdin"] == lines


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"code": 5}, "code must be str, not int"),
        ({"stdin": [1, "a"]}, "stdin must be str | list[str] | None, not list of int, str"),
        ({"timeout": "5"}, "timeout must be float | None, not str"),
        ({"env": {"A": 1}}, "env must be dict[str, str] | None, not dict of str: int"),
    ],
)
async def test_a_wrong_type_is_named_as_python_does_and_nothing_is_sent(
    options: dict[str, Any], words: str
) -> None:
    """Nothing listens at that address: a request would be another error."""
    gateway = Gateway("http://127.0.0.1:9", "secret")
    for call in (gateway.execute, gateway.session("s").run):
        with pytest.raises(TypeError) as caught:
            await call(**{"session": "s"} if call == gateway.execute else {}, **{"code": "1", **options})
        assert str(caught.value) == words


async def test_a_path_outside_of_the_workspace_is_refused_before_a_proxy_can_change_it() -> None:
    """Nothing listens at that address: a request would be another error."""
    files_of = Gateway("http://127.0.0.1:9", "secret").session("s").files
    for path in ("/workspace//mnt/data/x", "/etc/passwd", "//x"):
        with pytest.raises(InvalidInput, match="A path is relative to the workspace"):
            await files_of.remove(path)


async def test_a_caller_that_gives_up_stops_its_cell_by_its_key() -> None:
    began = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if began.is_set():
            writer.write(answer(b'{"session": "s", "execution": "e"}'))
        else:
            began.set()
            await reader.read()

    async with answering(script) as (gateway, requests):
        call = asyncio.create_task(gateway.execute("s", "1"))
        await began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    heads, bodies = zip(*(request.split(b"\r\n\r\n", 1) for request in requests), strict=True)
    keys = [line for head in heads for line in head.split(b"\r\n") if line.startswith(b"Idempotency-Key")]
    assert [head.split(b" ")[1] for head in heads] == [
        b"/base/v1/sessions/s/execute",
        b"/base/v1/sessions/s/execute",
        b"/base/v1/sessions/s/executions/e/cancel",
    ]
    assert [json.loads(body) for body in bodies[:2]] == [{"code": "1"}, {"code": "1", "wait": False}]
    assert len(keys) == 2
    assert keys[0] == keys[1]
    # One that has not been sent yet is not sent in order to be stopped: the cell might run.
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        call = asyncio.create_task(Gateway(f"http://127.0.0.1:{server.getsockname()[1]}").execute("s", "1"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with contextlib.suppress(BlockingIOError):
            connection, _ = server.accept()
            with connection:
                assert connection.recv(100) == b""


async def test_a_file_for_the_user_has_the_mode_of_their_files(tmp_path: Path) -> None:
    known = tmp_path / "known.ipynb"
    known.touch()
    known.chmod(0o640)
    mask = os.umask(0o022)
    try:
        for path in (tmp_path / "new.ipynb", known):
            async with answering(answer(b"{}")) as (gateway, _):
                await gateway.notebook("s", path)
    finally:
        os.umask(mask)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new.ipynb", "known.ipynb")] == [
        0o644,
        0o640,
    ]
    assert not await asyncio.to_thread(lambda: list(tmp_path.glob(".*")))


def endless(head: bytes, piece: bytes) -> tuple[Script, list[int]]:
    """A server that never stops, and how much it has sent."""
    sent: list[int] = []

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            sent.append(len(piece))

    return script, sent


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (65536, b" " * 65536)
MOST = 1024 * 1024


@pytest.mark.parametrize(
    "call",
    [
        lambda gateway: anext(gateway.sessions()),
        lambda gateway: gateway.result("s", "e"),
        lambda gateway: gateway.execute("s", "1"),
        lambda gateway: gateway.session("s").files.get("file"),
        lambda gateway: gateway.session("s").files.put("file", b""),
    ],
)
async def test_an_answer_without_end_is_given_up(
    call: Callable[[Gateway], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((calls, "MOST_ANSWER"), (api, "MOST_RESULT"), (files, "MOST_RESULT")):
        monkeypatch.setattr(module, name, MOST)
    monkeypatch.setattr(calls.Calls.call, "__kwdefaults__", {**calls.Calls.call.__kwdefaults__, "most": MOST})
    monkeypatch.setattr(transport.HttpAnswer.body, "__kwdefaults__", {"most": MOST})
    script, sent = endless(CHUNKED, CHUNK)
    async with answering(script) as (gateway, _):
        with pytest.raises(GatewayError, match="longer than 1 MiB") as refused:
            await call(gateway)
    assert refused.value.reason == "bad_answer"
    # What the client has not read is in the systems' buffers.
    assert sum(sent) < 40 * MOST


async def test_an_answer_that_says_that_it_is_too_long_is_not_read() -> None:
    script, _ = endless(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", CHUNK)
    async with answering(script) as (gateway, _):
        with pytest.raises(GatewayError, match="longer than 64 MiB"):
            await anext(gateway.sessions())


async def test_a_list_that_leads_to_itself_is_given_up() -> None:
    async with answering(answer(b'{"files": [], "next": "", "complete": true}')) as (gateway, _):
        with pytest.raises(GatewayError, match="no end"):
            [each async for each in gateway.session("s").files.list()]


async def test_a_list_whose_pages_never_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MOST_PAGES", 5)
    asked = 0

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.write(answer(b'{"executions": [], "next": %d}' % asked))

    async with answering(script) as (gateway, requests):
        with pytest.raises(GatewayError, match="no end: it has 5 pages") as refused:
            _ = [each async for each in gateway.executions("s")]
    assert (refused.value.reason, len(requests)) == ("bad_answer", 5)


async def test_a_page_that_leads_to_itself_is_given_up() -> None:
    async with answering(answer(b'{"executions": [], "next": 7}')) as (gateway, requests):
        with pytest.raises(GatewayError, match="leads to itself"):
            _ = [each async for each in gateway.executions("s")]
    assert len(requests) == 2


async def test_a_download_that_never_ends_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MOST_UNTOLD", MOST)
    script, _ = endless(CHUNKED, CHUNK)
    async with answering(script) as (gateway, _):
        with pytest.raises(GatewayError, match="told no length") as refused:
            await gateway.session("s").files.save("file", tmp_path / "file")
    assert refused.value.reason == "bad_answer"
    assert not await asyncio.to_thread(lambda: list(tmp_path.iterdir()))


async def test_a_gateway_without_room_is_asked_again() -> None:
    """It has done nothing, so also a request is repeated that must not be done twice."""
    problem = b'{"reason": "node_full", "detail": "All kernels are in use"}'
    full = answer(problem, "503 Service Unavailable", "Cellgate-Full: 1\r\nRetry-After: 1\r\n")
    async with answering(full, full, answer(b"{}")) as (gateway, requests):
        await gateway.interrupt("s")
        assert len(requests) == 3
    async with answering(full, full, full) as (gateway, requests):
        with pytest.raises(Overloaded) as refused:
            await gateway.interrupt("s")
        assert (len(requests), refused.value.reason, refused.value.retry_after) == (3, "node_full", 1)
    busy = answer(b'{"reason": "pool_exhausted"}', "503 Service Unavailable")
    async with answering(busy) as (gateway, requests):
        with pytest.raises(Overloaded):
            await gateway.interrupt("s")
        assert len(requests) == 1
