"""/ and /console: the page of the console, its files, and how a browser signs in and out.

The page and its files are the same for everybody and hold no secret; the page requests its content from `/v1`
like any other client, with the cookie of its sign-in. ``console`` has the files, the cookie and the sign-ins,
``base`` accepts requests with the cookie.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from cellgate.console.assets import FRAME, PAGE, Asset
from cellgate.console.cookies import MOST_LENGTH, CookiePlace, Purpose
from cellgate.errors import Forbidden, NotAuthenticated, NotFound, TooManyAttempts, status_of
from cellgate.http.access import is_own_page
from cellgate.http.base import BaseHandler, UntaggedHandler, count_request
from cellgate.http.operation import requires
from cellgate.http.plain_page import POLICY, Form, plain_page
from cellgate.identity.code_exchange import Begun
from cellgate.identity.hub_sign_in import HubSignIn
from cellgate.identity.oidc_sign_in import ProviderSignIn
from cellgate.identity.principal import Login
from cellgate.wire.models import SignInBody
from cellgate_kernels.base.errors import CellgateError, InvalidInput

MOST_BODY: Final = 32 * 1024
MOST_FIELDS: Final = 2
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?")
"""A host as policies can name it; they can't name IPv6 addresses."""
_SEPARATORS: Final = str.maketrans({";": "%3B", ",": "%2C"})
_HTML: Final = frozenset({"text/html", "text/*", "*/*", "application/xhtml+xml"})
_LOOKING_AHEAD: Final = ("Sec-Purpose", "Purpose", "X-Moz")


def page_policy(files: str) -> str:
    """Return the policy of the page. `files`: the URL of its files.

    Not `'self'`: outputs of sessions have the same origin, and none of them may be a script of the page.
    """
    return (
        f"default-src 'none'; script-src {files}; style-src {files}; img-src 'self' blob: data:;"
        f" font-src {files}; connect-src 'self'; frame-src {files}; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def frame_policy(files: str) -> str:
    """Return the policy of the page of an output: scripts run, but have no origin and can reach nothing."""
    return (
        f"sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' {files};"
        f" style-src 'unsafe-inline' {files}; img-src data: blob:; media-src data: blob:; font-src data:;"
        " connect-src 'none'; frame-src 'none'; worker-src blob:; form-action 'none'; base-uri 'none';"
        " frame-ancestors 'self'"
    )


def frame_connections(files: str) -> str:
    """Return the connections that an output may make beyond policies: WebRTC, early lookups of names.

    Chromium 152 and later support this field. No browser supports `webrtc` in policies.
    """
    allowed = "response-origin" if files == "'self'" else f'"{files}*"'
    return f"({allowed}); webrtc=block"


class AssetHandler(UntaggedHandler):
    """A handler that sends files of the console; no sign-in is needed."""

    public = True

    async def send(self, asset: Asset) -> None:
        """Send the file, or the status that the browser has it."""
        self.set_header("Etag", asset.tag)
        by_origin = ["Origin"] if self.services.people.access.allowed_origins else []
        by_kind = ["Accept"] if asset.name == PAGE else []
        self.set_header("Vary", ", ".join([*by_origin, *by_kind, "Accept-Encoding"]))
        kept = "public, max-age=31536000, immutable" if asset.is_fixed else "no-cache"
        self.set_header("Cache-Control", kept)
        policy = "cross-origin" if asset.is_for_frames else "same-origin"
        self.set_header("Cross-Origin-Resource-Policy", policy)
        if asset.kind.startswith("text/html"):
            of_content = frame_policy if asset.name == FRAME else page_policy
            self.set_header("Content-Security-Policy", of_content(self._files()))
            self.set_header("X-DNS-Prefetch-Control", "off")
            self.set_header("Referrer-Policy", "no-referrer" if asset.name == FRAME else "same-origin")
            if asset.name == PAGE:
                self.set_header("Cross-Origin-Opener-Policy", "same-origin")
            if asset.name == FRAME:
                self.set_header("Connection-Allowlist", frame_connections(self._files()))
        if self.check_etag_header():
            self.set_status(HTTPStatus.NOT_MODIFIED)
            return
        body = asset.body
        self.set_header("Content-Type", asset.kind)
        if asset.zipped is not None and _takes_gzip(self.request.headers.get("Accept-Encoding", "")):
            self.set_header("Content-Encoding", "gzip")
            body = asset.zipped
        if self.request.method == "HEAD":
            self.set_header("Content-Length", len(body))
            self.finish()
        else:
            await self.finish_parts([body])

    def _files(self) -> str:
        """Return the place of the console's files, as a policy names it."""
        host = self.request.host
        if not _HOST.fullmatch(host):
            return "'self'"
        base = self.services.front.base_url.translate(_SEPARATORS)
        return f"{self.request.protocol}://{host}{base}/console/"


def _takes_gzip(accepted: str) -> bool:
    for part in accepted.split(","):
        coding, _, weight = part.partition(";")
        if coding.strip().lower() in {"gzip", "*"}:
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight)
    return False


