"""Signing in at a JupyterHub with a browser: OAuth's authorization code flow, with the gateway's own token.

The data that binds the answer to the asking browser is stored by that browser alone (`Begun`), as with an
identity provider. The Hub gives a token for the code, which ``hub`` checks like any other token of the Hub;
no browser ever has this token. ``http.console`` has the redirects and the cookie.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlencode

import msgspec

from cellgate.identity.code_exchange import Begun, CodeExchange
from cellgate.identity.fetching import Fetcher
from cellgate.identity.hub import HubAuthenticator, HubLogin, hub_fetcher
from cellgate.identity.hub_settings import HubSettings


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
        self._codes = CodeExchange(self._fetcher, "hub")

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

        async def asked() -> tuple[str, dict[str, str]]:
            secret = self._settings.token
            form = {"redirect_uri": back, "client_id": self._settings.client_id, "client_secret": secret}
            return f"{self._settings.api_url}/oauth2/token", form

        answer = await self._codes.exchange(code, origin, _Token, asked)
        return await self._logins.confirmed(answer.access_token, origin)

    async def close(self) -> None:
        """Close all connections to the Hub."""
        await self._fetcher.close()
