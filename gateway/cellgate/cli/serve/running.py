"""What the gateway of a data folder says of itself, for ``cellgate doctor``; the folder has its token."""

from __future__ import annotations

import asyncio

from cellgate.client import Gateway, GatewayError
from cellgate.client.transport import SYSTEM_TRUST, Trust
from cellgate.server.doctor import Diagnosis, Grade
from cellgate.wire.found_gateway import FoundGateway
from cellgate_kernels.base.errors import InvalidInput

SUBJECT = "gateway"
PATIENCE = 10.0
"""Seconds for an answer."""


async def judge_running(running: FoundGateway) -> Diagnosis:
    """Return how the gateway is that ``gateway.json`` names."""
    try:
        trust = Trust(certificate=running.certificate) if running.certificate else SYSTEM_TRUST
        async with asyncio.timeout(PATIENCE):
            info = await Gateway(running.url, running.token or None, attempts=1, trust=trust).info()
    except (GatewayError, InvalidInput, TimeoutError) as error:
        why = f"nothing within {PATIENCE:g} s" if isinstance(error, TimeoutError) else error.message
        return Diagnosis(
            SUBJECT,
            Grade.NOTE,
            f"process {running.pid} was to serve at {running.url}, and does not answer: {why}",
            "If it was not stopped in order, start it again; its log says why it ended",
        )
    live = sum(number for state, number in info.sessions.items() if state not in {"dead", "ended"})
    sessions = "1 live session" if live == 1 else f"{live} live sessions"
    pool = info.pool
    kernels = f"{pool.get('in_use', 0)} of {pool.get('max_kernels', 0)} kernels in use"
    told = f"{info.version} serves at {running.url} (process {running.pid}), isolation {info.isolation}"
    if pool.get("waiting", 0):
        return Diagnosis(
            SUBJECT,
            Grade.NOTE,
            f"{told}; {sessions}, {kernels}, {pool['waiting']} requests wait for one",
            "Raise max_kernels if memory allows, or shorten idle_timeout",
        )
    return Diagnosis(SUBJECT, Grade.OK, f"{told}; {sessions}, {kernels}")
