"""Ten minutes of scripted load by twenty principals, at the highest rate that the machine holds.

The script (``script``) has 60 % short cells, 20 % plots, 10 % long ones, 5 % errors and 5 % timeouts; each
principal (``users``) sends its next cell as soon as it has the outcome of the last. Before the ten minutes
comes a warm-up: rushes, in which all of them end their sessions at the same moment, so that pools of threads
grow to what this load can need, and then the same load for a while, which fills caches. A reading is taken
then and another at the end: what the gateway holds must be the same. Every execution that a client saw must
be in the record once, with the status that the client saw.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from benchmarks.figures import MB, Figure, at_most, quantile
from benchmarks.options import Options, say
from benchmarks.people import add_users
from benchmarks.readings import FIXED_POOL, growth, read
from benchmarks.script import Kind
from benchmarks.servers import HERE, START, Server, cellgate, source_path
from benchmarks.users import Users

PRINCIPALS = 20
RUSHES = 8
WARM_UP_SECONDS = 120
SECONDS = 600

PATIENT = ("--ServeApp.claim_timeout=300", "--cell-timeout=300")
"""Waits that only show how slow the machine is are no errors here."""


def names(count: int) -> list[str]:
    """Names of principals."""
    return [f"user-{number}" for number in range(count)]


def measure(options: Options) -> Sequence[Figure]:
    """Faults, differences from the record, and the growth of everything."""
    seconds = options.count(SECONDS, 20)
    tokens: dict[str, str] = {}
    with cellgate(
        options.backend,
        *FIXED_POOL,
        *PATIENT,
        prepare=lambda data: tokens.update(add_users(data, names(PRINCIPALS))),
    ) as server:
        users = Users(server, tokens)
        for _ in range(options.count(RUSHES, 1)):
            users.rush()
        users.run(options.count(WARM_UP_SECONDS, 5))
        say(f"load: {users.executions} cells in the warm-up, {len(users.faults)} faults")
        before = read(server, options)
        server.reset_peak()
        resident = server.resident()
        done = users.executions
        users.run(seconds)
        rate = (users.executions - done) / seconds
        peak = (server.peak() - resident) / MB
        say(f"load: {users.executions} cells, {len(users.faults)} faults")
        after = read(server, options, before)
        return [
            *outcome(server, users, rate, f"{PRINCIPALS} principals, {seconds} s"),
            Figure("  more resident memory than before, at its highest", peak, "MB"),
            *growth(before, after, "after the load, against before it"),
        ]


def outcome(server: Server, users: Users, rate: float, name: str) -> Sequence[Figure]:
    """What the users saw, at so many cells a second, and what the record has of it."""
    differences = users.unaccounted()
    for difference in differences[:10]:
        say(f"load: {difference}")
    faults = users.faults
    milliseconds = {
        str(kind): {
            at: round(quantile(times, share) * 1000, 1) for at, share in (("p50", 0.5), ("p99", 0.99))
        }
        for kind in Kind
        if (times := users.times(kind))
    }
    say(f"load: {milliseconds}")
    return [
        Figure(f"{name}: cells a second", rate, "/s", details=milliseconds),
        Figure("  outcomes other than asked for", len(faults), "", at_most(0), {"first": faults[:20]}),
        Figure("  sessions recorded otherwise than seen", len(differences), "", at_most(0)),
        Figure("  exit code of cellgate verify", _verify(server), "", at_most(0)),
    ]


def _verify(server: Server) -> int:
    command = [sys.executable, "-P", *START, "verify", "--data-dir", str(server.folder / "data")]
    done = subprocess.run(
        command, env={"PYTHONPATH": source_path(HERE)}, capture_output=True, text=True, check=False
    )
    say(f"load: cellgate verify: {done.stdout.strip().splitlines()[-1:]} {done.stderr.strip()}")
    return done.returncode
