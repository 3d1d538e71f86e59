"""The settings of those who vouch for users: an identity provider, LibreChat, a JupyterHub.

``serve`` inherits them. ``principals`` does the authentication, according to the settings made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from traitlets import Bool, List, Unicode

from cellgate.cli.base import BaseApp, UsageError, absolute

if TYPE_CHECKING:
    from pathlib import Path

    from cellgate.identity.hub import HubSettings
    from cellgate.identity.jwt import OidcSettings


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Where a Hub's service listens, below which path, and the host that the Hub's users name."""

    ip: str
    port: int
    prefix: str
    public_host: str | None


class IdentityOptions(BaseApp):
    """Whose word the gateway takes for who sent a request."""

    oidc_issuer = Unicode(
        help="The URL of an OpenID Connect provider, exactly as its tokens name it: its users' tokens are "
        "accepted besides the gateway's own."
    ).tag(config=True, metavar="URL")
    oidc_audience = Unicode(
        help="The audience that tokens must be for: the provider's name for this gateway."
    ).tag(config=True, metavar="NAME")
    oidc_jwks = Unicode(
        help="The provider's keys, a JSON Web Key Set: a URL, or a file, which is read again when it "
        "changes; default: as the provider's discovery document says."
    ).tag(config=True, metavar="PLACE")
    oidc_principal_claim = Unicode("sub", help="The claim with the principal's name.").tag(
        config=True, metavar="CLAIM"
    )
    oidc_role_claim = Unicode(
        help="The claim with roles, or a path to it such as realm_access.roles; who has none of oidc_roles "
        "there is refused. Default: everybody is a user."
    ).tag(config=True, metavar="CLAIM")
    oidc_roles = List(
        Unicode(),
        ["cellgate-admin=admin", "cellgate-auditor=auditor", "cellgate-user=user"],
        help="Which value of that claim gives which role: VALUE=user, admin or auditor. The first that a "
        "token has counts.",
    ).tag(config=True, metavar="VALUE=ROLE")

    oidc_client_id = Unicode(
        help="The provider's name for this gateway as a client, by which users of the console sign in there; "
        "a public one, with PKCE. Default: they can't."
    ).tag(config=True, metavar="NAME")
    oidc_scopes = Unicode(
        "openid", help="What the console asks the provider for, such as 'openid email'."
    ).tag(config=True, metavar="SCOPES")

    librechat_key = Unicode(
        help="The public key of a LibreChat whose tokens for its users are accepted, a file in PEM, which is "
        "read again when it changes; needs its door."
    ).tag(config=True, metavar="FILE")

    jupyterhub = Bool(
        False,
        help="Serve as a service of the JupyterHub that the environment describes: at the address and below "
        "the prefix that it gives, for its users with its tokens.",
    ).tag(config=True)

    flags = {  # noqa: RUF012
        "jupyterhub": (
            {"ServeApp": {"jupyterhub": True}},
            "Serve as a service of the JupyterHub that the environment describes.",
        ),
        **BaseApp.flags,
    }
    aliases = {  # noqa: RUF012
        "oidc-issuer": "ServeApp.oidc_issuer",
        "oidc-audience": "ServeApp.oidc_audience",
        "oidc-jwks": "ServeApp.oidc_jwks",
        "oidc-principal-claim": "ServeApp.oidc_principal_claim",
        "oidc-role-claim": "ServeApp.oidc_role_claim",
        "oidc-client-id": "ServeApp.oidc_client_id",
        "librechat-key": "ServeApp.librechat_key",
        **BaseApp.aliases,
    }

    def oidc_settings(self) -> OidcSettings | None:
        """The settings of the provider, if one is named. Raises InvalidInput, UsageError."""
        from cellgate.identity.jwt import OidcSettings, parse_roles  # noqa: PLC0415

        if not self.oidc_issuer:
            for name in ("oidc_audience", "oidc_jwks", "oidc_role_claim", "oidc_client_id"):
                if getattr(self, name):
                    raise UsageError(f"{self.option(name)} needs --oidc-issuer")
            return None
        is_file = self.oidc_jwks and "://" not in self.oidc_jwks
        jwks = str(absolute(self.oidc_jwks)) if is_file else self.oidc_jwks
        return OidcSettings(
            self.oidc_issuer,
            self.oidc_audience,
            jwks,
            self.oidc_principal_claim,
            self.oidc_role_claim,
            parse_roles(tuple(self.oidc_roles)),
            self.oidc_client_id,
            self.oidc_scopes,
        )

    def librechat_file(self, doors: tuple[str, ...]) -> Path | None:
        """The file with LibreChat's key, if one is named. `doors`: those that are open. Raises UsageError."""
        if not self.librechat_key:
            return None
        if "librechat" not in doors:
            raise UsageError(f"{self.option('librechat_key')} needs --doors librechat")
        return absolute(self.librechat_key)

    def hub_settings(self) -> HubSettings | None:
        """The settings of the Hub, if this is a service of one. Raises InvalidInput."""
        from cellgate.identity.hub import hub_settings  # noqa: PLC0415

        return hub_settings(self.environment) if self.jupyterhub else None

    def hub_address(self) -> HubAddress | None:
        """Where the Hub's proxy expects its service; None if nobody says. Raises UsageError."""
        url = self.environment.get("JUPYTERHUB_SERVICE_URL", "")
        if not self.jupyterhub or not url:
            return None
        try:
            parts = urlsplit(url)
            port = parts.port
            public = urlsplit(self.environment.get("JUPYTERHUB_PUBLIC_URL", "")).hostname
        except ValueError as error:
            raise UsageError(f"JUPYTERHUB_SERVICE_URL or JUPYTERHUB_PUBLIC_URL is no URL: {error}") from error
        if parts.scheme != "http" or not parts.hostname or not port:
            raise UsageError(
                f"JUPYTERHUB_SERVICE_URL is {url!r}; it must be one such as http://127.0.0.1:8888, without"
                " TLS (internal_ssl)"
            )
        prefix = self.environment.get("JUPYTERHUB_SERVICE_PREFIX", "/")
        return HubAddress(parts.hostname, port, prefix, public)
