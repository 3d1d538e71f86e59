"""The base of the handlers of Jupyter's own interface, on top of the access checks of ``base``.

Bodies are read tolerantly, because Jupyter's clients differ, and errors have Jupyter's form. It also presents
a session as a Jupyter kernel.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, replace
from typing import Any

import msgspec

from cellgate.console.cookies import CookiePlace, Purpose
from cellgate.errors import NotFound, quota_of
from cellgate.http.access import token_of
from cellgate.http.base import BaseHandler
from cellgate.http.jupyter.logged_in import WORD_HEADER, login_of
from cellgate.http.message import encode
from cellgate.identity.principal import Ask, Login
from cellgate.sessions.model import TITLE
from cellgate.sessions.session import Session
from cellgate.sessions.state import SessionState
from cellgate.wire.models import SessionBody
from cellgate.wire.owner import made_at, node_in
from cellgate_kernels.base.errors import CellgateError, InvalidInput

# Jupyter Server adds these to every request. They describe its machine, not the kernel's, and a kernel with
# its own environment variables can't come from the warm pool.
OF_THE_CLIENT = frozenset({"KERNEL_USERNAME", "KERNEL_WORKING_DIR", "KERNEL_LAUNCH_TIMEOUT"})
NOTEBOOK = "JPY_SESSION_NAME"
"""Jupyter's variable for the path of a kernel's document; Jupyter Server sends it if configured to."""
MOST_PATH = 4096

_STATES = {
    SessionState.STARTING: "starting",
    SessionState.IDLE: "idle",
    SessionState.ASLEEP: "idle",
    SessionState.BUSY: "busy",
}


def kernel_id(session: Session, node: str = "") -> str:
    """Return the id of a session's kernel for Jupyter clients; restarts don't change it.

    It is the session's key if that is a UUID, else a UUID derived from it: Jupyter's clients expect UUIDs. In
    a cluster, where this gateway's id is `node`, that one begins as it: the others know where the kernel is.
    """
    key = session.row.key
    try:
        if str(uuid.UUID(key)) == key.lower():
            return key
    except ValueError:
        pass
    derived = str(uuid.uuid5(uuid.NAMESPACE_URL, f"cellgate:{session.row.principal}/{key}"))
    return made_at(node, derived) if node else derived


class JupyterHandler(BaseHandler):
    """A handler of Jupyter's own interface."""

    # fetch() sends a string with this type unless told otherwise, and @jupyterlab/services does not.
    body_types = BaseHandler.body_types | {"text/plain"}

    def _authenticate(self) -> Login | Ask:
        """Authenticate as for any request; without a token, use the login of a logged-in client."""
        headers = self.request.headers
        token = self.get_query_argument("token", None)
        if WORD_HEADER in headers and not token_of(headers.get("Authorization", ""), token):
            found = self.login_place.secrets(headers.get_list("Cookie"))
            login = login_of(self.services.people.derived_tokens, headers, found, time.time())
            if login is not None:
                return login
        return super()._authenticate()

    @property
    def login_place(self) -> CookiePlace:
        """The place of the cookie of a client that has logged in."""
        return replace(self.sender.cookie_place, purpose=Purpose.JUPYTER)

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        quota = quota_of(error)
        members = {} if quota is None else asdict(quota)
        return "application/json", encode({"message": error.message, "reason": error.reason, **members})

    async def fields(self) -> dict[str, Any]:
        """Return the request's JSON object; an empty body and null count as empty. Raises InvalidInput."""
        empty = self.raw_body().strip() in {b"", b"null"}
        return {} if empty else await self.body(dict[str, Any])

    def text(self, fields: dict[str, Any], name: str) -> str | None:
        """Return a field that is a string or absent. Raises InvalidInput."""
        value = fields.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidInput(f"{name} must be a string")
        return value or None

    def strings(self, fields: dict[str, Any], name: str) -> dict[str, str]:
        """Return a field that maps strings to strings, or is absent. Raises InvalidInput."""
        try:
            return msgspec.convert(fields.get(name) or {}, dict[str, str])
        except msgspec.ValidationError as error:
            raise InvalidInput(f"{name} does not fit: {error}") from error

    def kernel_id(self, session: Session) -> str:
        """Return the id of a session's kernel."""
        return kernel_id(session, self.node)

    def kernel_model(self, session: Session) -> dict[str, Any]:
        """Jupyter's model of a kernel."""
        return {
            "id": self.kernel_id(session),
            "name": session.row.kernel,
            "last_activity": session.record.last_activity,
            "execution_state": _STATES.get(session.state, "dead"),
            "connections": session.door.connections,
        }

    def live_sessions(self) -> list[Session]:
        """Return the owner's live sessions that the login reaches."""
        covers = self.login.reach.covers
        return [each for each in self.services.sessions.manager.all_live(self.owner) if covers(each.row.key)]

    def session_wanted(self) -> str | None:
        """Return the key of the session that the request is about: a kernel's id may be one."""
        wanted = self.kernel_wanted()
        if wanted is None or any(self.kernel_id(each) == wanted for each in self.live_sessions()):
            return None
        return wanted

    def made_at(self) -> str | None:
        wanted = self.kernel_wanted()
        return None if wanted is None else node_in(wanted)

    def kernel_wanted(self) -> str | None:
        """Return the id of the kernel that the path names; None if it names none."""
        return None

    def session_of(self, wanted: str) -> Session:
        """Return the principal's live session with this key or kernel id. Raises NotFound."""
        for session in self.live_sessions():
            if wanted in {session.row.key, self.kernel_id(session)}:
                return session
        raise NotFound(f"Kernel does not exist: {wanted[:100]}")

    async def start(self, name: str | None, env: dict[str, str], path: str | None = None) -> Session:
        """Return a session with a fresh kernel of this gateway; `path`: the kernel's document, its title.

        A full gateway keeps the request waiting even if another one has room: lists of kernels have those of
        one gateway, so the proxy in front sends all such requests of a token to the same one.
        """
        kept = {key: value for key, value in env.items() if key not in OF_THE_CLIENT and key != NOTEBOOK}
        title = path or env.get(NOTEBOOK, "")
        key = self.login.reach.new_key(self.node) if self.login.reach.prefix else None
        metadata = {TITLE: title[:MOST_PATH]} if title else {}
        body = SessionBody(session=key, kernel=name, env=kept, metadata=metadata)
        session, _ = await self.services.sessions.manager.get_or_create(self.owner, body, here=True)
        return session
