"""Programs as a user of the Python client has them, awaiting and blocking."""

from __future__ import annotations

import pytest

from cellgate.client import Gateway, NotFound, ProcessExited, ProcessOutput, ProcessStarted, RequestRefused
from tests.support.server import TOKEN, GatewayProcess


async def test_a_program_is_run_followed_fed_and_ended(gateway: GatewayProcess) -> None:
    client = Gateway(gateway.url, TOKEN)
    async with client.session() as session:
        done = await session.run_program("sh", "-c", "echo $A; exit 3", env={"A": "b"})
        assert (done.stdout, done.exit_code, done.state) == ("b\n", 3, "exited")
        with pytest.raises(RequestRefused, match="No such file"):
            await session.run_program("no-such-program")

        started = await session.start_program("cat", stdin=True)
        assert started.state == "running"
        await client.write_program(session.name, started.process, b"caf\xc3\xa9")
        await client.write_program(session.name, started.process, "!", close=True)
        events = [event async for event in client.follow_program(session.name, started.process)]
        first, *outputs, last = events
        assert isinstance(first, ProcessStarted)
        assert isinstance(last, ProcessExited)
        assert (first.argv, last.exit_code) == (["cat"], 0)
        assert "".join(each.text for each in outputs if isinstance(each, ProcessOutput)) == "caf\xe9!"

        sleeping = await session.start_program("sleep", "600")
        await client.signal_program(session.name, sleeping.process, "SIGINT")
        events = [event async for event in client.follow_program(session.name, sleeping.process)]
        assert isinstance(events[-1], ProcessExited)
        assert events[-1].signal == "SIGINT"
        await client.end_program(session.name, sleeping.process)
        assert (await client.process(session.name, sleeping.process)).signal == "SIGINT"
        assert len(await session.processes()) == 3
        with pytest.raises(NotFound):
            await client.process(session.name, "p-unknown")


def test_blocking(gateway: GatewayProcess) -> None:
    with Gateway.sync(gateway.url, TOKEN) as client, client.session() as session:
        assert session.run_program("echo", "hi").stdout == "hi\n"
        for wrong in (["echo", "hi"], b"echo", 5):
            with pytest.raises(TypeError, match="words of their own"):
                session.run_program(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="words of their own"):
            client.start_program(session.name, "echo hi")
        started = session.start_program("sh", "-c", "echo one")
        kinds = [type(event) for event in client.follow_program(session.name, started.process)]
        assert kinds == [ProcessStarted, ProcessOutput, ProcessExited]
