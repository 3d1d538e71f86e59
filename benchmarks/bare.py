"""A minimal server on tornado for one kernel: the lower limit of the figures of processor time.

``servers.bare`` runs it as a separate program, with a port and a kernel's connection file. Over HTTP it signs
and sends an execute_request, reads until the reply and idle, and answers with the outputs; on a WebSocket it
passes messages on. It checks no token, no origin, no signature and no field, keeps no session, queue,
deadline or record, and serves one cell at a time. Its sockets to the kernel and its WebSocket decoder are
Cellgate's: the cheapest that we know.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler

from benchmarks.raw import DELIMITER, execute_content
from cellgate.execution.run import OUTPUT_REST
from cellgate_kernels.messages import Channel, Message, Signer, new_message
from cellgate_kernels.sockets import ChannelSocket, as_bytes, open_socket
from cellgate_kernels.websocket import Subprotocol, decode

FRAME = b'{"channel":"%s","msg_type":%s,"header":%s,"parent_header":%s,"metadata":%s,"content":%s}'

Listener = Callable[[Channel, list[bytes]], None]


class BareKernel:
    """A kernel's two channels; `listener` receives all messages."""

    def __init__(self, info: dict[str, Any], context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.listener: Listener = lambda channel, parts: None
        self.session = "bare"
        self._signer = Signer(as_bytes(info["key"]))
        self._sockets: dict[Channel, ChannelSocket] = {}
        for channel in (Channel.SHELL, Channel.IOPUB):
            self._sockets[channel] = open_socket(info, channel, self.session, self._heard(channel), context)

    def _heard(self, channel: Channel) -> Callable[[list[bytes], int], None]:
        def received(frames: list[bytes], left_out: int) -> None:
            if channel is Channel.SHELL:
                self._sockets[Channel.IOPUB].wake()
            # After the delimiter: signature, header, parent, metadata, content.
            self.listener(channel, frames[frames.index(DELIMITER) + 2 :])

        return received

    def send(self, message: Message) -> None:
        """Sign and send a request of the shell channel."""
        self._sockets[Channel.SHELL].send(self._signer.serialize(message))

    def rest(self) -> None:
        """Delay reading the cell's output until its reply."""
        self._sockets[Channel.IOPUB].rest(OUTPUT_REST)


class CellHandler(RequestHandler):
    """A cell over HTTP."""

    def initialize(self, kernel: BareKernel) -> None:
        """Tornado's hook."""
        self._kernel = kernel

    async def post(self) -> None:
        """Run it."""
        code = json.loads(self.request.body)["code"]
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outputs: list[Any] = []
        reply: dict[str, Any] = {}
        idle = False

        def received(channel: Channel, parts: list[bytes]) -> None:
            nonlocal idle
            header, parent, _, content = parts[:4]
            if msg_id not in parent:
                return
            if channel is Channel.SHELL:
                reply.update(json.loads(content))
            elif b'"status"' in header:
                idle = b'"idle"' in content
            else:
                outputs.append(json.loads(content))
            if idle and reply and not ended.done():
                ended.set_result(None)

        content = execute_content(code)
        request = new_message(Channel.SHELL, "execute_request", content, session=self._kernel.session)
        msg_id = request.header.msg_id.encode()
        self._kernel.listener = received
        self._kernel.send(request)
        self._kernel.rest()
        await ended
        self.finish(json.dumps({"status": reply["status"], "error": None, "outputs": outputs}))


class RelayHandler(WebSocketHandler):
    """Jupyter's WebSocket: messages in, messages out."""

    def initialize(self, kernel: BareKernel) -> None:
        """Tornado's hook."""
        self._kernel = kernel

    def open(self, *_: str, **__: str) -> None:
        """As Cellgate does."""
        self.set_nodelay(True)

    def _heard(self, channel: Channel, parts: list[bytes]) -> None:
        kind = json.dumps(json.loads(parts[0])["msg_type"]).encode()
        self.write_message(FRAME % (channel.encode(), kind, *parts[:4]))

    def on_message(self, message: str | bytes) -> None:
        """Send the client's message."""
        self._kernel.listener = self._heard
        self._kernel.send(decode(message, Subprotocol.JSON, is_binary=False))


class ReadyHandler(RequestHandler):
    """Reports that it serves, and accepts the creation of a session."""

    def get(self) -> None:
        """Ready."""
        self.finish(b"{}")

    def post(self) -> None:
        """The only session."""
        self.set_status(201)
        self.finish(b"{}")


async def serve(port: int, info: dict[str, Any]) -> None:
    """Serve a kernel on this port of the loopback interface until the process ends."""
    kernel = BareKernel(info, zmq.Context.instance())
    own = {"kernel": kernel}
    routes: list[Any] = [
        ("/api", ReadyHandler),
        ("/v1/sessions", ReadyHandler),
        ("/v1/sessions/[^/]+/execute", CellHandler, own),
        ("/api/kernels/[^/]+/channels", RelayHandler, own),
    ]
    Application(routes, log_function=lambda handler: None).listen(port, "127.0.0.1")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())))
