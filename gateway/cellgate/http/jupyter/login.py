"""/login: Jupyter's log-in with a password, for clients that have nowhere to put a token, such as Open WebUI.

The password is a token of the gateway. ``logged_in`` defines the cookie that a client gets for it.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Final

from cellgate.console.cookies import values_of
from cellgate.errors import Forbidden, NotAuthenticated
from cellgate.http.base import count_request
from cellgate.http.console import Entrance
from cellgate.http.jupyter.base import JupyterHandler
from cellgate.http.jupyter.logged_in import WORD_COOKIE, WORD_SECONDS, is_recent, new_word, secret_for
from cellgate.http.operation import requires
from cellgate_kernels.base.errors import InvalidInput

MOST_BODY: Final = 32 * 1024
MOST_FIELDS: Final = 8
FORM_FIELD: Final = "password"
"""The form's field for the password."""


class LoginHandler(Entrance, JupyterHandler):
    """The log-in."""

    public = True
    reads_body = True
    max_body = MOST_BODY

    @requires()
    async def get(self) -> None:
        """Answer with a word to log in with, or for people with the way to the console."""
        if "text/html" in self.request.headers.get("Accept", "").lower():
            self._lead()
            return
        place = self.sender.cookie_place
        secure = "; Secure" if place.secure else ""
        word = new_word(time.time())
        self.set_header(
            "Set-Cookie", f"{WORD_COOKIE}={word}; Path={place.path}; HttpOnly; SameSite=Strict{secure}"
        )
        self.answer({"message": f"POST the cookie {WORD_COOKIE} and a token as {FORM_FIELD}, as a form"})

    @requires()
    async def post(self) -> None:
        """Log in: a cookie for the requests to come, and Jupyter's redirect."""
        form = self.form(MOST_FIELDS)
        word = form.get(WORD_COOKIE, "")
        shown = values_of(self.request.headers.get_list("Cookie"), WORD_COOKIE)
        if word not in shown or not is_recent(word, time.time(), WORD_SECONDS):
            raise Forbidden(
                f"{WORD_COOKIE} of the form must be that of the cookie, which GET gives for ten minutes",
                cause="sign_in",
            )
        password = form.get(FORM_FIELD, "")
        if not password.isascii() or not password.isprintable():
            raise InvalidInput(f"{FORM_FIELD} must be a token, in printable ASCII")
        try:
            self.login = await self.login_of(password)
        except NotAuthenticated as error:
            raise await self.refuse(error) from None
        await count_request(self)
        secret = secret_for(self.services.people.derived_tokens, self.login, word)
        self.set_header("Set-Cookie", self.login_place.field(secret))
        self._lead()

    def _lead(self) -> None:
        self.set_location("/")
        self.set_status(HTTPStatus.FOUND)
