"""A user who attacks the quotas without pause, in a process of its own: ``eve.py URL TOKEN MANNER``.

Eve has one thread and one connection for each attack: cells that flood stdout, a queue that is filled,
sessions that are started and deleted, requests that mean nothing. She never waits, not even as long as
`Retry-After` says. Each attack has the answers that a gateway may give; any other is a fault. She ends when
her standard input does, and prints what she was answered as JSON.

Gently, she leaves out the requests that mean nothing, and pauses after each refusal, but not as long as she
was told to.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from benchmarks.beside import beside
from benchmarks.client import Answer, AnswerError, HttpClient
from benchmarks.servers import Server
from benchmarks.sessions import SESSIONS

FLOOD = """
line = "x" * 99 + chr(10)
for _ in range(20_000):
    print(line * 10, end="")
"""
"""Twenty megabytes: twice as much as is kept of a cell."""
WAITING = "import time; time.sleep(0.5)"
PAUSE = 0.1
"""Seconds after a refusal, if she is gentle."""

QUOTAS = """
[principals.eve]
sessions = 3
running = 1
queued = 10
memory = "4g"
requests_per_minute = 3000
bytes_per_minute = "300m"
"""
REFUSED = "quota_exceeded"


@dataclass(slots=True)
class Report:
    """How often she was answered what; `faults` are answers that no gateway may give."""

    answers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def refused_by(self, quota: str) -> int:
        """How many requests were refused because of this quota."""
        return sum(count for name, count in self.answers.items() if name.endswith(f"{REFUSED} of {quota}"))


class Eve:
    """Her attacks."""

    def __init__(self, url: str, token: str, *, gently: bool) -> None:
        self._url = url
        self._token = token
        self._gently = gently
        self._end = Event()
        self._lock = Lock()
        self.report = Report()

    def start(self) -> list[Thread]:
        """Start all attacks."""
        attacks: list[Callable[[HttpClient], None]] = [self._flood, self._fill, self._open]
        if not self._gently:
            attacks.append(self._ask)
        threads = [Thread(target=self._repeat, args=(attack,), daemon=True) for attack in attacks]
        for thread in threads:
            thread.start()
        return threads

    def end(self) -> None:
        """Let the attacks end after their next answer."""
        self._end.set()

    def _repeat(self, attack: Callable[[HttpClient], None]) -> None:
        while not self._end.is_set():
            try:
                with HttpClient(self._url, self._token) as client:
                    while not self._end.is_set():
                        attack(client)
            except (AnswerError, OSError) as error:
                with self._lock:
                    self.report.faults.append(f"{attack.__name__}: {type(error).__name__}: {error}")
                return

    def _flood(self, client: HttpClient) -> None:
        """Cells that print far more than is kept of them."""
        self._request(client, "POST", f"{SESSIONS}/flood/execute", {"code": FLOOD}, 200)

    def _fill(self, client: HttpClient) -> None:
        """Cells that wait for each other."""
        self._request(client, "POST", f"{SESSIONS}/queue/execute", {"code": WAITING, "wait": False}, 202)

    def _open(self, client: HttpClient) -> None:
        """Sessions until no more may be opened; all but the two of the other attacks are deleted then."""
        opened: list[str] = []
        while not self._end.is_set():
            key = f"more-{len(opened)}"
            opened.append(key)
            answer = self._request(client, "POST", SESSIONS, {"session": key}, 200, 201)
            if answer.status not in {200, 201}:
                break
        for key in opened:
            self._request(client, "DELETE", f"{SESSIONS}/{key}", None, 204, 404)

    def _ask(self, client: HttpClient) -> None:
        """Requests that mean nothing."""
        self._request(client, "GET", "/v1/me", None, 200)

    def _request(
        self, client: HttpClient, method: str, path: str, content: dict[str, Any] | None, *expected: int
    ) -> Answer:
        """One request; its answer is one of `expected`, or a refusal because of a quota."""
        answer = client.request(method, path, content)
        name = f"{method} {path.rpartition('/')[2].rstrip('0123456789')}: {answer.status}"
        refused = answer.status in {403, 429}
        if refused:
            problem = answer.json(answer.status)
            name += f" {problem['reason']} of {problem.get('quota')}"
        right = answer.status in expected or (refused and problem["reason"] == REFUSED)
        with self._lock:
            self.report.answers[name] += 1
            if not right:
                self.report.faults.append(f"{name}: {answer.body[:300]!r}")
        if refused and self._gently:
            time.sleep(PAUSE)
        return answer


@contextmanager
def eve(server: Server, token: str, *, gently: bool = False) -> Iterator[Callable[[], Report]]:
    """Eve at work. What is yielded ends her, and tells what she was answered."""
    with beside(Path(__file__), server.url, token, "gently" if gently else "fully") as end:

        def report() -> Report:
            told = end()
            return Report(Counter(told["answers"]), told["faults"])

        yield report


def end_sessions(server: Server, name: str) -> None:
    """End all sessions that an attacker of this name has left."""
    with server.client() as client:
        listed = client.request("GET", f"{SESSIONS}?principal={name}&limit=1000").json(200)["sessions"]
        for each in listed:
            client.request("DELETE", f"{SESSIONS}/{each['session']}?principal={name}").json(204)


def main(url: str, token: str, manner: str) -> None:
    """Attack until standard input ends, then tell."""
    attacker = Eve(url, token, gently=manner == "gently")
    threads = attacker.start()
    sys.stdin.read()
    attacker.end()
    for thread in threads:
        thread.join()
    report = attacker.report
    print(json.dumps({"answers": report.answers, "faults": report.faults[:50]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
