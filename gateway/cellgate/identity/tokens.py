"""The text of tokens, and the words in which they and their owners are named. Pure.

A token is ``cg_ID_SECRET``: the id names it in lists, logs and the audit trail; only a digest of the whole is
kept. The secret has 256 random bits, so a plain hash is enough: it can't be guessed from its digest.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime

from cellgate.identity.principal import GRANTED, Permission, Reach, Role
from cellgate.wire.models import SESSION_KEY
from cellgate_kernels.base.errors import InvalidInput

ID_BYTES = 6
SECRET_BYTES = 32
MOST_SECONDS = 100 * 366 * 86400.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@|:+-]{0,127}")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,91}")
_TIME = re.compile(r"(\d{1,9})([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def new_token() -> tuple[str, str]:
    """Return a fresh id, and the token with this id."""
    name = secrets.token_hex(ID_BYTES)
    return name, f"cg_{name}_{secrets.token_urlsafe(SECRET_BYTES)}"


def digest(token: str) -> bytes:
    """Return the digest that is kept and compared instead of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def check_name(name: str) -> str:
    """Return a principal's name: login names, addresses and subjects fit. Raises InvalidInput."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:40]!r} can't be a user's name: it is 1 to 128 of A-Z a-z 0-9 . _ @ | : + - and begins"
            " with a letter or a digit"
        )
    return name


def parse_scopes(text: str) -> frozenset[Permission]:
    """Return the scopes in a text with commas. Raises InvalidInput that names the wrong one."""
    found = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word not in set(Permission):
            raise InvalidInput(f"There is no scope {word[:40]!r}; choose from {', '.join(Permission)}")
        found.add(Permission(word))
    if not found:
        raise InvalidInput(f"A token needs at least one scope of {', '.join(Permission)}")
    return frozenset(found)


def scopes_text(scopes: Iterable[Permission]) -> str:
    """Return the scopes, in the order of `Permission`, separated by commas."""
    chosen = frozenset(scopes)
    return ",".join(each for each in Permission if each in chosen)


def check_scopes(user: str, role: Role, scopes: frozenset[Permission] | None) -> None:
    """Check that the user's role has the scopes: the token would not have others. Raises InvalidInput."""
    granted = GRANTED[role]
    if beyond := (scopes or frozenset()) - granted:
        raise InvalidInput(
            f"{user} has the role {role}, which does not include {scopes_text(beyond).replace(',', ', ')};"
            f" choose from {scopes_text(granted).replace(',', ', ')}"
        )


def check_reach(*, key: str = "", prefix: str = "") -> Reach:
    """Return the keys that a token reaches: one, those with a prefix, or all. Raises InvalidInput."""
    if key and prefix:
        raise InvalidInput("A token is for one session or for a prefix, not both")
    if key:
        if not SESSION_KEY.fullmatch(key):
            raise InvalidInput(
                f"{key[:40]!r} can't be a session's key: it is 1 to 128 of A-Z a-z 0-9 . _ ~ - and begins"
                " with a letter or a digit"
            )
        return Reach(key, exact=True)
    if prefix and not _PREFIX.fullmatch(prefix):
        raise InvalidInput(
            f"{prefix[:40]!r} can't begin session keys: a prefix is 1 to 92 of A-Z a-z 0-9 . _ ~ - and begins"
            " with a letter or a digit"
        )
    return Reach(prefix)


def parse_expiry(text: str, at: float) -> float:
    """Return a token's end in seconds since the epoch: after ``90s``, ``12h``, ``30d``, or an RFC 3339 time.

    `at`: the time now. Raises InvalidInput, also for a time that is over.
    """
    if (duration := _TIME.fullmatch(text)) is not None:
        seconds = float(int(duration[1]) * _UNITS[duration[2]])
        if not 0 < seconds <= MOST_SECONDS:
            raise InvalidInput("A token's time is above 0 and at most 100 years")
        return at + seconds
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{text[:40]!r} is no time: give 90s, 12h, 30d, or a time such as 2030-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise InvalidInput(f"{text!r} needs a time zone; for UTC append Z")
    ends = moment.timestamp()
    if not at < ends <= at + MOST_SECONDS:
        raise InvalidInput(f"{text!r} is over already, or more than 100 years ahead")
    return ends


def time_text(seconds: float) -> str:
    """Return a time in seconds since the epoch as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
