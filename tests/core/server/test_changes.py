"""What follows when logins and sign-ins end: whose connections are closed, and who is still asked about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

from cellgate.console.sign_ins import SignIns
from cellgate.identity.derived import DerivedTokens
from cellgate.identity.principal import DEFAULT, Login, Principal
from cellgate.server.people import Changes
from tests.support.listening import services_of

ALICE = Login.of(Principal("alice"), token="a1")


class Connections:
    """A listener with open connections; what it was told to end."""

    def __init__(self, *logins: Login) -> None:
        self._logins = logins
        self.looked = 0

    def open_logins(self) -> Iterator[Login]:
        return iter(self._logins)

    def end_logins(self, is_valid: Callable[[Login], bool]) -> None:
        assert is_valid(DEFAULT)
        self.looked += 1


async def test_a_browser_that_is_signed_in_counts_as_connected() -> None:
    """A Hub is asked about the tokens of open connections; a page has none open at most moments."""
    sign_ins = SignIns(lambda _: True)
    servers = (Connections(DEFAULT), Connections())
    derived = DerivedTokens(lambda _: True)
    services = services_of(manager=None, usage=None, sign_ins=sign_ins, derived_tokens=derived)
    authentication = SimpleNamespace(is_valid=lambda _: True)
    changes = Changes(services, servers, authentication)  # type: ignore[arg-type]
    assert list(changes.open_logins()) == [DEFAULT]
    secret = sign_ins.sign_in(ALICE)
    assert list(changes.open_logins()) == [DEFAULT, ALICE]
    sign_ins.follow(changes.end_logins)
    looked = [server.looked for server in servers]
    assert await sign_ins.end([secret])
    sign_ins.close_connections()
    assert [server.looked for server in servers] == [before + 1 for before in looked]
    assert list(changes.open_logins()) == [DEFAULT]
    derived.make(ALICE, "thing")
    assert list(changes.open_logins()) == [DEFAULT, ALICE]
    await sign_ins.close()
