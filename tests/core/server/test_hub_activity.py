"""What a Hub is told of activity: what counts, how often, and what happens while nobody listens."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellgate.errors import IdentityUnavailable
from cellgate.identity.fetching import FetchedAnswer, Fetcher
from cellgate.identity.hub_settings import HubSettings
from cellgate.server.hub_activity import HubActivity

SETTINGS = HubSettings(
    "http://hub/hub/api",
    frozenset(),
    token="the-servers-token",
    user="ada",
    server="lab",
    activity_url="http://hub/hub/api/users/ada/activity",
)


class Reports(Fetcher):
    """What the Hub is told. `status`: of its answers; with 0 it does not answer."""

    def __init__(self) -> None:
        super().__init__("The Hub")
        self.status = 200
        self.told: list[dict[str, Any]] = []
        self.tried = 0

    async def post_json(
        self, url: str, body: bytes, *, most: int, headers: Mapping[str, str]
    ) -> FetchedAnswer:
        del most
        assert url == SETTINGS.activity_url
        assert headers == {"Authorization": "token the-servers-token"}
        self.tried += 1
        if self.status == 0:
            raise IdentityUnavailable("The Hub can't be reached")
        if self.status == 200:
            self.told.append(json.loads(body))
        return FetchedAnswer(self.status, b"")


class World:
    """A gateway with one session, at a time that stands still."""

    def __init__(self) -> None:
        self.hub = Reports()
        self.now = 1000.0
        self.cell = self.program = False
        self.at = "2026-01-01T00:00:00Z"
        self.has_session = False
        self.activity = HubActivity(SETTINGS, self.sessions, fetcher=self.hub, monotonic=lambda: self.now)

    def sessions(self) -> Iterator[Any]:
        if self.has_session:
            yield SimpleNamespace(
                record=SimpleNamespace(row=SimpleNamespace(id=1), last_activity=self.at),
                machine=SimpleNamespace(busy=self.cell),
                processes=SimpleNamespace(busy=self.program),
            )

    async def look(self, seconds: float = 0) -> int:
        """Look after so many seconds; how many reports there were until then."""
        self.now += seconds
        await self.activity.look()
        return len(self.hub.told)

    def age(self) -> float:
        """How many seconds ago the last use was that the Hub knows."""
        told = self.hub.told[-1]
        assert told["servers"] == {"lab": {"last_activity": told["last_activity"]}}
        return (datetime.now(UTC) - datetime.fromisoformat(told["last_activity"])).total_seconds()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.activity.close()


async def test_what_is_used_is_told_once_in_a_while(world: World) -> None:
    assert await world.look() == 0, "nobody has used it"
    world.has_session = True
    assert await world.look(15) == 1
    assert await world.look(400) == 1, "a session that is only there is no activity"
    world.at = "2026-01-01T00:00:01Z"
    assert await world.look(15) == 2
    world.at = "2026-01-01T00:00:02Z"
    assert await world.look(15) == 2, "too early"
    assert await world.look(284) == 2
    assert await world.look(1) == 3
    assert world.age() == pytest.approx(285, abs=60), "when it was used, not when it was told"


@pytest.mark.parametrize("what", ["cell", "program"])
async def test_what_runs_is_activity_until_it_ends(world: World, what: str) -> None:
    world.has_session = True
    await world.look()
    setattr(world, what, True)
    assert [await world.look(300) for _ in range(3)] == [2, 3, 4]
    setattr(world, what, False)
    assert await world.look(300) == 4


async def test_a_time_of_the_future_hides_no_later_use(world: World) -> None:
    world.has_session = True
    world.at = "2999-01-01T00:00:00Z"
    assert await world.look() == 1
    assert abs(world.age()) < 3600
    world.at = "2026-01-01T00:00:00Z"
    assert await world.look(300) == 2


@pytest.mark.parametrize("status", [0, 403, 500])
async def test_a_hub_that_fails_is_logged_once_and_asked_again(
    world: World, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    world.has_session = True
    world.hub.status = status
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            await world.look(15)
    assert world.hub.tried == 5
    assert [record.getMessage().startswith("The Hub could not be told") for record in caplog.records] == [
        True
    ]
    world.hub.status = 200
    assert await world.look(15) == 1
    assert world.age() == pytest.approx(75, abs=60)
    world.hub.status, world.at = status, "2026-01-01T00:00:01Z"
    with caplog.at_level(logging.WARNING):
        await world.look(300)
    assert len(caplog.records) == 2, "another failure"
    assert "the-servers-token" not in caplog.text


async def test_a_failing_look_is_told_and_another_follows(world: World) -> None:
    """The task has an owner: see Supervisor.repeat."""
    world.activity.start()
    (task,) = cast(Any, world.activity)._tasks
    assert task.get_name() == "activity for the Hub"
