"""The cost of an idle session to the gateway: resident memory of its process, without its kernels.

Every session has run one cell and is idle. The first sessions are not counted: they make the gateway load
modules and the pool grow to its size after a burst, so that the counted ones only add sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.figures import MB, Figure, at_most
from benchmarks.options import Options, say
from benchmarks.servers import cellgate
from benchmarks.sessions import Session

UNCOUNTED = 10
COUNTED = 24
CODE = "print('x'); 1+1"


def measure(options: Options) -> Sequence[Figure]:
    """Growth per session, of resident memory and of the process's unique memory."""
    uncounted = options.count(UNCOUNTED, 2)
    counted = options.count(COUNTED, 4)
    with cellgate(options.backend) as server, server.client() as client:
        for number in range(uncounted):
            Session(client, f"uncounted-{number}").execute(CODE)
        server.settle()
        resident = server.resident()
        unique = server.unique()
        say(f"memory: {resident / MB:.1f} MB with {uncounted} sessions")
        for number in range(counted):
            Session(client, f"idle-{number}").execute(CODE)
        server.settle()
        resident_after = server.resident()
        unique_after = server.unique()
        say(f"memory: {resident_after / MB:.1f} MB with {uncounted + counted} sessions")
    per_session = (resident_after - resident) / counted / MB
    details = {
        "sessions": counted,
        "unique_per_session_mb": round((unique_after - unique) / counted / MB, 3),
        "resident_before_mb": round(resident / MB, 1),
    }
    return [Figure("gateway's resident memory per idle session", per_session, "MB", at_most(0.5), details)]
