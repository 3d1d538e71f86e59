"""The contract of stores of users, as tests for whoever writes one.

Subclass `UserStoreContract` in a test module, with a fixture `store` that gives an empty one.
``identity.store.interface`` says what each call does.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellgate.errors import Conflict, NotFound
from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.store.interface import UserStore
from cellgate_kernels.base.errors import InvalidInput

SCOPES = frozenset({Permission.RUN, Permission.READ})


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
