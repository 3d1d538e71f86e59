"""Logins by LibreChat's tokens: who is let in as whom, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cellgate.errors import IdentityUnavailable, InvalidToken
from cellgate.identity.administrator import Administrator
from cellgate.identity.authentication import Authentication
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.jwks import MOST_BYTES, KeySet, parse_keys
from cellgate.identity.librechat import LibreChatAuthenticator, open_librechat
from cellgate.identity.oidc import OidcAuthenticator
from cellgate.identity.oidc_settings import OidcSettings
from cellgate.identity.principal import Login, Permission, Principal, Role
from cellgate.identity.provider import FileKeys, ProviderKeys
from cellgate.identity.store.opening import open_users, reader_of_users
from cellgate_kernels.base.errors import InvalidInput
from tests.support import identity
from tests.support.identity import NOW, Signer, forged, key_set, signer

KEY = signer("EdDSA", "lc-codeapi-2026-05")
USER = "64f0c0ffee64f0c0ffee64f0"
CLAIMS: dict[str, Any] = {
    "iss": "librechat",
    "aud": "codeapi",
    "sub": USER,
    "iat": NOW,
    "nbf": NOW,
    "exp": NOW + 300,
    "jti": "6e3b",
    "tenant_id": "legacy",
    "role": "ADMIN",
    "principal_source": "librechat_jwt",
    "auth_context_hash": "00",
}


@dataclass
class Gateway:
    """All ways to log in, at a time that stands still, with LibreChat's key in a file."""

    file: Path
    path: Path
    directory: PrincipalDirectory
    keys: ProviderKeys
    all: Authentication
    now: float = NOW

    def login(self, **changed: object) -> Login:
        """What a token of LibreChat's gives, with these of its claims changed; None takes one away."""
        return self.shown(KEY.sign(claims(**changed), {"typ": "JWT"}))

    def shown(self, token: str) -> Login:
        """What a token gives."""
        login = self.all.login(token)
        assert isinstance(login, Login)
        return login

    def refusal(self, token: str) -> str:
        """Why a token gives nothing."""
        with pytest.raises(InvalidToken) as caught:
            self.all.login(token)
        return caught.value.message


def claims(**changed: object) -> dict[str, Any]:
    return {name: value for name, value in {**CLAIMS, **changed}.items() if value is not None}


def of_file(path: Path, by: Signer = KEY) -> Path:
    path.write_bytes(by.pem())
    return path


@pytest.fixture(name="gateway")
async def a_gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway that takes LibreChat's tokens, and those of an identity provider."""
    file = of_file(tmp_path / "librechat.pem")
    opened = await open_librechat(file)
    keys = opened._keys
    path = tmp_path / "principals.sqlite"
    directory = PrincipalDirectory(
        reader_of_users(tmp_path), Administrator("the-gateways-own-token"), clock=lambda: gateway.now
    )
    settings = OidcSettings(identity.ISSUER, identity.AUDIENCE)
    provider = OidcAuthenticator(
        settings, ProviderKeys(FileKeys(path), parse_keys(key_set(signer().jwk()))), clock=lambda: gateway.now
    )
    ours = LibreChatAuthenticator(keys, clock=lambda: gateway.now)
    gateway = Gateway(file, path, directory, keys, Authentication(directory, (ours, provider)))
    yield gateway
    await gateway.all.close()


async def test_each_user_of_each_tenant_is_a_principal(gateway: Gateway) -> None:
    login = gateway.login()
    assert login.principal == Principal(f"librechat:legacy:{USER}", Role.USER), "whatever their role there"
    assert login.permissions == {Permission.RUN, Permission.FILES}
    assert login.expires == NOW + 300
    assert login.id.startswith("librechat:")
    assert gateway.all.is_valid(login)
    others = [gateway.login(sub="b"), gateway.login(sub="b", tenant_id="acme"), gateway.login(sub="acme")]
    assert len({each.principal.name for each in (login, *others)}) == 4
    assert gateway.shown(signer().sign()).principal.name == "ada", "the identity provider's go on working"


async def test_a_token_ends_and_is_not_remembered_longer(gateway: Gateway) -> None:
    token = KEY.sign(CLAIMS)
    login = gateway.shown(token)
    gateway.now = NOW + 299
    assert gateway.shown(token) is login, "the token was not looked at again"
    gateway.now = NOW + 300
    assert "has expired" in gateway.refusal(token)
    assert not gateway.all.is_valid(login)


