"""What clients are told when cells fail, are aborted or refused, and when kernels restart, die or end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.channels import Channels, Sent, channels, kinds, of, text
from tests.support.server import IN_TIME, GatewayProcess, until

HOLD = "import os, time\nprint('on', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n1/0"
"""Fails when it is let go."""


def let_go(gateway: GatewayProcess, kernel: str) -> None:
    (gateway.workspace(kernel) / "go").touch()


async def has_arrived(client: Channels) -> None:
    """Return when the gateway has all that this client has sent: it answers what comes after it."""
    msg_id = await client.send("kernel_info_request", {}, channel="control")
    await client.until(
        lambda m: m["msg_type"] == "kernel_info_reply" and m["parent_header"]["msg_id"] == msg_id
    )


def reply_of(messages: list[Sent], msg_id: str) -> Sent:
    return next(
        m["content"] for m in messages if m["msg_type"] == "execute_reply" and m in of(messages, msg_id)
    )


def statuses(gateway: GatewayProcess, kernel: str, count: int) -> list[tuple[str, str | None]]:
    """Status and cause of the executions of a kernel in their order, once there are so many."""

    def ended() -> list[tuple[str, str | None]] | None:
        events = gateway.recorded(kernel)
        order = [event["execution"] for event in events if event["type"] == "queued"]
        finished = {e["execution"]: (e["status"], e["cause"]) for e in events if e["type"] == "finished"}
        return [finished[execution] for execution in order] if len(finished) == count else None

    return until(ended, "not all executions have ended")


async def test_cells_that_waited_behind_a_failed_one_are_aborted(
    jupyter: GatewayProcess, kernel: str
) -> None:
    async with channels(jupyter, kernel) as client, channels(jupyter, kernel) as other:
        failing = await client.execute(HOLD)
        waiting = [await client.execute(f"print({n})") for n in range(3)]
        await client.until(lambda message: message["msg_type"] == "stream")
        waiting_too = await other.execute("print('other')")
        for each in (client, other):
            await has_arrived(each)
        let_go(jupyter, kernel)
        messages = await client.ended(failing)
        messages += await client.ended(waiting[-1])
        for msg_id in waiting:
            assert kinds(of(messages, msg_id)) == ["busy", "execute_reply", "idle"]
            assert reply_of(messages, msg_id) == {"status": "aborted"}
        assert reply_of(await other.ended(waiting_too), waiting_too) == {"status": "aborted"}
        assert text(await client.run("print('after')")) == "after\n"
    assert statuses(jupyter, kernel, 6) == [("error", None), *[("cancelled", "aborted")] * 4, ("ok", None)]


async def test_a_cell_that_is_sent_upon_an_error_is_run(jupyter: GatewayProcess, kernel: str) -> None:
    """Clients that stop listening at `error` send the next cell before idle; many times, as it is a race."""
    async with channels(jupyter, kernel) as client:
        for number in range(25):
            await client.execute("1/0")
            await client.until(lambda message: message["msg_type"] == "error")
            messages = await client.run(f"print({number})")
            assert text(messages) == f"{number}\n"
    assert statuses(jupyter, kernel, 50) == [("error", None), ("ok", None)] * 25


async def test_without_stop_on_error_what_waits_is_run(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        await client.execute(HOLD, stop_on_error=False)
        still = await client.execute("print('still')")
        await has_arrived(client)
        let_go(jupyter, kernel)
        assert text(of(await client.ended(still), still)) == "still\n"


async def test_a_native_execution_is_not_aborted(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        await client.execute(HOLD)
        await client.until(lambda message: message["msg_type"] == "stream")
        execution = await asyncio.to_thread(jupyter.submit, kernel, "print('native')")
        let_go(jupyter, kernel)
        assert (await asyncio.to_thread(jupyter.ended, kernel, execution))["stdout"] == "native\n"


async def test_a_full_queue_is_said_in_a_reply(start_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = start_gateway(pool_size=1, channel_queue=2)
    kernel = gateway.post("/api/kernels").json()["id"]
    async with channels(gateway, kernel) as client:
        await client.execute("import time; print('on', flush=True); time.sleep(60)")
        await client.until(lambda message: message["msg_type"] == "stream")
        for _ in range(2):
            await client.execute("1")
        refused = await client.execute("1")
        messages = of(await client.ended(refused), refused)
        assert kinds(messages) == ["busy", "error", "execute_reply", "idle"]
        assert reply_of(messages, refused)["ename"] == "QueueFull"
        await client.send("interrupt_request", {}, channel="control")


@pytest.mark.parametrize("content", [{}, {"code": 1}, {"code": None}, {"code": "1", "silent": "yes"}])
async def test_an_execute_request_that_no_kernel_can_run_is_answered(
    jupyter: GatewayProcess, kernel: str, content: Sent
) -> None:
    async with channels(jupyter, kernel) as client:
        msg_id = await client.send("execute_request", content)
        messages = of(await client.ended(msg_id), msg_id)
        assert reply_of(messages, msg_id)["ename"] == "InvalidInput"
        assert kinds(await client.run("1"))[-2:] == ["execute_reply", "idle"]


async def test_a_restart_ends_what_runs_and_what_waits_and_is_told(
    jupyter: GatewayProcess, kernel: str
) -> None:
    async with channels(jupyter, kernel) as client:
        await client.run("x = 1")
        running = await client.execute("import time; print('on', flush=True); time.sleep(60)")
        waiting = await client.execute("1")
        await client.until(lambda message: message["msg_type"] == "stream")
        answer = await asyncio.to_thread(jupyter.post, f"/api/kernels/{kernel}/restart")
        assert (answer.status, answer.json()["id"]) == (200, kernel)
        messages = await client.until(lambda m: kinds([m]) == ["idle"] and not m["parent_header"])
        assert reply_of(messages, running)["status"] == "error"
        assert reply_of(messages, waiting)["status"] == "aborted"
        assert kinds([m for m in messages if not m["parent_header"]]) == ["starting", "idle"]
        error = next(m for m in await client.run("x") if m["msg_type"] == "error")
        assert error["content"]["ename"] == "NameError"


async def test_a_kernel_that_dies_is_told_and_replaced_without_being_asked(
    jupyter: GatewayProcess, kernel: str
) -> None:
    async with channels(jupyter, kernel) as client:
        dying = await client.execute("print('last', flush=True); import os; os._exit(3)")
        messages = await client.until(lambda m: kinds([m]) == ["idle"] and not m["parent_header"])
        assert kinds(of(messages, dying))[-3:] == ["error", "execute_reply", "idle"]
        assert kinds([m for m in messages if not m["parent_header"]]) == ["restarting", "idle"]
        assert reply_of(messages, dying)["ename"] == "KernelDied"
        msg_id = await client.send("kernel_info_request", {})
        await client.ended(msg_id)
        assert text(await client.run("print('again')")) == "again\n"
    assert statuses(jupyter, kernel, 2)[0][0] == "died"


async def test_requests_that_come_while_the_kernel_is_replaced_reach_the_next(
    jupyter: GatewayProcess, kernel: str
) -> None:
    async with channels(jupyter, kernel) as client:
        restart = asyncio.create_task(asyncio.to_thread(jupyter.post, f"/api/kernels/{kernel}/restart"))
        await client.until(lambda message: kinds([message]) == ["starting"])
        await client.send("kernel_info_request", {})
        await client.until(lambda message: message["msg_type"] == "kernel_info_reply")
        assert (await restart).status == 200


async def test_a_shutdown_request_ends_the_kernel(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        msg_id = await client.send("shutdown_request", {"restart": False}, channel="control")
        messages = await client.until(lambda message: message["msg_type"] == "shutdown_reply")
        assert messages[-1]["parent_header"]["msg_id"] == msg_id
        assert jupyter.get(f"/api/kernels/{kernel}").status == 404
        assert await client.closed() == (1001, "The kernel has ended")
    assert jupyter.model(kernel)["state"] == "ended"


async def test_a_shutdown_request_can_be_one_for_a_restart(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        await client.run("x = 1")
        await client.send("shutdown_request", {"restart": True}, channel="control")
        await client.until(lambda m: kinds([m]) == ["idle"] and not m["parent_header"])
        assert "error" in kinds(await client.run("x"))


async def test_a_deleted_kernel_closes_its_sockets_with_a_reason(
    jupyter: GatewayProcess, kernel: str
) -> None:
    async with channels(jupyter, kernel) as client:
        answer = await asyncio.to_thread(jupyter.delete, f"/api/kernels/{kernel}")
        assert answer.status == 204
        assert await client.closed() == (1001, "The kernel has ended")


@pytest.mark.nightly
async def test_cells_here_have_no_deadline_but_the_ceiling(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    gateway = start_gateway(pool_size=2, cell_timeout=0.3, interrupt_grace=0.3)
    kernel = gateway.post("/api/kernels").json()["id"]
    async with channels(gateway, kernel) as client:
        assert text(await client.run("import time; time.sleep(1); print('done')")) == "done\n"
    endless = start_gateway(pool_size=1, max_cell_timeout=0.3, interrupt_grace=0.3)
    kernel = endless.post("/api/kernels").json()["id"]
    async with channels(endless, kernel) as client:
        messages = await client.run("while True: pass")
        assert kinds(messages)[-2:] == ["execute_reply", "idle"]
    # The cell must have begun to ignore interrupts by then.
    gateway = start_gateway(pool_size=2, max_cell_timeout=IN_TIME, interrupt_grace=0.3)
    kernel = gateway.post("/api/kernels").json()["id"]
    async with channels(gateway, kernel) as client:
        code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        messages = await client.run(code)
        error = next(message for message in messages if message["msg_type"] == "error")
        assert error["content"]["ename"] == "CellTimeout"
        assert kinds(messages)[-2:] == ["execute_reply", "idle"]
