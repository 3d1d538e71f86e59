"""The claims of a JSON Web Token about its sender, and their verification (RFC 7519, 8725, 9068). Pure.

The order of the checks is that of trust: the size, the header's form and algorithm, the signature by a
published key, and only then the claims. No answer repeats anything of a token. ``jwks`` has the keys,
``oidc`` brings both together and remembers what was verified; ``librechat`` does so for another issuer.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import msgspec
from jwt import PyJWS, PyJWTError

from cellgate.errors import Forbidden, InvalidToken
from cellgate.identity.jwks import Algorithm, Key
from cellgate.identity.oidc_settings import OidcSettings
from cellgate.identity.principal import Login, Permission, Principal, Role
from cellgate.identity.tokens import check_name
from cellgate_kernels.base.errors import InvalidInput

MOST_TOKEN = 16 * 1024
"""The most characters of a token; a longer one is refused unread."""
LEEWAY_SECONDS = 30.0
"""The seconds that a provider's clock may be ahead of ours."""
SIGNED_PARTS = 3
SCOPE = "cellgate:"
"""The prefix of the words in the claim `scope` that are about this gateway."""

_TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
_LATEST = 1 << 40  # some 34,000 years: any later time is a mistake

_UNREADABLE = "This token can't be read as a JSON Web Token"


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """A token's own description of its signature, not yet verified. `key`: the name of the key."""

    algorithm: Algorithm
    key: str | None


@dataclass(frozen=True, slots=True)
class JwtLogin(Login):
    """A login by a JSON Web Token. `key`: the id of the key that verified the token."""

    key: str = ""


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None
    typ: str | None = None
    crit: Any = None


class Known(msgspec.Struct):
    """The claims that every token has."""

    iss: str
    aud: str | list[str]
    exp: float
    nbf: float | None = None
    iat: float | None = None
    scope: str | None = None


class _Issuer(msgspec.Struct):
    iss: str = ""


def is_jwt(token: str) -> bool:
    """Return whether a token has a JWT's form. Tokens of the gateway's own users never do."""
    return token.count(".") >= 2


def issuer_of(token: str) -> str:
    """Return the issuer that the token claims, which proves nothing; empty if it can't be read."""
    parts = token.split(".") if len(token) <= MOST_TOKEN else []
    if len(parts) != SIGNED_PARTS:
        return ""
    try:
        return msgspec.json.decode(_decoded(parts[1]), type=_Issuer).iss
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return ""


