"""Slow clients, floods, and clients that come back: nobody waits, nothing is lost silently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.channels import Sent, channels, is_idle, of, raw_socket, text
from tests.support.server import IN_TIME, GatewayProcess, until

MEGABYTE = 1_000_000
FLOOD = "for n in range({}): print('y' * 1_000_000, end='', flush=True)"


def connections(gateway: GatewayProcess, kernel: str) -> int:
    return int(gateway.get(f"/api/kernels/{kernel}").json()["connections"])


def on_disk(gateway: GatewayProcess) -> int:
    """Bytes in the files without a name that the gateway has open: what waits for clients is in such."""
    size = 0
    for descriptor in Path(f"/proc/{gateway.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if str(descriptor.readlink()).endswith("(deleted)"):
                size += descriptor.stat().st_size
    return size


async def test_a_flood_reaches_a_client_whole_and_in_order(jupyter: GatewayProcess, kernel: str) -> None:
    """100 MB beyond the record's caps, each line numbered."""
    block = "'\\n'.join(f'{n:09d} ' + 'x' * 89 for n in range(k * 5000, k * 5000 + 5000))"
    code = f"for k in range(200): print({block}, flush=True)"
    async with channels(jupyter, kernel) as client:
        msg_id = await client.execute(code)
        position, rest = 0, ""
        while True:
            message = await client.receive()
            if is_idle(message, msg_id):
                break
            if message["msg_type"] == "stream":
                lines = (rest + message["content"]["text"]).split("\n")
                rest = lines.pop()
                for line in lines:
                    assert int(line[:9]) == position
                    assert len(line) == 99
                    position += 1
        assert (position, rest) == (1_000_000, "")


async def test_a_client_that_never_reads_delays_nobody(start_gateway: Callable[..., GatewayProcess]) -> None:
    """Another client gets all, the record is complete, and what waits for the client waits on disk."""
    gateway = start_gateway(pool_size=1, slow_client_memory="1m")
    kernel = gateway.post("/api/kernels").json()["id"]
    with raw_socket(gateway, kernel):
        async with channels(gateway, kernel) as client:
            until(lambda: connections(gateway, kernel) == 2, "the slow client is not connected")
            messages = await client.run(f"{FLOOD.format(60)}\nprint('end')")
            assert len(text(messages)) == 60 * MEGABYTE + 4
            # But for a megabyte in memory, and what the system takes for a socket.
            assert 60 * MEGABYTE - on_disk(gateway) < 16 * MEGABYTE
            assert text(await client.run("print('next')")) == "next\n"
            assert connections(gateway, kernel) == 2
    assert gateway.execute(kernel, "1")["status"] == "ok"
    statuses = [event["status"] for event in gateway.recorded(kernel) if event["type"] == "finished"]
    assert statuses == ["ok", "ok", "ok"]


