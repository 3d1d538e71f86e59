"""POST /v1/console: an address at which a browser is signed in to the console."""

from __future__ import annotations

from cellgate.errors import Forbidden
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, Answer, operation
from cellgate.identity.tickets import TICKET_SECONDS
from cellgate.wire.answers import ConsoleUrl
from cellgate.wire.base import Query


class ConsoleUrlHandler(BaseHandler):
    """The console, for whoever asks."""

    @operation(
        "open_console",
        "Open the console in a browser",
        Answer(200, "A URL that works once, within a minute.", {JSON: ConsoleUrl}),
        description=(
            "The browser that opens it may do there what the token of this request may do, for a day at most,"
            " as long as that is valid."
        ),
        query=Query,
    )
    async def post(self) -> None:
        if self.sender.signed_in is not None:
            # The new sign-in would outlive the asking one, and its user could not end it by signing out.
            raise Forbidden("A browser that is signed in signs in no other: send a token", cause="sign_in")
        at = f"{self.request.protocol}://{self.request.host}{self.services.front.base_url}"
        url = f"{at}/?ticket={self.services.people.sign_ins.ticket(self.login)}"
        self.answer(ConsoleUrl(url=url, expires_in=TICKET_SECONDS))