class ConsoleFileHandler(AssetHandler):
    """The page's files."""

    def _check_sender(self) -> None:
        """Check the sender as for any request, but allow the Origin "null", which frames of outputs have.

        That lets nobody read a file: for what pages of other origins may load there is the resource policy.
        """
        if self.request.headers.get("Origin") == "null":
            self.services.people.access.check_host(self.request.headers.get("Host", ""))
        else:
            super()._check_sender()

    @requires()
    async def get(self, name: str) -> None:
        """Send a file of the table of those that there are; the page itself is at `/`."""
        if name == PAGE:
            raise NotFound("The console has no such file: its page is one folder up")
        if name == FRAME and self.request.headers.get("Sec-Fetch-Dest", "iframe") != "iframe":
            raise Forbidden("This page is for outputs in the console alone", cause="frame")
        await self.send(await self.services.front.assets.get(name))


class Entrance(BaseHandler):
    """A handler that lets a browser in."""

    async def login_of(self, token: str) -> Login:
        """Return the login of a token, or the only one. Raises as `Authentication.login`."""
        found = self.services.people.access.authenticate(f"Bearer {token}", None)
        if isinstance(found, Login):
            return found
        self.sender.check_attempts(found)
        return await found(self.sender.origin)

    async def refuse(self, error: NotAuthenticated) -> CellgateError:
        """Return the refusal of a wrong token or ticket, delayed after too many, as anywhere else."""
        refusal = self.sender.counted(error)
        if isinstance(refusal, TooManyAttempts):
            await self.services.people.attempts.hold()
        return refusal

    def check_other(self, login: Login) -> None:
        """Check that nobody else is signed in, whose acts would now be by `login`. Raises Forbidden."""
        found = self.services.people.sign_ins.find(self.sender.secrets())
        name = None if found is None else found[1].principal.name
        if name not in {None, login.principal.name} and self.services.people.access.authentication.is_shared:
            raise Forbidden(
                f"This browser is signed in as {name}, and this would sign in {login.principal.name}:"
                " sign out first, in the console",
                cause="sign_in",
            )

    async def let_in(self, login: Login, secret: str) -> None:
        """Give the browser its cookie, in place of a former one, which ends.

        Raises PrincipalQuotaExceeded, StorageError.
        """
        self.login = login
        await count_request(self)
        sign_ins = self.services.people.sign_ins
        if await sign_ins.end(self.sender.secrets()):
            sign_ins.close_connections()
        self.set_header("Set-Cookie", self.sender.cookie_place.field(secret))

    def form(self, most: int) -> Mapping[str, str]:
        """Return at most `most` fields of the form in the body. Raises InvalidInput."""
        try:
            given = parse_qs(self.raw_body().decode(errors="replace"), max_num_fields=most)
        except ValueError:
            raise InvalidInput(f"The form has more than {most} fields") from None
        return {name: values[0] for name, values in given.items()}


class _VisitHandler(Entrance):
    """A handler of addresses that browsers visit."""

    public = True

    @property
    def _takes_html(self) -> bool:
        accepted = self.request.headers.get("Accept", "*/*")
        return any(part.partition(";")[0].strip().lower() in _HTML for part in accepted.split(","))

    def lead(self, location: str) -> None:
        """Redirect the browser, so that its history does not keep the address."""
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Location", location)
        self.set_status(HTTPStatus.SEE_OTHER)

    @property
    def page(self) -> str:
        """The path of the console."""
        return f"{self.services.front.base_url}/"

    def check_visit(self) -> None:
        """Check that a user opens this address. Raises Forbidden."""
        headers = self.request.headers
        ahead = any("prefetch" in headers.get(name, "").lower() for name in _LOOKING_AHEAD)
        if ahead or headers.get("Sec-Fetch-Dest", "document") != "document":
            raise Forbidden("This address signs in whoever opens it, and nobody does", cause="sign_in")

    def check_link(self, *allowed: str) -> None:
        """Check the site of the link to here, if the browser names it. Raises Forbidden.

        `allowed`: values of `Sec-Fetch-Site`. An unshared gateway has no other user to deceive.
        """
        site = self.request.headers.get("Sec-Fetch-Site")
        if site is None or site in allowed or not self.services.people.access.authentication.is_shared:
            return
        # An attacker could have made the link to sign a user in as the attacker, and watch.
        raise Forbidden(
            "A link on a page has led here. If you want to sign in with this address, paste it into the"
            " address bar.",
            cause="sign_in",
        )

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        if not self._takes_html:
            return super().problem_body(error)
        status = status_of(error)
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("Referrer-Policy", "no-referrer")
        page = plain_page(
            f"{status.value} {status.phrase}", error.message, link=(self.page, "Cellgate's console")
        )
        return "text/html; charset=utf-8", page


