"""Waits until a kernel is ready: it has answered, and its iopub messages arrive.

It talks to ``connection``; ``launcher`` starts kernels, ``forks`` and ``adopting`` get others.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from cellgate_kernels.base.tasks import until
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.protocol.contents import content_of
from cellgate_kernels.protocol.messages import Channel, Message

KERNEL_INFO_INTERVAL = 0.25


async def ready(
    connection: KernelConnection, exited: asyncio.Future[KernelExit], channel: Channel = Channel.SHELL
) -> dict[str, Any]:
    """Wait for a kernel_info_reply and the first iopub message; return the reply's content.

    ipykernel 7 sends an iopub_welcome upon subscription (JEP 65); for kernels without it the request is
    repeated until its status messages arrive, which proves that the subscription is in place.
    """
    replied: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    subscribed = asyncio.Event()
    progress = asyncio.Event()

    def receive(message: Message) -> None:
        if message.channel is Channel.IOPUB:
            subscribed.set()
        elif message.msg_type == "kernel_info_reply" and not replied.done():
            content = content_of(message)
            if content:
                replied.set_result(content)
        progress.set()

    stop = connection.listen(receive)
    exited.add_done_callback(wake := lambda _: progress.set())
    try:
        while not (replied.done() and subscribed.is_set()):
            if exited.done():
                raise RuntimeError(exited.result().message)
            connection.request(channel, "kernel_info_request", {})
            with suppress(TimeoutError):
                async with asyncio.timeout(KERNEL_INFO_INTERVAL):
                    await until(lambda: exited.done() or (replied.done() and subscribed.is_set()), progress)
        return replied.result()
    finally:
        exited.remove_done_callback(wake)
        stop()
