"""A port inside the sandbox, for the gateway: bytes between it and whatever program listens there.

``programs`` imports this with the first connection of the gateway that begins with `CONNECT`. The answer is
`CONNECTED` or `FAILED`; after `CONNECTED` both sides send bytes as they are, and the end of each direction is
passed on. The gateway's half is ``cellgate_kernels/keeper/ports.py``. The connected descriptor is not passed
to the gateway: a sandbox could keep a copy and make it a blocking one at any time, for both.
"""

import errno
import os
import select
import socket
from contextlib import suppress

from frames import CONNECTED, FAILED, HEAD, NUMBER, READABLE

ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
READ_BYTES = 64 * 1024
MOST_UNSENT = 64 * 1024
MOST_RELAYS = 64
CONNECT_SECONDS = 5.0


class Side:
    """One of the two connections. `unsent` is for it; `ended` once it has said all that it has to say."""

    def __init__(self, connection):
        connection.setblocking(False)
        self.socket = connection
        self.unsent = bytearray()
        self.ended = False
        self.watched = 0


class Relay:
    """One connection of the gateway's and that to the program. `relays`: where it is, as long as it lasts."""

    def __init__(self, keeper, relays, connection, port):
        self.keeper = keeper
        self.relays = relays
        self.gateway = Side(connection)
        self.program = None
        self.port = port
        self.left = list(ADDRESSES)
        self.over = False
        relays.add(self)
        # Until there is somebody to talk to, the gateway can only leave.
        self.watch(self.gateway, READABLE)
        if len(relays) > MOST_RELAYS:
            self.fail(errno.EMFILE)
            return
        keeper.later(CONNECT_SECONDS, self.give_up)
        self.try_next(None)

    def watch(self, side, events):
        """Watch a side for exactly these events; for none, not at all."""
        descriptor = side.socket.fileno()
        if side.watched == events:
            return
        if side.watched:
            self.keeper.unwatch(descriptor)
        if events:
            self.keeper.watch(descriptor, events, lambda _, found: self.ready(side, found))
        side.watched = events

    # Connecting

    @property
    def connecting(self):
        """Whether nobody has answered yet."""
        return self.program is None or self.left is not None

    def try_next(self, error):
        """Connect to the next address; when there is none left, tell the gateway the first error."""
        self.drop_program()
        while self.left:
            family, address = self.left.pop(0)
            try:
                self.program = Side(socket.socket(family, socket.SOCK_STREAM))
                self.program.socket.connect((address, self.port))
            except BlockingIOError:
                self.watch(self.program, select.POLLOUT)
                return
            except OSError as refusal:
                error = error or refusal.errno
                self.drop_program()
            else:
                self.connected()
                return
        self.fail(error)

    def connected(self):
        """Handle the system's answer to the connection that was begun."""
        program = self.program.socket
        error = program.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        # A port that nobody listens on may be given to the connection itself.
        if not error and program.getsockname() == program.getpeername():
            error = errno.ECONNREFUSED
        if error:
            self.try_next(error)
            return
        self.left = None
        self.gateway.unsent += HEAD.pack(CONNECTED, 0)
        self.adjust()

    def give_up(self):
        """Fail the connection if no answer has come in time."""
        if self.connecting and not self.over:
            self.fail(errno.ETIMEDOUT)

    def fail(self, error):
        """Tell the gateway why there is no connection. A few bytes always find room."""
        reason = os.strerror(error).encode()
        with suppress(OSError):
            self.gateway.socket.send(HEAD.pack(FAILED, len(reason)) + reason)
        self.close()

    # Relaying

    def ready(self, side, events):
        """Move bytes for a side that has some, can take some, or is gone."""
        try:
            if side is self.gateway and events & select.POLLHUP:
                # It has not only said its end, but left: nobody wants an answer any more.
                self.close()
                return
            if side is self.program and self.left is not None:
                self.connected()
                return
            if events & select.POLLOUT:
                self.flush(side)
            if events & READABLE:
                self.receive(side)
        except OSError:
            self.close()
        if not self.over:
            self.adjust()

    def receive(self, side):
        """Read what a side says. Raises OSError."""
        try:
            data = side.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        if self.connecting:
            # It has left, or does not keep to the protocol.
            self.close()
            return
        other = self.other(side)
        other.unsent += data
        side.ended = not data
        self.flush(other)

    def flush(self, side):
        """Send what a side takes now, and the end of the other if that is next. Raises OSError."""
        while side.unsent:
            try:
                del side.unsent[: side.socket.send(side.unsent)]
            except BlockingIOError:
                return
        if not self.connecting and self.other(side).ended:
            side.socket.shutdown(socket.SHUT_WR)

    def other(self, side):
        """Return the side that is not this one."""
        return self.program if side is self.gateway else self.gateway

    def adjust(self):
        """Watch what can be dealt with now, and close what is over."""
        if self.connecting:
            return
        sides = (self.gateway, self.program)
        if all(side.ended and not side.unsent for side in sides):
            self.close()
            return
        for side in sides:
            events = select.POLLOUT if side.unsent else 0
            # What a side does not take is not read from the other: it waits in that one's own buffers.
            if not side.ended and len(self.other(side).unsent) < MOST_UNSENT:
                events |= READABLE
            if side is self.gateway:
                events |= select.POLLHUP
            self.watch(side, events)

    def drop_program(self):
        """Forget an address that does not answer."""
        if self.program is not None:
            self.watch(self.program, 0)
            self.program.socket.close()
            self.program = None

    def close(self):
        """Close both; what was not sent is lost."""
        if not self.over:
            self.over = True
            self.drop_program()
            self.watch(self.gateway, 0)
            self.gateway.socket.close()
            self.relays.discard(self)


def begin(keeper, relays, connection, payload):
    """Relay between the gateway's connection and the port that it named."""
    (port,) = NUMBER.unpack(payload)
    Relay(keeper, relays, connection, port)