class ConsoleHandler(AssetHandler, _VisitHandler):
    """The page. A client that accepts no HTML gets 404, as at any other path without a resource."""

    max_body = MOST_BODY
    reads_body = True

    @property
    def _needs_token(self) -> bool:
        return not self._takes_html and self.request.method != "OPTIONS"

    @requires()
    async def get(self) -> None:
        """Send the page; with a ticket or a token, sign in first."""
        if not self._takes_html:
            raise NotFound("There is nothing at this path but a page")
        ticket = self.get_query_argument("ticket", None)
        token = self.get_query_argument("token", None)
        if self.request.method == "HEAD" or not (ticket or token):
            await self.send(await self.services.front.assets.get(PAGE))
            return
        self.check_visit()
        self.check_link("none")
        await self._sign_in(ticket or "", token or "", confirmed=not self._could_be_led)

    @requires()
    async def post(self) -> None:
        """Sign in: the user has seen which login the address has, and agreed."""
        if not is_own_page(self.request.headers, self.request.protocol, reads=False):
            raise Forbidden("Only the gateway's own page may ask for this", cause="origin")
        given = self.form(MOST_FIELDS)
        await self._sign_in(given.get("ticket", ""), given.get("token", ""), confirmed=True)

    async def _sign_in(self, ticket: str, token: str, *, confirmed: bool) -> None:
        sign_ins = self.services.people.sign_ins
        try:
            login = self._peek(ticket) if ticket else await self.login_of(token)
            self.check_other(login)
            if not confirmed:
                self._ask(login, {"ticket": ticket} if ticket else {"token": token})
                return
            redeemed = await sign_ins.redeem(ticket) if ticket else (sign_ins.sign_in(login), login)
            if redeemed is None:
                raise _used_up()
        except NotAuthenticated as error:
            raise await self.refuse(error) from None
        await self.let_in(login, redeemed[0])
        self.lead(self.page)

    def _peek(self, ticket: str) -> Login:
        login = self.services.people.sign_ins.peek(ticket) if len(ticket) <= MOST_LENGTH else None
        if login is None:
            raise _used_up()
        return login

    @property
    def _could_be_led(self) -> bool:
        """Whether a link may have led here although the browser does not say so, as without TLS."""
        authentication = self.services.people.access.authentication
        return "Sec-Fetch-Site" not in self.request.headers and authentication.is_shared

    def _ask(self, login: Login, fields: dict[str, str]) -> None:
        """Ask the page's user to confirm the sign-in."""
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", f"{POLICY}; form-action 'self'; base-uri 'none'")
        self.set_header("Referrer-Policy", "same-origin")
        name = login.principal.name
        self.finish(
            plain_page(
                "Cellgate",
                f"This address signs you in as {name}. If you did not ask for it, close this page: whoever"
                " sent you here could see what you do.",
                form=Form(self.page, fields, f"Sign in as {name}"),
            )
        )


def _used_up() -> NotAuthenticated:
    return NotAuthenticated(
        "This address works once, within a minute. Get a new one with `cellgate open`.", cause="ticket"
    )


class ProviderHandler(_VisitHandler):
    """To the identity provider, to be signed in there."""

    is_get_safe = False
    called = "identity provider"
    cause = "oidc"

    @property
    def provider(self) -> ProviderSignIn | HubSignIn:
        """The provider where users sign in. Raises NotFound."""
        if self.services.people.provider is None:
            raise NotFound("Nobody signs in at an identity provider here: --oidc-client-id allows that")
        return self.services.people.provider

    @property
    def back(self) -> str:
        """The URL to which the provider sends the browser back, as it is registered there."""
        if not _HOST.fullmatch(self.request.host):
            raise InvalidInput("The identity provider can't send a browser back to this Host")
        return f"{self.request.protocol}://{self.request.host}{self.page}console/oidc/callback"

    @property
    def asking_place(self) -> CookiePlace:
        """The place of the cookie with the browser's side of a sign-in."""
        return replace(self.sender.cookie_place, purpose=Purpose.ASKING)

    def begin(self) -> Begun:
        """Return the browser's side of a new sign-in."""
        return Begun.new()

    def begun(self) -> Begun | None:
        """Return the browser's side of the sign-in in progress; None if there is none."""
        asked = self.asking_place.secrets(self.request.headers.get_list("Cookie"))
        # With several cookies, a neighbour's page may have added its own.
        return Begun.read(asked[0]) if len(asked) == 1 else None

    @requires()
    async def get(self) -> None:
        """Redirect to the provider, and give the browser a secret to show with the answer."""
        self.check_visit()
        self.check_link("none", "same-origin")
        begun = self.begin()
        question = await self.provider.question(begun, self.back)
        self.set_header("Set-Cookie", self.asking_place.field(begun.text))
        self.lead(question)


