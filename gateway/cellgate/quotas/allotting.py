"""Asks for this gateway's parts of the quotas that are allotted: at once for what is lacking, and each beat.

The rule is in ``allotment``, the accounts are ``usage``'s, and ``cluster.allotments`` says when it is time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from cellgate.errors import StorageError
from cellgate.quotas.allotment import SUMMED, ZERO, Allotment, AsksForMore, ClusterAllotments, Five, HeldPart
from cellgate.quotas.usage import Account, Usage

ASK_SECONDS: Final = 1.0
"""The longest wait of a request for more of a quota; afterwards this gateway goes on by itself."""
MOST_TRIES: Final = 8
"""The most attempts to replace a part, if the others' parts change just then."""


class Allotting(AsksForMore):
    """The parts of all principals of `usage`, in `cluster`. `clock`: that of `usage`."""

    def __init__(
        self, usage: Usage, cluster: ClusterAllotments, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cluster = cluster
        self._usage = usage
        self._clock = clock

    def ask_for_more(self, name: str, length: int) -> Awaitable[None] | None:
        account = self._usage.account(name)
        more = (0, 0, 1, min(max(length, 1), account.quotas.bytes_per_minute or 1), 0)
        return self._get_more(account, more) if self._lacks(account, more) else None

    def _lacks(self, account: Account, more: Five) -> bool:
        allotment = account.allotment
        if allotment is None:
            return False
        return allotment.lacks(account.quotas.of_flows, account.flows(), more, self._clock())

    async def _get_more(self, account: Account, more: Five) -> None:
        assert account.allotment is not None
        for flow in SUMMED:
            if more[flow]:
                account.allotment.want(flow, more[flow], self._clock())
        with suppress(StorageError):
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    await self.allot(account.name, more)
            except TimeoutError:
                account.allotment.is_alone = True

    async def allot(self, name: str, more: Five | None = None) -> None:
        """Have the database replace what this gateway is allotted of a principal's quotas, or give it back.

        With `more`, only as long as there is too little for that. Raises StorageError: until the database is
        back, this gateway goes on as if there were no other.
        """
        account = self._usage.account(name)
        allotment = account.allotment
        if allotment is None:
            return
        async with allotment.exchanging:
            if more is not None and not self._lacks(account, more):
                return
            if more is not None or any(account.flows()):
                allotment.touch(self._clock())
            try:
                await self._exchange(account, allotment)
            except StorageError:
                allotment.is_alone = True
                raise
            finally:
                account.give_turns()

    async def _exchange(self, account: Account, allotment: Allotment) -> None:
        now, limits = self._clock(), account.quotas.of_flows
        if not any(limits) or allotment.is_over(now):
            if allotment.known:
                allotment.begin(ZERO)
                await self.cluster.remove(account.name)
            allotment.forget()
            return
        was_written = False
        for _ in range(MOST_TRIES):
            part, may_use = allotment.propose(limits, account.flows(), account.without_turn, now)
            allotment.begin(may_use)
            seen = allotment.others
            is_written, allotment.others = await self.cluster.replace(account.name, part, limits)
            # Once more if others' parts have changed, of which ours was not aware.
            if is_written and (was_written or seen == allotment.others):
                break
            was_written = was_written or is_written
        else:
            part = HeldPart(account.flows(), account.flows(), part.short)
            # Nothing more begins while all together use more than the quota.
            allotment.begin(part.held)
            may_use = allotment.may_use
            _, allotment.others = await self.cluster.replace(account.name, part, ())
        allotment.set(part, may_use, now)

    async def top_up(self, name: str) -> None:
        """Get more of what a principal lacks here, or give up what others lack. Raises StorageError."""
        allotment = self._usage.account(name).allotment
        if allotment is not None:
            allotment.touch(self._clock())
            await self.allot(name)

    async def renew(self) -> None:
        """Look at all allotments of this gateway, as at each beat. Raises StorageError."""
        for account in self._usage.in_use():
            allotment = account.allotment
            if allotment is not None and (allotment.known or allotment.is_alone):
                await self.allot(account.name)
