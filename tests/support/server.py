"""A real gateway process for tests, and a plain HTTP client for it.

The process is what a user starts: ``cellgate serve`` in a process group of its own, with its output in a
file and a deadline for everything; it is forked, unless a test is about its start. The client is the standard
library's, so that a test sees the bytes.
"""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar
from urllib.parse import urlsplit

from cellgate.client import Trust
from tests.support.commands import Forked, environment
from tests.support.constants import CONSTANTS, OF_MODULES

T = TypeVar("T")

TOKEN = "a-token-for-tests"
START_DEADLINE = 120.0
STOP_DEADLINE = 90.0
PATIENCE = 120.0
PROGRAM = Path(__file__).with_name("constants.py")
"""Starts an installed gateway with other constants."""
LAST_WORDS = b"Stop:  Ctrl-C\n"
"""Of what a gateway says when it serves."""
IN_TIME = 8.0
"""Seconds of a deadline before which a cell does something: on a busy machine, too."""
"""Seconds for what takes a moment on a machine that does nothing else. Who waits in vain fails late, and who
waits for what comes waits no longer than it takes: nothing is gained by less.
"""


@dataclass(frozen=True)
class Response:
    """One answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        """The `reason` of a problem."""
        assert self.headers["Content-Type"] == "application/problem+json", (self.status, self.body)
        problem = self.json()
        assert problem["status"] == self.status
        assert problem["detail"]
        return str(problem["reason"])


class GatewayProcess:
    """A running ``cellgate serve``. Every option is a keyword: pool_size=1 becomes --ServeApp.pool_size=1.

    So is what is a constant for users, by the names in ``constants``.
    Without `pool_size` and `burst_size` no kernel is started before it is asked for.
    `command`: an installed ``cellgate``, to start it instead of forking; `cwd`: the folder to start in.
    """

    tls: ssl.SSLContext | None = None

    def __init__(
        self,
        data_dir: Path,
        backend: str = "process",
        *,
        command: Path | None = None,
        cwd: Path | None = None,
        **options: object,
    ) -> None:
        self.data_dir = data_dir
        self.disk = options.get("workspaces_shared")
        self.log = data_dir.with_suffix(".log")
        logged = self.log.stat().st_size if self.log.exists() else 0
        self.token = str(options.pop("token", TOKEN))
        self.users_at = ("--data-dir", str(data_dir))
        # On demand, each kernel that a test does not use is one too many.
        # Many tests show wrong tokens to a gateway that they share.
        # Sessions end when they were not used for too long, whether this machine has swap or not.
        options = {"pool_size": 0, "burst_size": 0, "login_attempts": 0, "sleep_after": 0} | options
        if command is None:
            # What most cells of tests don't use takes a zygote a second or two to load.
            options = {"zygote_modules": ()} | options
        constants = {name: options.pop(name) for name in [*options] if name in {*CONSTANTS, *OF_MODULES}}
        words = [
            "serve",
            f"--port={options.pop('port', 0)}",
            f"--data-dir={data_dir}",
            *([] if options.get("no_auth") or "token_file" in options else [f"--token={self.token}"]),
            f"--backend={backend}",
            *(f"--ServeApp.{name}={value}" for name, value in options.items()),
        ]
        self.process: Forked | subprocess.Popen[bytes]
        if command is None:
            self.process = Forked(words, output=self.log, cwd=cwd, constants=constants)
        else:
            changing = [sys.executable, PROGRAM, json.dumps(constants)]
            with self.log.open("ab") as output:
                self.process = subprocess.Popen(
                    [*(changing if constants else [command]), *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment(),
                    cwd=cwd,
                    start_new_session=True,
                )
        try:
            self.url = self._wait_until_serving(logged)
        except BaseException:
            self.kill()
            raise
        self.host = urlsplit(self.url).netloc
        self.tls = self._context()

    def _wait_until_serving(self, logged: int) -> str:
        """Return the address once it is announced, and the gateway has printed all that it prints at a start.

        `logged`: bytes that earlier gateways have printed to the same file.
        """
        deadline = time.monotonic() + START_DEADLINE
        announcement = self.data_dir / "gateway.json"
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            announced = json.loads(announcement.read_text()) if announcement.exists() else {}
            if announced.get("pid") == self.process.pid and LAST_WORDS in self.log.read_bytes()[logged:]:
                return str(announced["url"])
            time.sleep(0.02)
        raise AssertionError(f"the gateway does not serve:\n{self.log.read_text()}")

    def _context(self) -> ssl.SSLContext | None:
        """A context that accepts the announced certificate; None if the gateway has none."""
        announced = json.loads((self.data_dir / "gateway.json").read_text())
        return Trust(certificate=announced["certificate"]).context() if "certificate" in announced else None

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_DEADLINE)

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self.process.kill()
        self.process.wait(STOP_DEADLINE)

    def connect(self, timeout: float = 60) -> http.client.HTTPConnection:
        """A connection of its own, for streams and for clients that leave."""
        if self.tls is not None:
            return http.client.HTTPSConnection(self.host, timeout=timeout, context=self.tls)
        return http.client.HTTPConnection(self.host, timeout=timeout)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = TOKEN,
        headers: dict[str, str] | None = None,
        timeout: float = 60,
    ) -> Response:
        """One request on a fresh connection; `body` is sent as JSON unless it is bytes."""
        connection = self.connect(timeout)
        try:
            send(connection, method, path, body, token=token, headers=headers)
            with connection.getresponse() as answer:
                return Response(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Response:
        """GET."""
        return self.request("GET", path, **options)

    def post(self, path: str, body: object = None, **options: Any) -> Response:
        """POST."""
        return self.request("POST", path, body, **options)

    def delete(self, path: str, **options: Any) -> Response:
        """DELETE."""
        return self.request("DELETE", path, **options)

    def execute(self, session: str, code: str, query: str = "", **fields: object) -> dict[str, Any]:
        """The result of a cell; fails unless the gateway answers 200."""
        answer = self.post(f"/v1/sessions/{session}/execute{query}", {"code": code, **fields}, timeout=120)
        assert answer.status == 200, answer.body
        result = answer.json()
        assert isinstance(result, dict)
        return result

    def submit(self, session: str, code: str, **fields: object) -> str:
        """Queue a cell and don't wait for it; its execution's id."""
        answer = self.post(f"/v1/sessions/{session}/execute", {"code": code, "wait": False, **fields})
        assert answer.status == 202, answer.body
        return str(answer.json()["execution"])

    def result(self, session: str, execution: str, query: str = "") -> dict[str, Any]:
        """The result so far."""
        answer = self.get(f"/v1/sessions/{session}/executions/{execution}{query}")
        assert answer.status == 200, answer.body
        result = answer.json()
        assert isinstance(result, dict)
        return result

    def ended(self, session: str, execution: str, query: str = "") -> dict[str, Any]:
        """The result of an execution, once it has ended."""

        def ended() -> dict[str, Any] | None:
            result = self.result(session, execution, query)
            return None if result["status"] in {"queued", "running"} else result

        return until(ended, "the execution has not ended")

    def hold(self, session: str, code: str = "input()") -> str:
        """Submit a cell that asks for input; returns its execution's id once it has asked."""
        execution = self.submit(session, code)

        def asked() -> bool:
            return any(
                event["type"] == "input_request" and event["execution"] == execution
                for event in self.recorded(session)
            )

        until(asked, "the cell does not ask for input")
        return execution

    def logged(self) -> list[str]:
        """Return the lines of the log, without one that is still being written."""
        return self.log.read_text().split("\n")[:-1]

    def printed(self, session: str, text: str) -> bool:
        """Whether a session that may not be there yet has printed this.

        What one `print` writes may come as several events: its end is written after its text.
        """
        if self.get(f"/v1/sessions/{session}").status != 200:
            return False
        said = [event["text"] for event in self.recorded(session) if event["type"] == "stream"]
        return text in "".join(said)

    def answer(self, session: str, execution: str, value: str = "") -> None:
        """Answer the input() of a running cell."""
        path = f"/v1/sessions/{session}/executions/{execution}/input"
        answer = self.post(path, {"value": value})
        assert answer.status == 204, answer.body

    def recorded(self, session: str, after: int = 0) -> list[dict[str, Any]]:
        """All events of a session up to now, page by page."""
        events: list[dict[str, Any]] = []
        following: int | None = after
        while following is not None:
            answer = self.get(f"/v1/sessions/{session}/events?after={following}")
            assert answer.status == 200, answer.body
            page = answer.json()
            events += page["events"]
            following = page["next"]
        return events

    def model(self, session: str) -> dict[str, Any]:
        """The session's model."""
        answer = self.get(f"/v1/sessions/{session}")
        assert answer.status == 200, answer.body
        model = answer.json()
        assert isinstance(model, dict)
        return model

    def warm(self) -> None:
        """Return once a warm kernel is there for who claims one next, or loses one."""
        until(lambda: self.get("/v1/info").json()["pool"]["warm"], "no kernel becomes warm")

    def workspace(self, session: str) -> Path:
        """The folder that the cells of a live session work in."""
        return self.workspaces / str(self.model(session)["kernel_id"])

    @property
    def workspaces(self) -> Path:
        """The folder with the workspaces of all sessions."""
        if self.disk is None:
            return self.data_dir / "workspaces"
        return Path(str(self.disk), (self.data_dir / "instance").read_text(), "workspaces")

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        accept: str = "application/x-ndjson",
        **headers: str,
    ) -> Iterator[http.client.HTTPResponse]:
        """An open response, to be read as it comes."""
        connection = self.connect()
        try:
            send(connection, method, path, body, headers={"Accept": accept, **headers})
            # An answer that ends with the connection keeps its socket when the connection is closed.
            with connection.getresponse() as answer:
                assert answer.status == 200, answer.read()
                yield answer
        finally:
            connection.close()

    def events(self, method: str, path: str, body: object = None) -> Iterator[dict[str, Any]]:
        """The events of an NDJSON stream, as they come, signs of life left out."""
        with self.stream(method, path, body) as answer:
            for line in answer:
                event = json.loads(line)
                if event["type"] != "keepalive":
                    yield event