@pytest.mark.parametrize(
    "changed",
    [
        {"sub": None},
        {"sub": ""},
        {"sub": "a:b"},
        {"sub": "../x"},
        {"sub": "x" * 57},
        {"sub": 5},
        {"sub": ["a"]},
        {"sub": "a\n"},
        {"tenant_id": None},
        {"tenant_id": "a:b"},
        {"tenant_id": "a b"},
        {"tenant_id": {"a": 1}},
    ],
)
async def test_names_that_could_be_another_ones(gateway: Gateway, changed: dict[str, object]) -> None:
    said = gateway.refusal(KEY.sign(claims(**changed)))
    assert "tenant_id and sub can't be part of a principal's name" in said


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"aud": "other"}, "another audience"),
        ({"aud": None}, "missing or unfit"),
        ({"exp": None}, "missing or unfit"),
        ({"exp": NOW}, "has expired"),
        ({"exp": 1e300}, "exp is unfit"),
        ({"nbf": NOW + 100}, "not valid yet"),
    ],
)
async def test_claims_are_checked(gateway: Gateway, changed: dict[str, object], what: str) -> None:
    assert what in gateway.refusal(KEY.sign(claims(**changed)))


async def test_nobody_else_signs_for_librechat(gateway: Gateway) -> None:
    other = signer("EdDSA", "other")
    assert "signature" in gateway.refusal(other.sign(CLAIMS, {"kid": KEY.name}))
    for by in (signer(), signer("RS256")):
        assert "not that of LibreChat's key" in gateway.refusal(by.sign(CLAIMS, {"kid": KEY.name}))
    for secret in (None, KEY.pem()):
        algorithm = "none" if secret is None else "HS256"
        said = gateway.refusal(forged({"alg": algorithm, "kid": KEY.name}, CLAIMS, secret))
        assert "algorithm is not accepted" in said


async def test_librechats_key_signs_for_nobody_else(gateway: Gateway) -> None:
    others = ["a.b.c", "..", *map(KEY.sign, ({**identity.CLAIMS, "sub": "x"}, {"iss": ["librechat"]}))]
    for token in (*others, KEY.sign(b"[" * 5000), KEY.sign(b"\xff")):
        with suppress(InvalidToken):
            assert not isinstance(gateway.all.login(token), Login), "somebody must be asked"
    assert "longer than" in gateway.refusal(KEY.sign(claims(more="x" * 20_000)))


async def test_nobody_else_vouches_for_librechats_users(gateway: Gateway) -> None:
    named = {**identity.CLAIMS, "sub": f"librechat:legacy:{USER}"}
    assert "vouched for by nobody else" in gateway.refusal(signer().sign(named))
    assert gateway.login().principal.name == named["sub"]


async def test_a_user_of_librechat_can_be_locked_out(gateway: Gateway) -> None:
    login = gateway.login()
    with open_users(gateway.path.parent, create=True) as store:
        store.add_user(login.principal.name, Role.USER)
        store.set_disabled(login.principal.name, disabled=True)
    await gateway.directory.refresh()
    assert not gateway.all.is_valid(login)
    with pytest.raises(InvalidToken, match="disabled"):
        gateway.login()


async def test_another_key_in_the_file_is_another_one(gateway: Gateway) -> None:
    login = gateway.login()
    other = signer("RS256", "new")
    of_file(gateway.file, other)
    await gateway.keys.renew()
    assert not gateway.all.is_valid(login)
    assert "not that of LibreChat's key" in gateway.refusal(KEY.sign(CLAIMS))
    assert gateway.shown(other.sign(CLAIMS)).principal.name == login.principal.name


async def test_without_a_key_the_next_try_may_do(gateway: Gateway) -> None:
    gateway.keys.current = KeySet()
    with pytest.raises(IdentityUnavailable, match="LibreChat's key can't be read"):
        gateway.login()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "can't be read"),
        (b"", "not a public key in PEM"),
        (key_set(KEY.jwk()), "not a public key in PEM"),
        (b"-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n", "It has a private key"),
        (signer("ES256").pem(), "neither a key of Ed25519 nor one of RSA"),
        (KEY.pem() + signer("EdDSA", "new").pem(), "more than one key"),
        (KEY.pem() + b" " * MOST_BYTES, "larger than"),
    ],
)
async def test_a_file_that_is_no_such_key(tmp_path: Path, content: bytes | None, what: str) -> None:
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=what) as caught:
        await open_librechat(path)
    assert str(path) in caught.value.message
