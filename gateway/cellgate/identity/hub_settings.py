"""The settings that a JupyterHub gives its services and servers in their environment. Only values.

A service has a name (``JUPYTERHUB_SERVICE_NAME``); a server that is spawned for a user has none, and names
the user. ``hub`` asks the Hub about tokens, ``hub_sign_in`` has users sign in there.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cellgate.identity.addresses import check_url
from cellgate_kernels.base.errors import InvalidInput, in_brief

ACTIVITY_SECONDS = 300.0
"""The seconds between two reports of activity, unless the Hub sets them."""


@dataclass(frozen=True, slots=True)
class HubTls:
    """The files of ``internal_ssl``, in PEM: our key and certificate, and the authorities of all others'."""

    key: Path
    certificate: Path
    authorities: Path

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of requests to the Hub. Blocks. Raises InvalidInput."""
        try:
            context = ssl.create_default_context(cafile=self.authorities)
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise InvalidInput(
                f"The Hub's files for internal_ssl can't be used: {in_brief(error)}"
            ) from error
        return context


@dataclass(frozen=True, slots=True)
class HubSettings:
    """A Hub, and the role of this gateway there.

    `scopes`: a token needs one of them. `token`: the gateway's own at the Hub, needed for signing in there.
    `client_id` and `callback` are as registered there, `pages` is where browsers find the Hub. `user`: the
    user whose `server` of that name the gateway is; empty for a service.
    """

    api_url: str
    scopes: frozenset[str]
    token: str = field(default="", repr=False)
    client_id: str = ""
    callback: str = ""
    pages: str = "/hub/"
    user: str = ""
    server: str = ""
    activity_url: str = ""
    activity_interval: float = ACTIVITY_SECONDS
    tls: HubTls | None = None

    @property
    def is_spawned(self) -> bool:
        """Whether the gateway is a user's server, not a service."""
        return bool(self.user)


def hub_settings(environment: Mapping[str, str]) -> HubSettings:
    """Return the settings that a Hub gives a service or a server in its environment. Raises InvalidInput."""

    def given(name: str) -> str:
        return environment.get(f"JUPYTERHUB_{name}", "")

    url, name = given("API_URL"), given("SERVICE_NAME")
    user = "" if name else given("USER")
    missing = [] if url else ["JUPYTERHUB_API_URL"]
    if not (name or user):
        missing.append("JUPYTERHUB_SERVICE_NAME")
    if missing:
        raise InvalidInput(
            f"{_are_missing(missing)}: a JupyterHub sets its address and the name for the services that it"
            " starts, and JUPYTERHUB_USER in place of the name for the servers of users"
        )
    if user:
        missing = [each for each in ("API_TOKEN", "SERVICE_URL", "SERVICE_PREFIX") if not given(each)]
    if missing:
        raise InvalidInput(
            f"{_are_missing([f'JUPYTERHUB_{each}' for each in missing])}: a JupyterHub sets this for the"
            " servers that it spawns"
        )
    # A Hub and its services may share a network of their own, where the Hub speaks plain HTTP.
    check_url(url, "JUPYTERHUB_API_URL", plain=True)
    activity_url = given("ACTIVITY_URL") if user else ""
    if activity_url:
        check_url(activity_url, "JUPYTERHUB_ACTIVITY_URL", plain=True)
    server = given("SERVER_NAME") if user else ""
    kind, owner = ("servers", f"server={user}/{server}") if user else ("services", f"service={name}")
    default = {f"access:{kind}!{owner}", *([f"access:servers!user={user}"] if user else [])}
    scopes = _scopes(given("OAUTH_ACCESS_SCOPES")) or default
    prefix = given("SERVICE_PREFIX").rstrip("/")
    client = f"jupyterhub-user-{user}{f'-{server}' if server else ''}" if user else f"service-{name}"
    return HubSettings(
        url.rstrip("/"),
        # Access to all services or servers includes this one.
        frozenset(scopes | {scope.partition("!")[0] for scope in scopes}),
        token=given("API_TOKEN"),
        client_id=given("CLIENT_ID") or client,
        callback=given("OAUTH_CALLBACK_URL") or f"{prefix}/oauth_callback",
        pages=f"{given('HOST')}{given('BASE_URL').rstrip('/')}/hub/",
        user=user,
        server=server,
        activity_url=activity_url,
        activity_interval=_seconds(given("ACTIVITY_INTERVAL")),
        tls=_tls(given("SSL_KEYFILE"), given("SSL_CERTFILE"), given("SSL_CLIENT_CA")),
    )


def _are_missing(names: Sequence[str]) -> str:
    """Return a clause that says which variables are missing."""
    *others, last = names
    return f"{', '.join(others)} and {last} are missing" if others else f"{last} is missing"


def _scopes(text: str) -> set[str]:
    try:
        return msgspec.json.decode(text, type=set[str]) if text else set()
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"JUPYTERHUB_OAUTH_ACCESS_SCOPES is not a list of scopes: {error}") from error


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if text else ACTIVITY_SECONDS
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds <= 86400:
        raise InvalidInput(f"JUPYTERHUB_ACTIVITY_INTERVAL must be 1 to 86400 seconds, not {text[:100]!r}")
    return seconds


def _tls(key: str, certificate: str, authorities: str) -> HubTls | None:
    if not (key or certificate or authorities):
        return None
    if not (key and certificate and authorities):
        raise InvalidInput(
            "JUPYTERHUB_SSL_KEYFILE, JUPYTERHUB_SSL_CERTFILE and JUPYTERHUB_SSL_CLIENT_CA are needed together"
        )
    return HubTls(Path(key), Path(certificate), Path(authorities))
