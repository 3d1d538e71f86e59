"""A thousand sessions that twenty users make, use and delete: what does the gateway keep of them?

Each user has a thread, a token and a connection, and makes one session after another, runs one cell in it and
deletes it. The kernels are ``cheap_kernel``, so the cells do nothing; processes, sockets, workspaces and
records are real. The first two hundred sessions come before the first reading, and all users end theirs at
the same moment: that fills caches and pools of threads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

from benchmarks.cheap_kernel import write_kernelspec
from benchmarks.figures import Figure
from benchmarks.options import Options, say
from benchmarks.people import add_users
from benchmarks.readings import FIXED_POOL, growth, read
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

USERS = 20
FIRST = 200
SESSIONS = 1000
RUSH_TIMEOUT = 300.0


def measure(options: Options) -> Sequence[Figure]:
    """The growth of everything."""
    first = options.count(FIRST, 40)
    sessions = options.count(SESSIONS, 60)
    tokens: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="churn-") as folder:
        write_kernelspec(Path(folder))
        with cellgate(
            "process",
            f"--ServeApp.kernel_dirs={folder}",
            "--ServeApp.claim_timeout=300",
            *FIXED_POOL,
            prepare=lambda data: tokens.update(add_users(data, [f"user-{n}" for n in range(USERS)])),
        ) as server:
            servers = [replace(server, token=token) for token in tokens.values()]
            _use(servers, "first", first // USERS, Barrier(USERS))
            before = read(server, options)
            _use(servers, "churn", sessions // USERS)
            after = read(server, options, before)
    return growth(before, after, f"{sessions} sessions made, used and deleted by {USERS} users")


def _use(servers: Sequence[Server], name: str, each: int, together: Barrier | None = None) -> None:
    """Every user makes so many sessions, one after another. Raises what a request raised.

    With `together` all users wait for each other before they end a session.
    """
    say(f"churn: {each} sessions of each of {len(servers)} users")
    with ThreadPoolExecutor(len(servers)) as threads:
        for future in [threads.submit(_use_one, server, name, each, together) for server in servers]:
            future.result()


def _use_one(server: Server, name: str, each: int, together: Barrier | None) -> None:
    with server.client() as client:
        for number in range(each):
            session = Session(client, f"{name}-{number}")
            session.execute("1+1")
            if together is not None:
                together.wait(RUSH_TIMEOUT)
            session.end()
