"""KernelConnection against a kernel's side of the sockets that the test itself plays."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import select
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.session import Session

from cellgate_kernels.base.errors import KernelDied
from cellgate_kernels.base.places import FRAMES_A_TURN
from cellgate_kernels.channels import reception as reading
from cellgate_kernels.channels import zmtp
from cellgate_kernels.channels.connection import KernelConnection, _Reading
from cellgate_kernels.channels.reception import THREADS, Reception
from cellgate_kernels.channels.sockets import LocalSocket, socket_path
from cellgate_kernels.protocol import waiting_questions
from cellgate_kernels.protocol.masking import Masker, MessageMasker
from cellgate_kernels.protocol.messages import Channel, MalformedMessage, Message, new_message
from cellgate_kernels.protocol.outputs import OutputCaps
from cellgate_kernels.protocol.texts import TextStream
from cellgate_kernels.protocol.unsent import MOST_TEXTS, LastText

KEY = b"the-key-of-this-kernel"
DEADLINE = 60.0
PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 5}
ROUTERS = (Channel.SHELL, Channel.CONTROL, Channel.STDIN)


async def until(condition: Callable[[], object], otherwise: str = "it did not happen in time") -> None:
    """Returns when the condition holds; fails when it does not in time."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, otherwise
        await asyncio.sleep(0.001)


def info(prefix: Path) -> dict[str, Any]:
    """Return the connection info of a kernel whose sockets' paths begin with this."""
    return {"ip": str(prefix), "key": KEY, **PORTS}


class Peer:
    """The kernel's side: ROUTER and PUB sockets, signed by jupyter_client's own Session."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path, key: bytes = KEY) -> None:
        self.info = info(folder / "k")
        self.session = Session(key=key, signature_scheme="hmac-sha256")
        self.sockets = {channel: self._limit(context, channel) for channel in Channel}

    def _limit(self, context: zmq.Context[zmq.Socket[bytes]], channel: Channel) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.ROUTER if channel in ROUTERS else zmq.XPUB)
        socket.linger = 0
        socket.sndhwm = 0
        socket.bind(f"ipc://{socket_path(self.info, channel)}")
        return socket

    def receive(self, channel: Channel, timeout: float = DEADLINE) -> tuple[bytes, dict[str, Any]]:
        """The sender's identity and its message, checked and decoded."""
        socket = self.sockets[channel]
        assert socket.poll(int(timeout * 1000)), f"nothing came on {channel}"
        identity, parts = self.session.feed_identities(socket.recv_multipart())
        return identity[0], self.session.deserialize(parts)

    def subscribed(self) -> None:
        """Returns when the subscriber is known, so that nothing published from now on is lost."""
        publisher = self.sockets[Channel.IOPUB]
        assert publisher.poll(int(DEADLINE * 1000)), "nobody subscribed"
        assert publisher.recv() == b"\x01"

    def frames(self, msg_type: str, content: dict[str, Any], parent: Any = None) -> list[bytes]:
        """A message's frames, signed."""
        return self.session.serialize(self.session.msg(msg_type, content, parent))

    def publish(self, text: str, parent: Any = None) -> None:
        """A stream message on iopub."""
        frames = self.frames("stream", {"name": "stdout", "text": text}, parent)
        self.sockets[Channel.IOPUB].send_multipart([b"topic", *frames])

    def close(self) -> None:
        for each in self.sockets.values():
            each.close()


@pytest.fixture
def zmq_context(no_leaks: Path) -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def folder(no_leaks: Path) -> Iterator[Path]:
    """A short folder for sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def peer(zmq_context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> Iterator[Peer]:
    peer = Peer(zmq_context, folder)
    yield peer
    peer.close()


@pytest.fixture
async def connection(peer: Peer) -> AsyncIterator[KernelConnection]:
    """Open, and subscribed."""
    connection = KernelConnection(peer.info)
    connection.open()
    await asyncio.to_thread(peer.subscribed)
    yield connection
    connection.close()


@contextmanager
def in_thread(work: Callable[[], None]) -> Iterator[None]:
    """Do the kernel's work beside the loop; its failure is the test's."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield
    finally:
        thread.join(2 * DEADLINE)
    if failures:
        raise failures[0]


def collect(connection: KernelConnection) -> list[Message]:
    """All messages from now on."""
    messages: list[Message] = []
    connection.listen(messages.append)
    return messages


def texts(messages: list[Message]) -> list[str]:
    return [message.content()["text"] for message in messages]


# ---- there and back


@pytest.mark.parametrize("channel", ROUTERS)
async def test_a_request_and_its_reply_are_understood_by_jupyter_client(
    connection: KernelConnection, peer: Peer, channel: Channel
) -> None:
    messages = collect(connection)
    msg_id = connection.request(channel, "some_request", {"text": "žlutý \x00 🎉"})
    identity, received = await asyncio.to_thread(peer.receive, channel)
    assert received["header"]["msg_id"] == msg_id
    assert received["header"]["session"] == connection.session
    assert received["content"] == {"text": "žlutý \x00 🎉"}
    # An input_request finds its way because all three sockets have the same identity.
    assert identity == connection.session.encode()
    reply = peer.frames("some_reply", {"status": "ok"}, received)
    peer.sockets[channel].send_multipart([identity, *reply, b"buffer"])
    await until(lambda: messages)
    [message] = messages
    assert (message.channel, message.msg_type) == (channel, "some_reply")
    assert (message.parent.msg_id, message.parent.msg_type) == (msg_id, "some_request")
    assert (message.content(), message.buffers) == ({"status": "ok"}, (b"buffer",))


