"""The accounts of all principals that use something: each one's present use, compared with its quotas.

It knows names and amounts, no sessions and no requests. In a cluster, sums of sessions are over all gateways:
`look`, reserve, then `confirm`; and each gateway has an allotment of the other quotas: `ask_for_more`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from heapq import nsmallest
from itertools import chain
from typing import Final

from cellgate.errors import StorageError
from cellgate.fairness.reservation import Reservation
from cellgate.quotas.account import Account, Clock, nobody
from cellgate.quotas.allotment import SUMMED, ZERO, Allotment, ClusterAllotments, Five, HeldPart
from cellgate.quotas.cluster_uses import NOTHING, ClusterUses, Sums
from cellgate.quotas.quotas import NO_QUOTAS, UNLIMITED, Policy, Quotas
from cellgate.quotas.session_sums import Told

FIRST_SWEEP: Final = 1024
"""Number of accounts above which idle ones are removed."""
GLANCE_SECONDS: Final = 1.0
"""The longest wait for the use at other gateways of somebody who only reads it, or needs more at once."""
MOST_TRIES: Final = 8
"""The most attempts to tell the others of a reservation, if what they have reserved changes just then."""


def role_of_name(name: str) -> str:
    """Return the role of a principal while the token's principal is the only one."""
    return "admin" if name == "default" else "user"


