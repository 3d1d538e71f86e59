"""Sessions' keys that gateways of tests have in common, in a folder, in the place of a cluster's database.

Each key is a file with its gateway's id, and each gateway a file with its URL. A test can give a key to a
server of its own by writing these. It knows nothing of gateways that are dead: the test says who is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from hashlib import sha256
from pathlib import Path
from unittest import mock

from cellgate.http.hop.signature import HopPlace
from cellgate.server import hop, sessions
from cellgate.server.kernels import INSTANCE_FILE, gateway_id
from cellgate.sessions.ownership import OURS, KeyOwner, Ownership

KEY = b"the key that all gateways of a test have"


class SharedKeys(Ownership):
    """One gateway's view of the keys in the folder; `node` returns the gateway's id."""

    def __init__(self, folder: Path, node: Callable[[], str]) -> None:
        self._folder = folder
        self._node = node

    @property
    def node(self) -> str:
        return self._node()

    async def find(self, principal: str, key: str) -> KeyOwner | None:
        try:
            owner = key_file(self._folder, principal, key).read_text()
        except FileNotFoundError:
            return None
        return OURS if owner == self.node else KeyOwner(self.address_of(owner) or "http://nowhere:1", owner)

    async def claim(self, principal: str, key: str) -> KeyOwner:
        draft = self._folder / f"draft-{self.node}"
        draft.write_text(self.node)
        try:
            os.link(draft, key_file(self._folder, principal, key))
        except FileExistsError:
            return await self.find(principal, key) or OURS
        return OURS

    def release(self, principal: str, key: str) -> None:
        file = key_file(self._folder, principal, key)
        if file.exists() and file.read_text() == self.node:
            file.unlink()

    async def held(self) -> Collection[tuple[str, str]] | None:
        return None

    def follow(
        self, in_use: Callable[[], Collection[tuple[str, str]]], end: Callable[[tuple[str, str]], None]
    ) -> None:
        """Call nothing: nothing is taken over here."""

    def address_of(self, node: str) -> str | None:
        found = [file for file in self._folder.glob(f"node-{node}*") if file.name != f"node-{self.node}"]
        return found[0].read_text() if len(found) == 1 else None


def key_file(folder: Path, principal: str, key: str) -> Path:
    """The file of a session's key."""
    return folder / f"key-{sha256(f'{principal}/{key}'.encode()).hexdigest()}"


def node_file(folder: Path, node: str) -> Path:
    """The file of a gateway."""
    return folder / f"node-{node}"


def share(folder: str, data_dir: str, address: str) -> None:
    """Let the gateway that this process is about to start share the keys in the folder."""

    def node() -> str:
        return gateway_id(Path(data_dir) / INSTANCE_FILE)

    def place(*_: object) -> HopPlace:
        node_file(Path(folder), node()).write_text(address)
        return HopPlace(node(), address, KEY)

    shared = SharedKeys(Path(folder), node)
    mock.patch.object(sessions, "SharedParts", partial(sessions.SharedParts, ownership=shared)).start()
    mock.patch.object(hop, "_place", place).start()
