"""/v1/users/{u}/tokens: users' tokens. A token's text is in one answer alone, that of its making."""

from __future__ import annotations

import time

from msgspec import structs

from cellgate.http.operation import JSON, Answer, operation
from cellgate.http.v1.users import CHANGES_USERS, OF_USERS, AboutUsers
from cellgate.identity.principal import Permission
from cellgate.identity.user_keeper import TokenWish
from cellgate.identity.user_models import token_model
from cellgate.wire.answers import NewToken, TokenPage
from cellgate.wire.base import Query
from cellgate.wire.models import TokenBody
from cellgate.wire.queries import TokensQuery


class TokensHandler(AboutUsers):
    """A user's tokens."""

    @operation(
        "list_tokens",
        "List a user's tokens",
        Answer(200, "One page, oldest first; none has its text.", {JSON: TokenPage}),
        description="A token that reaches only some sessions lists those for the same sessions.",
        query=TokensQuery,
        errors=OF_USERS,
        needs=Permission.USERS,
    )
    async def get(self, user: str) -> None:
        query, name = self.query(TokensQuery), self.meant(user)
        tokens, more = await self.keeper.tokens(self.asker, name, query.after, query.limit)
        self.note_look(name)
        self.answer(
            TokenPage(tokens=[token_model(each) for each in tokens], next=tokens[-1].id if more else None)
        )

    @operation(
        "create_token",
        "Make a token for a user",
        Answer(201, "The token, whose text is shown only now.", {JSON: NewToken}),
        description="Of one's own it can have no more scopes, sessions and time than the token that makes it,"
        " and has that one's limits where the body names none. An administrator's token that has"
        " limits makes tokens for itself and for users of the role `user`.",
        query=Query,
        body={JSON: TokenBody},
        errors=CHANGES_USERS,
        needs=Permission.USERS,
    )
    async def post(self, user: str) -> None:
        body = await self.body(TokenBody)
        wish = TokenWish.parsed(body.expires, body.scope, body.session, body.sessions, time.time())
        token, text = await self.keeper.create_token(self.asker, self.meant(user), wish)
        self.answer(NewToken(**structs.asdict(token_model(token)), token=text), 201)


class TokenHandler(AboutUsers):
    """One of them."""

    @operation(
        "delete_token",
        "Revoke a token",
        Answer(204, "It opens nothing any more, and what it has opened is closed."),
        description="Its user's tokens that were made with it end as well, and those that were made with"
        " these. Tokens that it made for other users stay: the list of theirs names it.",
        query=Query,
        errors=CHANGES_USERS,
        needs=Permission.USERS,
    )
    async def delete(self, user: str, token: str) -> None:
        if token == self.login.id and (stream := self.client_stream) is not None:
            # Else the connection would be closed before the answer, as all that the token has opened.
            stream.login = None
        await self.keeper.revoke_token(self.asker, self.meant(user), token)
        self.set_status(204)
