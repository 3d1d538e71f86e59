"""Who is told of a kernel's messages: listeners to all or to some types, and who follows a request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.protocol.messages import Channel, Message
from cellgate_kernels.testing import FakeKernel, FakeLauncher, VirtualTimeLoop, virtual_time


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    with virtual_time() as made:
        yield made


async def started() -> tuple[FakeLauncher, FakeKernel]:
    launcher = FakeLauncher()
    return launcher, await launcher.start(KernelProfile("python3"))


def request(kernel: FakeKernel, code: str) -> str:
    return kernel.connection.request(Channel.SHELL, "execute_request", {"code": code})


def test_each_is_told_what_is_its_affair(loop: VirtualTimeLoop) -> None:
    async def main() -> None:
        launcher, kernel = await started()
        everything: list[str] = []
        streams: list[str] = []
        mine: list[str] = []
        kernel.connection.listen(lambda message: everything.append(message.msg_type))
        kernel.connection.listen(
            lambda message: streams.append(message.msg_type), types=frozenset({"stream"})
        )
        followed = request(kernel, "followed")
        stop = kernel.connection.follow(followed, lambda message: mine.append(message.msg_type))
        request(kernel, "another's")
        await asyncio.sleep(1)
        cell = ["status", "execute_input", "stream", "execute_reply", "status"]
        assert sorted(everything) == sorted(2 * cell)
        assert streams == ["stream", "stream"]
        assert sorted(mine) == sorted(cell)
        stop()
        await kernel.discard()
        launcher.close()

    loop.run_until_complete(main())


def test_one_that_fails_is_told_of_it_and_the_others_get_the_message(loop: VirtualTimeLoop) -> None:
    async def main() -> None:
        launcher, kernel = await started()
        told: list[Exception] = []
        got: list[str] = []

        def fail(message: Message) -> None:
            raise LookupError(message.msg_type)

        kernel.connection.listen(fail, types=frozenset({"stream"}), failed=told.append)
        kernel.connection.follow(request(kernel, "x"), lambda message: got.append(message.msg_type))
        await asyncio.sleep(1)
        assert [str(error) for error in told] == ["stream"]
        assert len(got) == 5
        await kernel.discard()
        launcher.close()

    loop.run_until_complete(main())


def test_a_large_message_is_read_as_far_as_its_followers_want(loop: VirtualTimeLoop) -> None:
    async def main() -> None:
        launcher, kernel = await started()
        got: list[Message] = []
        kernel.connection.follow(request(kernel, "floods 1 200000"), got.append, room=lambda _: 1000)
        unwanted: list[Message] = []
        kernel.connection.follow(request(kernel, "floods 1 200000"), unwanted.append)
        await asyncio.sleep(1)
        (stream,) = [message for message in got if message.msg_type == "stream"]
        assert 1000 <= len(stream.content()["text"]) < 100_000
        assert [message.readable for message in unwanted if message.msg_type == "stream"] == [False]
        await kernel.discard()
        launcher.close()

    loop.run_until_complete(main())