async def test_what_is_sent_is_told_to_those_who_asked_for_it(connection: KernelConnection) -> None:
    sent: list[Message] = []
    stop = connection.listen(lambda message: None, sent.append)
    message = new_message(Channel.SHELL, "some_request", {}, session=connection.session)
    connection.send(message)
    assert sent == [message]
    stop()
    connection.send(message)
    assert sent == [message]


async def test_messages_of_a_channel_keep_their_order_and_reach_every_listener(
    connection: KernelConnection, peer: Peer
) -> None:
    first, second = collect(connection), collect(connection)
    for number in range(500):
        peer.publish(str(number))
    await until(lambda: len(second) == 500)
    assert texts(first) == [str(number) for number in range(500)]
    assert first == second


# ---- none is stuck


def answer(peer: Peer, count: int, extra: int) -> None:
    """Answer `count` requests at once, as a kernel does: status, output and reply on two sockets."""
    for _ in range(count):
        identity, request = peer.receive(Channel.SHELL)
        for number in range(extra):
            peer.publish(str(number), request)
        reply = peer.frames("some_reply", {}, request)
        peer.sockets[Channel.SHELL].send_multipart([identity, *reply])


async def test_many_requests_are_answered_without_one_being_stuck(
    connection: KernelConnection, peer: Peer
) -> None:
    """Each request is sent as soon as the former is answered, from within the listener."""
    count = 600
    replies: list[str] = []
    output: list[Message] = []
    expected: list[str] = []

    def receive(message: Message) -> None:
        if message.channel is Channel.IOPUB:
            output.append(message)
            return
        replies.append(message.parent.msg_id)
        if len(expected) < count:
            expected.append(connection.request(Channel.SHELL, "some_request", {}))

    connection.listen(receive)
    with in_thread(lambda: answer(peer, count, extra=2)):
        expected.append(connection.request(Channel.SHELL, "some_request", {}))
        await until(
            lambda: len(replies) == count and len(output) == 2 * count, "a message is stuck in its socket"
        )
    assert replies == expected
    assert texts(output) == ["0", "1"] * count


async def test_messages_that_arrive_while_many_are_sent_are_not_stuck(
    connection: KernelConnection, peer: Peer
) -> None:
    """Sending processes the socket's signals; without another look the last replies would wait for ever."""
    replies = collect(connection)
    for _ in range(20):
        replies.clear()
        with in_thread(lambda: answer(peer, 50, extra=0)):
            sent = []
            for number in range(50):
                sent.append(connection.request(Channel.SHELL, "some_request", {}))
                if number % 7 == 0:
                    await asyncio.sleep(0)
            await until(lambda: len(replies) == 50, "a reply is stuck in its socket")
        assert [reply.parent.msg_id for reply in replies] == sent


async def test_a_message_that_came_before_the_loop_looked_is_found_after_a_send(
    connection: KernelConnection, peer: Peer
) -> None:
    """The connection gets no turn before the send."""
    messages = collect(connection)
    connection.request(Channel.SHELL, "some_request", {})
    identity, request = await asyncio.to_thread(peer.receive, Channel.SHELL)
    shell = connection._sockets[Channel.SHELL]
    assert isinstance(shell, LocalSocket)
    assert shell._socket is not None
    descriptor, readable = shell._socket.fileno(), shell._guarded_readable
    loop = asyncio.get_running_loop()
    for number in range(100):
        messages.clear()
        loop.remove_reader(descriptor)
        peer.sockets[Channel.SHELL].send_multipart([identity, *peer.frames("some_reply", {}, request)])
        arrived, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], DEADLINE)
        assert arrived, "the reply does not arrive"
        connection.request(Channel.SHELL, "some_request", {})
        loop.add_reader(descriptor, readable)
        await until(lambda: messages, f"reply {number} is stuck in its socket")
        await asyncio.to_thread(peer.receive, Channel.SHELL)


# ---- what is not a message of the kernel


