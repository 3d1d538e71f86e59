"""Upload and download of a large file, against ``cp`` on the same disk; and the gateway's memory.

They take turns. Source and target of all three are on the disk of the gateway's data, nothing is synced, and
the target is removed before the next. The upload uses sendfile, the download is written to a file as it
arrives. ``bare`` is the minimum that a server could do: two sockets on loopback, sendfile and writes, without
HTTP, hash and quota. Memory is the growth of the gateway's peak resident memory (``VmHWM``).
"""

from __future__ import annotations

import mmap
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.client import TIMEOUT, AnswerError
from benchmarks.figures import MB, MIB, Figure, at_least, at_most, quantile
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

PATH = "/v1/sessions/files/files/large.bin"


def measure(options: Options) -> Sequence[Figure]:
    """Both ratios of the median speeds, and both growths."""
    size = options.count(500, 20) * MB
    spent: dict[str, list[float]] = {"cp": [], "bare": [], "upload": [], "download": []}
    growth = {"upload": 0, "download": 0}
    with cellgate(options.backend) as server, server.client() as client:
        # A workspace has room for 1 GiB by default.
        Session(client, "files").execute("1")
        source = server.folder / "source.bin"
        target = server.folder / "target.bin"
        _fill(source, size)
        ways: dict[str, Callable[[], None]] = {
            "cp": lambda: _copy(source, target),
            "bare": lambda: _bare(source, target),
            "upload": lambda: _upload(server, source),
            "download": lambda: _download(server, target, size),
        }
        rounds = options.count(5, 1)
        for number in range(rounds + 1):
            for name, way in ways.items():
                target.unlink(missing_ok=True)
                if name == "upload":
                    client.request("DELETE", PATH)
                server.settle()
                before = server.resident()
                server.reset_peak()
                begun = time.perf_counter()
                way()
                seconds = time.perf_counter() - begun
                if number:  # the first round is a warm-up
                    spent[name].append(seconds)
                    if name in growth:
                        growth[name] = max(growth[name], server.peak() - before)
            if number:
                speeds = ", ".join(
                    f"{name} {size / MB / times[-1]:.0f} MB/s" for name, times in spent.items()
                )
                say(f"files: round {number} of {rounds}, {speeds}")
    speed = {name: size / MB / quantile(times, 0.5) for name, times in spent.items()}
    figures = []
    for name, most in growth.items():
        details = {"mb_per_s": round(speed[name], 1), "cp_mb_per_s": round(speed["cp"], 1)}
        figures += [
            Figure(
                f"{name} of {size // MB} MB, against cp",
                speed[name] / speed["cp"],
                "x",
                at_least(0.5),
                details,
            ),
            Figure(f"  {name}", speed[name], "MB/s"),
            Figure(f"  {name}, against bare sockets", speed[name] / speed["bare"], "x"),
            Figure(f"  growth of the gateway, {name}", most / MIB, "MiB", at_most(32)),
        ]
    return [*figures, Figure("  cp", speed["cp"], "MB/s"), Figure("  bare sockets", speed["bare"], "MB/s")]


def _fill(path: Path, size: int) -> None:
    block = secrets.token_bytes(MB)
    with path.open("wb") as file:
        for _ in range(size // MB):
            file.write(block)


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--reflink=never", str(source), str(target)], check=True, timeout=TIMEOUT)


def _bare(source: Path, target: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = threading.Thread(target=_send_to_first, args=(listener, source))
        sender.start()
        with socket.create_connection(listener.getsockname(), timeout=TIMEOUT) as connection:
            _receive(connection, target)
        sender.join()


def _send_to_first(listener: socket.socket, source: Path) -> None:
    connection, _ = listener.accept()
    with connection, source.open("rb") as file:
        connection.sendfile(file)


def _receive(connection: socket.socket, target: Path) -> None:
    # Page-aligned, as cp's: just past the start of a page, some processors copy many times slower.
    buffer = memoryview(mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    with target.open("ab", buffering=0) as file:
        while count := connection.recv_into(buffer):
            file.write(buffer[:count])


def _connect(server: Server, request: str) -> socket.socket:
    parts = urlsplit(server.url)
    connection = socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=TIMEOUT)
    lines = (request, f"Host: {parts.netloc}", f"Authorization: token {server.token}", "Connection: close")
    connection.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())
    return connection


def _upload(server: Server, source: Path) -> None:
    length = source.stat().st_size
    request = f"PUT {PATH} HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: {length}"
    with source.open("rb") as file, _connect(server, request) as connection:
        connection.sendfile(file)
        answer = connection.recv(65536)
    if answer.split(b" ", 2)[1] not in {b"200", b"201"}:
        raise AnswerError(repr(answer[:500]))


def _download(server: Server, target: Path, size: int) -> None:
    with _connect(server, f"GET {PATH} HTTP/1.1") as connection:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(4096)
        if not head.startswith(b"HTTP/1.1 200 "):
            raise AnswerError(repr(head[:500]))
        target.write_bytes(head.partition(b"\r\n\r\n")[2])
        _receive(connection, target)
    if target.stat().st_size != size:
        raise AnswerError("the download ended early")
