"""/v1/sessions/{s}/ports/{port}: a URL at which a browser finds what a program shows on a port."""

from __future__ import annotations

from urllib.parse import urlsplit
from weakref import ref

from cellgate.errors import Forbidden, NotFound
from cellgate.execution.checks import check_session_key
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, READS, Answer, operation
from cellgate.identity.principal import DEFAULT, Permission
from cellgate.identity.tickets import TICKET_SECONDS
from cellgate.ports.grants import PortGrant
from cellgate.ports.origin import check_port
from cellgate.wire.answers import PortUrl


class PortHandler(BaseHandler):
    """A port of a session."""

    @operation(
        "open_port",
        "Open a port in a browser",
        Answer(200, "A URL that works once, within a minute.", {JSON: PortUrl}),
        description=(
            "What a program in the session shows on this port, by HTTP or WebSocket, at an origin that is not"
            " the gateway's. Programs with a token need no such URL: they send it with each request. 404 if"
            " the gateway serves no ports (`--ports-port`)."
        ),
        errors=READS,
        needs=Permission.RUN,
    )
    async def post(self, key: str, port: str) -> None:
        number = check_port(port)
        session = self.services.sessions.manager.live(self.owner, check_session_key(key))
        ports = self.services.front.ports
        if ports is None:
            raise NotFound("This gateway serves no ports: its operator starts it with --ports-port")
        if not ports.origin.wild and {self.principal.name, self.owner} != {DEFAULT.principal.name}:
            # All pages share an origin: one user's program could read another's pages that a browser has
            # open, also in the browser of an administrator who looks at both.
            raise Forbidden(
                "On a gateway with users, a browser needs an origin for each port: its operator starts it"
                " with --ports-url and a name for all, such as https://*.ports.example.org",
                cause="ports_origin",
            )
        place = ports.origin.place(self.owner, session.row.key, number)
        sender = self.sender
        life = None if sender.secret is None else self.services.people.sign_ins.life(sender.secret)
        key = session.row.key
        grant = PortGrant(
            self.login, self.owner, key, number, place, ref(session.ports), sender.signed_in, life
        )
        reached_at = urlsplit(f"//{self.request.host}").hostname or ""
        url = f"{ports.origin.url(place, reached_at)}?ticket={ports.tickets.issue(grant)}"
        self.answer(PortUrl(session=session.row.key, port=number, url=url, expires_in=TICKET_SECONDS))
