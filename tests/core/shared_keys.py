"""The ownership of a gateway in a cluster, without a database: for tests of sessions."""

from __future__ import annotations

from cellgate.sessions.ownership import OURS, KeyOwner, Ownership

Keys = dict[tuple[str, str], str]


class Shared(Ownership):
    """One gateway's view of keys that two gateways have in common. `homes`: where sessions' files are."""

    def __init__(self, here: str, keys: Keys, homes: Keys | None = None) -> None:
        self.here, self.keys = here, keys
        self.homes = {} if homes is None else homes

    @property
    def node(self) -> str:
        return self.here

    async def find(self, principal: str, key: str) -> KeyOwner | None:
        at = self.keys.get((principal, key))
        return None if at is None else OURS if at == self.here else KeyOwner(at)

    async def home(self, principal: str, key: str) -> KeyOwner | None:
        at = self.homes.get((principal, key))
        return None if at is None else OURS if at == self.here else KeyOwner(at)

    async def files_at(self, principal: str, key: str) -> str:
        at = self.homes.get((principal, key), self.here)
        return "" if at == self.here else at

    async def claim(self, principal: str, key: str) -> KeyOwner:
        self.keys.setdefault((principal, key), self.here)
        owner = await self.find(principal, key)
        assert owner is not None
        moved = owner == OURS and self.homes.setdefault((principal, key), self.here) != self.here
        return KeyOwner(moved=True) if moved else owner

    async def settle(self, principal: str, key: str) -> None:
        assert self.keys[principal, key] == self.here
        self.homes[principal, key] = self.here

    def release(self, principal: str, key: str) -> None:
        if self.keys.get((principal, key)) == self.here:
            del self.keys[principal, key]

    def address_of(self, node: str) -> str | None:
        return None
