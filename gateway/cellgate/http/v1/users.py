"""/v1/users: the gateway's users, for administrators; oneself for everybody.

``identity.user_keeper`` decides who may; ``v1.tokens`` and ``v1.user_secrets`` have what users have.
"""

from __future__ import annotations

from cellgate import errors
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, Answer, operation
from cellgate.identity.principal import Permission, Role
from cellgate.identity.store.interface import ONESELF
from cellgate.identity.user_keeper import Asker, UserKeeper
from cellgate.identity.user_models import user_model
from cellgate.wire.answers import UserModel, UserPage
from cellgate.wire.base import Query
from cellgate.wire.models import UserBody, UserChangeBody
from cellgate.wire.queries import UsersQuery

OF_USERS = (errors.NotFound, errors.StorageError)
"""Errors of reading users."""
CHANGES_USERS = (*OF_USERS, errors.Conflict)
"""Errors of changing users."""


class AboutUsers(BaseHandler):
    """The base of handlers whose paths name users, and no sessions."""

    names_session = False

    @property
    def keeper(self) -> UserKeeper:
        """The users of this gateway."""
        return self.services.people.users

    @property
    def asker(self) -> Asker:
        """The sender of the request."""
        return Asker(self.login, self.client_address)

    def meant(self, user: str) -> str:
        """Return the name of the user that the path names: `me` is the sender."""
        return self.principal.name if user == ONESELF else user

    def note_look(self, user: str) -> None:
        """Note in the audit trail that the sender looked at what somebody else has."""
        if user != self.principal.name:
            self.services.storage.trail.accessed({**self._who(), **self._what(), "owner": user})


class UsersHandler(AboutUsers):
    """All users."""

    @operation(
        "list_users",
        "List the users",
        Answer(200, "One page, by name.", {JSON: UserPage}),
        description="For administrators whose token reaches all sessions.",
        query=UsersQuery,
        errors=OF_USERS,
        needs=Permission.USERS,
    )
    async def get(self) -> None:
        query = self.query(UsersQuery)
        users, more = await self.keeper.users(self.asker, query.after, query.limit)
        self.answer(
            UserPage(users=[user_model(each) for each in users], next=users[-1].name if more else None)
        )

    @operation(
        "create_user",
        "Add a user",
        Answer(201, "The user, who can do nothing without a token.", {JSON: UserModel}),
        description="For administrators. One of another role than `user` is added by a token without limits.",
        query=Query,
        body={JSON: UserBody},
        errors=CHANGES_USERS,
        needs=Permission.USERS,
    )
    async def post(self) -> None:
        body = await self.body(UserBody)
        self.answer(user_model(await self.keeper.add(self.asker, body.name, Role(body.role))), 201)


class UserHandler(AboutUsers):
    """One user."""

    @operation(
        "get_user",
        "Get a user",
        Answer(200, "The user; `me` is the sender.", {JSON: UserModel}),
        query=Query,
        errors=OF_USERS,
        needs=Permission.USERS,
    )
    async def get(self, user: str) -> None:
        self.answer(user_model(await self.keeper.user(self.asker, self.meant(user))))

    @operation(
        "change_user",
        "Change a user's role, disable or enable them",
        Answer(200, "The user, as they are now.", {JSON: UserModel}),
        description="For administrators, about others. Disabling ends the user's sessions; their records and"
        " files stay. What the user has open is closed when the role changes.",
        query=Query,
        body={JSON: UserChangeBody},
        errors=CHANGES_USERS,
        needs=Permission.USERS,
    )
    async def patch(self, user: str) -> None:
        body = await self.body(UserChangeBody)
        role = None if body.role is None else Role(body.role)
        changed = await self.keeper.change(self.asker, self.meant(user), role=role, disabled=body.disabled)
        self.answer(user_model(changed))

    @operation(
        "delete_user",
        "Remove a user",
        Answer(204, "The user's tokens and secrets are gone, too, and their sessions end."),
        description="For administrators, about others. Records and files stay under the name: don't give it"
        " to somebody else.",
        query=Query,
        errors=CHANGES_USERS,
        needs=Permission.USERS,
    )
    async def delete(self, user: str) -> None:
        await self.keeper.remove(self.asker, self.meant(user))
        self.set_status(204)