async def test_a_client_that_is_too_far_behind_is_closed(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    """And no other: the fast one asks for the next megabyte when it has the last, so it is never behind."""
    gateway = start_gateway(pool_size=1, slow_client_memory="1m", slow_client_disk="8m")
    kernel = gateway.post("/api/kernels").json()["id"]
    with raw_socket(gateway, kernel):
        async with channels(gateway, kernel) as fast:
            until(lambda: connections(gateway, kernel) == 2, "the slow client is not connected")
            for _ in range(60):
                assert text(await fast.run(FLOOD.format(1))) == "y" * MEGABYTE
            until(lambda: connections(gateway, kernel) == 1, "the slow client is not closed")
            assert text(await fast.run("print('well')")) == "well\n"
    assert gateway.log.read_text().count("reads too slowly") == 1


async def test_a_slow_client_gets_from_disk_what_it_did_not_read(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    gateway = start_gateway(pool_size=1, slow_client_memory="64k")
    kernel = gateway.post("/api/kernels").json()["id"]
    async with channels(gateway, kernel) as slow, channels(gateway, kernel) as fast:
        messages = await fast.run("for n in range(30): print(n, 'w' * 1_000_000, flush=True)")
        first = text(messages)
        second = await fast.run("print('last')")
        parent = second[0]["parent_header"]["msg_id"]
        seen = await slow.ended(parent)
        assert text(of(seen, messages[0]["parent_header"]["msg_id"])) == first
        assert text(of(seen, parent)) == "last\n"


async def test_a_session_id_brings_back_what_was_missed(jupyter: GatewayProcess, kernel: str) -> None:
    """Output, reply and idle of a cell that ran while its client was away, each once and in order."""
    async with channels(jupyter, kernel, session_id="me") as client:
        await client.run("1")
        # What is on its way to a client when it goes is its own to lose: nothing is, when this one goes.
        code = (
            "import pathlib, time\nprint(0)\nwhile not pathlib.Path('gone').exists(): time.sleep(0.02)\n"
            "for n in range(1, 5): print(n, flush=True); time.sleep(0.2)"
        )
        msg_id = await client.execute(code)
        before: list[Sent] = []
        while text(of(before, msg_id)) != "0\n":
            before += await client.until(lambda message: message["msg_type"] == "stream")
    until(lambda: connections(jupyter, kernel) == 0, "the client has not gone")
    (jupyter.workspace(kernel) / "gone").touch()
    await asyncio.sleep(0.5)
    async with channels(jupyter, kernel, session_id="me") as client:
        after = await client.ended(msg_id)
        assert text(of(before + after, msg_id)) == "0\n1\n2\n3\n4\n"
        assert [m["msg_type"] for m in after[-2:]] == ["execute_reply", "status"]


async def test_another_session_id_brings_nothing_back(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel, session_id="me") as client:
        await client.run("1")
        await client.execute("print('missed')")
    async with channels(jupyter, kernel, session_id="somebody") as client:
        messages = await client.run("print('seen')")
        assert text(messages) == "seen\n"


async def test_what_is_kept_for_a_client_is_bounded(start_gateway: Callable[..., GatewayProcess]) -> None:
    """A client that missed too much starts anew; the record has all."""
    gateway = start_gateway(pool_size=1, replay_size="100k")
    kernel = gateway.post("/api/kernels").json()["id"]
    async with channels(gateway, kernel, session_id="me") as client:
        await client.run("1")
        await client.execute("import time; time.sleep(0.5); print('v' * 200_000)")
    until(lambda: connections(gateway, kernel) == 0, "the client has not gone")
    result = await asyncio.to_thread(gateway.execute, kernel, "2")
    assert result["status"] == "ok"
    async with channels(gateway, kernel, session_id="me") as client:
        messages = await client.run("print('new')")
        assert len(of(messages, messages[0]["parent_header"]["msg_id"])) == len(messages)
        assert text(messages) == "new\n"
    recorded = [event for event in gateway.recorded(kernel) if event["type"] == "stream"]
    assert "v" * 200_000 in "".join(event["text"] for event in recorded)


async def test_nothing_is_kept_after_the_time_for_it(start_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = start_gateway(pool_size=1, replay_seconds=0)
    kernel = gateway.post("/api/kernels").json()["id"]
    async with channels(gateway, kernel, session_id="me") as client:
        await client.execute("print('missed')")
    until(lambda: connections(gateway, kernel) == 0, "the client has not gone")
    async with channels(gateway, kernel, session_id="me") as client:
        assert text(await client.run("print('new')")) == "new\n"


async def test_a_new_socket_of_the_same_session_id_takes_over(jupyter: GatewayProcess, kernel: str) -> None:
    """As when a network broke: the former socket looks alive for long."""
    async with channels(jupyter, kernel, session_id="me") as former:
        await former.run("1")
        msg_id = await former.execute("import time; time.sleep(0.3); print('here')")
        async with channels(jupyter, kernel, session_id="me") as present:
            assert text(of(await present.ended(msg_id), msg_id)) == "here\n"
            assert (await former.closed())[0] == 1001
            assert connections(jupyter, kernel) == 1
            assert text(await present.run("print('on')")) == "on\n"


async def test_a_session_with_an_open_socket_is_not_culled(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    # Longer than a client takes to connect.
    gateway = start_gateway(pool_size=2, idle_timeout=IN_TIME, cull_interval=0.05)
    kernel = gateway.post("/api/kernels").json()["id"]
    async with channels(gateway, kernel) as client:
        # Nobody uses either from here on; this one is looked at, too, when the later one is found to be idle.
        later = gateway.post("/api/kernels").json()["id"]
        until(lambda: gateway.get(f"/api/kernels/{later}").status == 404, "what nobody uses is not culled")
        assert text(await client.run("print('alive')")) == "alive\n"
    until(lambda: gateway.get(f"/api/kernels/{kernel}").status == 404, "the kernel is not culled")
