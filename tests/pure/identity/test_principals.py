"""Roles, scopes and reach: what a login may do, and to whose sessions."""

from __future__ import annotations

import pytest

from cellgate.errors import Forbidden, NotFound
from cellgate.identity.principal import GRANTED, Login, Permission, Principal, Reach, Role
from cellgate.identity.tokens import (
    check_name,
    check_reach,
    digest,
    new_token,
    parse_expiry,
    parse_scopes,
    scopes_text,
    time_text,
)
from cellgate.wire.models import SESSION_KEY
from cellgate_kernels.base.errors import InvalidInput

NOW = 1_800_000_000.0
EVERYTHING = frozenset(Permission)


def login(role: Role, *scopes: Permission) -> Login:
    return Login.of(Principal("ada", role), scopes or None)


def test_a_role_grants_what_its_work_needs_and_no_more() -> None:
    assert GRANTED[Role.ADMIN] == EVERYTHING
    assert GRANTED[Role.USER] == EVERYTHING - {Permission.METRICS}
    assert GRANTED[Role.AUDITOR] == {Permission.READ, Permission.METRICS, Permission.USERS}


def test_scopes_take_away_and_never_add() -> None:
    assert login(Role.USER, Permission.READ, Permission.METRICS).permissions == {Permission.READ}
    assert login(Role.AUDITOR, Permission.RUN).permissions == frozenset()


def test_a_refusal_says_whether_the_role_or_the_token_is_the_reason() -> None:
    with pytest.raises(Forbidden, match="The role auditor does not include run"):
        login(Role.AUDITOR).check(frozenset({Permission.RUN, Permission.READ}))
    with pytest.raises(Forbidden, match="This token's scopes do not include files"):
        login(Role.USER, Permission.RUN).check(frozenset({Permission.FILES}))
    login(Role.USER, Permission.RUN).check(frozenset({Permission.RUN}))


@pytest.mark.parametrize("named", ["eve", "*", ""])
def test_a_user_who_names_another_finds_nothing(named: str) -> None:
    with pytest.raises(NotFound):
        login(Role.USER).owner(named)


@pytest.mark.parametrize("role", [Role.ADMIN, Role.AUDITOR])
def test_administrators_and_auditors_name_others(role: Role) -> None:
    assert login(role).owner("eve") == "eve"
    assert login(role).owner(None) == "ada"


def test_everybody_may_name_themselves() -> None:
    assert login(Role.USER).owner("ada") == "ada"


def test_a_branch_gets_a_key_within_reach_or_the_refusal_says_why() -> None:
    assert Reach().branch_key("b") == "b"
    assert Reach("ag-").branch_key("ag-2") == "ag-2"
    assert Reach("ag-").branch_key(None).startswith("ag-")
    with pytest.raises(Forbidden, match="sessions that begin with 'ag-'"):
        Reach("ag-").branch_key("b")
    for named in (None, "one", "two"):
        with pytest.raises(Forbidden, match="for the session 'one' alone, so it can't branch"):
            Reach("one", exact=True).branch_key(named)


def test_a_reach_is_a_prefix_or_one_key() -> None:
    assert [Reach("a-").covers(key) for key in ("a-", "a-1", "a", "b-a-")] == [True, True, False, False]
    assert [Reach("a", exact=True).covers(key) for key in ("a", "a-1")] == [True, False]
    assert Reach().covers("anything")


def test_a_new_key_is_within_reach_and_valid() -> None:
    for reach in (Reach(), Reach("x" * 92), Reach("report", exact=True)):
        assert reach.key_of("a") == reach.key_of("a")
        assert (reach.key_of("a") == reach.key_of("b")) is reach.exact
        assert SESSION_KEY.fullmatch(reach.check(reach.key_of("a")))
        assert SESSION_KEY.fullmatch(reach.check(reach.new_key()))
    assert Reach("a-").new_key() != Reach("a-").new_key()


def test_what_is_out_of_reach_is_not_there() -> None:
    with pytest.raises(NotFound, match="No session 'b'"):
        Reach("a").check("b")


def test_tokens_differ_and_name_their_id() -> None:
    name, text = new_token()
    assert text.startswith(f"cg_{name}_")
    assert len(text) > 50
    assert new_token()[1] != text
    assert digest(text) != digest(text + "x")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("12h", 43200), ("30d", 2592000), ("2w", 1209600)]
)
def test_a_time_is_a_duration(text: str, seconds: float) -> None:
    assert parse_expiry(text, NOW) == NOW + seconds


def test_a_time_is_a_moment() -> None:
    assert parse_expiry("2030-01-31T12:00:00Z", NOW) == 1_896_091_200.0
    assert parse_expiry("2030-01-31T13:00:00+01:00", NOW) == 1_896_091_200.0
    assert time_text(1_896_091_200.0) == "2030-01-31T12:00:00Z"


@pytest.mark.parametrize(
    "text",
    ["", "0s", "-5m", "5", "5y", "999999999w", "soon", "2030-01-31", "2030-01-31T12:00", "2020-01-01T00:00Z"],
)
def test_another_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_expiry(text, NOW)


def test_scopes_are_words() -> None:
    assert parse_scopes("read, run") == {Permission.READ, Permission.RUN}
    assert scopes_text({Permission.READ, Permission.RUN}) == "run,read"


@pytest.mark.parametrize("text", ["", ",", "root", "run,rood", "RUN"])
def test_other_scopes_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="scope"):
        parse_scopes(text)


@pytest.mark.parametrize("name", ["ada", "ada.l@example.org", "auth0|5f7c", "a" * 128])
def test_names_of_users(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "*", " ada", "a/b", "a\n", "é", "-a", "a" * 129])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="user's name"):
        check_name(name)


def test_a_token_reaches_one_key_or_a_prefix() -> None:
    assert check_reach() == Reach()
    assert check_reach(key="a") == Reach("a", exact=True)
    assert check_reach(prefix="a-") == Reach("a-")


@pytest.mark.parametrize(("key", "prefix"), [("a", "b"), ("a b", ""), ("", "-"), ("", "x" * 93)])
def test_another_reach_is_refused(key: str, prefix: str) -> None:
    with pytest.raises(InvalidInput):
        check_reach(key=key, prefix=prefix)
