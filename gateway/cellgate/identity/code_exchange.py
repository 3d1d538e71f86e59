"""OAuth's authorization code flow (RFC 6749, section 4.1), as far as it is the same at every service.

`Begun` is a browser's data between question and answer; `CodeExchange` gets a token for an answer's code.
``oidc_sign_in`` and ``hub_sign_in`` put the questions and check the tokens. It knows no service's endpoints.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec

from cellgate.errors import IdentityUnavailable, InvalidToken
from cellgate.fairness.shares import Shares
from cellgate.identity.fetching import Fetcher
from cellgate_kernels.base.errors import CellgateError

MOST_AT_ONCE: Final = 8
"""Answers of a service that are checked there at the same time: anybody can send some, so one address has
three quarters at most.
"""
MOST_ANSWER: Final = 256 * 1024
MOST_CODE: Final = 4096
_BEGUN: Final = re.compile(r"([\w-]{32})\.([\w-]{32})\.([\w-]{43})", re.ASCII)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Begun:
    """A browser's data between its question and the service's answer.

    `state` comes back with the answer, `nonce` in the ID token; `verifier` proves that the code is ours.
    """

    state: str
    nonce: str
    verifier: str

    @classmethod
    def new(cls) -> Begun:
        """Return new data that nobody can guess."""
        return cls(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(32))

    @classmethod
    def read(cls, text: str) -> Begun | None:
        """Return the data in the form of `text`; None if it is of another form."""
        found = _BEGUN.fullmatch(text)
        return None if found is None else cls(*found.groups())

    @property
    def text(self) -> str:
        """The form for a cookie."""
        return f"{self.state}.{self.nonce}.{self.verifier}"

    @property
    def challenge(self) -> str:
        """The verifier's challenge for the service (RFC 7636, section 4.2)."""
        hashed = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(hashed).rstrip(b"=").decode()


class CodeExchange:
    """Exchanges codes for tokens at the service that `fetcher` asks. `cause`: of an InvalidToken."""

    def __init__(self, fetcher: Fetcher, cause: str) -> None:
        self._fetcher = fetcher
        self._cause = cause
        self._places = Shares(MOST_AT_ONCE)

    async def exchange(
        self,
        code: str,
        origin: str,
        answers: type[T],
        asked: Callable[[], Awaitable[tuple[str, Mapping[str, str]]]],
    ) -> T:
        """Return the service's answer to a code. `origin`: the address of the code's sender.

        `asked` returns the token endpoint and the form for it, without the code; it is called once there is a
        place for this address. Raises InvalidToken, IdentityUnavailable, and the errors of `asked`.
        """
        if len(code) > MOST_CODE:
            raise self._refused()
        place = self._places.take(origin)
        if place is None:
            raise IdentityUnavailable("Too many sign in at the same moment: try again")
        try:
            endpoint, form = await asked()
            given = {"grant_type": "authorization_code", "code": code, **form}
            answer = await self._fetcher.post(endpoint, given, most=MOST_ANSWER)
        finally:
            place.release()
        name = self._fetcher.name
        if 400 <= answer.status < 500:
            raise self._refused()
        if answer.status != HTTPStatus.OK:
            raise IdentityUnavailable(f"{name} answered with status {answer.status} to a sign-in")
        try:
            return msgspec.json.decode(answer.body, type=answers)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise IdentityUnavailable(f"{name} answered a sign-in without a token") from error

    def _refused(self) -> CellgateError:
        return InvalidToken(
            f"{self._fetcher.name} does not confirm this sign-in: begin again", cause=self._cause
        )
