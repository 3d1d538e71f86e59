"""Remembers which gateway has which session, so that a call never goes on in another one's empty session.

Gateways behind one address, such as that of a load balancer, know nothing of each other's sessions: the same
name is a session of each. Each answer names its gateway in `Cellgate-Owner`. A call for a session that is
known sends that name along, and another gateway refuses it (421 `not_owner`). Gateways of a cluster know of
each other, hand calls on, and say in `Cellgate-Owner-Address` where a session is. Pure, for ``transport``.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping

from cellgate.client.errors import NotOwner
from cellgate.wire.owner import OWNER, OWNER_ADDRESS

MOST_KNOWN = 10_000
"""Sessions that are remembered; the one that was used longest ago is forgotten first."""
MOST_UNREACHED = 1000
_LONGEST_ADDRESS = 500
_SESSIONS = "/v1/sessions/"
_ID = re.compile("[0-9a-f]{1,64}")
"""A gateway's id. Whoever answers may be none: anything else is as good as nothing, and is not kept."""


class Owners:
    """The gateways that answered for sessions, by the sessions' paths."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, str] = OrderedDict()
        self._addresses: OrderedDict[str, str] = OrderedDict()
        self._unreached: set[str] = set()

    def headers(self, session: str | None) -> Mapping[str, str]:
        """Return the header of a request for the session with this path; none if it is not known."""
        owner = None if session is None else self._known.get(session)
        return {} if owner is None else {OWNER: owner}

    def learn(self, session: str | None, headers: Mapping[str, str]) -> None:
        """Take note of an answer for a session, by its headers (in lower case).

        Raises NotOwner if it is not of the gateway that has answered before.
        """
        owner = headers.get(OWNER.lower(), "")
        if session is None or not _ID.fullmatch(owner):
            return
        if address := headers.get(OWNER_ADDRESS.lower(), ""):
            # A session of a cluster may move, and each of its gateways knows where it is.
            self._known.pop(session, None)
            self._addresses[session] = address[:_LONGEST_ADDRESS]
            self._addresses.move_to_end(session)
            if len(self._addresses) > MOST_KNOWN:
                self._addresses.popitem(last=False)
            return
        known = self._known.setdefault(session, owner)
        self._known.move_to_end(session)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        if known != owner:
            raise NotOwner(
                421,
                NotOwner.REASON,
                f"The gateway {owner} answered for a session that {known} has, and has none of it. Requests"
                " for one session must reach one gateway: see docs/how-to/use-several-machines.md",
            )

    def knows(self, session: str | None) -> bool:
        """Return whether it is known who has a session: no other gateway carries a repeated request out."""
        return session is not None and (session in self._known or session in self._addresses)

    def learn_branch(self, session: str, branch: str) -> None:
        """Note that a session's branch is where the session is, if that is known. Raises NotOwner."""
        self.learn(branch, {name.lower(): owner for name, owner in self.headers(session).items()})

    def forget(self, session: str) -> None:
        """Forget a session that has ended: any gateway may make the next one of its name."""
        self._known.pop(session, None)
        self._addresses.pop(session, None)

    def address(self, session: str | None) -> str | None:
        """Return the URL of the session's gateway in a cluster, if it is known and was never out of reach."""
        found = None if session is None else self._addresses.get(session)
        return None if found in self._unreached else found

    def is_out_of_reach(self, address: str) -> None:
        """Note that this client can't connect to a gateway: its network is another one."""
        if len(self._unreached) < MOST_UNREACHED:
            self._unreached.add(address)
        for session in [each for each, found in self._addresses.items() if found == address]:
            del self._addresses[session]


def session_in(target: str) -> str | None:
    """Return the path of the session in a request's target or a location, without any prefix; or None."""
    _, found, rest = target.partition("?")[0].partition(_SESSIONS)
    return _SESSIONS + rest.partition("/")[0] if found else None
