"""Clients that hold connections and do nothing with them, in a process of their own.

``crowd.py URL TOKEN IDLE HALF`` opens IDLE connections that have had one answer and HALF that have sent half
of a request's head, prints a line, and keeps all of them until its standard input ends: whatever the gateway
closes is opened again. At its end it prints how often that was.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.beside import beside
from benchmarks.servers import Server


@dataclass(slots=True)
class Held:
    """One connection; `sends` is what it sends once it is open."""

    socket: socket.socket
    sends: bytes


class Crowd:
    """The connections of this process."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = (parts.hostname, parts.port)
        head = f"GET /v1/info HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: token {token}\r\n"
        self._whole = f"{head}\r\n".encode()
        self._half = head.encode()
        self._selector = selectors.DefaultSelector()
        self.reopened = 0

    def open(self, idle: int, half: int) -> None:
        """Open all of them, one after another, so that the gateway's backlog is not what is measured."""
        for number in range(idle + half):
            sends = self._whole if number < idle else self._half
            held = Held(self._connect(blocking=True), sends)
            held.socket.sendall(held.sends)
            if held.sends == self._whole:
                held.socket.recv(65536)
            held.socket.setblocking(False)
            self._selector.register(held.socket, selectors.EVENT_READ, held)

    def hold(self, end: int) -> None:
        """Keep them until the descriptor `end` is readable."""
        self._selector.register(end, selectors.EVENT_READ, None)
        while True:
            for key, events in self._selector.select():
                if key.data is None:
                    return
                self._attend(key.data, events)

    def _connect(self, *, blocking: bool) -> socket.socket:
        made = socket.socket()
        made.setblocking(blocking)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        failure = made.connect_ex(self._address)
        if failure not in {0, errno.EINPROGRESS}:
            raise OSError(failure, "no connection to the gateway")
        return made

    def _attend(self, held: Held, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            # The connection was opened again just now.
            held.socket.send(held.sends)
            self._selector.modify(held.socket, selectors.EVENT_READ, held)
            return
        try:
            gone = not held.socket.recv(65536)
        except ConnectionError:
            gone = True
        if gone:
            self._selector.unregister(held.socket)
            held.socket.close()
            self.reopened += 1
            held.socket = self._connect(blocking=False)
            self._selector.register(held.socket, selectors.EVENT_WRITE, held)


@contextmanager
def crowd(server: Server, idle: int, half: int) -> Iterator[Callable[[], int]]:
    """A crowd around the gateway. What is yielded ends it, and tells how many connections it opened again."""
    words = (server.url, server.token, str(idle), str(half))
    with beside(Path(__file__), *words, ready=True) as end:
        yield lambda: int(end()["reopened"])


def main(url: str, token: str, idle: str, half: str) -> None:
    """Open, hold, tell."""
    crowd = Crowd(url, token)
    crowd.open(int(idle), int(half))
    print("open", flush=True)
    crowd.hold(sys.stdin.fileno())
    print(json.dumps({"reopened": crowd.reopened}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
