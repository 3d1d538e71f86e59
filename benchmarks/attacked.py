"""The load of ``load`` beside a user who attacks her quotas (``eve``).

All others must get what they asked for, as without her. She must get nothing but regular answers and
`quota_exceeded`, and never have more than her quotas allow: that is sampled all the time, by the
administrator's list of her sessions and by her own `GET /v1/me`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.client import HttpClient
from benchmarks.eve import BYTES, QUOTAS, eve
from benchmarks.figures import Figure, at_least, at_most
from benchmarks.hostile import Probe
from benchmarks.load import PATIENT, PRINCIPALS, names, outcome
from benchmarks.options import Options, say
from benchmarks.people import add_users
from benchmarks.readings import FIXED_POOL
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import SESSIONS
from benchmarks.users import Users

SECONDS = 150
EVE = "eve"


class Sampler:
    """What Eve has, as the gateway tells it; `above`: what was more than her quotas."""

    def __init__(self, administrator: HttpClient, own: HttpClient, limit: int) -> None:
        self._administrator = administrator
        self._own = own
        self._limit = limit
        self.above: list[str] = []
        self.most: dict[str, float] = {}
        self.samples = 0

    def sample(self) -> None:
        """Ask once."""
        path = f"{SESSIONS}?principal={EVE}&limit=1000"
        listed = self._administrator.request("GET", path).json(200)["sessions"]
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
    """Faults of the others, faults of hers, and samples above her quotas."""
    seconds = options.count(SECONDS, 20)
    tokens: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="attacked-") as name:
        quotas = Path(name, "quotas.toml")
        quotas.write_text(QUOTAS)
        with cellgate(
            options.backend,
            f"--quotas={quotas}",
            *FIXED_POOL,
            *PATIENT,
            prepare=lambda data: tokens.update(add_users(data, [*names(PRINCIPALS), EVE])),
        ) as server:
            return _attacked(server, tokens, seconds)


def _attacked(server: Server, tokens: dict[str, str], seconds: int) -> Sequence[Figure]:
    own = tokens.pop(EVE)
    users = Users(server, tokens)
    with server.client() as administrator, replace(server, token=own).client() as client:
        limit = client.request("GET", "/v1/me").json(200)["quotas"]["sessions"]["limit"]
        sampler = Sampler(administrator, client, limit)
        probe = Probe(sampler.sample)
        with eve(server, own) as end:
            probe.start()
            users.run(seconds)
            probe.stop()
            report = end()
    say(f"attacked: Eve was answered {dict(report.answers)}, and had at most {sampler.most}")
    for fault in report.faults[:10]:
        say(f"attacked: Eve: {fault}")
    details = {"answers": dict(report.answers), "most": sampler.most, "samples": sampler.samples}
    above = {"above": sampler.above[:20]}
    return [
        *outcome(server, users, seconds, f"{PRINCIPALS} principals beside an attacker, {seconds} s"),
        Figure("  the attacker's irregular answers", len(report.faults), "", at_most(0), details),
        Figure("  the attacker's refused requests", report.refused, "", at_least(1)),
        Figure("  samples above the attacker's quotas", len(sampler.above), "", at_most(0), above),
    ]
