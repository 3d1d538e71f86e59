"""The cost of a cell, against another checkout of Cellgate, given by ``--former DIR``.

Two gateways, one of each, take turns with the same cells over HTTP. Each pair of turns gives one ratio of the
round trips and one of the gateway's processor time; the figures are the medians of all pairs. Memory layout
alone can make a difference of a few per cent for the lifetime of a process, so both are restarted several
times.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, at_most, quantile
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

CODE = "print('x'); 1+1"
WARM_UP = 100
CELLS = 200  # of one turn


class Turns:
    """One gateway's turns."""

    def __init__(self, server: Server, session: Session) -> None:
        self._server = server
        self._session = session
        for _ in range(WARM_UP):
            session.execute(CODE)

    def turn(self) -> tuple[float, float]:
        """Run one turn: the p50 of a round trip, and the processor time it took, both in seconds."""
        before = self._server.cpu()
        times = [self._session.execute(CODE) for _ in range(CELLS)]
        return quantile(times, 0.5), self._server.cpu() - before


def measure(options: Options) -> Sequence[Figure]:
    """The ratios of round trips and of processor time. Raises ValueError without ``--former``."""
    if options.former is None:
        raise ValueError("name the other checkout with --former DIR")
    former = options.former.resolve()
    if not (former / "pyproject.toml").is_file():
        raise ValueError(f"{former} is no checkout of Cellgate")
    round_trips: list[float] = []
    processor: list[float] = []
    for life in range(options.count(6, 1)):
        for now, then in _pairs(options, former, life):
            round_trips.append(now[0] / then[0])
            processor.append(now[1] / then[1])
        say(
            f"former: {len(round_trips)} pairs, round trip {median(round_trips):.3f} x,"
            f" processor time {median(processor):.3f} x so far"
        )
    return [
        _figure("a cell's round trip, against the former code", round_trips),
        _figure("  the gateway's processor time", processor),
    ]


def _pairs(
    options: Options, former: Path, life: int
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """One start of both gateways: pairs of turns, each with the former code's as the second element."""
    with (
        cellgate(options.backend) as ours,
        cellgate(options.backend, checkout=former) as theirs,
        ours.client() as one,
        theirs.client() as other,
    ):
        now = Turns(ours, Session(one, "former"))
        then = Turns(theirs, Session(other, "former"))
        ours.settle()
        theirs.settle()
        pairs = []
        for number in range(options.count(4, 2)):
            # The order alternates, so that neither always follows the other's disturbance.
            if (number + life) % 2:
                first = now.turn()
                pairs.append((first, then.turn()))
            else:
                second = then.turn()
                pairs.append((now.turn(), second))
        return pairs


def _figure(name: str, ratios: list[float]) -> Figure:
    spread = {f"q{quarter}": round(quantile(ratios, quarter / 4), 3) for quarter in (1, 3)}
    return Figure(name, median(ratios), "x", at_most(1.03), {"n": len(ratios), **spread})
