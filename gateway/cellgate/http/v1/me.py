"""GET /v1/me: who asks, what they may do, and what they use of their quotas."""

from __future__ import annotations

from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, Answer, operation
from cellgate.http.v1.usage import uses
from cellgate.wire.answers import Me
from cellgate.wire.base import Query


class MeHandler(BaseHandler):
    """The principal of the request."""

    @operation(
        "get_me",
        "About you",
        Answer(200, "The principal, its role and its use of quotas.", {JSON: Me}),
        query=Query,
    )
    async def get(self) -> None:
        account = self.services.people.usage.account(self.principal.name)
        await self.services.people.usage.glance(account)
        self.answer(
            Me(
                principal=self.principal.name,
                role=self.principal.role,
                scopes=sorted(self.login.permissions),
                quotas=uses(account),
            )
        )
