"""The cost of a cell on a forked kernel, against one whose kernel was started cold.

Two gateways with sandboxes, one with ``--no-fork-server``, take turns with the same cells, over HTTP. Each
pair of turns gives one ratio of the round trips and one of the gateway's processor time; the figures are the
medians of all pairs. Both are restarted several times, for the reason that ``former`` gives. It needs
bubblewrap, so it runs only if named.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.figures import Figure
from benchmarks.former import Ratios, Turns
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

LIVES = 3
PAIRS = 4  # of one life; twelve in all


def measure(options: Options) -> Sequence[Figure]:
    """The ratios of round trips and of processor time; `--backend` does not matter."""
    ratios = Ratios("a cell by HTTP on a forked kernel", "a cold one", target=1.03)
    for life in range(options.count(LIVES, 1)):
        _compare(options, life, ratios)
        say(f"forked_cells: {len(ratios.round_trips)} pairs so far, {ratios.report()}")
    return ratios.figures()


def _compare(options: Options, life: int, ratios: Ratios) -> None:
    """One start of both gateways. The order alternates, so that no one always follows the other."""
    with (
        cellgate("sandbox") as forking,
        cellgate("sandbox", "--no-fork-server") as starting,
        forking.client() as forking_client,
        starting.client() as starting_client,
    ):
        _check_way(forking, "fork")
        _check_way(starting, "cold")
        forked = Turns(forking, Session(forking_client, "cells").execute)
        cold = Turns(starting, Session(starting_client, "cells").execute)
        forking.settle()
        starting.settle()
        for number in range(options.count(PAIRS, 2)):
            ratios.add(forked, cold, first=(number + life) % 2 == 1)


def _check_way(server: Server, way: str) -> None:
    """Raises RuntimeError where kernels would not start this way: the figures would compare nothing."""
    with server.client() as client:
        ways = client.request("GET", "/v1/info").json(200)["fork_server"]
    if ways["python3"] != way:
        raise RuntimeError(f"kernels start otherwise than by {way}: {ways}")
