"""A client's log-in as to a Jupyter server: its cookie, and the word that must come with the cookie.

``login`` issues both, ``base`` accepts requests that have both. The cookie's secret is derived from the login
for this word (``principals.derived``), and the word contains its time, so nothing is stored: a secret is
valid as long as its login, for a day at most. A page of another origin can't send the word, which has to be
in a field of its own, so the cookie is useless to it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Final

from cellgate.identity.derived import DerivedTokens
from cellgate.identity.principal import Login

WORD_HEADER: Final = "X-XSRFToken"
"""Jupyter's header for the word."""
WORD_COOKIE: Final = "_xsrf"
"""Jupyter's cookie and form field for the word."""
WORD_SECONDS: Final = 600.0
"""Seconds for which a word is valid for logging in."""
LOGIN_SECONDS: Final = 24 * 3600.0
WORD_BYTES: Final = 16
_WORD = re.compile(r"([0-9a-f]{1,10})\.[0-9a-f]{32}", re.ASCII)


def new_word(at: float) -> str:
    """Return an unguessable word; `at`: the time now."""
    return f"{int(at):x}.{secrets.token_hex(WORD_BYTES)}"


def is_recent(word: str, at: float, seconds: float) -> bool:
    """Return whether a word may be one of ours that is at most so many seconds old."""
    found = _WORD.fullmatch(word)
    return found is not None and 0 <= at - int(found[1], 16) < seconds


def secret_for(derived: DerivedTokens, login: Login, word: str) -> str:
    """Return the cookie's secret of a login, for this word alone."""
    return derived.make(login, _thing(word))


def login_of(derived: DerivedTokens, headers: Mapping[str, str], found: list[str], at: float) -> Login | None:
    """Return the login of the first valid secret in a request's cookies; None without one."""
    word = headers.get(WORD_HEADER, "")
    if not is_recent(word, at, LOGIN_SECONDS):
        return None
    logins = (derived.login(secret, _thing(word)) for secret in found)
    return next((login for login in logins if login is not None), None)


def _thing(word: str) -> str:
    """Return the secret's subject; no sandbox has a blank in its name, so it is no sandbox's token."""
    return f"jupyter {word}"
