"""The load of ``load`` beside users who attack their quotas (``eve``), one after the other.

Each has quotas of her own, so that each quota is reached: once the requests or the bytes of a minute are used
up, all else is refused as well. The others must get what they asked for, as without the attackers. These must
get nothing but regular answers and `quota_exceeded`, of each of their quotas, and never have more than they
may: that is sampled all the time, by the administrator's list of their sessions and by their own
`GET /v1/me`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.client import HttpClient
from benchmarks.eve import Report, end_sessions, eve
from benchmarks.figures import Figure, at_least, at_most
from benchmarks.hostile import Probe
from benchmarks.load import PATIENT, PRINCIPALS, names, outcome
from benchmarks.options import Options, say
from benchmarks.people import add_users
from benchmarks.readings import FIXED_POOL
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import SESSIONS
from benchmarks.users import Users

SECONDS = 50
"""For each attacker."""

BYTES = "bytes_per_minute"
ATTACKERS: Mapping[str, Sequence[str]] = {
    "eve": ("sessions", "queued"),
    "mallory": ("memory",),
    "trudy": ("requests_per_minute",),
    "oscar": (BYTES,),
}
"""The quotas that must refuse something, by attacker."""

QUOTAS = """
[principals.eve]
sessions = 3
running = 1
queued = 10

[principals.mallory]
sessions = 10
running = 1
queued = 10
memory = "3g"

[principals.trudy]
sessions = 3
running = 1
queued = 10
requests_per_minute = 300

[principals.oscar]
sessions = 3
running = 1
queued = 10
bytes_per_minute = "15m"
"""


class Sampler:
    """What an attacker has, as the gateway tells it; `above`: what was more than her quotas."""

    def __init__(self, name: str, administrator: HttpClient, own: HttpClient) -> None:
        self._path = f"{SESSIONS}?principal={name}&limit=1000"
        self._administrator = administrator
        self._own = own
        self._limit = own.request("GET", "/v1/me").json(200)["quotas"]["sessions"]["limit"]
        self.above: list[str] = []
        self.most: dict[str, float] = {}
        self.samples = 0

    def sample(self) -> None:
        """Ask once."""
        listed = self._administrator.request("GET", self._path).json(200)["sessions"]
        live = [session["session"] for session in listed if session["state"] != "ended"]
        self._note("live sessions", len(live), self._limit)
        answer = self._own.request("GET", "/v1/me")
        if answer.status != 429:
            for name, use in answer.json(200)["quotas"].items():
                # An answer that has begun is finished, so bytes may be more than the quota.
                if use["limit"] is not None and name != BYTES:
                    self._note(name, use["used"], use["limit"])
        self.samples += 1

    def _note(self, name: str, used: float, limit: float) -> None:
        self.most[name] = max(used, self.most.get(name, 0))
        if used > limit:
            self.above.append(f"{name}: {used} of {limit}")


def measure(options: Options) -> Sequence[Figure]:
    """Faults of the others, faults of the attackers', refusals, and samples above their quotas."""
    seconds = options.count(SECONDS, 10)
    tokens: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="attacked-") as name:
        quotas = Path(name, "quotas.toml")
        quotas.write_text(QUOTAS)
        with cellgate(
            options.backend,
            f"--quotas={quotas}",
            *FIXED_POOL,
            *PATIENT,
            prepare=lambda data: tokens.update(add_users(data, [*names(PRINCIPALS), *ATTACKERS])),
        ) as server:
            return _attacked(server, tokens, seconds)


def _attacked(server: Server, tokens: dict[str, str], seconds: int) -> Sequence[Figure]:
    attackers = {name: tokens.pop(name) for name in ATTACKERS}
    users = Users(server, tokens)
    answers: dict[str, Mapping[str, int]] = {}
    most: dict[str, Mapping[str, float]] = {}
    refused: Counter[str] = Counter()
    faults: list[str] = []
    above: list[str] = []
    for name, token in attackers.items():
        report, sampler = _attack(server, name, token, users, seconds)
        end_sessions(server, name)
        say(f"attacked: {name} was answered {dict(report.answers)}, and had at most {sampler.most}")
        for fault in report.faults[:10]:
            say(f"attacked: {name}: {fault}")
        answers[name] = dict(report.answers)
        most[name] = sampler.most
        faults += [f"{name}: {fault}" for fault in report.faults]
        above += [f"{name}: {found}" for found in sampler.above]
        for quota in ATTACKERS[name]:
            refused[quota] = report.refused_by(quota)
    in_all = len(attackers) * seconds
    title = f"{PRINCIPALS} principals beside an attacker, {in_all} s"
    return [
        *outcome(server, users, users.executions / in_all, title),
        Figure("  the attackers' irregular answers", len(faults), "", at_most(0), {"answers": answers}),
        *(Figure(f"  refusals of {quota}", count, "", at_least(1)) for quota, count in refused.items()),
        Figure("  samples above a quota", len(above), "", at_most(0), {"above": above[:20], "most": most}),
    ]


def _attack(server: Server, name: str, token: str, users: Users, seconds: float) -> tuple[Report, Sampler]:
    """The users' load, and one attacker beside it."""
    with server.client() as administrator, replace(server, token=token).client() as client:
        sampler = Sampler(name, administrator, client)
        probe = Probe(sampler.sample)
        with eve(server, token) as end:
            probe.start()
            users.run(seconds)
            probe.stop()
            return end(), sampler
