"""What principals and quotas cost a cell: a gateway with ten thousand users, against one with one token.

Two gateways of the same code take turns, as in ``former``. The one knows ten thousand users with a token each
and has a quotas file with all quotas, too generous to refuse anything; its cells are one user's. The other is
`cellgate serve` with the token that everybody has.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.former import Ratios, Turns
from benchmarks.options import Options, say
from benchmarks.people import add_users
from benchmarks.servers import cellgate
from benchmarks.sessions import Session
from cellgate.principals.store import PRINCIPALS

USERS = 10_000
MOST_RATIO = 1.03
LIVES = 4
PAIRS = 3  # of one life

QUOTAS = """
[roles.user]
sessions = 1000
running = 1000
queued = 100000
memory = "1000g"
cpus = 1000
disk = "1000g"
record = "1000g"
requests_per_minute = 1000000
bytes_per_minute = "1000g"
max_memory = "1000g"
max_cpus = 1000
max_pids = 4096
max_disk = "1000g"
max_cell_timeout = 86400
max_lifetime = 86400
weight = 2
"""


def measure(options: Options) -> Sequence[Figure]:
    """The ratios of round trips and of processor time."""
    ratios = Ratios(
        "a cell by HTTP", f"the one-token gateway, {USERS} users known and all quotas set", MOST_RATIO
    )
    with tempfile.TemporaryDirectory(prefix="principals-") as name:
        folder = Path(name)
        token = add_users(folder, [f"user-{number}" for number in range(USERS)])[f"user-{USERS // 2}"]
        (folder / "quotas.toml").write_text(QUOTAS)
        for life in range(options.count(LIVES, 1)):
            _compare(options, folder, token, life, ratios)
            say(f"principals: {len(ratios.round_trips)} pairs so far, {ratios.report()}")
    return ratios.figures()


def _compare(options: Options, folder: Path, token: str, life: int, ratios: Ratios) -> None:
    """One start of both gateways; the order of their turns alternates."""
    with (
        cellgate(
            options.backend,
            f"--quotas={folder / 'quotas.toml'}",
            prepare=lambda data: shutil.copy(folder / PRINCIPALS, data / PRINCIPALS),
        ) as many,
        cellgate(options.backend) as one,
        replace(many, token=token).client() as user,
        one.client() as administrator,
    ):
        now = Turns(many, Session(user, "cells").execute)
        then = Turns(one, Session(administrator, "cells").execute)
        many.settle()
        one.settle()
        for number in range(options.count(PAIRS, 1)):
            ratios.add(now, then, first=(number + life) % 2 == 1)
