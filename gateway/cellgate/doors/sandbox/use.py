"""How much of the processors and of memory a sandbox's default context uses now.

The gateway keeps no history. Processor time is told as a share of what the sandbox may use, since a client
last asked; there is no earlier measurement when one asks for the first time, so that answer takes a second.
"""

from __future__ import annotations

import asyncio
from typing import Final

from cellgate.http.services import Services
from cellgate.sessions.meter import KernelMeter
from cellgate.sessions.sandboxes import ProcessorTime
from cellgate.sessions.session import Session

SHORTEST: Final = 1.0
"""Seconds between two compared measurements: in less, a busy kernel may not have had its turn."""


async def measured(services: Services, session: Session) -> tuple[float, int]:
    """Return the share of processor time in percent, and the bytes of memory; both 0 if unknown."""
    meter = services.sessions.archive.meter
    if meter is None:
        return 0.0, 0
    sandbox, loop = services.sessions.sandboxes.of(session), asyncio.get_running_loop()
    await meter.look()
    if meter.of(session.kernel) is None and session.kernel is not None and session.kernel.process:
        # It is younger than the last measurement.
        await meter.look_later(loop.time())
    before, now = sandbox.measured, _processor_time(session, meter)
    if now is None:
        return 0.0, 0
    if before is None or before.kernel != now.kernel:
        before = now
    if now.moment - before.moment < SHORTEST:
        await asyncio.sleep(max(0.0, before.moment + SHORTEST - loop.time()))
        await meter.look_later(before.moment + SHORTEST)
        now = _processor_time(session, meter)
    use = meter.of(session.kernel)
    if now is None or use is None or before.kernel != now.kernel:
        return 0.0, 0
    sandbox.measured = now
    spent = (now.seconds - before.seconds) / (now.moment - before.moment)
    return min(100.0, max(0.0, 100 * spent / session.limits.resources.cpus)), use.memory


def _processor_time(session: Session, meter: KernelMeter) -> ProcessorTime | None:
    """Return what the session's kernel had used at the last measurement, if that is known."""
    kernel = session.kernel
    use = meter.of(kernel)
    if kernel is None or use is None:
        return None
    return ProcessorTime(kernel.id, meter.measured_at, use.seconds)
