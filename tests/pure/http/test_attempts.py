"""How many wrong tokens an address may show, and that one address does not cost another anything."""

from __future__ import annotations

import asyncio

import pytest

from cellgate.http import attempts as attempts_module
from cellgate.http.attempts import EVERY_SECONDS, MOST_ADDRESSES, MOST_HELD, LoginAttempts
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def attempts(clock: Clock) -> LoginAttempts:
    return LoginAttempts(3, clock=clock)


def test_a_few_fail_at_once_then_one_each_two_seconds(attempts: LoginAttempts, clock: Clock) -> None:
    assert [attempts.failed("a") for _ in range(5)] == [None, None, None, EVERY_SECONDS, EVERY_SECONDS]
    clock.now += EVERY_SECONDS / 2
    assert attempts.failed("a") == EVERY_SECONDS / 2
    clock.now += EVERY_SECONDS / 2
    assert attempts.failed("a") is None
    assert attempts.failed("a") == EVERY_SECONDS


def test_after_a_while_all_is_forgotten(attempts: LoginAttempts, clock: Clock) -> None:
    for _ in range(20):
        attempts.failed("a")
    clock.now += 3 * EVERY_SECONDS
    assert [attempts.failed("a") for _ in range(4)] == [None, None, None, EVERY_SECONDS]


def test_addresses_are_apart(attempts: LoginAttempts) -> None:
    for _ in range(20):
        attempts.failed("a")
    assert attempts.failed("b") is None


def test_without_a_limit_nothing_is_counted() -> None:
    attempts = LoginAttempts(0)
    assert {attempts.failed("a") for _ in range(1000)} == {None}
    assert not attempts._clear_at


def test_the_addresses_that_failed_last_are_remembered(attempts: LoginAttempts) -> None:
    for _ in range(4):
        attempts.failed("first")
    for number in range(MOST_ADDRESSES - 1):
        attempts.failed(str(number))
    assert attempts.failed("first") == EVERY_SECONDS
    for number in range(MOST_ADDRESSES):
        attempts.failed(f"again {number}")
    assert len(attempts._clear_at) == MOST_ADDRESSES
    assert attempts.failed("first") is None


async def test_only_so_many_answers_wait(attempts: LoginAttempts, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[asyncio.Future[None]] = []

    async def asleep(_: float) -> None:
        begun.append(asyncio.get_running_loop().create_future())
        await begun[-1]

    monkeypatch.setattr(attempts_module.asyncio, "sleep", asleep)
    held = [asyncio.ensure_future(attempts.hold()) for _ in range(MOST_HELD)]
    while len(begun) < MOST_HELD:
        await asyncio.wait(held, timeout=0.01)
    await attempts.hold()
    assert len(begun) == MOST_HELD
    held[0].cancel()
    for future in begun[1:]:
        future.set_result(None)
    await asyncio.gather(*held[1:])
    last = asyncio.ensure_future(attempts.hold())
    while len(begun) == MOST_HELD:
        await asyncio.wait([last], timeout=0.01)
    begun[-1].set_result(None)
    await last


def test_who_waits_is_known_without_another_failure(attempts: LoginAttempts, clock: Clock) -> None:
    for _ in range(3):
        assert attempts.waiting("a") is None
        assert attempts.failed("a") is None
    assert attempts.waiting("a") == attempts.waiting("a") == EVERY_SECONDS
    assert attempts.waiting("b") is None
    clock.now += EVERY_SECONDS
    assert attempts.waiting("a") is None
    assert LoginAttempts(0, clock=clock).waiting("a") is None
