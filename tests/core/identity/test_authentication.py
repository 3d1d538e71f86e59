"""Whose a token is, asked in turn: the gateway's own, its users', and those of an identity provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from cellgate.errors import Forbidden, IdentityUnavailable, InvalidToken, NotAuthenticated
from cellgate.identity import verified_logins
from cellgate.identity.administrator import Administrator
from cellgate.identity.authentication import Authentication
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.jwks import KeySet, parse_keys
from cellgate.identity.oidc import OidcAuthenticator
from cellgate.identity.oidc_settings import OidcSettings
from cellgate.identity.principal import DEFAULT, Login, Principal, Reach, Role
from cellgate.identity.provider import KEEP_SECONDS, FileKeys, ProviderKeys, open_keys
from cellgate.identity.store.opening import open_users, reader_of_users
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from tests.support.identity import AUDIENCE, CLAIMS, ISSUER, NOW, key_set, signer

OWN = "the-gateways-own-token"
ONE, TWO = signer(name="one"), signer(name="two")


class Source:
    """Keys, or an error in their place. `gate`: while it is closed, reading hangs."""

    refresh = 300.0
    renew = 5.0

    def __init__(self) -> None:
        self.found: KeySet | CellgateError = parse_keys(key_set(ONE.jwk()))
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self) -> KeySet | None:
        self.reads += 1
        await self.gate.wait()
        if isinstance(self.found, CellgateError):
            raise self.found
        return self.found

    async def close(self) -> None: ...


class Gateway:
    """All ways to log in, at a time that stands still."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.now = NOW
        self.monotonic = 1000.0
        self.source = Source()
        self.keys = ProviderKeys(self.source, monotonic=lambda: self.monotonic)
        self.folder = folder
        self.directory = PrincipalDirectory(
            reader_of_users(folder), Administrator(OWN), clock=lambda: self.now
        )
        self.others = OidcAuthenticator(
            OidcSettings(ISSUER, AUDIENCE, **settings), self.keys, clock=lambda: self.now
        )
        self.all = Authentication(self.directory, (self.others,))

    def at_once(self, token: str) -> Login:
        login = self.all.login(token)
        assert isinstance(login, Login)
        return login

    def waiting(self, token: str) -> Awaitable[Login]:
        login = self.all.login(token)
        assert not isinstance(login, Login)
        return login("10.0.0.1")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """One that has read the provider's keys."""
    made = Gateway(tmp_path)
    await made.keys.renew()
    yield made
    await made.all.close()


async def test_the_first_who_knows_a_token_decides(gateway: Gateway) -> None:
    with open_users(gateway.folder, create=True) as store:
        store.add_user("eve", Role.AUDITOR)
        _, text = store.create_token("eve", reach=Reach())
    await gateway.directory.refresh()
    assert gateway.all.login(OWN) is DEFAULT
    assert gateway.at_once(text).principal == Principal("eve", Role.AUDITOR)
    assert gateway.at_once(ONE.sign()).principal == Principal("ada")
    for unknown in ("x", "cg_0123_x", "a.b", "x" * 100_000):
        with pytest.raises(InvalidToken, match="not known to the gateway"):
            gateway.all.login(unknown)
    with pytest.raises(NotAuthenticated, match="A token is needed"):
        gateway.all.login("")


async def test_a_disabled_users_token_is_refused_like_an_unknown_one_but_told_apart(gateway: Gateway) -> None:
    with open_users(gateway.folder, create=True) as store:
        store.add_user("eve", Role.USER)
        token, text = store.create_token("eve", reach=Reach())
        revoked, former = store.create_token("eve", reach=Reach())
        store.revoke_token(revoked.id)
        store.set_disabled("eve", disabled=True)
    await gateway.directory.refresh()
    told = {}
    for name, shown in (("disabled", text), ("revoked", former), ("guessed", text + "x")):
        with pytest.raises(InvalidToken) as refused:
            gateway.all.login(shown)
        assert refused.value.message == "This token is not known to the gateway"
        told[name] = refused.value.cause, refused.value.principal, refused.value.token
    nobody = ("unknown_token", "", "")
    assert told == {"disabled": ("disabled_user", "eve", token.id), "revoked": nobody, "guessed": nobody}
    with open_users(gateway.folder, create=True) as store:
        store.set_disabled("eve", disabled=False)
    await gateway.directory.refresh()
    assert gateway.at_once(text).principal.name == "eve"


