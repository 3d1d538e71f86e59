"""A sandbox's use of processors, memory and disk, in E2B's words."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from cellgate.doors.sandbox.use import measured
from cellgate.http.services import Services
from cellgate.sessions.session import Session


async def metrics_of(services: Services, session: Session) -> dict[str, object]:
    """Return what is told of a sandbox's use now. Raises ShuttingDown, StorageError."""
    share, memory = await measured(services, session)
    session.check_open()
    used = await services.sessions.files.used(session)
    resources, at = session.limits.resources, datetime.now(UTC)
    return {
        "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "timestampUnix": int(at.timestamp()),
        "cpuCount": math.ceil(resources.cpus),
        "cpuUsedPct": round(share, 2),
        "memUsed": memory,
        "memTotal": resources.memory,
        # Files that the system would drop first are not counted at all.
        "memCache": 0,
        "diskUsed": used,
        "diskTotal": resources.disk,
    }
