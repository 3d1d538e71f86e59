"""Keys of sandboxes: the session that is the sandbox of an id, and whose it is.

Clients call a sandbox by an id of the door's making. Each door, and each principal, has ids of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

from cellgate.errors import NotFound
from cellgate.http.services import Services
from cellgate.identity.principal import Login
from cellgate.sessions.registry import SessionRegistry
from cellgate.sessions.session import Session
from cellgate_kernels.base.tasks import Supervisor

KEY_DIGITS: Final = 32
_ID = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)


def key_of(door: str, principal: str, sandbox: str, prefix: str = "") -> str:
    """Return the key of a principal's sandbox. `prefix`: with which the keys of its token begin."""
    told = hashlib.sha256(f"{principal}\0{sandbox}".encode()).hexdigest()
    return f"{prefix}{door}-{told[:KEY_DIGITS]}"


def session_key(door: str, login: Login, sandbox: str) -> str:
    """Return the key of a login's sandbox; a token for keys with a prefix has sandboxes of its own."""
    return key_of(door, login.principal.name, sandbox, login.reach.prefix)


def find(door: str, services: Services, login: Login, sandbox: str) -> Session | None:
    """Return the login's sandbox of this id, and of this door, if it runs."""
    if not _ID.fullmatch(sandbox):
        return None
    key = session_key(door, login, sandbox)
    session = services.sessions.manager.get(login.principal.name, key)
    if session is None or session.ending or not login.reach.covers(key):
        return None
    return session


@asynccontextmanager
async def whole_or_deleted(manager: SessionRegistry, session: Session) -> AsyncGenerator[None]:
    """Delete a new session if what has to follow its opening fails: its client has no name for it."""
    try:
        yield
    except BaseException:
        with suppress(NotFound):
            await Supervisor().complete(
                manager.delete(session.account.name, session.row.key), "delete half of a sandbox"
            )
        raise
