"""The settings of those who vouch for users: an identity provider, LibreChat, a JupyterHub.

``serve`` inherits them. ``principals`` does the authentication, according to the settings made here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cellgate.cli.base import BaseApp, UsageError, absolute
from cellgate.cli.serve.options import aliases_of, is_given, read, traits_of
from cellgate.identity.oidc_settings import ROLES, OidcSettings, parse_roles
from cellgate_kernels.base.options import option

if TYPE_CHECKING:
    from pathlib import Path

    from cellgate.identity.hub_settings import HubSettings


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Where a Hub's service or server listens, below which path, and the host that the Hub's users name.

    `ip`: empty for all addresses. `tls`: whether by the Hub's files.
    """

    ip: str
    port: int
    prefix: str
    public_host: str | None
    tls: bool


@dataclass(frozen=True, slots=True)
class VoucherSettings:
    """Those who vouch for users, in the words of operators, besides a provider's settings."""

    oidc_roles: tuple[str, ...] = option(
        tuple(f"{value}={role}" for value, role in ROLES),
        "Which value of that claim gives which role: VALUE=user, admin or auditor. The first that a token "
        "has counts.",
        metavar="VALUE=ROLE",
    )
    librechat_key: str = option(
        "",
        "The public key of a LibreChat whose tokens for its users are accepted, a file in PEM, which is read"
        " again when it changes; needs its door.",
        metavar="FILE",
    )
    cluster_key: str = option(
        "",
        "The file with the key that all gateways of a cluster have, 32 bytes; default: the data folder's"
        " secrets.key.",
        metavar="FILE",
    )
    jupyterhub: bool = option(
        False,
        "Serve as a service of the JupyterHub that the environment describes, or as a user's server: at its "
        "address and prefix, with its tokens.",
    )


class IdentityOptions(BaseApp):
    """Whose word the gateway takes for who sent a request."""

    vars().update(traits_of(OidcSettings, VoucherSettings))

    flags = {  # noqa: RUF012
        "jupyterhub": (
            {"ServeApp": {"jupyterhub": True}},
            "Serve as a service of the JupyterHub that the environment describes, or as a user's server.",
        ),
        **BaseApp.flags,
    }
    aliases = {  # noqa: RUF012
        **aliases_of(
            "ServeApp",
            *("oidc_issuer", "oidc_audience", "oidc_jwks", "oidc_principal_claim", "oidc_role_claim"),
            *("oidc_client_id", "librechat_key", "cluster_key"),
        ),
        **BaseApp.aliases,
    }

    def oidc_settings(self) -> OidcSettings | None:
        """Make the settings of the provider, if one is named. Raises InvalidInput, UsageError."""
        if not is_given(self, "oidc_issuer"):
            for name in ("oidc_audience", "oidc_jwks", "oidc_role_claim", "oidc_client_id"):
                if is_given(self, name):
                    raise UsageError(f"{self.option(name)} needs --oidc-issuer")
            return None
        roles = parse_roles(self.vouchers.oidc_roles)
        given = read(OidcSettings, self, roles=roles)
        is_file = given.jwks and "://" not in given.jwks
        return replace(given, jwks=str(absolute(given.jwks))) if is_file else given

    @property
    def vouchers(self) -> VoucherSettings:
        """The settings beside those of a provider."""
        return read(VoucherSettings, self)

    def librechat_file(self, doors: tuple[str, ...]) -> Path | None:
        """Return the file with LibreChat's key, if named. `doors`: the open ones. Raises UsageError."""
        file = self.vouchers.librechat_key
        if not file:
            return None
        if "librechat" not in doors:
            raise UsageError(f"{self.option('librechat_key')} needs --doors librechat")
        return absolute(file)

    def hub_settings(self) -> HubSettings | None:
        """Return the settings of the Hub, if one has started this. Raises InvalidInput."""
        from cellgate.identity.hub_settings import hub_settings  # noqa: PLC0415

        return hub_settings(self.environment) if self.vouchers.jupyterhub else None

    def hub_address(self) -> HubAddress | None:
        """Return the address where the Hub's proxy expects its service; None if unset. Raises UsageError."""
        url = self.environment.get("JUPYTERHUB_SERVICE_URL", "")
        if not self.vouchers.jupyterhub or not url:
            return None
        try:
            parts = urlsplit(url)
            port = parts.port
            public = urlsplit(self.environment.get("JUPYTERHUB_PUBLIC_URL", "")).hostname
        except ValueError as error:
            raise UsageError(f"JUPYTERHUB_SERVICE_URL or JUPYTERHUB_PUBLIC_URL is no URL: {error}") from error
        # A spawner without an address means all of them: http://:8888.
        named = bool(parts.hostname) or parts.netloc.startswith(":")
        hub = self.hub_settings()
        schemes = {"http"} if hub is None or hub.tls is None else {"http", "https"}
        if parts.scheme not in schemes or not named or not port:
            raise UsageError(
                f"JUPYTERHUB_SERVICE_URL is {url!r}; it must be one such as http://127.0.0.1:8888, or with"
                " TLS (internal_ssl) where the Hub gives JUPYTERHUB_SSL_KEYFILE, _CERTFILE and _CLIENT_CA"
            )
        prefix = self.environment.get("JUPYTERHUB_SERVICE_PREFIX", "/")
        return HubAddress(parts.hostname or "", port, prefix, public, parts.scheme == "https")
