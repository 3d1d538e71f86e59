"""GET /v1/usage: what everybody uses of their quotas, for administrators and auditors.

``v1.me`` returns a principal's own use.
"""

from __future__ import annotations

from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, READS, Answer, operation
from cellgate.identity.principal import Permission
from cellgate.quotas.usage import Account
from cellgate.wire.answers import PrincipalUse, QuotaUse, UsagePage
from cellgate.wire.queries import UsageQuery


def uses(account: Account) -> dict[str, QuotaUse]:
    """Return the use of each quota in its form on the wire."""
    return {name: QuotaUse(limit=use.limit, used=use.used) for name, use in account.uses().items()}


class UsageHandler(BaseHandler):
    """The use of quotas."""

    @operation(
        "list_usage",
        "List what everybody uses",
        Answer(200, "One page, by name.", {JSON: UsagePage}),
        description="Whoever uses something now, at any gateway of a cluster, or has a record, with their"
        " quotas; for administrators and auditors whose token reaches all sessions.",
        query=UsageQuery,
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self) -> None:
        self.login.check_for_all("the uses of quotas")
        query = self.query(UsageQuery)
        usage = self.services.people.usage
        accounts, more = await usage.page(query.after, query.limit)
        principals = [
            PrincipalUse(principal=account.name, role=usage.role(account.name), quotas=uses(account))
            for account in accounts
        ]
        self.answer(UsagePage(principals=principals, next=accounts[-1].name if more else None))
