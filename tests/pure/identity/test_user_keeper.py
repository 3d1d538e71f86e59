"""What a token for oneself may have: never more than the one that it is made with."""

from __future__ import annotations

import pytest

from cellgate.errors import Forbidden
from cellgate.identity.principal import EVERYWHERE, Permission, Reach, Role
from cellgate.identity.store.interface import Token
from cellgate.identity.user_keeper import Asker, TokenWish
from cellgate_kernels.base.errors import InvalidInput
from tests.pure.identity.test_principals import login

NOW = 1_800_000_000.0
READ, RUN, USERS = Permission.READ, Permission.RUN, Permission.USERS


def token(
    scopes: frozenset[Permission] | None = None, reach: Reach = EVERYWHERE, expires: float | None = None
) -> Token:
    return Token("0123456789ab", "ada", b"", scopes, reach, NOW, expires, None)


@pytest.mark.parametrize(
    ("wider", "field"),
    [
        (TokenWish(scopes=frozenset({READ, RUN})), "scope"),
        (TokenWish(expires_at=NOW + 61), "expires"),
        (TokenWish(reach=Reach("agent")), "sessions"),
        (TokenWish(reach=Reach("other-")), "sessions"),
        (TokenWish(reach=Reach("agent", exact=True)), "session"),
    ],
)
def test_more_than_the_token_has_is_refused(wider: TokenWish, field: str) -> None:
    own = token(frozenset({READ, USERS}), Reach("agent-"), NOW + 60)
    with pytest.raises(Forbidden, match=f"^{field}: "):
        wider.beside(own)


def test_limits_that_are_not_named_are_the_token_s() -> None:
    own = token(frozenset({READ, USERS}), Reach("agent-"), NOW + 60)
    assert TokenWish().beside(own) == TokenWish(NOW + 60, frozenset({READ, USERS}), Reach("agent-"))
    narrower = TokenWish(NOW + 59, frozenset({READ}), Reach("agent-1", exact=True))
    assert narrower.beside(own) == narrower
    assert TokenWish().beside(token()) == TokenWish()


@pytest.mark.parametrize(
    ("inner", "outer", "within"),
    [
        (Reach("a-"), EVERYWHERE, True),
        (EVERYWHERE, Reach("a-"), False),
        (Reach("a-b"), Reach("a-"), True),
        (Reach("a-b", exact=True), Reach("a-"), True),
        (Reach("a-", exact=True), Reach("a-", exact=True), True),
        (Reach("a-"), Reach("a-", exact=True), False),
        (Reach("a-b", exact=True), Reach("a-", exact=True), False),
    ],
)
def test_reaches_within_others(inner: Reach, outer: Reach, *, within: bool) -> None:
    assert inner.within(outer) is within


@pytest.mark.parametrize("role", [Role.ADMIN, Role.AUDITOR])
def test_power_over_others_than_users_needs_a_token_without_limits(role: Role) -> None:
    Asker(login(Role.ADMIN), "").check_outranks(role)
    limited = Asker(login(Role.ADMIN, USERS), "")
    limited.check_outranks(Role.USER)
    with pytest.raises(Forbidden, match=f"the role {role}"):
        limited.check_outranks(role)


def test_a_wish_names_the_field_that_is_wrong() -> None:
    for words, field in (
        (("soon", None, None, None), "expires"),
        ((None, "root", None, None), "scope"),
        ((None, None, "a/b", None), "session"),
        ((None, None, None, "a/b"), "sessions"),
    ):
        with pytest.raises(InvalidInput, match=f"^{field}: "):
            TokenWish.parsed(*words, at=NOW)
