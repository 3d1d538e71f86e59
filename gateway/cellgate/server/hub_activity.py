"""Reports a spawned gateway's last use to its Hub, so that no culler ends the gateway during a cell.

A running or waiting cell is activity, a running program is, and so is whatever else uses a session. A page or
a connection that is open and asks nothing is none. It looks at the sessions from time to time and compares
with the look before, by a clock that never goes back: no time of the past or the future hides a later use.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from cellgate.errors import IdentityUnavailable
from cellgate.identity.fetching import Fetcher
from cellgate.identity.hub import hub_fetcher
from cellgate.identity.hub_settings import HubSettings
from cellgate.sessions.session import Session
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
"""The seconds between two looks, and between two attempts to reach a Hub that does not answer."""
MOST_ANSWER: Final = 64 * 1024


class HubActivity:
    """Reports of activity to a Hub. Call `start` with the gateway, `close` at the end."""

    def __init__(
        self,
        settings: HubSettings,
        sessions: Callable[[], Iterable[Session]],
        *,
        fetcher: Fetcher | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._fetcher = fetcher or hub_fetcher(settings)
        self._monotonic = monotonic
        self._pause = min(LOOK_SECONDS, settings.activity_interval)
        self._seen: dict[int, str] = {}
        self._used_at: float | None = None
        """The last use that has not been reported to the Hub yet."""
        self._told_at = float("-inf")
        self._failing = False
        self._tasks = Supervisor()

    def start(self) -> None:
        """Report activity to the Hub from now on."""
        self._tasks.repeat(self.look, "activity for the Hub", pause=self._pause)

    async def close(self) -> None:
        """Stop reporting activity to the Hub."""
        await self._tasks.cancel()
        await self._fetcher.close()

    async def look(self) -> float:
        """Check the sessions, and report if it is time; return the seconds until the next look."""
        if self._is_used():
            self._used_at = self._monotonic()
        if (
            self._used_at is not None
            and self._monotonic() - self._told_at >= self._settings.activity_interval
        ):
            await self._report(self._used_at)
        return self._pause

    def _is_used(self) -> bool:
        """Return whether a session is used now, or was since the last look."""
        before, self._seen = self._seen, {}
        used = False
        for session in self._sessions():
            self._seen[session.record.row.id] = session.record.last_activity
            used = used or session.machine.busy or session.processes.busy
        return used or any(before.get(known) != at for known, at in self._seen.items())

    async def _report(self, used_at: float) -> None:
        began = self._monotonic()
        at = (datetime.now(UTC) - timedelta(seconds=began - used_at)).isoformat()
        settings = self._settings
        body = msgspec.json.encode({"servers": {settings.server: {"last_activity": at}}, "last_activity": at})
        headers = {"Authorization": f"token {settings.token}"}
        try:
            answer = await self._fetcher.post_json(
                settings.activity_url, body, most=MOST_ANSWER, headers=headers
            )
        except IdentityUnavailable as error:
            self._failed(error.message)
            return
        if not 200 <= answer.status < 300:
            self._failed(f"it answered with status {answer.status}")
            return
        self._failing = False
        self._told_at = began
        self._used_at = None

    def _failed(self, why: str) -> None:
        """Log once that the Hub can't be reached; the next look tries again."""
        if not self._failing:
            logger.warning(
                "The Hub could not be told of activity, and may end this server as unused: %s", why
            )
        self._failing = True
