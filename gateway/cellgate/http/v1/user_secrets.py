"""/v1/users/{u}/secrets: names of users' secrets, whose values are written and never read."""

from __future__ import annotations

from cellgate.http.operation import JSON, Answer, operation
from cellgate.http.v1.users import CHANGES_USERS, OF_USERS, AboutUsers
from cellgate.identity.principal import Permission
from cellgate.identity.user_models import secret_model
from cellgate.wire.answers import SecretList, SecretModel
from cellgate.wire.base import Query
from cellgate.wire.models import SecretBody


class SecretsHandler(AboutUsers):
    """A user's secrets."""

    @operation(
        "list_secrets",
        "List a user's secrets",
        Answer(200, "All of them, by name, without their values.", {JSON: SecretList}),
        description="For tokens that reach all sessions.",
        query=Query,
        errors=OF_USERS,
        needs=Permission.USERS,
    )
    async def get(self, user: str) -> None:
        name = self.meant(user)
        boxes = await self.keeper.secrets(self.asker, name)
        self.note_look(name)
        self.answer(SecretList(secrets=[secret_model(each) for each in boxes]))


class SecretHandler(AboutUsers):
    """One of them."""

    @operation(
        "put_secret",
        "Set a user's secret",
        Answer(200, "The secret, without its value.", {JSON: SecretModel}),
        description="Kernels that are started from now on have the new value. For tokens that reach all"
        " sessions.",
        query=Query,
        body={JSON: SecretBody},
        errors=CHANGES_USERS,
        needs=Permission.USERS,
    )
    async def put(self, user: str, name: str) -> None:
        body = await self.body(SecretBody)
        box = await self.keeper.set_secret(self.asker, self.meant(user), name, body.value)
        self.answer(secret_model(box))

    @operation(
        "delete_secret",
        "Remove a user's secret",
        Answer(204, "It is gone, with all its values."),
        query=Query,
        errors=CHANGES_USERS,
        needs=Permission.USERS,
    )
    async def delete(self, user: str, name: str) -> None:
        await self.keeper.remove_secret(self.asker, self.meant(user), name)
        self.set_status(204)