def read_header(token: str) -> TokenHeader:
    """Return the header of a token. Raises InvalidToken."""
    if len(token) > MOST_TOKEN:
        raise InvalidToken(f"This token is longer than the {MOST_TOKEN} characters that are accepted")
    parts = token.split(".")
    if len(parts) == 5:
        raise InvalidToken("This token is encrypted: ask the identity provider for signed tokens")
    try:
        header = msgspec.json.decode(_decoded(parts[0]), type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidToken(_UNREADABLE) from error
    if header.alg not in set(Algorithm):
        raise InvalidToken(
            f"This token's algorithm is not accepted: the provider must sign with {', '.join(Algorithm)}"
        )
    if header.crit is not None:
        raise InvalidToken("This token needs extensions that are not known here")
    if header.typ is not None and header.typ.lower() not in _TYPES:
        raise InvalidToken("This is no access token: its type is neither JWT nor at+jwt")
    return TokenHeader(Algorithm(header.alg), header.kid)


def _decoded(part: str) -> bytes:
    """Return a part of a token, from base64url without padding. Raises ValueError."""
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("not base64url") from error


class IssuedTokens:
    """Checks that tokens are signed, of this issuer, for this audience, and valid at the present time."""

    def __init__(self, issuer: str, audience: str) -> None:
        self._issuer = issuer
        self._audience = audience
        self._jws = PyJWS(algorithms=list(Algorithm), options={"enforce_minimum_key_length": True})

    def claims(self, token: str, header: TokenHeader, key: Key, at: float) -> tuple[dict[str, Any], Known]:
        """Return all claims of a token, and the claims common to all tokens. Raises InvalidToken."""
        claims = self._signed(token, header, key)
        try:
            known = msgspec.convert(claims, Known)
        except (msgspec.ValidationError, OverflowError) as error:
            raise InvalidToken("This token's iss, aud, exp, nbf, iat or scope is missing or unfit") from error
        self._check(known, at)
        return claims, known

    def _signed(self, token: str, header: TokenHeader, key: Key) -> dict[str, Any]:
        """Return the claims, if the key signed them."""
        assert header.algorithm in key.algorithms
        try:
            payload = self._jws.decode(token, key.public, algorithms=[header.algorithm])
        except PyJWTError as error:
            raise InvalidToken("This token's signature is not valid") from error
        try:
            return msgspec.json.decode(payload, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise InvalidToken(_UNREADABLE) from error

    def _check(self, claims: Known, at: float) -> None:
        if claims.iss != self._issuer:
            raise InvalidToken(f"This token is of another issuer: this gateway takes those of {self._issuer}")
        audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
        if self._audience not in audiences:
            raise InvalidToken(
                f"This token is for another audience: ask the provider for one for {self._audience}"
            )
        if not claims.exp < _LATEST:
            raise InvalidToken("This token's exp is unfit: it is a number of seconds")
        if at >= claims.exp:
            raise InvalidToken(
                "This token has expired: get a new one from the identity provider", cause="expired_token"
            )
        begins = max(claims.nbf or 0.0, claims.iat or 0.0)
        if begins > at + LEEWAY_SECONDS:
            raise InvalidToken("This token is not valid yet: compare the clocks of provider and gateway")


class Verifier:
    """Checks tokens against settings and keys."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._issued = IssuedTokens(settings.issuer, settings.audience)

    def verify(
        self, token: str, header: TokenHeader, key: Key, at: float, name: str, *, nonce: str | None = None
    ) -> JwtLogin:
        """Return the login that a token gives; `name` is its id, `at` the time now.

        `nonce`: the value that an ID token for us must repeat. Raises InvalidToken, and Forbidden for a valid
        token whose sender has no role here.
        """
        claims, known = self._issued.claims(token, header, key, at)
        if nonce is not None:
            self._check_answer(claims, nonce)
        role = self._role(claims)
        login = Login.of(self._principal(claims, role), _scopes(known.scope))
        return JwtLogin(login.principal, login.permissions, login.reach, name, known.exp, key.id)

    def _check_answer(self, claims: dict[str, Any], nonce: str) -> None:
        """Check that an ID token answers our question (OpenID Connect Core 1.0, section 3.1.3.7)."""
        if claims.get("nonce") != nonce:
            raise InvalidToken("This token is the answer to another sign-in: begin again")
        ours = self._settings.audience
        if claims.get("azp", ours) != ours or (isinstance(claims["aud"], list) and claims["aud"] != [ours]):
            raise InvalidToken("This token was not made for this gateway alone")

    def _principal(self, claims: dict[str, Any], role: Role) -> Principal:
        claim = self._settings.principal_claim
        value = _claim(claims, claim)
        try:
            return Principal(check_name(value if isinstance(value, str) else ""), role)
        except InvalidInput:
            # Not from `error`: its message repeats the value.
            raise InvalidToken(
                f"This token's claim {claim} can't be a principal's name, which is 1 to 128 of A-Z a-z 0-9 ."
                " _ @ | : + - and begins with a letter or a digit"
            ) from None

    def _role(self, claims: dict[str, Any]) -> Role:
        claim = self._settings.role_claim
        if not claim:
            return Role.USER
        found = _claim(claims, claim)
        values = found if isinstance(found, list) else [found]
        for value, role in self._settings.roles:
            if value in values:
                return role
        accepted = ", ".join(value for value, _ in self._settings.roles)
        raise Forbidden(
            f"You have no role at this gateway: this token's claim {claim} has none of {accepted}",
            cause="role",
        )


def _claim(claims: dict[str, Any], path: str) -> Any:
    """Return the claim of this name, or at this path of names; None without one.

    A name may have dots itself, as URLs do, so the whole is looked up first.
    """
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found


def _scopes(scope: str | None) -> frozenset[Permission] | None:
    """Return the permissions that a token is limited to; None if no scope is about this gateway."""
    ours = [word.removeprefix(SCOPE) for word in (scope or "").split() if word.startswith(SCOPE)]
    if not ours:
        return None
    return frozenset(each for each in Permission if each in ours)
