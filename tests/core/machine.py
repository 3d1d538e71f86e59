"""Everything that can happen to sessions, in any order: a state machine whose steps hypothesis chooses.

Each rule does one thing, and the loop then runs as far as the rule says, so that what follows meets every
moment of what came before. Time passes by a rule of its own. At the end all is closed and `World.check`
looks at what is left and at the record, and replays all decisions. ``test_machine`` runs it, and shows that
it finds mistakes.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.testing import at_once, fails_to_start, starts_after, virtual_time
from tests.core.world import PRINCIPAL, World

KEYS = st.sampled_from(["a", "b"])
CODES = st.sampled_from(
    [
        "hello",
        "hello again",
        "slow 0.5",
        "slow 20",
        "never",
        "ignores",
        "fails",
        "dies",
        "dies 0.3",
        "dies-replied",
        "floods 300",
        "late 0.2",
        "late 30",
        "loses reply",
        "loses idle",
        "asks",
        "lies",
    ]
)
TIMEOUTS = st.sampled_from([None, None, 0.1, 3.0])
SECONDS = st.sampled_from([0.0, 0.001, 0.02, 0.3, 2.5, 40.0])
TURNS = st.integers(0, 6)
NAMES = st.sampled_from(["lab", "console"])
STARTS = st.sampled_from([at_once, starts_after(0.4), starts_after(20.0), fails_to_start()])


class Sessions(RuleBasedStateMachine):
    """Two sessions and a few kernels for them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine-"))
        self.latency = 0.0
        self._time = virtual_time(lambda: self.latency)
        self.world = World(self._time.__enter__(), self.folder)
        self.names = 0
        self.last_seconds = 0.0

    @initialize(
        max_kernels=st.integers(1, 3),
        max_queue=st.integers(1, 4),
        running=st.sampled_from([None, 1]),
        patient=st.booleans(),
    )
    def open(self, max_kernels: int, max_queue: int, running: int | None, patient: bool) -> None:
        """With `patient` all deadlines pass before the end."""
        self.last_seconds = 200.0 if patient else 3.0
        quotas = {} if running is None else {"running": running}
        self.world.run(self.world.open(max_kernels=max_kernels, max_queue=max_queue, quotas=quotas))

    def turns(self, count: int) -> None:
        """Let the loop turn a few times; no time passes."""
        for _ in range(count):
            self.world.pass_time(0)

    @rule(key=KEYS, code=CODES, timeout=TIMEOUTS, turns=TURNS)
    def submit(self, key: str, code: str, timeout: float | None, turns: int) -> None:
        self.world.ask(key, code, timeout=timeout)
        self.turns(turns)

    @rule(key=KEYS, codes=st.lists(CODES, min_size=2, max_size=4), turns=TURNS)
    def submit_many(self, key: str, codes: list[str], turns: int) -> None:
        for code in codes:
            self.world.ask(key, code)
        self.turns(turns)

    @rule(key=KEYS, code=CODES, turns=TURNS)
    def submit_twice(self, key: str, code: str, turns: int) -> None:
        """Two requests of one idempotency key."""
        self.names += 1
        for _ in range(2):
            self.world.ask(key, code, name=f"request {self.names}")
        self.turns(turns)

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(key=KEYS, turns=TURNS)
    def interrupt(self, key: str, turns: int) -> None:
        if (session := self.world.live(key)) is not None:
            self.world.do(session.interrupt)
        self.turns(turns)

    @precondition(lambda self: self.world.asked)
    @rule(data=st.data(), cause=st.sampled_from(["cancelled", "client_disconnected"]), turns=TURNS)
    def stop(self, data: Any, cause: str, turns: int) -> None:
        """Cancel a cell, or let its client go that wants it stopped then."""
        asked = data.draw(st.sampled_from(self.world.asked[-6:]))
        session = self.world.live(asked.key)
        if session is not None and asked.run is not None:
            self.world.do(session.stop, asked.run.id, cause)
        self.turns(turns)

    @precondition(lambda self: self.world.asked)
    @rule(data=st.data(), turns=TURNS)
    def answer(self, data: Any, turns: int) -> None:
        asked = data.draw(st.sampled_from(self.world.asked[-6:]))
        session = self.world.live(asked.key)
        if session is not None and asked.run is not None:
            with suppress(CellgateError):
                self.world.do(session.runs.answer, asked.run.id, "a line")
        self.turns(turns)

    @rule(key=KEYS, turns=TURNS)
    def restart(self, key: str, turns: int) -> None:
        session = self.world.live(key)
        if session is not None and not session.ending:
            self.world.restart(session)
        self.turns(turns)

    @rule(key=KEYS, turns=TURNS)
    def die(self, key: str, turns: int) -> None:
        if (kernel := self.world.kernel(key)) is not None:
            self.world.do(kernel.die)
        self.turns(turns)

    @rule(key=KEYS, name=NAMES, turns=TURNS)
    def connect(self, key: str, name: str, turns: int) -> None:
        """A Jupyter client opens its WebSocket, or comes back."""
        session = self.world.live(key)
        if session is not None and not session.ending:
            self.world.do(self.world.connect, session, name)
        self.turns(turns)

    @rule(key=KEYS, name=NAMES, code=CODES, turns=TURNS)
    def send(self, key: str, name: str, code: str, turns: int) -> None:
        """A Jupyter client sends a cell of its own."""
        session, client = self.world.live(key), self.world.clients.get((key, name))
        if session is not None and client is not None and client.connected:
            self.world.do(self.world.send, session, client, code)
        self.turns(turns)

    @rule(key=KEYS, name=NAMES, returns=st.booleans(), turns=TURNS)
    def disconnect(self, key: str, name: str, returns: bool, turns: int) -> None:
        """A Jupyter client's WebSocket is gone."""
        session, client = self.world.live(key), self.world.clients.get((key, name))
        if session is not None and client is not None and client.connected:
            self.world.do(lambda: session.door.disconnect(client, returns=returns))
        self.turns(turns)

    @rule(full=st.booleans(), turns=TURNS)
    def fill_disk(self, full: bool, turns: int) -> None:
        self.world.disk.full = full
        self.turns(turns)

    @rule(latency=st.sampled_from([0.0, 0.0, 0.003, 0.7]))
    def slow_threads(self, latency: float) -> None:
        self.latency = latency

    @rule(start=STARTS)
    def start_otherwise(self, start: Any) -> None:
        """How kernels start from now on."""
        self.world.kernels_wanted = start

    @rule(key=KEYS, turns=TURNS)
    def delete(self, key: str, turns: int) -> None:
        async def client() -> None:
            with suppress(CellgateError):
                await self.world.manager.delete(PRINCIPAL, key)

        self.world.restarts.append(self.world.loop.create_task(client()))
        self.turns(turns)

    @invariant()
    def nothing_complains(self) -> None:
        assert self.world.complaints == []
        self.world.check_counts()

    def teardown(self) -> None:
        """Close it all, look at what is left."""
        try:
            self.world.disk.full = False
            self.latency = 0.0
            self.world.kernels_wanted = at_once
            self.world.pass_time(self.last_seconds)
            self.world.run(self.world.close())
            self.world.check()
        finally:
            self.world.decisions.stop()
            self._time.__exit__(None, None, None)
            shutil.rmtree(self.folder)
