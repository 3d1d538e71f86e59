"""The mark of a session whose record lacks its last events: it is tried for as long as the key is taken."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellgate.errors import OwnedElsewhere, StorageError
from cellgate.sessions import set_back
from cellgate.sessions.keys import SessionKeys
from cellgate.sessions.opener import SessionOpener
from cellgate.sessions.ownership import Alone, Owned
from cellgate.sessions.session import Session
from cellgate.sessions.set_back import TOLD_AFTER, SetBackRecords
from cellgate.testing.record_store import session_row
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.tasks import Supervisor


class Opener:
    """An opener whose claims meet these failures, one after the other."""

    def __init__(self, failures: list[CellgateError]) -> None:
        self.keys = SessionKeys(Alone())
        self.failures = failures
        self.claims = 0

    async def claim_set_back(self, owned: Owned) -> bool:
        self.claims += 1
        assert self.keys.find(owned).taken
        if self.failures:
            raise self.failures.pop(0)
        return True


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_back, "PAUSE_SECONDS", 0)


async def marked(opener: Opener) -> None:
    over = asyncio.get_running_loop().create_future()
    over.set_result(None)
    session: Any = SimpleNamespace(row=session_row(1, "s"), over=over)
    tasks = Supervisor()
    SetBackRecords(cast(SessionOpener, opener), tasks).mark_once_over(cast(Session, session))
    await asyncio.sleep(0)
    removed_by = opener.keys.find(("ada", "s")).removed_by
    assert removed_by is not None
    await removed_by
    await tasks.cancel()


async def test_a_long_outage_is_told_once_and_outlasted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    opener = Opener([StorageError("away")] * (2 * TOLD_AFTER + 5))
    await marked(opener)
    assert opener.claims == 2 * TOLD_AFTER + 6
    assert [record.getMessage() for record in caplog.records] == [
        "The loss of a session's events could not be recorded: away",
        "The record lacks the last events of a session, and says so now",
    ]


async def test_a_key_of_another_gateway_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    opener = Opener([StorageError("away"), OwnedElsewhere("s", "http://other")])
    await marked(opener)
    assert opener.claims == 2
    assert len(caplog.records) == 1


async def test_a_gateway_that_stops_tries_no_more() -> None:
    opener = Opener([StorageError("away")] * 3)
    opener.keys.closing = True
    await marked(opener)
    assert opener.claims == 1
