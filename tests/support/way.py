"""Counts the path of one cell: files that it enters, and calls from a kernel's message to its event.

It runs a gateway in this process, with a profiler on the loop's thread (`sys.setprofile`), and sends cells
over HTTP. So it counts calls, not imports. A file counts if every cell enters it between the request's
handler and the cell's durable end: what a timer or the pool of kernels happens to do beside one of them is
not on its way. A hop is a call of our code that is on the stack when the event is appended, from the read of
the socket on. It measures no time.

python -m tests.support.way
"""

from __future__ import annotations

import asyncio
import http.client
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from urllib.parse import urlsplit

import cellgate
import cellgate_kernels
from cellgate.channels.client import ChannelSettings
from cellgate.execution.cell_record import CellEnd
from cellgate.execution.run import ExecutionSettings
from cellgate.http.v1.executions import ExecuteHandler
from cellgate.quotas.quotas_file import QuotaSettings
from cellgate.record.store.sqlite.journal import Journal
from cellgate.server.assembly import running
from cellgate.server.settings import FrontSettings, GatewaySettings, KernelSettings, PeopleSettings
from cellgate.sessions.parts import SessionSettings
from cellgate.sessions.settings import ManagerSettings
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.channels.sockets import LocalSocket
from cellgate_kernels.protocol.outputs import OutputCaps

TOKEN = "way"
OURS = tuple(Path(module.__file__ or "").parent for module in (cellgate, cellgate_kernels))
CELL = "print('a'); 1 + 1"
WARM_UP = 5
CELLS = 15
"""As many are counted, one after the other."""


@dataclass
class Way:
    """The path of one cell. `files`: their paths; `hops`: the calls of each message."""

    files: set[str] = field(default_factory=set)
    calls: int = 0
    hops: list[list[str]] = field(default_factory=list)

    @property
    def longest(self) -> list[str]:
        """The calls of the message with the most of them."""
        return max(self.hops, key=len, default=[])


def ours(code: CodeType) -> str | None:
    """The path of a function's file from its package on; None if it is not our code."""
    path = Path(code.co_filename)
    return next((str(path.relative_to(root.parent)) for root in OURS if root in path.parents), None)


class Counter:
    """A profiler: from the first call of `begin` to the first return of `end`."""

    def __init__(
        self, begin: CodeType, end: CodeType, append: CodeType, sources: frozenset[CodeType]
    ) -> None:
        self.way = Way()
        self._begin = begin
        self._end = end
        self._append = append
        self._sources = sources
        self._on = False
        self.done = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.done:
            return
        if event == "call":
            code = frame.f_code
            self._on = self._on or code is self._begin
            if not self._on or (path := ours(code)) is None:
                return
            self.way.files.add(path)
            self.way.calls += 1
            if code is self._append:
                self._note_hops(frame)
        elif event == "return" and frame.f_code is self._end and self._on:
            self.done = True

    def _note_hops(self, frame: FrameType) -> None:
        """Note our calls from the read of the socket to this one, if a message led to it."""
        names = []
        at: FrameType | None = frame
        while at is not None:
            if ours(at.f_code) is not None:
                names.append(f"{ours(at.f_code)}:{at.f_code.co_qualname}")
            outer = at.f_back
            # A socket delivers in a later turn what is too much for one, or is read within another's turn.
            if at.f_code in self._sources and (outer is None or outer.f_code not in self._sources):
                self.way.hops.append(names[::-1])
                return
            at = outer


@contextmanager
def counted(
    begin: CodeType, end: CodeType, append: CodeType, sources: frozenset[CodeType]
) -> Iterator[Counter]:
    """Count on this thread while the context lasts."""
    counter = Counter(begin, end, append, sources)
    sys.setprofile(counter)
    try:
        yield counter
    finally:
        sys.setprofile(None)


def settings_of(data: Path) -> GatewaySettings:
    """Settings of a gateway with process kernels, one of them warm, on any free port."""
    session = SessionSettings(
        ExecutionSettings(OutputCaps()), ChannelSettings(data / "workspaces", Lane("outboxes", 1))
    )
    return GatewaySettings(
        data_dir=data,
        version="",
        manager=ManagerSettings(session),
        kernels=KernelSettings("process", "none", pool=PoolSettings(size=1, max_kernels=2)),
        people=PeopleSettings(TOKEN, QuotaSettings()),
        front=FrontSettings(port=0),
    )


def execute(url: str, code: str) -> None:
    """Run a cell, as any client does."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/sessions/s/execute", json.dumps({"code": code}), headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(body.decode())
    finally:
        connection.close()


async def measured(code: str = CELL) -> Way:
    """The path of a cell in a session that has run some: what all the counted cells have in common."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(settings_of(Path(folder) / "data")) as gateway:
            for _ in range(WARM_UP):
                await asyncio.to_thread(execute, gateway.url, code)
            return common([await one_way(gateway.url, code) for _ in range(CELLS)])


async def one_way(url: str, code: str) -> Way:
    """The path of the next cell, with all that the loop does beside it."""
    with counted(
        inspect.unwrap(ExecuteHandler.post).__code__,
        CellEnd.complete.__code__,
        Journal.append.__code__,
        frozenset({LocalSocket._readable.__code__, LocalSocket._deliver.__code__}),
    ) as counter:
        await asyncio.to_thread(execute, url, code)
    return counter.way


def common(ways: Sequence[Way]) -> Way:
    """The files that all the ways have, the fewest calls, and the hops of the longest way of a message."""
    files = set.intersection(*(way.files for way in ways))
    hops = max((way.hops for way in ways), key=lambda each: max(map(len, each), default=0))
    return Way(files, min(way.calls for way in ways), hops)


def main() -> None:
    """Print the figures and their details."""
    way = asyncio.run(measured())
    print(f"{len(way.files)} files, {way.calls} calls, {len(way.longest)} hops at the most")
    print("\n".join(f"  {path}" for path in sorted(way.files)))
    for hops in way.hops:
        print("  " + "\n    -> ".join(hops))


if __name__ == "__main__":
    main()
