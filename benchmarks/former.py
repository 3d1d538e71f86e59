"""The cost of a cell and of a print, against another checkout of Cellgate, given by ``--former DIR``.

Two gateways, one of each, take turns with the same cells, over HTTP and over the Jupyter WebSocket, and with
cells of ten thousand prints over HTTP. Each pair
of turns gives one ratio of the round trips and one of the gateway's processor time; the figures are the
medians of all pairs. Memory layout alone can make a difference of a few per cent for the lifetime of a
process, so both are restarted several times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.channels import Channels, start_kernel
from benchmarks.figures import Figure, at_most, quantile
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

CODE = "print('x'); 1+1"
WARM_UP = 100
CELLS = 200  # of one turn
PRINTS = "for i in range(10_000): print('line', i)"
CELLS_OF_PRINTS = 5


class Turns:
    """One gateway's turns of `cells` cells. `execute` runs one and returns its round trip in seconds."""

    def __init__(
        self, server: Server, execute: Callable[[str], float], code: str = CODE, cells: int = CELLS
    ) -> None:
        self._server = server
        self._execute = execute
        self._code = code
        self._cells = cells
        for _ in range(min(WARM_UP, cells)):
            execute(code)

    def turn(self) -> tuple[float, float]:
        """Run one turn: the p50 of a round trip, and the processor time it took, both in seconds."""
        before = self._server.cpu()
        times = [self._execute(self._code) for _ in range(self._cells)]
        return quantile(times, 0.5), self._server.cpu() - before


@dataclass
class Ratios:
    """What pairs of turns gave: the time of the one gateway through that of the other."""

    name: str
    against: str = "the former code"
    target: float = 1.0
    round_trips: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, now: Turns, then: Turns, *, first: bool) -> None:
        """Measure one pair; `first` tells whether `now` has the first turn."""
        if first:
            ours = now.turn()
            theirs = then.turn()
        else:
            theirs = then.turn()
            ours = now.turn()
        self.round_trips.append(ours[0] / theirs[0])
        self.processor.append(ours[1] / theirs[1])

    def report(self) -> str:
        """One line about the pairs so far."""
        return (
            f"{self.name}: round trip {median(self.round_trips):.3f} x, processor time"
            f" {median(self.processor):.3f} x"
        )

    def figures(self) -> list[Figure]:
        """The medians, with the quartiles in their details."""
        return [
            self._figure(f"{self.name}, round trip against {self.against}", self.round_trips),
            self._figure("  the gateway's processor time", self.processor),
        ]

    def _figure(self, name: str, ratios: list[float]) -> Figure:
        spread = {f"q{quarter}": round(quantile(ratios, quarter / 4), 3) for quarter in (1, 3)}
        return Figure(name, median(ratios), "x", at_most(self.target), {"n": len(ratios), **spread})


def measure(options: Options) -> Sequence[Figure]:
    """The ratios of round trips and of processor time. Raises ValueError without ``--former``."""
    if options.former is None:
        raise ValueError("name the other checkout with --former DIR")
    former = options.former.resolve()
    if not (former / "pyproject.toml").is_file():
        raise ValueError(f"{former} is no checkout of Cellgate")
    http = Ratios("a cell by HTTP")
    websocket = Ratios("a cell by WebSocket")
    prints = Ratios("10,000 prints")
    for life in range(options.count(6, 1)):
        _compare(options, former, life, http, websocket, prints)
        reports = "; ".join(ratios.report() for ratios in (http, websocket, prints))
        say(f"former: {len(http.round_trips)} pairs so far, {reports}")
    return [*http.figures(), *websocket.figures(), *prints.figures()]


def _compare(
    options: Options, former: Path, life: int, http: Ratios, websocket: Ratios, prints: Ratios
) -> None:
    """One start of both gateways. The order alternates, so that no one always follows the other."""
    with (
        cellgate(options.backend) as ours,
        cellgate(options.backend, checkout=former) as theirs,
        ours.client() as our_client,
        theirs.client() as their_client,
        Channels(ours.url, ours.token, start_kernel(our_client)) as our_socket,
        Channels(theirs.url, theirs.token, start_kernel(their_client)) as their_socket,
    ):
        pairs = [
            (
                http,
                Turns(ours, Session(our_client, "former").execute),
                Turns(theirs, Session(their_client, "former").execute),
            ),
            (websocket, Turns(ours, our_socket.execute), Turns(theirs, their_socket.execute)),
            (
                prints,
                Turns(ours, Session(our_client, "prints").execute, PRINTS, CELLS_OF_PRINTS),
                Turns(theirs, Session(their_client, "prints").execute, PRINTS, CELLS_OF_PRINTS),
            ),
        ]
        ours.settle()
        theirs.settle()
        for number in range(options.count(4, 2)):
            for ratios, now, then in pairs:
                ratios.add(now, then, first=(number + life) % 2 == 1)