async def test_a_token_is_verified_once(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    token = ONE.sign()
    first = gateway.at_once(token)
    monkeypatch.setattr(gateway.others, "_verifier", None)
    assert gateway.at_once(token) is first
    assert first.id.startswith("jwt:")
    assert token not in repr(first)


async def test_few_tokens_are_remembered(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified_logins, "MOST_LOGINS", 3)
    logins = [gateway.at_once(ONE.sign({**CLAIMS, "jti": str(number)})) for number in range(10)]
    assert len(gateway.others._logins) == 3
    # Forgotten is not ended: their connections stay.
    assert all(gateway.all.is_valid(login) for login in logins)


async def test_a_login_ends_with_its_token(gateway: Gateway) -> None:
    token = ONE.sign()
    login = gateway.at_once(token)
    gateway.now = NOW + 299.9
    assert gateway.all.is_valid(login)
    gateway.now = NOW + 300
    assert not gateway.all.is_valid(login)
    with pytest.raises(InvalidToken, match="has expired"):
        gateway.all.login(token)
    assert gateway.all.is_valid(DEFAULT)


async def test_a_new_key_is_fetched_once_for_all_who_wait(gateway: Gateway) -> None:
    gateway.monotonic += 5
    gateway.source.found = parse_keys(key_set(ONE.jwk(), TWO.jwk()))
    gateway.source.gate.clear()
    asked = [asyncio.ensure_future(gateway.waiting(TWO.sign({**CLAIMS, "sub": name}))) for name in "abc"]
    await asyncio.sleep(0)
    # Those with known keys don't wait for it.
    assert gateway.at_once(ONE.sign()).principal.name == "ada"
    gateway.source.gate.set()
    assert [login.principal.name for login in await asyncio.gather(*asked)] == ["a", "b", "c"]
    assert gateway.source.reads == 2
    assert gateway.at_once(TWO.sign()).principal.name == "ada"


async def test_made_up_names_of_keys_cause_few_questions(gateway: Gateway) -> None:
    for number in range(100):
        with pytest.raises(InvalidToken, match="does not publish"):
            gateway.all.login(TWO.sign(header={"kid": f"../{number}"}))
    assert gateway.source.reads == 1
    gateway.monotonic += 5
    with pytest.raises(InvalidToken, match="does not publish"):
        await gateway.waiting(TWO.sign())
    with pytest.raises(InvalidToken, match="does not publish"):
        gateway.all.login(TWO.sign())
    assert gateway.source.reads == 2


async def test_a_cancelled_request_does_not_take_the_keys_from_others(gateway: Gateway) -> None:
    gateway.monotonic += 5
    gateway.source.found = parse_keys(key_set(TWO.jwk()))
    gateway.source.gate.clear()
    gone, stays = (asyncio.ensure_future(gateway.waiting(TWO.sign())) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    gateway.source.gate.set()
    assert (await stays).principal.name == "ada"


async def test_a_withdrawn_key_ends_its_logins(gateway: Gateway) -> None:
    token = ONE.sign()
    login = gateway.at_once(token)
    gateway.source.found = parse_keys(key_set(TWO.jwk()))
    await gateway.keys.renew()
    assert not gateway.all.is_valid(login)
    with pytest.raises(InvalidToken, match="does not publish"):
        gateway.all.login(token)


async def test_a_renamed_key_is_the_same_key(gateway: Gateway) -> None:
    login = gateway.at_once(ONE.sign())
    gateway.source.found = parse_keys(key_set(ONE.jwk(kid="renamed")))
    await gateway.keys.renew()
    assert gateway.all.is_valid(login)


async def test_keys_outlive_a_provider_that_is_down_for_a_while(gateway: Gateway) -> None:
    token = ONE.sign()
    login = gateway.at_once(token)
    gateway.source.found = IdentityUnavailable("down")
    gateway.monotonic += KEEP_SECONDS
    await gateway.keys.renew()
    assert gateway.all.is_valid(login)
    assert gateway.at_once(token) is login
    gateway.monotonic += 1
    await gateway.keys.renew()
    assert not gateway.all.is_valid(login)
    with pytest.raises(IdentityUnavailable, match="keys can't be read"):
        gateway.all.login(token)
    gateway.source.found = parse_keys(key_set(ONE.jwk()))
    gateway.monotonic += 5
    assert (await gateway.waiting(token)).principal.name == "ada"


async def test_a_provider_that_was_never_there(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    gateway.source.found = IdentityUnavailable("down")
    with pytest.raises(IdentityUnavailable):
        await gateway.waiting(ONE.sign())
    with pytest.raises(IdentityUnavailable):
        gateway.all.login(ONE.sign())
    assert gateway.all.login(OWN) is DEFAULT
    await gateway.all.close()


async def test_nobody_else_vouches_for_the_administrator(gateway: Gateway) -> None:
    with pytest.raises(InvalidToken, match="'default' is the administrator"):
        gateway.all.login(ONE.sign({**CLAIMS, "sub": "default"}))


async def test_a_user_who_was_disabled_here_has_no_way_in(gateway: Gateway) -> None:
    token = ONE.sign()
    login = gateway.at_once(token)
    with open_users(gateway.folder, create=True) as store:
        store.add_user("ada", Role.USER)
        store.set_disabled("ada", disabled=True)
    await gateway.directory.refresh()
    assert not gateway.all.is_valid(login)
    with pytest.raises(InvalidToken, match="disabled"):
        gateway.all.login(token)
    gateway.monotonic += 5
    gateway.source.found = parse_keys(key_set(TWO.jwk()))
    with pytest.raises(InvalidToken, match="disabled"):
        await gateway.waiting(TWO.sign())


class Told:
    """What a gateway is told. Connections are none of its business here."""

    def __init__(self) -> None:
        self.roles: list[str] = []

    def open_logins(self) -> list[Login]:
        return []

    def logins_changed(self) -> None: ...

    def end_logins(self) -> None: ...

    def user_gone(self, name: str, cause: str) -> None: ...

    def role_changed(self, name: str) -> None:
        self.roles.append(name)


async def test_what_knows_only_a_name_learns_the_role(tmp_path: Path) -> None:
    """Quotas are looked up by the name of a session's owner."""
    gateway = Gateway(tmp_path, role_claim="roles")
    await gateway.keys.renew()
    told = Told()
    gateway.all.follow(told)
    assert gateway.all.role_of("ada") is Role.USER
    for role in ("cellgate-user", "cellgate-admin", "cellgate-admin", "cellgate-user"):
        gateway.at_once(ONE.sign({**CLAIMS, "roles": role}))
        assert gateway.all.role_of("ada") == role.removeprefix("cellgate-")
    assert told.roles == ["ada", "ada"]
    assert gateway.all.role_of("default") is Role.ADMIN
    await gateway.all.close()


async def test_a_role_that_was_taken_away_is_gone_from_the_next_token(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, role_claim="roles")
    await gateway.keys.renew()
    assert gateway.at_once(ONE.sign({**CLAIMS, "roles": ["cellgate-admin"]})).principal.admin
    with pytest.raises(Forbidden, match="no role"):
        gateway.all.login(ONE.sign({**CLAIMS, "roles": []}))
    await gateway.all.close()


async def test_a_file_of_keys_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(ONE.jwk()))
    keys = await open_keys(OidcSettings(ISSUER, AUDIENCE, str(path)))
    try:
        first = keys.current.ids
        path.write_bytes(b"{")
        await keys.renew()
        await keys.renew()
        assert keys.current.ids == first
        assert caplog.text.count(str(path)) == 1
        path.write_bytes(key_set(TWO.jwk(), ONE.jwk()))
        await keys.renew()
        assert len(keys.current.ids) == 2
    finally:
        await keys.close()


async def test_a_file_is_read_only_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(ONE.jwk()))
    source = FileKeys(path)
    assert await source.read() is not None
    assert await source.read() is None
    await source.close()


@pytest.mark.parametrize("content", [None, b"", b"{}", key_set()])
async def test_a_file_without_keys_is_no_way_to_begin(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"keys\.json"):
        await open_keys(OidcSettings(ISSUER, AUDIENCE, str(path)))
