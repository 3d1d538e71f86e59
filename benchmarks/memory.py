"""What an idle session costs the gateway: resident memory of its process, its kernels' left out.

Every session has run one cell and rests. The first sessions are not counted: they pay for what the gateway
loads once and let the pool grow to what it keeps after a burst, so that the counted ones differ by sessions
alone.
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
    """Growth per session, of resident memory and of memory that is the process's own."""
    uncounted = options.count(UNCOUNTED, 2)
    counted = options.count(COUNTED, 4)
    with cellgate(options.backend) as server, server.client() as client:
        for number in range(uncounted):
            Session(client, f"uncounted-{number}").execute(CODE)
        server.settle()
        resident, unique = server.resident(), server.unique()
        say(f"memory: {resident / MB:.1f} MB with {uncounted} sessions")
        for number in range(counted):
            Session(client, f"idle-{number}").execute(CODE)
        server.settle()
        resident_after, unique_after = server.resident(), server.unique()
        say(f"memory: {resident_after / MB:.1f} MB with {uncounted + counted} sessions")
    per_session = (resident_after - resident) / counted / MB
    details = {
        "sessions": counted,
        "unique_per_session_mb": round((unique_after - unique) / counted / MB, 3),
        "resident_before_mb": round(resident / MB, 1),
    }
    return [Figure("gateway's resident memory per idle session", per_session, "MB", at_most(0.5), details)]
