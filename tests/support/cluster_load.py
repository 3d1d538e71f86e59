"""Clients that count in sessions of a cluster while something happens to its gateways.

Each is the Python client as it is, so what it raises is what a user would see. Figures of a load are printed,
for whoever reads a run with ``-s``: they are no assertions.
"""

from __future__ import annotations

import secrets
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from cellgate import Gateway
from cellgate.client import GatewayError, Result
from tests.support.nodes import OWNER
from tests.support.server import PATIENCE, until

CLIENTS = 6
STEPS = 10
"""Results that each client has before something happens to its gateway, and after."""
COUNT = "n = globals().get('n', 0) + 1; print(n)"
LONG_CELL = 25
"""Each cell of this number takes two seconds, so that some run whatever happens."""

Progress = Callable[[], None]


@dataclass(frozen=True)
class Door:
    """Where clients of a cluster come in. `check_record`: checks every chain of its record."""

    url: str
    token: str
    check_record: Callable[[], None]

    def owner(self, session: str) -> str:
        """The id of the node that has a session."""
        request = urllib.request.Request(
            f"{self.url}/v1/sessions/{session}", headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return str(answer.headers[OWNER])


@dataclass(frozen=True)
class Cell:
    """A cell that was answered: when it was sent and when the answer came, by the monotonic clock."""

    result: Result
    sent: float
    answered: float


@dataclass
class Client:
    """Somebody who counts in a session of their own, until told to stop."""

    session: str
    cells: list[Cell] = field(default_factory=list)
    failure: GatewayError | None = None
    may_go_on: threading.Event = field(default_factory=threading.Event)
    busy: threading.Lock = field(default_factory=threading.Lock)

    def run(self, door: Door, stop: threading.Event) -> None:
        """Run one cell after the other."""
        try:
            with Gateway.sync(door.url, door.token) as gateway:
                session = gateway.session(self.session)
                while not stop.is_set():
                    self.may_go_on.wait()
                    with self.busy:
                        long = len(self.cells) % LONG_CELL == LONG_CELL - 1
                        sent = time.monotonic()
                        result = session.run(f"import time; time.sleep({2 * long}); {COUNT}")
                        self.cells.append(Cell(result, sent, time.monotonic()))
        except GatewayError as error:
            self.failure = error

    def counted(self) -> list[int]:
        """The numbers that the cells gave."""
        return [int(cell.result.stdout) for cell in self.cells]

    def causes(self) -> list[str]:
        """Why variables were lost, each time."""
        return [str(cell.result.kernel.cause) for cell in self.cells if cell.result.loss]

    def is_unbroken(self) -> bool:
        """Whether its variables were there all the time."""
        return self.counted() == list(range(1, len(self.cells) + 1)) and self.causes() == []

    def back_after(self, moment: float) -> float:
        """The seconds from a moment until the first answer of a new kernel."""
        return next(cell.answered for cell in self.cells if cell.result.loss) - moment


def losses(clients: list[Client]) -> dict[str, list[str]]:
    """Why variables were lost, by the session of each client that has lost some."""
    return {client.session: client.causes() for client in clients if not client.is_unbroken()}


@contextmanager
def at_rest(clients: list[Client]) -> Iterator[None]:
    """Let no client have a cell under way.

    What a gateway received just before it crashes may not be in the record yet, so such a cell may run again.
    """
    for client in clients:
        client.may_go_on.clear()
    with ExitStack() as stack:
        for client in clients:
            stack.enter_context(client.busy)
        yield
    for client in clients:
        client.may_go_on.set()


@dataclass
class Newcomers:
    """People who each open a session, run a cell and end it, one after the other, until told to stop."""

    opened: int = 0
    longest: float = 0.0
    failure: GatewayError | None = None

    def run(self, door: Door, stop: threading.Event) -> None:
        """Open one session after the other."""
        try:
            with Gateway.sync(door.url, door.token) as gateway:
                while not stop.is_set():
                    began = time.monotonic()
                    with gateway.session() as session:
                        assert session.run("6 * 7").text == "42"
                    self.opened += 1
                    self.longest = max(self.longest, time.monotonic() - began)
        except GatewayError as error:
            self.failure = error


@contextmanager
def load(door: Door, *, newcomers: bool = False) -> Iterator[tuple[list[Client], Progress]]:
    """Clients that run cells, and a call that waits until each has run some more. None may see a failure.

    With `newcomers`, others open and end sessions all the time.
    """
    name = secrets.token_hex(4)
    clients = [Client(f"load-{name}-{number}") for number in range(CLIENTS)]
    new = Newcomers()
    everybody = [*clients, new] if newcomers else clients
    stop = threading.Event()
    threads = [threading.Thread(target=each.run, args=(door, stop), daemon=True) for each in everybody]

    def failures() -> list[str]:
        return [f"{each.failure.status} {each.failure}" for each in everybody if each.failure]

    def progress() -> None:
        wanted = {client.session: len(client.cells) + STEPS for client in clients}

        def is_done() -> bool:
            assert not failures(), failures()
            return all(len(client.cells) >= wanted[client.session] for client in clients)

        until(is_done, "cells do not go on", 120)

    for client in clients:
        client.may_go_on.set()
    for thread in threads:
        thread.start()
    try:
        progress()
        yield clients, progress
        progress()
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        _print_figures(clients)
        if newcomers:
            print(f"{new.opened} sessions opened and ended, the longest took {new.longest:.1f} s")
    assert not any(thread.is_alive() for thread in threads), "a cell is not answered"
    assert not failures(), failures()
    _check_events(door, clients)
    door.check_record()
    with Gateway.sync(door.url, door.token) as gateway:
        for client in clients:
            gateway.session(client.session).end()


def _print_figures(clients: list[Client]) -> None:
    took = sorted(cell.answered - cell.sent for client in clients for cell in client.cells)
    failed = sum(client.failure is not None for client in clients)
    middle, longest = (took[len(took) // 2], took[-1]) if took else (0.0, 0.0)
    print(f"\n{len(took)} cells, {failed} failed; median {middle * 1000:.0f} ms, longest {longest:.1f} s")


def _check_events(door: Door, clients: list[Client]) -> None:
    """Each cell that was answered has ended once in the record, whose events have no gap."""
    with Gateway.sync(door.url, door.token) as gateway:
        for client in clients:
            events = list(gateway.session(client.session).events(follow=False))
            first = events[0].seq
            assert [event.seq for event in events] == list(range(first, first + len(events)))
            ends = Counter(event.execution for event in events if event.type == "finished")
            assert all(ends[cell.result.execution] == 1 for cell in client.cells)
