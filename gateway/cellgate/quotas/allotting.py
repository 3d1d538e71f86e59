"""Asks for this gateway's parts of the quotas that are allotted: at once for what is lacking, and each beat.

The rule is in ``allotment``, the accounts are ``usage``'s, and ``cluster.allotments`` says when it is time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final

from cellgate.errors import StorageError
from cellgate.quotas.allotment import (
    SUMMED,
    ZERO,
    Allotment,
    AskedPart,
    AsksForMore,
    ClusterAllotments,
    Five,
    HeldPart,
)
from cellgate.quotas.usage import Account, Usage

ASK_SECONDS: Final = 1.0
"""The longest wait of a request for more of a quota; afterwards this gateway goes on by itself."""
MOST_TRIES: Final = 8
"""The most attempts to replace a part, if the others' parts change just then."""
MOST_TOGETHER: Final = 250
"""The most principals whose parts are renewed by one statement: some milliseconds of the loop's time."""


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
                await self._exchange([(account, allotment)])
            except StorageError:
                allotment.is_alone = True
                raise
            finally:
                account.give_turns()

    async def _exchange(self, accounts: Sequence[tuple[Account, Allotment]]) -> None:
        """Have the database replace the parts of these principals together, or give them back."""
        now = self._clock()
        exchanges = []
        over = {}
        for account, allotment in accounts:
            if any(account.quotas.of_flows) and not allotment.is_over(now):
                exchanges.append(_Exchange(account, allotment, now))
            else:
                over[account.name] = allotment
        await self._give_back(over)
        for _ in range(MOST_TRIES):
            exchanges = await self._replace(exchanges, _Exchange.next_part)
        for each in await self._replace(exchanges, _Exchange.used_part):
            each.end()

    async def _give_back(self, over: Mapping[str, Allotment]) -> None:
        known = {name: allotment for name, allotment in over.items() if allotment.known}
        for allotment in known.values():
            allotment.begin(ZERO)
        if known:
            await self.cluster.remove([*known])
        for allotment in over.values():
            allotment.forget()

    async def _replace(
        self, exchanges: Sequence[_Exchange], part_of: Callable[[_Exchange], AskedPart]
    ) -> list[_Exchange]:
        """Have the database replace a part of each. Return those that are to be tried once more."""
        if not exchanges:
            return []
        answers = await self.cluster.replace({each.name: part_of(each) for each in exchanges})
        return [each for each in exchanges if not each.ends_with(*answers[each.name])]

    async def top_up(self, name: str) -> None:
        """Get more of what a principal lacks here, or give up what others lack. Raises StorageError."""
        allotment = self._usage.account(name).allotment
        if allotment is not None:
            allotment.touch(self._clock())
            await self.allot(name)

    async def renew(self) -> None:
        """Look at all allotments of this gateway, as at each beat. Raises StorageError."""
        names = [account.name for account in self._usage.in_use() if _is_in_use(account.allotment)]
        try:
            for first in range(0, len(names), MOST_TOGETHER):
                await self._renew(names[first : first + MOST_TOGETHER])
        except StorageError:
            self._run_what_waits()
            raise

    async def _renew(self, names: Sequence[str]) -> None:
        accounts = []
        async with AsyncExitStack() as stack:
            for name in names:
                account = self._usage.account(name)
                allotment = account.allotment
                # One that is being exchanged is looked at just now.
                if allotment is None or allotment.exchanging.locked():
                    continue
                await stack.enter_async_context(allotment.exchanging)
                if any(account.flows()):
                    allotment.touch(self._clock())
                accounts.append((account, allotment))
            try:
                await self._exchange(accounts)
            finally:
                for account, _ in accounts:
                    account.give_turns()

    def _run_what_waits(self) -> None:
        """Let cells in line have their turns as if there were no other gateway."""
        for account in self._usage.in_use():
            if account.allotment is not None and account.without_turn:
                account.allotment.is_alone = True
                account.give_turns()


def _is_in_use(allotment: Allotment | None) -> bool:
    return allotment is not None and (allotment.known or allotment.is_alone)


class _Exchange:
    """What is tried to replace one principal's part, at the time `now`."""

    def __init__(self, account: Account, allotment: Allotment, now: float) -> None:
        self.name = account.name
        self._account = account
        self._allotment = allotment
        self._now = now
        self._limits = account.quotas.of_flows
        self._part = HeldPart()
        self._may_use = ZERO
        self._was_written = False

    def next_part(self) -> AskedPart:
        """Return the part to try next. What it does not have is not used from now on."""
        account = self._account
        self._part, self._may_use = self._allotment.propose(
            self._limits, account.flows(), account.without_turn, self._now
        )
        self._allotment.begin(self._may_use)
        return AskedPart(self._part, self._limits)

    def used_part(self) -> AskedPart:
        """Return what is used already as a part that always fits.

        Nothing more begins while all together use more than the quota.
        """
        used = self._account.flows()
        self._part = HeldPart(used, used, self._part.short)
        self._allotment.begin(used)
        self._may_use = self._allotment.may_use
        return AskedPart(self._part, ())

    def ends_with(self, is_written: bool, others: Sequence[HeldPart]) -> bool:
        """Note an answer of the database; return whether it was the last."""
        seen, self._allotment.others = self._allotment.others, others
        # Once more if others' parts have changed, of which ours was not aware.
        is_last = is_written and (self._was_written or seen == others)
        self._was_written = self._was_written or is_written
        if is_last:
            self.end()
        return is_last

    def end(self) -> None:
        """Note the part that the database has now."""
        self._allotment.set(self._part, self._may_use, self._now)
