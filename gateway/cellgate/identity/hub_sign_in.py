"""Signing in at a JupyterHub with a browser: OAuth's authorization code flow, with the gateway's own token.

The data that binds the answer to the asking browser is stored by that browser alone (`Begun`), as with an
identity provider. The Hub gives a token for the code, which ``hub`` checks like any other token of the Hub;
no browser ever has this token. ``http.console`` has the redirects and the cookie.
"""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import msgspec

from cellgate.errors import IdentityUnavailable, InvalidToken
from cellgate.fairness.shares import Shares
from cellgate.identity.fetching import Fetcher
from cellgate.identity.hub import HUB, HubAuthenticator, HubLogin, hub_fetcher
from cellgate.identity.hub_settings import HubSettings
from cellgate.identity.oidc_sign_in import MOST_AT_ONCE, MOST_CODE, Begun
from cellgate_kernels.base.errors import CellgateError

MOST_ANSWER: Final = 64 * 1024


class _Token(msgspec.Struct):
    access_token: str


class HubSignIn:
    """Sign-ins at the Hub of `settings`, with our token there. The owner of `logins` closes them."""

    def __init__(
        self, settings: HubSettings, logins: HubAuthenticator, *, fetcher: Fetcher | None = None
    ) -> None:
        self._settings = settings
        self._logins = logins
        self._fetcher = fetcher or hub_fetcher(settings)
        self._exchanges = Shares(MOST_AT_ONCE)

    @property
    def back(self) -> str:
        """The registered address to which the Hub sends a browser back."""
        return self._settings.callback

    @property
    def out(self) -> str:
        """The address at which a browser signs out of the Hub."""
        return f"{self._settings.pages}logout"

    async def question(self, begun: Begun, back: str) -> str:
        """Return the Hub's URL for asking the user, who then returns to `back`."""
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": back,
            "state": begun.state,
        }
        return f"{self._settings.pages}api/oauth2/authorize?{urlencode(asked)}"

    def is_answer(self, begun: Begun, state: str, issuer: str | None) -> bool:
        """Return whether an answer is to this question. `issuer` is ignored: a Hub names none."""
        return issuer is None and hmac.compare_digest(begun.state.encode(), state.encode())

    async def login(self, begun: Begun, code: str, back: str, origin: str) -> HubLogin:
        """Return the login of the user for whom the Hub gave this code. `origin`: the user's address.

        Raises InvalidToken, IdentityUnavailable, and Forbidden for a user without access.
        """
        del begun
        if len(code) > MOST_CODE:
            raise _refused()
        place = self._exchanges.take(origin)
        if place is None:
            raise IdentityUnavailable("Too many sign in at the same moment: try again")
        try:
            token = await self._exchange(code, back)
        finally:
            place.release()
        return await self._logins.confirmed(token, origin)

    async def _exchange(self, code: str, back: str) -> str:
        """Return the Hub's token for a code. Raises InvalidToken, IdentityUnavailable."""
        asked = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": back,
            "client_id": self._settings.client_id,
            "client_secret": self._settings.token,
        }
        answer = await self._fetcher.post(f"{self._settings.api_url}/oauth2/token", asked, most=MOST_ANSWER)
        if 400 <= answer.status < 500:
            raise _refused()
        if answer.status != HTTPStatus.OK:
            raise IdentityUnavailable(f"{HUB} answered with status {answer.status} to a sign-in")
        try:
            return msgspec.json.decode(answer.body, type=_Token).access_token
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise IdentityUnavailable(f"{HUB} answered a sign-in without a token") from error

    async def close(self) -> None:
        """Close all connections to the Hub."""
        await self._fetcher.close()


def _refused() -> CellgateError:
    return InvalidToken(f"{HUB} does not confirm this sign-in: begin again", cause="hub")
