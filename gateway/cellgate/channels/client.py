"""One WebSocket client of a session: its outbox, its socket, and how it reconnects.

A client with a `session_id` outlives its socket for a while: its outbox keeps collecting, and the next socket
with the same id gets the collected messages. This module knows the outbox and a socket to close; ``door``
decides which messages a client gets, and ``http.jupyter.channels`` does frames and handshakes.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cellgate.channels.frame_log import KernelFrames, OutboxLimits
from cellgate.channels.frames import OutgoingMessage
from cellgate.channels.outbox import Outbox, OutboxLost
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.protocol.websocket import Subprotocol

logger = logging.getLogger(__name__)

GOING_AWAY = 1001
INTERNAL_ERROR = 1011
TRY_AGAIN_LATER = 1013
CLOSE_PATIENCE = 2.0


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """Limits of the Jupyter door. Durations in seconds, sizes in bytes.

    `replay_seconds`, `replay_bytes`: limits of the messages stored for a client that reconnects. `max_queue`:
    queued cells per session. `silence`: how long a client's system may leave data unacknowledged. `lane`:
    threads for frames that wait on disk.
    """

    folder: Path
    lane: Lane
    outbox: OutboxLimits = field(default_factory=OutboxLimits)
    replay_seconds: float = 60.0
    replay_bytes: int = 16 * MIB
    max_queue: int = 1000
    max_clients: int = 512
    silence: float = 180.0


class Socket(Protocol):
    """The calls of a WebSocket that its client makes."""

    async def send_frames(self, frames: bytes) -> bool:
        """Write whole frames and return once they have been accepted; False if the socket is gone."""

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        """Close the WebSocket with a code and a reason."""


class Client:
    """A client, connected or expected to reconnect."""

    def __init__(
        self, session_id: str, frames: Subprotocol, settings: ChannelSettings, kept: KernelFrames
    ) -> None:
        self.session_id = session_id
        self.frames = frames
        self.socket: Socket | None = None
        self.installs = True
        """Whether its cells may install packages."""
        self._settings = settings
        self._outbox = Outbox(kept.log(frames), self._was_lost)
        self._tasks = Supervisor()
        self._pump: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def connected(self) -> bool:
        """Whether the client has a socket."""
        return self.socket is not None

    @property
    def lost(self) -> bool:
        """Whether its pending messages were discarded."""
        return self._outbox.lost is not None

    def put(self, message: OutgoingMessage) -> None:
        """Queue a message for the client; never waits."""
        frame = message.frame(self.frames)
        if frame:
            self._outbox.put(frame)

    def _was_lost(self) -> None:
        """Close the socket: the pump may be in the middle of a write that will never end."""
        if self.socket is not None:
            self._stop_pump()
            self._give_up(self.socket)
        else:
            logger.warning("Dropped the messages kept for a client's return: %s", self._outbox.lost)

    def attach(self, socket: Socket) -> None:
        """Write to this socket from now on."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._stop_pump()
        self._outbox.limit = self._settings.outbox.total
        self.socket = socket
        self._pump = self._tasks.start(
            self._write_to(socket),
            "client pump",
            lambda _: socket.close(INTERNAL_ERROR, "The gateway failed at this client; its log says why"),
        )

    def detach(self) -> None:
        """Detach the lost socket; keep messages for the next one, within tighter limits."""
        self.socket = None
        self._stop_pump()
        self._outbox.limit = self._settings.replay_bytes

    def expect_back(self, expired: asyncio.TimerHandle) -> None:
        """Store the timer that ends the wait for the client's return."""
        self._expiry = expired

    def _stop_pump(self) -> None:
        if self._pump is not None:
            self._pump.cancel()

    async def _write_to(self, socket: Socket) -> None:
        try:
            while (frames := await self._outbox.take()) is not None:
                if not await socket.send_frames(frames):
                    return
                self._outbox.written()
        except OutboxLost:
            self._give_up(socket)

    def _give_up(self, socket: Socket) -> None:
        logger.warning("Closed a client's WebSocket: %s", self._outbox.lost)
        socket.close(TRY_AGAIN_LATER, (self._outbox.lost or "")[:120])

    async def close(self, code: int, reason: str) -> None:
        """Try briefly to write the pending messages, then close the socket and discard the client."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._outbox.end()
        socket = self.socket
        self.socket = None
        if self._pump is not None:
            await asyncio.wait([self._pump], timeout=CLOSE_PATIENCE if socket is not None else 0)
            self._stop_pump()
            await asyncio.gather(self._pump, return_exceptions=True)
        if socket is not None:
            socket.close(code, reason)
        self._outbox.close()
