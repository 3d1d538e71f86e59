"""A hundred claims of one user at once, at a quota of five sessions: exactly five may be opened, every time.

A hundred connections send one `POST /v1/sessions` each before any answer is read. The kernels are
``cheap_kernel``; all else is real.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.cheap_kernel import write_kernelspec
from benchmarks.client import AnswerError, HttpClient
from benchmarks.figures import Figure, at_most
from benchmarks.options import Options, say
from benchmarks.people import add_users
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import SESSIONS

CLAIMS = 100
QUOTA = 5
ROUNDS = 50
FREE_TIMEOUT = 60.0


def measure(options: Options) -> Sequence[Figure]:
    """In how many rounds it was another number, or another answer than the two that are right."""
    rounds = options.count(ROUNDS, 3)
    with tempfile.TemporaryDirectory(prefix="claims-") as name:
        folder = Path(name)
        write_kernelspec(folder)
        quotas = folder / "quotas.toml"
        quotas.write_text(f"[roles.user]\nsessions = {QUOTA}\n")
        tokens = {}
        with cellgate(
            "process",
            f"--ServeApp.kernel_dirs={folder}",
            f"--quotas={quotas}",
            "--ServeApp.max_kernels=200",
            prepare=lambda data: tokens.update(add_users(data, ["claimer"])),
        ) as server:
            counted = _rounds(replace(server, token=tokens["claimer"]), rounds)
    right = Counter({"201": QUOTA, "403 quota_exceeded of sessions": CLAIMS - QUOTA})
    wrong = [answers for answers in counted if answers != right]
    return [
        Figure(
            f"{rounds} rounds of {CLAIMS} claims at a quota of {QUOTA}: rounds that did not open {QUOTA}",
            len(wrong),
            "",
            at_most(0),
            {"wrong": wrong[:5]},
        )
    ]


def _rounds(server: Server, rounds: int) -> list[Counter[str]]:
    counted = []
    with ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(CLAIMS)]
        for number in range(rounds):
            counted.append(_round(clients, number))
            if number % 10 == 9:
                say(f"claims: {number + 1} of {rounds} rounds, the last one {dict(counted[-1])}")
    return counted


def _round(clients: Sequence[HttpClient], number: int) -> Counter[str]:
    """Send all claims, then count the answers; at the end the user has no sessions."""
    for place, client in enumerate(clients):
        client.send("POST", SESSIONS, {"session": f"claim-{number}-{place}"})
    answers: Counter[str] = Counter()
    opened = []
    for place, client in enumerate(clients):
        answer = client.receive()
        content = answer.json(201, 403, 429, 503)
        if answer.status == 201:
            opened.append(f"claim-{number}-{place}")
            answers["201"] += 1
        else:
            answers[f"{answer.status} {content['reason']} of {content.get('quota')}"] += 1
    for key in opened:
        clients[0].request("DELETE", f"{SESSIONS}/{key}").json(204)
    _await_free(clients[0])
    return answers


def _await_free(client: HttpClient) -> None:
    """Sessions count until their kernels are gone."""
    deadline = time.monotonic() + FREE_TIMEOUT
    while used := client.request("GET", "/v1/me").json(200)["quotas"]["sessions"]["used"]:
        if time.monotonic() > deadline:
            raise AnswerError(f"{used} sessions still count after all were deleted")
        time.sleep(0.02)
