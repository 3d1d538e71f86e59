"""The clients of ``load``: twenty principals who run their scripts in a closed loop, and what they saw.

Each has a thread, a token, and one session after another, in which cells go through the three interfaces in
turn. Nothing is retried: whatever is not the outcome that the script asks for is a fault.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import cycle
from random import Random
from threading import Barrier

from benchmarks.client import AnswerError, HttpClient
from benchmarks.interfaces import EventSocket, EventStream, Interface, JsonAnswer
from benchmarks.options import say
from benchmarks.script import Kernel, Kind, cells
from benchmarks.servers import Server
from benchmarks.sessions import SESSIONS

FEWEST_CELLS, MOST_CELLS = 20, 60  # of one session
MOST_FAULTS = 20
PAGE = 17
RUSH_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Visit:
    """One session, and the executions in it that the client saw, with their statuses, in order."""

    session: str
    seen: list[tuple[str, str]] = field(default_factory=list)


class User:
    """One principal. `times`: seconds of each cell, by kind."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._name = name
        self._random = Random(name)
        self._cells = cells(name)
        self.visits: list[Visit] = []
        self.faults: list[str] = []
        self.times: dict[Kind, list[float]] = defaultdict(list)

    def run(self, until: float) -> None:
        """Run cells until this moment; no session is left then."""
        while time.monotonic() < until:
            try:
                with self._server.client() as client:
                    self._visit(client, until)
            except (AnswerError, OSError) as error:
                self.faults.append(f"{self._name}: {type(error).__name__}: {error}")
                say(f"users: {self.faults[-1]}")
            if len(self.faults) > MOST_FAULTS:
                break

    def rush(self, together: Barrier) -> None:
        """Open a session, and end it when all others have one."""
        visit = Visit(f"visit-{len(self.visits)}")
        self.visits.append(visit)
        with self._server.client() as client:
            client.request("POST", SESSIONS, {"session": visit.session}).json(201)
            together.wait(RUSH_TIMEOUT)
            client.request("DELETE", f"{SESSIONS}/{visit.session}").json(204)

    def _visit(self, client: HttpClient, until: float) -> None:
        """One session, from its creation to its end."""
        visit = Visit(f"visit-{len(self.visits)}")
        self.visits.append(visit)
        path = f"{SESSIONS}/{visit.session}"
        client.request("POST", SESSIONS, {"session": visit.session}).json(201)
        try:
            with closing(EventSocket(self._server.url, self._server.token, path)) as socket:
                interfaces: list[Interface] = [JsonAnswer(client, path), EventStream(client, path), socket]
                self._work(visit, cycle(interfaces), until)
        finally:
            # On a connection of its own: a fault may have left the other one unusable.
            with self._server.client() as other:
                other.request("DELETE", path).json(204)

    def _work(self, visit: Visit, interfaces: Iterator[Interface], until: float) -> None:
        kernel = Kernel()
        for _ in range(self._random.randint(FEWEST_CELLS, MOST_CELLS)):
            if time.monotonic() >= until:
                return
            cell = next(self._cells)
            begun = time.perf_counter()
            outcome = next(interfaces).execute(cell)
            self.times[cell.kind].append(time.perf_counter() - begun)
            visit.seen.append((outcome.execution, outcome.status))
            for problem in kernel.problems(cell, outcome):
                self.faults.append(f"{self._name}: {problem}")
                say(f"users: {self.faults[-1]}")

    def unaccounted(self) -> list[str]:
        """What differs between the executions that the client saw and those in the record."""
        found = []
        with self._server.client() as client:
            for visit in self.visits:
                recorded = list(_recorded(client, visit.session))
                if recorded != visit.seen:
                    found.append(f"{self._name}/{visit.session}: {visit.seen} seen, {recorded} recorded")
        return found


def _recorded(client: HttpClient, session: str) -> Iterator[tuple[str, str]]:
    """All executions of a session, read page by page."""
    after: object = 0
    while after is not None:
        page = client.request("GET", f"{SESSIONS}/{session}/executions?limit={PAGE}&after={after}").json(200)
        yield from ((each["execution"], each["status"]) for each in page["executions"])
        after = page["next"]


class Users:
    """All of them; `tokens` by name."""

    def __init__(self, server: Server, tokens: dict[str, str]) -> None:
        self.all = [User(replace(server, token=token), name) for name, token in tokens.items()]

    def run(self, seconds: float) -> None:
        """All run their scripts for so long. Raises what none of them expects."""
        until = time.monotonic() + seconds
        self._each(lambda user: user.run(until))

    def rush(self) -> None:
        """All open a session, and end it at the same moment. Raises what a request raised."""
        together = Barrier(len(self.all))
        self._each(lambda user: user.rush(together))

    def _each(self, work: Callable[[User], None]) -> None:
        with ThreadPoolExecutor(len(self.all)) as threads:
            for future in [threads.submit(work, user) for user in self.all]:
                future.result()

    @property
    def faults(self) -> list[str]:
        """Everything that was not what was asked for."""
        return [fault for user in self.all for fault in user.faults]

    @property
    def executions(self) -> int:
        """How many executions were seen so far."""
        return sum(len(visit.seen) for user in self.all for visit in user.visits)

    def times(self, kind: Kind) -> Sequence[float]:
        """Seconds of all cells of this kind."""
        return [seconds for user in self.all for seconds in user.times[kind]]

    def unaccounted(self) -> list[str]:
        """What the record has otherwise than the users saw it, by session."""
        return [difference for user in self.all for difference in user.unaccounted()]
