"""Silence: it calls once, a while after the last sign, and never without one."""

from __future__ import annotations

import asyncio

from cellgate.execution.silence import Silence

PATIENCE = 0.2


async def test_signs_put_it_off_and_the_last_one_counts() -> None:
    loop, called, ticks = asyncio.get_running_loop(), asyncio.Event(), 20
    silence = Silence(lambda: PATIENCE, called.set)
    await asyncio.sleep(2 * PATIENCE)
    assert not called.is_set()
    begun = loop.time()
    for _ in range(ticks):
        silence.heard()
        # Without an await longer than the patience nothing may be called, however slow the machine is.
        last = loop.time()
        await asyncio.sleep(PATIENCE / 10)
        if called.is_set():
            assert loop.time() - last >= PATIENCE
            break
    async with asyncio.timeout(30):
        await called.wait()
    assert loop.time() - begun >= PATIENCE


async def test_it_calls_again_after_another_sign_and_never_once_it_was_stopped() -> None:
    calls: asyncio.Queue[None] = asyncio.Queue()
    silence = Silence(lambda: PATIENCE, lambda: calls.put_nowait(None))
    for _ in range(2):
        silence.heard()
        async with asyncio.timeout(30):
            await calls.get()
    silence.heard()
    silence.stop()
    silence.stop()
    await asyncio.sleep(3 * PATIENCE)
    assert calls.empty()


async def test_the_patience_of_the_moment_counts() -> None:
    patience = PATIENCE
    called = asyncio.Event()
    silence = Silence(lambda: patience, called.set)
    silence.heard()
    patience = 60.0
    await asyncio.sleep(3 * PATIENCE)
    assert not called.is_set()
    silence.stop()