async def test_a_wrong_signature_is_dropped_counted_and_harms_nothing(
    connection: KernelConnection, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    messages = collect(connection)
    forger = Session(key=b"another key", signature_scheme="hmac-sha256")
    forged = forger.serialize(forger.msg("stream", {"name": "stdout", "text": "forged"}))
    publisher = peer.sockets[Channel.IOPUB]
    peer.publish("before")
    for _ in range(3):
        publisher.send_multipart([b"topic", *forged])
    publisher.send_multipart([b"topic"])
    publisher.send_multipart([b"topic", b"<IDS|MSG>", b"", b"{}"])
    peer.publish("after")
    await until(lambda: len(messages) == 2)
    assert texts(messages) == ["before", "after"]
    assert connection.malformed == 5
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1, "a kernel that sends rubbish must not fill the log"


async def test_a_changed_message_is_dropped(connection: KernelConnection, peer: Peer) -> None:
    messages = collect(connection)
    frames = peer.frames("stream", {"name": "stdout", "text": "true"})
    changed = [frame.replace(b'"true"', b'"false"') for frame in frames]
    assert changed != frames
    peer.sockets[Channel.IOPUB].send_multipart([b"topic", *changed])
    peer.publish("after")
    await until(lambda: messages)
    assert texts(messages) == ["after"]
    assert connection.malformed == 1


# ---- floods


async def test_a_flood_is_delivered_whole_and_in_order_while_others_get_their_turns(
    connection: KernelConnection, peer: Peer
) -> None:
    count = 2_000
    messages = collect(connection)
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(len(messages))
            await asyncio.sleep(0)

    def flood() -> None:
        for number in range(count):
            peer.publish(str(number))

    task = asyncio.create_task(other())
    try:
        with in_thread(flood):
            await until(lambda: len(messages) == count, "the flood does not end")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert texts(messages) == [str(number) for number in range(count)]
    between = [later - earlier for earlier, later in pairwise(turns)]
    # A turn may hold a drain by the wake-up and some that were scheduled, each bounded.
    assert max(between) <= 4 * 64, "the loop was held for more messages than the bound"


async def test_big_messages_are_bounded_by_their_bytes_too(connection: KernelConnection, peer: Peer) -> None:
    """The others' turn comes after a few megabytes, not after a number of messages."""
    messages = collect(connection)
    megabyte = "x" * 1024 * 1024
    for _ in range(32):
        peer.publish(megabyte)
    between = []
    async with asyncio.timeout(DEADLINE):
        while len(messages) < 32:
            before = len(messages)
            await asyncio.sleep(0)
            between.append(len(messages) - before)
    assert max(between) <= 12


# ---- pause and resume


async def test_a_paused_connection_reads_no_output_and_loses_none(
    connection: KernelConnection, peer: Peer
) -> None:
    messages = collect(connection)
    sent = 0
    for _ in range(20):
        connection.pause()
        connection.pause()
        paused_at = len(messages)
        for _ in range(100):
            peer.publish(str(sent))
            sent += 1
        # The other channels go on; their answers also prove that the loop had its turns.
        connection.request(Channel.CONTROL, "some_request", {})
        identity, request = await asyncio.to_thread(peer.receive, Channel.CONTROL)
        peer.sockets[Channel.CONTROL].send_multipart([identity, *peer.frames("some_reply", {}, request)])
        await until(lambda: messages[-1:] and messages[-1].channel is Channel.CONTROL)
        assert messages.pop().msg_type == "some_reply"
        assert len(messages) == paused_at
        connection.resume()
        connection.resume()
        await until(lambda: len(messages) == sent, "a message is stuck after resume")  # noqa: B023
    assert texts(messages) == [str(number) for number in range(sent)]


async def test_a_listener_may_pause_in_the_middle_of_a_flood(
    connection: KernelConnection, peer: Peer
) -> None:
    messages: list[Message] = []

    def receive(message: Message) -> None:
        messages.append(message)
        if len(messages) % 10 == 0:
            connection.pause()

    connection.listen(receive)
    for number in range(100):
        peer.publish(str(number))
    for part in range(10, 101, 10):
        await until(lambda: len(messages) == part)  # noqa: B023
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(messages) == part
        connection.resume()
    assert texts(messages) == [str(number) for number in range(100)]


async def test_pausing_a_closed_connection_is_no_error(connection: KernelConnection) -> None:
    connection.close()
    connection.pause()
    connection.resume()
    assert connection.closed


# ---- listeners


async def test_listeners_may_come_and_go_during_a_delivery(connection: KernelConnection, peer: Peer) -> None:
    seen: dict[str, list[Message]] = {"once": [], "always": [], "late": []}

    def once(message: Message) -> None:
        seen["once"].append(message)
        stop()
        if not seen["late"]:
            connection.listen(seen["late"].append)

    stop = connection.listen(once)
    connection.listen(seen["always"].append)
    for text in "abc":
        peer.publish(text)
    await until(lambda: len(seen["always"]) == 3)
    assert texts(seen["once"]) == ["a"]
    assert texts(seen["always"]) == ["a", "b", "c"]
    assert texts(seen["late"]) == ["b", "c"]
    stop()


async def test_a_listener_may_close_the_connection(connection: KernelConnection, peer: Peer) -> None:
    messages: list[Message] = []

    def close(message: Message) -> None:
        messages.append(message)
        connection.close()

    connection.listen(close)
    for text in "abc":
        peer.publish(text)
    await until(lambda: connection.closed)
    for _ in range(20):
        await asyncio.sleep(0)
    assert texts(messages) == ["a"]


# ---- the end


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def test_close_may_be_repeated_and_frees_what_open_took(peer: Peer) -> None:
    before = descriptors()
    connections = [KernelConnection(peer.info) for _ in range(10)]
    for connection in connections:
        assert connection.closed
        connection.open()
        assert not connection.closed
    assert descriptors() >= before + 40
    for connection in connections:
        connection.close()
        connection.close()
        assert connection.closed
    # zmq's own thread closes what was connected.
    await until(lambda: descriptors() <= before, "descriptors are left")


@pytest.mark.parametrize("channel", ROUTERS)
async def test_sending_after_the_close_says_that_the_kernel_is_gone(
    connection: KernelConnection, channel: Channel
) -> None:
    connection.close()
    with pytest.raises(KernelDied, match="gone"):
        connection.request(channel, "some_request", {})


def fill(connection: KernelConnection) -> None:
    for _ in range(100_000):
        connection.request(Channel.SHELL, "some_request", {})


async def test_a_kernel_that_takes_nothing_more_is_an_error_and_no_wait(folder: Path) -> None:
    """Nobody is bound, as with a kernel that hangs: the queue of the socket is bounded."""
    connection = KernelConnection(info(folder / "k"))
    connection.open()
    try:
        with pytest.raises(KernelDied, match="no more messages"):
            fill(connection)
    finally:
        connection.close()


async def test_a_connection_that_can_not_be_opened_leaves_nothing(folder: Path) -> None:
    connection = KernelConnection(info(folder / ("long" * 40)))
    with pytest.raises(OSError, match="too long"):
        connection.open()
    assert connection.closed


async def test_a_peer_that_binds_later_is_found(
    zmq_context: zmq.Context[zmq.Socket[bytes]], folder: Path
) -> None:
    """The connection is made while the kernel still starts."""
    connection = KernelConnection(info(folder / "k"))
    connection.open()
    messages = collect(connection)
    connection.request(Channel.SHELL, "some_request", {})
    peer = Peer(zmq_context, folder)
    try:
        identity, request = await asyncio.to_thread(peer.receive, Channel.SHELL)
        await asyncio.to_thread(peer.subscribed)
        peer.publish("welcome")
        peer.sockets[Channel.SHELL].send_multipart([identity, *peer.frames("some_reply", {}, request)])
        await until(lambda: len(messages) == 2)
    finally:
        connection.close()
        peer.close()


# ---- what libzmq would do otherwise


@pytest.fixture
async def local(
    zmq_context: zmq.Context[zmq.Socket[bytes]], folder: Path
) -> AsyncIterator[tuple[KernelConnection, Peer]]:
    peer = Peer(zmq_context, folder)
    connection = KernelConnection(peer.info)
    connection.open()
    await asyncio.to_thread(peer.subscribed)
    yield connection, peer
    connection.close()
    peer.close()


async def test_a_follower_that_has_stopped_is_freed_at_once(local: tuple[KernelConnection, Peer]) -> None:
    """It keeps the function that stops it: the garbage collector is not needed to free the two."""
    connection, _ = local

    class Follower:
        def __init__(self) -> None:
            self.stop = connection.follow("id", self.receive)

        def receive(self, message: Message) -> None:
            raise AssertionError(message)

    follower = Follower()
    freed = weakref.ref(follower)
    gc.disable()
    try:
        follower.stop()
        del follower
        assert freed() is None
    finally:
        gc.enable()


async def test_a_kernel_that_opens_its_sockets_anew_is_found_again(
    local: tuple[KernelConnection, Peer], zmq_context: zmq.Context[zmq.Socket[bytes]], folder: Path
) -> None:
    connection, peer = local
    messages = collect(connection)
    peer.close()
    for port in PORTS.values():
        (folder / f"k-{port}").unlink()
    second = Peer(zmq_context, folder)
    try:
        await asyncio.to_thread(second.subscribed)
        second.publish("again")
        await until(lambda: messages)
        assert texts(messages) == ["again"]
        await until(lambda: connection.request(Channel.SHELL, "some_request", {}))
        await asyncio.to_thread(second.receive, Channel.SHELL)
    finally:
        second.close()


async def test_a_kernel_is_found_again_after_a_lack_of_open_files(
    local: tuple[KernelConnection, Peer],
    zmq_context: zmq.Context[zmq.Socket[bytes]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, peer = local
    refused: list[int] = []

    class Scarce(socket.socket):
        def __init__(self, *arguments: int) -> None:
            if len(refused) < len(PORTS):
                refused.append(errno.EMFILE)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            super().__init__(*arguments)

    messages = collect(connection)
    monkeypatch.setattr("cellgate_kernels.channels.sockets.socket.socket", Scarce)
    peer.close()
    await until(lambda: len(refused) == len(PORTS))
    for port in PORTS.values():
        (folder / f"k-{port}").unlink(missing_ok=True)
    second = Peer(zmq_context, folder)
    try:
        await asyncio.to_thread(second.subscribed)
        second.publish("again")
        await until(lambda: messages)
    finally:
        second.close()


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n" * 4,
        b"\xff" * 64,
        b"",
        zmtp.hello(b"ROUTER") + b"\x01\x00" * 40_000,
        zmtp.hello(b"ROUTER") + b"\x04\x00" * 40_000,
    ],
    ids=["http", "nonsense", "nothing", "frames", "commands"],
)
async def test_what_speaks_no_zmtp_is_left_and_tried_again(
    zmq_context: zmq.Context[zmq.Socket[bytes]],
    folder: Path,
    said: bytes,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zmtp, "MOST_IDLE_FRAMES", 20_000)
    visits = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1
        writer.write(said)
        if not said:
            writer.close()
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(talk, str(folder / "k-1"))
    connection = KernelConnection(info(folder / "k"))
    connection.open()
    messages = collect(connection)
    try:
        await until(lambda: visits >= 3)
    finally:
        connection.close()
        server.close()
        await server.wait_closed()
    assert messages == []
    lines = [each for each in caplog.messages if f"socket at {folder}/k-1 is closed" in each]
    assert len(lines) == (1 if said else 0)


def small_reception() -> Reception:
    """One whose bounds are as small as caps make them: 6 MiB of a stream, 1 MiB of a display."""
    return Reception(OutputCaps(text=1, data=1))


@pytest.fixture
async def bounded(
    zmq_context: zmq.Context[zmq.Socket[bytes]], folder: Path
) -> AsyncIterator[tuple[KernelConnection, Peer]]:
    """A connection of a kernel with small bounds, and the kernel's side."""
    peer, reception = Peer(zmq_context, folder), small_reception()
    connection = KernelConnection(peer.info, kernel_id="k-1", reception=reception)
    connection.open()
    await asyncio.to_thread(peer.subscribed)
    yield connection, peer
    connection.close()
    peer.close()
    reception.close(wait=True)
    assert reception.budget.held == 0


async def test_a_message_beyond_the_bound_is_handed_out_without_its_content(
    bounded: tuple[KernelConnection, Peer], caplog: pytest.LogCaptureFixture
) -> None:
    connection, peer = bounded
    messages = collect(connection)
    parent = peer.session.msg_header("execute_request")
    peer.publish("before")
    for size in (7_000_000, 90_000_000):
        peer.publish("x" * size, parent)
    peer.sockets[Channel.IOPUB].send_multipart([b"x" * 70_000_000, b"x"])
    status = peer.frames("status", {"execution_state": "idle", "more": "x" * 4096}, parent)
    peer.sockets[Channel.IOPUB].send_multipart([b"topic", *status])
    peer.publish("after")
    await until(lambda: len(messages) == 5)
    assert [message.left_out > 7_000_000 for message in messages] == [False, True, True, False, False]
    assert [message.left_out > 0 for message in messages] == [False, True, True, True, False]
    assert [message.msg_type for message in messages] == ["stream"] * 3 + ["status", "stream"]
    assert {message.parent.msg_id for message in messages[1:4]} == {parent["msg_id"]}
    for message in messages[1:4]:
        with pytest.raises(MalformedMessage, match="too large"):
            message.content()
    assert (connection.passed_over, connection.malformed) == (3, 1)
    said = [record.getMessage() for record in caplog.records if "Passed over" in record.getMessage()]
    assert len(said) == 1, "one line, however many there are"
    assert "kernel k-1" in said[0]


async def test_a_large_message_is_read_in_a_thread_and_keeps_its_place(
    bounded: tuple[KernelConnection, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, peer = bounded
    messages, rooms = list[Message](), list[Message]()
    threads = set[int]()
    decode = reading.read_text

    def watched(frame: bytes, room: int) -> TextStream:
        threads.add(threading.get_ident())
        return decode(frame, room)

    monkeypatch.setattr(reading, "read_text", watched)
    connection.listen(messages.append, room=lambda message: rooms.append(message) or 5_000_000)
    identity, request = await ask(connection, peer)
    expected = []
    for number in range(6):
        text = str(number) * (3_000_000 if number % 2 else 1)
        expected.append(text)
        peer.publish(text, request)
    peer.sockets[Channel.SHELL].send_multipart([identity, *peer.frames("some_reply", {}, request)])
    await until(lambda: len(messages) == 7)
    assert texts([message for message in messages if message.channel is Channel.IOPUB]) == expected
    assert threads
    assert threading.get_ident() not in threads
    assert len(rooms) == 3, "asked for the large ones only"
    assert connection._share.used > 0, "its time with the threads is counted for the kernel"
    assert [message.decoded is not None for message in messages].count(True) == 3


async def ask(connection: KernelConnection, peer: Peer) -> tuple[bytes, dict[str, Any]]:
    connection.request(Channel.SHELL, "some_request", {})
    return await asyncio.to_thread(peer.receive, Channel.SHELL)


async def test_nobody_reads_what_nobody_has_room_for(
    bounded: tuple[KernelConnection, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, peer = bounded
    for name in ("read_content", "read_text"):
        monkeypatch.setattr(reading, name, lambda *_: pytest.fail("it was decoded"))
    messages = list[Message]()
    connection.listen(messages.append, room=lambda _: 10)
    errors = peer.frames("error", {"ename": "x" * 1_000_000})
    peer.sockets[Channel.IOPUB].send_multipart([b"topic", *errors])
    shown = peer.frames("display_data", {"data": {"image/png": "x" * 500_000, "text/plain": ""}})
    peer.sockets[Channel.IOPUB].send_multipart([b"topic", *shown])
    await until(lambda: len(messages) == 2)
    assert [message.unread for message in messages] == [True, True]
    assert messages[1].kinds == ("image/png", "text/plain")
    assert len(messages[0].content_frame) > 1_000_000, "it can be relayed"


async def test_what_is_made_of_too_many_parts_is_not_decoded(bounded: tuple[KernelConnection, Peer]) -> None:
    connection, peer = bounded
    messages = list[Message]()
    connection.listen(messages.append, room=lambda _: 100_000_000)
    peer.sockets[Channel.IOPUB].send_multipart(
        [b"topic", *peer.frames("stream", {"name": "stdout", "text": [[]] * 1_000_000})]
    )
    peer.publish("{[," * 500_000)
    await until(lambda: len(messages) == 2)
    assert [message.unread for message in messages] == [True, False], "what is in strings does not count"
    assert texts(messages[1:]) == ["{[," * 500_000]


async def test_a_connection_may_close_while_a_message_is_read(
    bounded: tuple[KernelConnection, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, peer = bounded
    begun, go_on = threading.Event(), threading.Event()

    def slow(frame: bytes, room: int) -> TextStream:
        begun.set()
        assert go_on.wait(DEADLINE)
        return TextStream({}, 0)

    monkeypatch.setattr(reading, "read_text", slow)
    messages = list[Message]()
    connection.listen(messages.append, room=lambda _: 100_000_000)
    for _ in range(3):
        peer.publish("x" * 1_000_000)
    await asyncio.to_thread(begun.wait, DEADLINE)
    connection.close()
    go_on.set()
    await asyncio.sleep(0.1)
    assert messages == []


async def test_what_waits_to_be_read_too_long_is_given_up(
    bounded: tuple[KernelConnection, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both threads are busy, and others need the room."""
    connection, peer = bounded
    go_on = threading.Event()
    reception = connection._reception
    blockers = [reception._threads.submit(go_on.wait, DEADLINE) for _ in range(2)]
    messages = list[Message]()
    connection.listen(messages.append, room=lambda _: 100_000_000)
    peer.publish("x" * 1_000_000)
    peer.publish("next")
    await until(lambda: connection._reading is not None)

    class Other:
        def give_up(self) -> None:
            pytest.fail("the newest gives up")

    other = Other()
    reception.budget.hold(other, reception.budget.total)
    await until(lambda: len(messages) == 2)
    assert messages[0].left_out > 1_000_000
    assert texts(messages[1:]) == ["next"]
    reception.budget.release(other)
    go_on.set()
    await until(lambda: all(blocker.done() for blocker in blockers))


async def test_a_large_message_is_gone_as_soon_as_it_was_handed_out(
    bounded: tuple[KernelConnection, Peer],
) -> None:
    """The garbage collector counts objects, not their bytes: it may not look for very long."""
    connection, peer = bounded
    messages = 0

    def receive(message: Message) -> None:
        nonlocal messages
        messages += 1

    def readings() -> list[object]:
        return [each for each in gc.get_objects() if type(each) is _Reading]

    connection.listen(receive, room=lambda _: 100_000_000)
    gc.collect()
    gc.disable()
    try:
        peer.publish("x" * 1_000_000)
        peer.sockets[Channel.IOPUB].send_multipart(
            [b"topic", *peer.frames("stream", {"name": "stdout", "text": [[]] * 1_000_000})]
        )
        await until(lambda: messages == 2)
        await until(lambda: not readings())
    finally:
        gc.enable()


async def test_a_pause_outlasts_the_reading_of_a_large_message(
    bounded: tuple[KernelConnection, Peer],
) -> None:
    connection, peer = bounded
    messages = list[Message]()

    def receive(message: Message) -> None:
        messages.append(message)
        connection.pause()

    connection.listen(receive, room=lambda _: 100_000_000)
    for text in ("x" * 1_000_000, "y"):
        peer.publish(text)
    await until(lambda: messages)
    await asyncio.sleep(0.1)
    assert len(messages) == 1
    connection.resume()
    await until(lambda: len(messages) == 2)


async def test_a_listener_that_fails_keeps_no_other_from_its_message(
    bounded: tuple[KernelConnection, Peer], caplog: pytest.LogCaptureFixture
) -> None:
    connection, peer = bounded

    def fail(message: Message) -> None:
        raise RuntimeError("a mistake of ours")

    connection.listen(fail, fail)
    answered = collect(connection)
    for number in range(100):
        peer.publish(str(number))
    await until(lambda: len(answered) == 100)
    connection.request(Channel.SHELL, "some_request", {})
    assert connection.failures == 101
    failures = [record for record in caplog.records if record.exc_info]
    assert len(failures) == 1, "one traceback, however often it fails"
    assert vars(failures[0])["kernel"] == "k-1"
    caplog.clear()


@pytest.mark.parametrize("kind", ["link", "file", "fifo", "folder"])
async def test_nothing_but_the_socket_itself_is_connected_to(
    zmq_context: zmq.Context[zmq.Socket[bytes]], folder: Path, kind: str
) -> None:
    """A kernel puts something else in the place of its socket, such as a link to another service's."""
    visits = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1
        writer.close()

    other, place = folder / "other", folder / "k-1"
    server = await asyncio.start_unix_server(serve, str(other))
    match kind:
        case "link":
            place.symlink_to(other)
        case "file":
            place.write_bytes(b"")
        case "fifo":
            os.mkfifo(place)
        case _:
            place.mkdir()
    connection = KernelConnection(info(folder / "k"), reception=small_reception())
    connection.open()
    try:
        await asyncio.sleep(0.2)
        assert visits == 0
        place.rmdir() if kind == "folder" else place.unlink()
        other.rename(place)
        await until(lambda: visits, "the socket itself is found once it is there")
    finally:
        connection.close()
        server.close()
        await server.wait_closed()


async def test_what_a_kernel_does_not_take_at_once_is_sent_later(
    local: tuple[KernelConnection, Peer],
) -> None:
    """Many times what the buffer of a Unix socket holds."""
    connection, peer = local
    sent = [connection.request(Channel.SHELL, "some_request", {"text": "x" * 1_000_000}) for _ in range(40)]
    received = []
    for _ in sent:
        _, message = await asyncio.to_thread(peer.receive, Channel.SHELL)
        received.append(message["header"]["msg_id"])
    assert received == sent


@pytest.mark.parametrize(
    ("channel", "msg_type"), [(Channel.SHELL, "execute_reply"), (Channel.STDIN, "input_request")]
)
async def test_the_output_of_a_cell_is_heard_before_its_reply_or_question(
    local: tuple[KernelConnection, Peer], channel: Channel, msg_type: str
) -> None:
    """It rests for a moment after the request, so that all of it is read at one go; never for long."""
    connection, peer = local
    messages = collect(connection)
    for number in range(50):
        messages.clear()
        asked = new_message(Channel.SHELL, "execute_request", {"code": "1"}, session=connection.session)
        connection.send(asked)
        if number % 3:
            connection.rest(0.01)
        identity, request = await asyncio.to_thread(peer.receive, Channel.SHELL)
        peer.publish("output", request)
        if number % 2:
            await until(lambda: messages, "output without a reply is never heard")
        peer.sockets[channel].send_multipart([identity, *peer.frames(msg_type, {}, request)])
        await until(lambda: len(messages) == 2)
        assert [message.channel for message in messages] == [Channel.IOPUB, channel]


# ---- questions, which have a socket of their own


def question(peer: Peer, identity: bytes, metadata: dict[str, Any], prompt: str = "?") -> None:
    """A question of the kernel's. The metadata of ours name the output before it."""
    message = peer.session.msg("input_request", {"prompt": prompt}, metadata=metadata)
    peer.sockets[Channel.STDIN].send_multipart([identity, *peer.session.serialize(message)])


async def met(peer: Peer, connection: KernelConnection) -> bytes:
    """Where the kernel's questions go to, once it knows."""
    connection.request(Channel.STDIN, "input_reply", {})
    identity, _ = await asyncio.to_thread(peer.receive, Channel.STDIN)
    return identity


def output_named(peer: Peer, text: str) -> tuple[list[bytes], dict[str, Any]]:
    """A message for iopub, and the metadata of a question after it."""
    message = peer.session.msg("stream", {"name": "stdout", "text": text})
    after = {"cellgate_after": message["header"]["msg_id"]}
    return [b"topic", *peer.session.serialize(message)], after


def types(messages: list[Message]) -> list[str]:
    return [message.msg_type for message in messages]


@pytest.mark.parametrize("size", [10, 2_000_000], ids=["small", "read in a thread"])
async def test_a_question_waits_for_what_was_shown_before_it(
    connection: KernelConnection, peer: Peer, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_questions, "PATIENCE", 0.05)
    messages = collect(connection)
    identity = await met(peer, connection)
    shown, after = output_named(peer, "x" * size)
    connection.pause()
    before = connection.received_at
    question(peer, identity, after)
    await until(lambda: connection.received_at > before)
    # However long the output is left unread.
    await asyncio.sleep(0.3)
    assert not messages
    monkeypatch.setattr(waiting_questions, "PATIENCE", DEADLINE)
    connection.resume()
    peer.publish("earlier")
    peer.sockets[Channel.IOPUB].send_multipart(shown)
    peer.publish("later")
    await until(lambda: len(messages) == 4)
    assert types(messages) == ["stream", "stream", "input_request", "stream"]


async def test_questions_are_not_lost_with_what_was_shown_before_them(
    connection: KernelConnection, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_questions, "PATIENCE", 0.05)
    messages = collect(connection)
    identity = await met(peer, connection)
    for number in range(30):
        question(peer, identity, {"cellgate_after": f"lost {number}"})
    await until(lambda: len(messages) == 30)


async def test_long_questions_do_not_pile_up(connection: KernelConnection, peer: Peer) -> None:
    messages = collect(connection)
    identity = await met(peer, connection)
    connection.pause()
    for letter in "abc":
        question(peer, identity, {"cellgate_after": "what comes later"}, letter * 30_000)
    # Two of them are all that is kept; the third is delivered at once.
    await until(lambda: messages)
    assert [message.content()["prompt"][0] for message in messages] == ["c"]


@pytest.mark.parametrize("named", [None, "", 3, "x" * 201])
async def test_a_question_that_names_nothing_that_could_come_is_delivered(
    connection: KernelConnection, peer: Peer, named: object
) -> None:
    messages = collect(connection)
    identity = await met(peer, connection)
    question(peer, identity, {} if named is None else {"cellgate_after": named})
    await until(lambda: messages)
    assert types(messages) == ["input_request"]


async def test_a_closed_connection_forgets_a_question_that_waits(
    connection: KernelConnection, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_questions, "PATIENCE", 0.05)
    messages = collect(connection)
    identity = await met(peer, connection)
    connection.pause()
    before = connection.received_at
    question(peer, identity, {"cellgate_after": "what comes later"})
    await until(lambda: connection.received_at > before)
    connection.close()
    await asyncio.sleep(0.3)
    assert not messages


# ---- secrets -----------------------------------------------------------------------------------------------

SECRET = "sk-1234567890"


@pytest.fixture
async def masked(connection: KernelConnection) -> list[Message]:
    """All that a listener gets of a kernel that has a secret; all of large messages is wanted."""
    received: list[Message] = []
    connection.mask(MessageMasker(Masker([("KEY", SECRET)])))
    connection.listen(received.append, room=lambda _: 10**9)
    return received


def shown(messages: list[Message]) -> str:
    """The text of the streams among them."""
    return "".join(each.content()["text"] for each in messages if each.msg_type == "stream")


async def test_secrets_are_masked_in_small_and_large_messages(
    connection: KernelConnection, peer: Peer, masked: list[Message]
) -> None:
    large = "x" * 500_000
    request = {"header": {"msg_id": "cell"}}
    cut = len(SECRET) // 2
    texts = ["a", SECRET, f"{large}{SECRET}{large}{SECRET[:cut]}", SECRET[cut:] + "\n", SECRET[:cut]]
    for text in texts:
        peer.publish(text, request)
    data = {"text/plain": SECRET, "text/html": f"{large}{SECRET}"}
    for content in ({"data": data, "metadata": {}}, {"data": {"text/plain": SECRET}, "metadata": {}}):
        frames = peer.frames("display_data", content, request)
        peer.sockets[Channel.IOPUB].send_multipart([b"topic", *frames])
    await until(lambda: [each.msg_type for each in masked].count("display_data") == 2)
    assert shown(masked) == "".join(texts).replace(SECRET, "[secret KEY]")
    assert not any(SECRET.encode() in each.content_frame for each in masked)
    assert [each.msg_type for each in masked][-3:] == ["stream", "display_data", "display_data"]
    assert masked[-2].content()["data"]["text/html"] == f"{large}[secret KEY]"


async def test_answers_are_masked(connection: KernelConnection, peer: Peer, masked: list[Message]) -> None:
    answer = connection.ask(Channel.SHELL, "execute_request", {"code": ""})
    identity, request = await asyncio.to_thread(peer.receive, Channel.SHELL)
    reply = peer.frames("execute_reply", {"user_expressions": {"a": SECRET}}, request)
    peer.sockets[Channel.SHELL].send_multipart([identity, *reply])
    content = (await asyncio.wait_for(answer, DEADLINE)).content()
    assert content == {"user_expressions": {"a": "[secret KEY]"}}


async def test_a_kernels_end_shows_what_was_held_back(
    connection: KernelConnection, peer: Peer, masked: list[Message]
) -> None:
    peer.publish(f"done{SECRET[:4]}")
    await until(lambda: masked)
    assert shown(masked) == "done"
    connection.show_rest()
    assert shown(masked) == f"done{SECRET[:4]}"


async def test_a_kernels_end_waits_for_what_is_being_read(
    connection: KernelConnection, peer: Peer, masked: list[Message]
) -> None:
    large = "x" * 500_000
    # No thread reads it before the kernel's end is told.
    ended = threading.Event()
    for _ in range(THREADS):
        connection._reception._threads.submit(ended.wait)
    peer.publish(f"{large}{SECRET[:4]}")
    await until(lambda: connection._reading is not None)
    connection.show_rest()
    assert masked == []
    ended.set()
    await until(lambda: len(masked) == 2)
    assert shown(masked) == f"{large}{SECRET[:4]}"


async def test_last_words_without_number_are_delivered_while_others_get_their_turns(
    local: tuple[KernelConnection, Peer],
) -> None:
    connection, _ = local
    messages, seen = collect(connection), [0]
    parent = b'{"msg_id": "cell", "msg_type": "execute_request"}'

    async def other() -> None:
        while True:
            seen.append(len(messages))
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    try:
        await connection.tell_unsent(LastText("stdout", parent, str(number)) for number in range(MOST_TEXTS))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert texts(messages) == [str(number) for number in range(MOST_TEXTS)]
    assert {message.parent.msg_id for message in messages} == {"cell"}
    assert max(later - earlier for earlier, later in pairwise(seen)) <= 2 * FRAMES_A_TURN


async def test_a_large_message_that_was_being_read_is_masked_by_a_masker_that_came_in_between(
    connection: KernelConnection, peer: Peer
) -> None:
    received: list[Message] = []
    connection.listen(received.append, room=lambda _: 10**9)
    large = "x" * 500_000
    begun = threading.Event()
    for _ in range(THREADS):
        connection._reception._threads.submit(begun.wait)
    peer.publish(f"{large}{SECRET}\n")
    await until(lambda: connection._reading is not None)
    connection.mask(MessageMasker(Masker([("KEY", SECRET)])))
    begun.set()
    await until(lambda: received)
    assert shown(received) == f"{large}[secret KEY]\n"