class ProviderAnswerHandler(ProviderHandler):
    """Back from the identity provider."""

    @requires()
    async def get(self) -> None:
        """Sign in the user named by the provider, if this browser has begun the sign-in."""
        self.check_visit()
        try:
            login = await self._login()
        except NotAuthenticated as error:
            raise await self.refuse(error) from None
        self.check_other(login)
        await self.let_in(login, self.services.people.sign_ins.sign_in(login))
        self.add_header("Set-Cookie", self.asking_place.field(""))
        self.lead(self.page)

    async def _login(self) -> Login:
        provider = self.provider
        state = self.get_query_argument("state", "")
        issuer = self.get_query_argument("iss", None)
        code = self.get_query_argument("code", "")
        begun = self.begun()
        if begun is None or not provider.is_answer(begun, state, issuer):
            raise NotAuthenticated(
                f"This browser has not asked the {self.called} to be signed in here, or not lately: begin"
                " again",
                cause=self.cause,
            )
        if not code:
            raise NotAuthenticated(f"The {self.called} has signed nobody in: begin again", cause=self.cause)
        self.sender.check_attempts()
        login = await provider.login(begun, code, self.back, self.sender.origin)
        return self.services.people.access.authentication.admitted(login)


class HubHandler(ProviderHandler):
    """To the Hub, to be signed in there."""

    called = "Hub"
    cause = "hub"

    @property
    def provider(self) -> HubSignIn:
        """The Hub where users sign in. Raises NotFound."""
        if self.services.people.hub is None:
            raise NotFound("Nobody signs in at a Hub here: --jupyterhub allows that")
        return self.services.people.hub

    @property
    def back(self) -> str:
        """The address to which the Hub sends the browser back, as it is registered there."""
        return self.provider.back

    def begin(self) -> Begun:
        """Return the browser's sign-in in progress, if any: a tab beside this one may have begun it."""
        return self.begun() or super().begin()


class HubAnswerHandler(ProviderAnswerHandler, HubHandler):
    """Back from the Hub."""

    @requires()
    async def get(self) -> None:
        """Sign in the user, unless a tab beside this one has done so in the meantime."""
        if self.begun() is None and self.services.people.sign_ins.find(self.sender.secrets()) is not None:
            self.check_visit()
            self.lead(self.page)
        else:
            await super().get()


class _FormHandler(Entrance):
    """A handler of the page's own requests, signed in or not."""

    public = True
    max_body = MOST_BODY

    def _check_body(self) -> None:
        super()._check_body()
        headers, protocol = self.request.headers, self.request.protocol
        if self.request.method == "POST" and not is_own_page(headers, protocol, reads=False):
            raise Forbidden("Only the console's own page may ask for this", cause="origin")


class SignInHandler(_FormHandler):
    """The form for a token."""

    reads_body = True

    @requires()
    async def get(self) -> None:
        """Return the ways to sign in, for the page before a sign-in, and the places to sign out."""
        people = self.services.people
        out = "" if people.hub is None else people.hub.out
        self.answer({"provider": people.provider is not None, "hub": people.hub is not None, "out": out})

    @requires()
    async def post(self) -> None:
        """Sign in with a token."""
        given = await self.body(SignInBody)
        if not given.token.isascii() or not given.token.isprintable():
            raise InvalidInput("token must be printable ASCII")
        try:
            login = await self.login_of(given.token)
        except NotAuthenticated as error:
            raise await self.refuse(error) from None
        await self.let_in(login, self.services.people.sign_ins.sign_in(login))
        self.set_status(HTTPStatus.NO_CONTENT)


class SignOutHandler(_FormHandler):
    """The end of a sign-in."""

    @requires()
    async def post(self) -> None:
        """End the browser's sign-in, and all connections that it has opened. 204 if there was none, too."""
        sign_ins = self.services.people.sign_ins
        # If other gateways can't be told, the browser keeps its cookie, to try again.
        ended = await sign_ins.end(self.sender.secrets())
        self.set_header("Set-Cookie", self.sender.cookie_place.field(""))
        self.set_status(HTTPStatus.NO_CONTENT)
        await self.finish()
        if ended:
            sign_ins.close_connections()
