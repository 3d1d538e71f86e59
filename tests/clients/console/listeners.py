"""Sockets that count who comes: one of TCP for each way out of a page, and one of UDP."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterable
from typing import Any

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nAccess-Control-Allow-Origin: *\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
)


class Listeners:
    """Listeners by name; `reached` has the names of those that somebody connected to or sent something.

    `pages`: documents, by path, that any of them answers with; others are empty. More may be added.
    """

    def __init__(self, names: Iterable[str], pages: dict[str, str] | None = None) -> None:
        self.reached: set[str] = set()
        self.pages = pages or {}
        self._known: dict[str, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._came = threading.Condition()
        self._ending, self._end = socket.socketpair()
        self._selector.register(self._ending, selectors.EVENT_READ)
        for name in names:
            self._listen(name)
        self._thread = threading.Thread(target=self._serve, name="listeners")
        self._thread.start()

    def __enter__(self) -> Listeners:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _listen(self, name: str) -> None:
        kind = socket.SOCK_DGRAM if name.startswith("udp") else socket.SOCK_STREAM
        listening = socket.socket(socket.AF_INET, kind)
        listening.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            listening.listen(64)
        listening.setblocking(False)
        self._known[name] = listening
        self._selector.register(listening, selectors.EVENT_READ, name)

    def host(self, name: str) -> str:
        """Where one listens, as ``host:port``."""
        return f"127.0.0.1:{self._known[name].getsockname()[1]}"

    def url(self, name: str, path: str = "/x") -> str:
        """An address of one."""
        return f"http://{self.host(name)}{path}"

    def wait(self, names: Iterable[str], seconds: float) -> set[str]:
        """Wait until somebody came to each of these; returns those that nobody came to in time."""
        wanted = set(names)
        with self._came:
            self._came.wait_for(lambda: wanted <= self.reached, seconds)
            return wanted - self.reached

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._ending:
                    return
                self._take(key)

    def _take(self, key: selectors.SelectorKey) -> None:
        found: Any = key.fileobj
        if key.data is None:
            self._answer(found)
            return
        if found.type == socket.SOCK_DGRAM:
            found.recv(65536)
        else:
            client, _ = found.accept()
            client.setblocking(False)
            self._selector.register(client, selectors.EVENT_READ)
        with self._came:
            self.reached.add(key.data)
            self._came.notify_all()

    def _answer(self, client: socket.socket) -> None:
        try:
            request = client.recv(65536)
            if request:
                path = request.split(b" ", 2)[1].decode() if request.count(b" ") > 1 else ""
                page = self.pages.get(path, "").encode()
                client.setblocking(True)
                client.settimeout(10)
                client.sendall(ANSWER % (len(page), page))
        except OSError:
            pass  # it has gone
        self._selector.unregister(client)
        client.close()
