"""The sender of a request: its address, its token or its browser's sign-in, and its wrong attempts.

``base`` uses it in each request, ``access`` has the policy and ``identity`` maps tokens to logins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tornado.httputil import HTTPServerRequest

from cellgate.console.cookies import CookiePlace
from cellgate.errors import NotAuthenticated, TooManyAttempts
from cellgate.http.access import is_own_page, misplaced, token_of
from cellgate.http.listener.server import origin_of
from cellgate.identity.principal import Ask, Login
from cellgate_kernels.base.errors import CellgateError

if TYPE_CHECKING:
    from cellgate.http.services import Services

READING = frozenset({"GET", "HEAD"})
RUN_BY_BROWSERS = frozenset(
    {"script", "style", "worker", "sharedworker", "serviceworker", "audioworklet", "paintworklet", "xslt"}
    | {"iframe", "frame", "fencedframe", "object", "embed"}
)
"""Values of `Sec-Fetch-Dest` for content that would run, or be shown as a page, with our origin."""


class Sender:
    """The sender of a request.

    `signed_in`: whether the sign-in of the request's cookie still holds; None without one. `secret`: that
    cookie's. `allowed_origin`: the foreign origin of the page that sent it and may read the answer, if any.
    """

    def __init__(self, request: HTTPServerRequest, services: Services) -> None:
        self._request = request
        self._services = services
        self.signed_in: Callable[[], bool] | None = None
        self.secret: str | None = None
        self.allowed_origin: str | None = None

    @property
    def origin(self) -> str:
        """The key under which requests of the client's address count together."""
        return origin_of((self._request.remote_ip or "",))

    @property
    def cookie_place(self) -> CookiePlace:
        """The place of cookies for this gateway, as the browser sees it."""
        request = self._request
        return CookiePlace(request.host, request.protocol == "https", self._services.front.base_url)

    def secrets(self) -> list[str]:
        """Return the secrets of sign-ins that the request brings in cookies, good or not."""
        return self.cookie_place.secrets(self._request.headers.get_list("Cookie"))

    def check_place(self, *, is_handed_on: bool = False) -> None:
        """Check the Host and Origin that the request names. Raises Forbidden.

        `is_handed_on`: another gateway has checked the Host, whose name may be that one's alone.
        """
        policy, headers = self._services.people.access, self._request.headers
        host, origin = headers.get("Host", ""), headers.get("Origin")
        if not is_handed_on:
            policy.check_host(host)
        self.allowed_origin = origin if policy.check_origin(origin, host) else None

    def login(self, query_token: str | None) -> Login | Ask:
        """Return the login of the request's token or, without a token, of the browser's sign-in."""
        headers = self._request.headers
        authorization = headers.get("Authorization", "")
        if "Cookie" in headers and not token_of(authorization, query_token):
            login = self._sign_in()
            if login is not None:
                return login
        try:
            return self._services.people.access.authenticate(authorization, query_token)
        except NotAuthenticated as error:
            where = misplaced(headers, self._request.query_arguments)
            if error.is_attempt or not where:
                raise
            raise NotAuthenticated(f"{where}. {error.message}", cause=error.cause) from error

    def _sign_in(self) -> Login | None:
        """Return the login of the browser's sign-in, if it counts: for requests of our own page alone.

        Not for content that the page would run or show as a page: outputs can be requested, too.
        """
        request = self._request
        if not is_own_page(request.headers, request.protocol, reads=request.method in READING):
            return None
        if request.headers.get("Sec-Fetch-Dest", "") in RUN_BY_BROWSERS:
            return None
        found = self._services.people.sign_ins.find(self.secrets())
        if found is None:
            return None
        secret, login = found
        self.secret = secret
        self.signed_in = partial(self._services.people.sign_ins.is_good, secret)
        return login

    def counted(self, error: CellgateError) -> CellgateError:
        """Return the error or, after one wrong token too many of the same address, a refusal."""
        if not isinstance(error, NotAuthenticated) or not error.is_attempt:
            return error
        wait = self._services.people.attempts.failed(self.origin)
        return error if wait is None else _too_many(wait, error)

    def check_attempts(self, ask: Ask | None = None) -> None:
        """Check the attempts before another service is asked about a token. Raises TooManyAttempts.

        After too many wrong tokens, we don't ask about the next one. `ask`: the question; a recently valid
        token is always checked, as others may share the address.
        """
        if ask is not None and ask.known:
            return
        if (wait := self._services.people.attempts.waiting(self.origin)) is not None:
            raise _too_many(wait)


def _too_many(wait: float, last: NotAuthenticated | None = None) -> TooManyAttempts:
    return TooManyAttempts(
        "Too many wrong tokens came from this address: wait, and send the right one",
        retry_after=wait,
        last=last,
    )