def send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object = None,
    *,
    token: str | None = TOKEN,
    headers: dict[str, str] | None = None,
) -> None:
    """Send a request; the answer is the caller's to read."""
    sent = dict(headers or {})
    if token is not None:
        sent.setdefault("Authorization", f"Bearer {token}")
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    if data is not None:
        sent.setdefault("Content-Type", "application/json")
    connection.request(method, path, data, sent)


def until(condition: Callable[[], T | None], otherwise: str, seconds: float = PATIENCE) -> T:
    """The first true value of `condition`, asked again and again; fails when there is none in time.

    What takes longer is asked for more rarely: asking is what costs a waiting test most.
    """
    deadline, pause = time.monotonic() + seconds, 0.02
    while not (value := condition()):
        assert time.monotonic() < deadline, otherwise
        time.sleep(pause)
        pause = min(1.2 * pause, 0.1)
    return value


def together(count: int, call: Callable[[int], T]) -> list[T]:
    """The results of `count` calls that begin at the same moment, each in a thread of its own."""
    barrier = Barrier(count)

    def begin(index: int) -> T:
        barrier.wait()
        return call(index)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begin, range(count)))


def surviving(gateway: GatewayProcess) -> Iterator[str]:
    """A session that must stay alive, with its variables."""
    gateway.execute("other", "x = 1")
    yield "other"
    result = gateway.execute("other", "x + 1")
    assert (result["status"], result["text"]) == ("ok", "2"), result
