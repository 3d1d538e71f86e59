"""The contract of stores of users, as tests for whoever writes one.

Subclass `UserStoreContract` in a test module, with a fixture `store` that gives an empty one, and
`UserReaderContract` with a fixture `reader` besides, of what reads that store. ``identity.store.interface``
says what each call does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from cellgate.errors import Conflict, Forbidden, NotFound
from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.store.interface import RESERVED, Everybody, UserReader, UserStore
from cellgate_kernels.base.errors import InvalidInput

SCOPES = frozenset({Permission.RUN, Permission.READ})
SOON = 10.0
"""Seconds in which a reader must see that there is a change."""


class UserStoreContract:
    """The contract of stores of users. The fixture `store`: an empty store."""

    def test_a_token_comes_back_as_it_was_made(self, store: UserStore) -> None:
        store.add_user("ada", Role.USER)
        made, _ = store.create_token("ada", expires_at=9e9, scopes=SCOPES, reach=Reach("a-"))
        only, _ = store.create_token("ada", reach=Reach("one", exact=True))
        assert store.tokens("ada") == sorted([made, only], key=lambda token: (token.created_at, token.id))

    def test_names_are_taken_once(self, store: UserStore) -> None:
        store.add_user("ada", Role.USER)
        with pytest.raises(Conflict):
            store.add_user("ada", Role.ADMIN)
        assert store.user("ada").role is Role.USER

    def test_nobody_can_be_the_gateways_own_administrator(self, store: UserStore) -> None:
        with pytest.raises(InvalidInput, match="gateway's own token"):
            store.add_user("default", Role.USER)

    def test_nobody_has_the_name_that_stands_for_oneself(self, store: UserStore) -> None:
        with pytest.raises(InvalidInput, match="whoever asks"):
            store.add_user("me", Role.USER)

    @pytest.mark.parametrize("name", ["nobody", "", "'; DROP TABLE users; --"])
    def test_who_is_not_there_is_not_found(self, store: UserStore, name: str) -> None:
        for change in (
            lambda: store.user(name),
            lambda: store.tokens(name),
            lambda: store.remove_user(name),
            lambda: store.set_disabled(name, disabled=True),
            lambda: store.set_role(name, Role.ADMIN),
            lambda: store.create_token(name, reach=Reach()),
            lambda: store.revoke_token(name),
        ):
            with pytest.raises(NotFound):
                change()
        assert store.acts(0) == []

    def test_another_role_changes_nothing_else(self, store: UserStore) -> None:
        before = store.add_user("ada", Role.ADMIN)
        token, _ = store.create_token("ada", scopes=SCOPES, reach=Reach("a-"))
        store.set_disabled("ada", disabled=True)
        store.set_role("ada", Role.AUDITOR)
        assert store.user("ada") == replace(before, role=Role.AUDITOR, disabled=True)
        assert store.tokens() == [token]

    def test_a_disabled_user_gets_no_tokens(self, store: UserStore) -> None:
        store.add_user("ada", Role.USER)
        store.set_disabled("ada", disabled=True)
        with pytest.raises(Conflict, match="disabled"):
            store.create_token("ada", reach=Reach())
        store.set_disabled("ada", disabled=False)
        assert store.create_token("ada", reach=Reach())

    def test_the_tokens_of_a_removed_user_go_too(self, store: UserStore) -> None:
        store.add_user("ada", Role.USER)
        store.create_token("ada", reach=Reach())
        store.remove_user("ada")
        assert store.tokens() == []
        assert store.users() == []

    def test_revoking_again_changes_nothing(self, store: UserStore) -> None:
        store.add_user("ada", Role.USER)
        token, _ = store.create_token("ada", reach=Reach())
        store.revoke_token(token.id)
        first = store.tokens()
        store.revoke_token(token.id)
        assert store.tokens() == first
        assert first[0].revoked_at is not None

    def test_tokens_end_with_the_one_that_they_were_made_with(self, store: UserStore) -> None:
        for name in ("ada", "bob"):
            store.add_user(name, Role.ADMIN)
        first = store.create_token("ada", reach=Reach())[0]
        second = store.create_token("ada", reach=Reach(), made_by=first.id)[0]
        third = store.create_token("ada", reach=Reach(), made_by=second.id)[0]
        beside = store.create_token("ada", reach=Reach())[0]
        of_bob = store.create_token("bob", reach=Reach(), made_by=first.id)[0]
        by_bob = store.create_token("ada", reach=Reach(), made_by=of_bob.id)[0]
        assert [token.made_by for token in (first, second, third)] == [None, first.id, second.id]
        before = len(store.acts(0))
        assert {token.id for token in store.revoke_token(first.id)} == {first.id, second.id, third.id}
        live = {token.id for token in store.tokens() if token.revoked_at is None}
        assert live == {beside.id, of_bob.id, by_bob.id}
        acts = {act.fields["token"]: act.fields for act in store.acts(0)[before:]}
        assert {fields["act"] for fields in acts.values()} == {"token_revoked"}
        assert {token: fields.get("revoked_with") for token, fields in acts.items()} == {
            first.id: None,
            second.id: first.id,
            third.id: first.id,
        }
        assert store.revoke_token(first.id) == []
        with pytest.raises(Forbidden):
            store.create_token("ada", reach=Reach(), made_by=first.id)

    def test_every_change_is_an_act_without_secrets(self, store: UserStore) -> None:
        store.add_user("ada", Role.AUDITOR)
        token, text = store.create_token("ada", scopes=SCOPES, reach=Reach("a-"))
        store.revoke_token(token.id)
        store.set_disabled("ada", disabled=True)
        store.set_disabled("ada", disabled=False)
        store.set_role("ada", Role.USER)
        store.remove_user("ada")
        acts = store.acts(0)
        assert [act.fields["act"] for act in acts] == [
            "user_added",
            "token_created",
            "token_revoked",
            "user_disabled",
            "user_enabled",
            "user_role_changed",
            "user_removed",
        ]
        assert acts[5].fields["role"] == "user"
        assert {act.fields["user"] for act in acts} == {"ada"}
        assert acts[1].fields["token"] == token.id
        assert text not in repr(acts)
        assert store.acts(acts[3].seq) == acts[4:]
        assert store.count_acts(acts[3].seq) == 3

    def test_a_refused_change_is_no_act(self, store: UserStore) -> None:
        store.add_user("ada", Role.USER)
        before = store.acts(0)
        for change in (
            lambda: store.add_user("ada", Role.ADMIN),
            lambda: store.remove_secret("ada", "KEY"),
            lambda: store.set_secret("nobody", "KEY", b"box"),
        ):
            with pytest.raises((Conflict, NotFound)):
                change()
        assert store.acts(0) == before
        assert store.secrets() == []

    def test_a_secret_keeps_its_former_value(self, store: UserStore) -> None:
        store.add_user("ada", Role.USER)
        for value in (b"\x00first", b"second", b"third"):
            store.set_secret("ada", "KEY", value)
        store.set_secret(RESERVED, "KEY", b"the administrator's")
        (kept,) = store.secrets("ada")
        assert (kept.user, kept.name, kept.box, kept.former) == ("ada", "KEY", b"third", b"second")
        assert [(each.user, each.box) for each in store.secrets()] == [
            ("ada", b"third"),
            (RESERVED, b"the administrator's"),
        ]
        assert "third" not in repr(store.acts(0))

    def test_the_secrets_of_a_removed_user_go_too(self, store: UserStore) -> None:
        store.add_user("ada", Role.USER)
        store.set_secret("ada", "KEY", b"box")
        store.set_secret(RESERVED, "KEY", b"box")
        store.remove_user("ada")
        assert [each.user for each in store.secrets()] == [RESERVED]
        store.remove_secret(RESERVED, "KEY")
        assert store.secrets() == []


class UserReaderContract:
    """The contract of readers. The fixtures `store` and `reader`: an empty store, and what reads it."""

    def test_without_users_nobody_is_found(self, store: UserStore, reader: UserReader) -> None:
        assert store.users() == []
        found = reader.read() or Everybody()
        assert (found.users, found.tokens, found.secrets) == ([], [], [])

    def test_a_change_shows_and_is_read_once(self, store: UserStore, reader: UserReader) -> None:
        reader.read()
        for change in _changes(store):
            before = reader.stamp(settled=True)
            change()
            until = time.monotonic() + SOON
            while reader.stamp() == before:
                assert time.monotonic() < until, "the reader has not seen the change"
            found = reader.read()
            assert found is not None
            assert (found.users, found.tokens, found.secrets) == (
                store.users(),
                store.tokens(),
                store.secrets(),
            )
            assert reader.read() is None

    def test_all_is_read_anew_on_demand(self, store: UserStore, reader: UserReader) -> None:
        store.add_user("ada", Role.USER)
        reader.read()
        found = reader.read(anew=True)
        assert found is not None
        assert found.users == store.users()

    def test_acts_are_those_of_the_store(self, store: UserStore, reader: UserReader) -> None:
        for name in ("ada", "bob", "cleo"):
            store.add_user(name, Role.USER)
        reader.read()
        first, *others = store.acts(0)
        assert reader.acts(first.seq, 5) == others
        assert reader.acts(0, 1) == [first]

    def test_it_may_be_closed_twice(self, store: UserStore, reader: UserReader) -> None:
        store.add_user("ada", Role.USER)
        reader.read()
        reader.close()
        reader.close()


def _changes(store: UserStore) -> list[Callable[[], object]]:
    """Return changes of each kind, to be made in this order."""
    return [
        lambda: store.add_user("ada", Role.USER),
        lambda: store.create_token("ada", reach=Reach()),
        lambda: store.set_secret("ada", "KEY", b"box"),
        lambda: store.set_role("ada", Role.ADMIN),
        lambda: store.revoke_token(store.tokens()[0].id),
        lambda: store.set_disabled("ada", disabled=True),
        lambda: store.remove_user("ada"),
    ]
