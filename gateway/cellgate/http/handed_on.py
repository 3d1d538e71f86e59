"""Requests that another gateway of the cluster may have to answer: what each is about, as its handler knows.

``base`` asks ``hop`` before a body is read; a body that had to be read to find the session is handed on here.
"""

from __future__ import annotations

from typing import ClassVar

from cellgate.errors import OwnedElsewhere
from cellgate.http.message import MessageHandler
from cellgate.wire.owner import OWNER_ADDRESS, UUID_LENGTH, node_in


class HandedOnHandler(MessageHandler):
    """A handler whose request may be about a session of another gateway."""

    names_session: ClassVar[bool] = True
    """Whether the first variable part of a path of ours is a session's key."""
    for_port: ClassVar[bool] = False
    """Whether the request is to a program of a session, not to the gateway's own interfaces."""
    owner: str
    """The principal whose sessions the request is about."""

    def set_default_headers(self) -> None:
        """Set the headers of every answer, also of one that replaces another that was begun."""
        super().set_default_headers()
        self.name_address()

    def name_address(self) -> None:
        """Name the address of this gateway of a cluster to a sender that is known, and to nobody else."""
        if getattr(self, "login", None) is not None and (address := self.application.settings.get("address")):
            self.set_header(OWNER_ADDRESS, address)

    @property
    def node(self) -> str:
        """The id of this gateway in its cluster; empty without one."""
        return self.services.sessions.manager.keys.ownership.node

    def session_wanted(self) -> str | None:
        """Return the key of the session that the request is about, as far as its head says; else None."""
        return self.path_args[0] if self.path_args and self._under_v1 and self.names_session else None

    def made_at(self) -> str | None:
        """Return the first digits of the id of the gateway that made what the request names, if it says.

        It has the files of a session that has ended, unless another gateway went on with that.
        """
        key = self.session_wanted()
        return None if key is None else node_in(key[-UUID_LENGTH:])

    async def hand_on(self, error: OwnedElsewhere) -> None:
        """Hand the request on, whose body was read, to the gateway that has its session.

        Raises the error outside a cluster, where the answer has begun, and where the body was not kept.
        """
        hop = self.services.front.hop
        if hop is None or error.address is None or self._headers_written or not self.keeps_body:
            raise error
        await hop.hand_on(self, error.address, self.raw_body())
        if self.relay is not None:
            await self.relay.finish()
