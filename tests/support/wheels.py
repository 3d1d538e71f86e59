"""Tiny wheels, made here, and an index of them on a real socket that can also hang, fail and lie."""

from __future__ import annotations

import threading
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PATIENCE = 60.0


def build_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    requires: Sequence[str] = (),
    members: Mapping[str, bytes] | None = None,
    scripts: Mapping[str, str] | None = None,
    compressed: bool = False,
) -> Path:
    """A wheel whose one module has `VERSION`. `members` are further files, `scripts` its console scripts."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    points = "".join(f"{script} = {target}\n" for script, target in (scripts or {}).items())
    files = {
        f"{name}/__init__.py": f"VERSION = {version!r}\n\ndef main():\n    print(VERSION)\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{info}/entry_points.txt": f"[console_scripts]\n{points}".encode()} if points else {}),
        **(members or {}),
    }
    record = "".join(f"{path},{_hash(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), data, kind)
    return wheel


def _hash(data: bytes) -> str:
    return "sha256=" + urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()


class Index:
    """A simple index of the files in `folder`.

    `fail`: projects whose page is a 500; `hang`: those whose page never comes, until `release`, and such
    files; `lie`: projects whose page names another hash; `cut`: those whose files end too early. `asked` are
    the paths that were asked for, `hanging` is set when one hangs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fail: set[str] = set()
        self.hang: set[str] = set()
        self.lie: set[str] = set()
        self.cut: set[str] = set()
        self.asked: list[str] = []
        self.hanging = threading.Event()
        self._released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/simple/"

    def downloads(self) -> list[str]:
        """The files that were asked for."""
        return [path for path in self.asked if path.startswith("/files/")]

    def release(self) -> None:
        """Let go what hangs."""
        self.hang.clear()
        self._released.set()
        self._released = threading.Event()
        self.hanging.clear()

    def close(self) -> None:
        """End it."""
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    index._answer(self)
                except OSError:
                    self.close_connection = True  # the client has gone: it was killed

            do_HEAD = do_GET  # noqa: N815 - uv asks whether it may read parts of a wheel

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path
        self.asked.append(path)
        name = path.rstrip("/").rpartition("/")[2]
        if name in self.hang:
            released = self._released
            self.hanging.set()
            released.wait(PATIENCE)
            return
        if path.startswith("/files/"):
            body = (self.folder / name).read_bytes()
        elif name in self.fail:
            handler.send_error(500)
            return
        elif not (body := self._page(name).encode()):
            handler.send_error(404)
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html" if path.startswith("/simple/") else "application/zip")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            short = path.startswith("/files/") and name.partition("-")[0] in self.cut
            handler.wfile.write(body[: len(body) // 2] if short else body)
            handler.close_connection |= short

    def _page(self, name: str) -> str:
        files = [
            f for f in sorted(self.folder.iterdir()) if f.name.partition("-")[0].replace("_", "-") == name
        ]
        lines = []
        for file in files:
            digest = "0" * 64 if name in self.lie else sha256(file.read_bytes()).hexdigest()
            lines.append(f'<a href="/files/{file.name}#sha256={digest}">{file.name}</a>')
        return "<!DOCTYPE html><html><body>" + "<br>".join(lines) + "</body></html>" if lines else ""