class Usage:
    """The accounts of all principals that use something now; idle ones are dropped.

    `role_of`: returns the role of a principal known only by name. `refused` is called with the quota's name
    at each refusal.
    """

    def __init__(
        self,
        policy: Policy = NO_QUOTAS,
        role_of: Callable[[str], str] = role_of_name,
        *,
        clock: Clock = time.monotonic,
        refused: Told = nobody,
    ) -> None:
        self._policy = policy
        self._role_of = role_of
        self._clock = clock
        self._refused = refused
        self._accounts: dict[str, Account] = {}
        self._records: dict[str, int] = {}
        self.measures_records = False
        """Whether the sizes of records are known, and `recorded` must update them."""
        self.cluster: ClusterUses | None = None
        """The uses of quotas at the gateways of a cluster, if this is one of it."""
        self.allotments: ClusterAllotments | None = None
        """The allotments of the gateways of a cluster, if this is one of it."""
        self._sweep_at = FIRST_SWEEP

    def __len__(self) -> int:
        return len(self._accounts)

    def account(self, name: str) -> Account:
        """Return the principal's account. Keep it only while something is reserved in it."""
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= self._sweep_at:
                self._sweep()
            account = self._accounts[name] = self._new(name)
        return account

    def _new(self, name: str) -> Account:
        quotas = self._policy.of(name, self._role_of(name))
        account = Account(name, quotas, self._clock, self._refused, self._changed)
        account.record = self._record_of(name)
        if self.allotments is not None:
            account.allotment = Allotment(self.allotments.beat)
            account.lacking = self.allotments.soon
        return account

    # Other gateways of a cluster

    def _changed(self, name: str) -> None:
        if self.cluster is not None:
            self.cluster.changed(name)

    async def look(self, accounts: Iterable[Account]) -> None:
        """Look up the use at other gateways, of accounts with quotas for sums. Raises StorageError."""
        if self.cluster is None:
            return
        asked = {account.name: account for account in accounts if any(account.quotas.of_sums)}
        if asked:
            found = await self.cluster.of_others([*asked])
            for name, account in asked.items():
                account.of_others = found.get(name, NOTHING)

    async def glance(self, account: Account) -> None:
        """Look as `look` does, but only for a moment: otherwise what was last known stays."""
        with suppress(StorageError, TimeoutError):
            async with asyncio.timeout(GLANCE_SECONDS):
                await self.look([account])
                await self._look_at_parts([account])

    async def _look_at_parts(self, accounts: Sequence[Account]) -> None:
        """Look up what other gateways use of the quotas that are allotted. Raises StorageError."""
        asked = {each.name: each.allotment for each in accounts if any(each.quotas.of_flows)}
        if self.allotments is not None and asked:
            found = await self.allotments.of_others([*asked])
            for name, allotment in asked.items():
                if allotment is not None:
                    allotment.others = found.get(name, ())

    async def confirm(self, name: str, reserved: Reservation) -> None:
        """Tell the other gateways of a session's reservation; release it if, with theirs, it is too much.

        Of two that race for the last place one gets it: neither is published before it is let in. Raises
        PrincipalQuotaExceeded and StorageError.
        """
        account = self.account(name)
        if self.cluster is None or not any(account.quotas.of_sums):
            account.confirm(reserved)
            self._changed(name)
            return
        async with account.publishing:
            for _ in range(MOST_TRIES):
                own = account.confirmed(reserved)
                if await self.cluster.publish(name, own, account.quotas):
                    account.confirm(reserved)
                    return
                await self.look([account])
                if own.plus(account.of_others).exceeds(account.quotas):
                    break
            # Before the next reservation is confirmed, which may fit without this one.
            with_it = account.sums
            reserved.release()
            account.check_sums(with_it.plus(account.sums, -1))
        raise StorageError("Too many gateways use the quotas of this user at the same time; try again")

    async def publish(self, name: str) -> None:
        """Tell other gateways what a principal uses here, whatever the quotas are. Raises StorageError."""
        account = self.account(name)
        async with account.publishing:
            if self.cluster is not None:
                await self.cluster.publish(name, account.confirmed(), UNLIMITED)

    def ask_for_more(self, name: str, length: int) -> Awaitable[None] | None:
        """Await the result, if any, before a request with a body of this length is counted.

        What a principal lacks here of its quotas is then here, if other gateways hold less than the rest.
        """
        if self.allotments is None:
            return None
        account = self.account(name)
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
                async with asyncio.timeout(GLANCE_SECONDS):
                    await self.allot(account.name, more)
            except TimeoutError:
                account.allotment.is_alone = True

    async def allot(self, name: str, more: Five | None = None) -> None:
        """Have the database replace what this gateway is allotted of a principal's quotas, or give it back.

        With `more`, only as long as there is too little for that. Raises StorageError: until the database is
        back, this gateway goes on as if there were no other.
        """
        account, cluster = self.account(name), self.allotments
        allotment = account.allotment
        if allotment is None or cluster is None:
            return
        async with allotment.exchanging:
            if more is not None and not self._lacks(account, more):
                return
            if more is not None or any(account.flows()):
                allotment.touch(self._clock())
            try:
                await self._exchange(account, allotment, cluster)
            except StorageError:
                allotment.is_alone = True
                raise
            finally:
                account.give_turns()

    async def _exchange(self, account: Account, allotment: Allotment, cluster: ClusterAllotments) -> None:
        now, limits = self._clock(), account.quotas.of_flows
        if not any(limits) or allotment.is_over(now):
            if allotment.known:
                allotment.begin(ZERO)
                await cluster.remove(account.name)
            allotment.forget()
            return
        was_written = False
        for _ in range(MOST_TRIES):
            part, may_use = allotment.propose(limits, account.flows(), account.without_turn, now)
            allotment.begin(may_use)
            seen = allotment.others
            is_written, allotment.others = await cluster.replace(account.name, part, limits)
            # Once more if others' parts have changed, of which ours was not aware.
            if is_written and (was_written or seen == allotment.others):
                break
            was_written = was_written or is_written
        else:
            part = HeldPart(account.flows(), account.flows(), part.short)
            # Nothing more begins while all together use more than the quota.
            allotment.begin(part.held)
            may_use = allotment.may_use
            _, allotment.others = await cluster.replace(account.name, part, ())
        allotment.set(part, may_use, now)

    async def top_up(self, name: str) -> None:
        """Get more of what a principal lacks here, or give up what others lack. Raises StorageError."""
        allotment = self.account(name).allotment
        if allotment is not None:
            allotment.touch(self._clock())
            await self.allot(name)

    async def renew(self) -> None:
        """Look at all allotments of this gateway, as at each beat. Raises StorageError."""
        for account in tuple(self._accounts.values()):
            allotment = account.allotment
            if allotment is not None and (allotment.known or allotment.is_alone):
                await self.allot(account.name)

    def _sweep(self) -> None:
        for name, account in tuple(self._accounts.items()):
            if account.idle:
                del self._accounts[name]
        # The next one follows when as many have been added: each looks at all accounts.
        self._sweep_at = max(FIRST_SWEEP, 2 * len(self._accounts))

    async def page(self, after: str, limit: int) -> tuple[list[Account], bool]:
        """Return the accounts in use, at any gateway, or with a record, by name, behind `after`; and whether
        more follow. Without an answer of the cluster for a moment, those of this gateway.
        """
        others: Mapping[str, Sums] | None = None
        if self.cluster is not None:
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(GLANCE_SECONDS):
                    others = await self.cluster.first(after, limit + 1)
        using = (name for name, account in self._accounts.items() if not account.idle)
        names = {name for name in chain(using, self._records, others or ()) if name > after}
        found = nsmallest(limit + 1, names)
        accounts = [self._accounts.get(name) or self._new(name) for name in found[:limit]]
        if others is not None:
            for account in accounts:
                account.of_others = others.get(account.name, NOTHING)
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(GLANCE_SECONDS):
                    await self._look_at_parts(accounts)
        return accounts, len(found) > limit

    def role(self, name: str) -> str:
        """Return the role of a principal."""
        return self._role_of(name)

    def quotas(self, name: str) -> Quotas:
        """Return the quotas of a principal."""
        return self.account(name).quotas

    def change(self, policy: Policy) -> None:
        """Apply another policy. Use above a lowered quota stays; cells in line may have a turn now."""
        self._policy = policy
        self.refresh()

    def refresh(self) -> None:
        """Look up everybody's quotas again, because roles or quotas have changed."""
        for name, account in self._accounts.items():
            account.quotas = self._policy.of(name, self._role_of(name))
        for account in tuple(self._accounts.values()):
            account.give_turns()

    def refresh_account(self, name: str) -> None:
        """Look up the principal's quotas again, because its role has changed."""
        account = self._accounts.get(name)
        if account is not None:
            account.quotas = self._policy.of(name, self._role_of(name))
            account.give_turns()

    def pass_bytes(self, name: str, count: int) -> None:
        """Count bytes to or from the principal; its account may be dropped meanwhile."""
        self.account(name).pass_bytes(count)

    async def pass_network(self, name: str, count: int) -> None:
        """Wait until bytes between a principal's session and a host may be sent, and count them."""
        wait = self.account(name).take_network(count)
        if wait:
            try:
                await asyncio.sleep(wait)
            except asyncio.CancelledError:
                self.account(name).give_back_network(count)
                raise
        self.account(name).pass_network(count)

    # The record, whose size lasts longer than an account

    def load_records(self, sizes: Mapping[str, int]) -> None:
        """Store the sizes of existing records, by principal."""
        self._records = dict(sizes)
        self.measures_records = True
        for name, account in self._accounts.items():
            account.record = self._record_of(name)

    def _record_of(self, name: str) -> int | None:
        return self._records.get(name, 0) if self.measures_records else None

    def recorded(self, name: str, size: int) -> None:
        """Add bytes to the size of the principal's record, or subtract them if negative."""
        if not self.measures_records:
            return
        total = max(0, self._records.get(name, 0) + size)
        if total:
            self._records[name] = total
        else:
            self._records.pop(name, None)
        if (account := self._accounts.get(name)) is not None:
            account.record = total
