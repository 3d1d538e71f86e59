"""The settings of those who vouch for users: an identity provider, a JupyterHub.

``serve`` inherits them. ``principals`` does the authentication, according to the settings made here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traitlets import List, Unicode

from cellgate.cli.base import BaseApp, UsageError

if TYPE_CHECKING:
    from cellgate.principals.jwt import OidcSettings


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

    aliases = {  # noqa: RUF012
        "oidc-issuer": "ServeApp.oidc_issuer",
        "oidc-audience": "ServeApp.oidc_audience",
        "oidc-jwks": "ServeApp.oidc_jwks",
        "oidc-principal-claim": "ServeApp.oidc_principal_claim",
        "oidc-role-claim": "ServeApp.oidc_role_claim",
        **BaseApp.aliases,
    }

    def oidc_settings(self) -> OidcSettings | None:
        """The settings of the provider, if one is named. Raises InvalidInput, UsageError."""
        from cellgate.principals.jwt import OidcSettings, parse_roles  # noqa: PLC0415

        if not self.oidc_issuer:
            for name in ("oidc_audience", "oidc_jwks", "oidc_role_claim"):
                if getattr(self, name):
                    raise UsageError(f"{self.option(name)} needs --oidc-issuer")
            return None
        return OidcSettings(
            self.oidc_issuer,
            self.oidc_audience,
            self.oidc_jwks,
            self.oidc_principal_claim,
            self.oidc_role_claim,
            parse_roles(tuple(self.oidc_roles)),
        )
