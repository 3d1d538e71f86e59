"""The gateway's own token, which makes its bearer the administrator. It changes with the file that it is in.

``directory`` asks whether a token is this one, ``login_bytes`` for the mark by which the gateways of a
cluster tell each other of its logins. ``server.people`` follows the file. Only the token's digest is kept.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from pathlib import Path
from typing import Final

from cellgate.identity.principal import DEFAULT, OwnLogin
from cellgate.identity.secrets import SecretKey
from cellgate.identity.tokens import digest
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.regular import read_given

LEAST_CHARACTERS: Final = 8
MOST_BYTES: Final = 4096
MARK_DIGITS: Final = 32


class Administrator:
    """The token's digest, and the login that it gives. `token`: None if no token is needed.

    `key`: that of a cluster's gateways; without one, logins have no mark.
    """

    def __init__(self, token: str | None, key: SecretKey | None = None) -> None:
        self._key = key
        self.login: OwnLogin = DEFAULT
        self._take(token)

    def change(self, token: str) -> None:
        """Replace the token. Logins by the former one are not valid any more."""
        self._take(token)
        self.login = replace(self.login, change=self.login.change + 1)

    def _take(self, token: str | None) -> None:
        self.digest = None if token is None else digest(token)
        self.mark = ""
        if self._key is not None:
            # Without the key, no token can be tried against it.
            derived = self._key.derived("administrator")
            self.mark = hmac.digest(derived, (token or "").encode(), "sha256").hex()[:MARK_DIGITS]


def check_own_token(token: str) -> str:
    """Return the token if clients can send it in every form. Raises InvalidInput, which does not show it."""
    # With a space our own commands refuse it.
    fits = token.isascii() and token.isprintable() and " " not in token
    if len(token) < LEAST_CHARACTERS or not fits:
        raise InvalidInput(
            f"the token must have at least {LEAST_CHARACTERS} printable ASCII characters, and no spaces"
        )
    return token


def read_own_token(path: Path) -> str:
    """Return the token in a file, which may end in a newline. Blocking. Raises InvalidInput."""
    content = read_given(path, MOST_BYTES, "a token")
    try:
        return check_own_token(content.decode("ascii", "replace").removesuffix("\n").removesuffix("\r"))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}") from error
