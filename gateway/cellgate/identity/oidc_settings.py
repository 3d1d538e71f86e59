"""The settings of an identity provider, and the meaning of its tokens' claims. Only values and their checks.

``jwt`` verifies tokens by them; ``provider`` gets its keys. It imports no cryptography: the command line
reads it for its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cellgate.identity.addresses import check_url
from cellgate.identity.principal import Role
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.options import option

OPENID = "openid"
ROLES = (("cellgate-admin", Role.ADMIN), ("cellgate-auditor", Role.AUDITOR), ("cellgate-user", Role.USER))
"""The default of `OidcSettings.roles`."""


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """An accepted issuer of tokens, and the meaning of their claims. Raises InvalidInput for invalid values.

    `roles`: pairs of a value of the role claim and the role for it; a token's first match counts.
    """

    PREFIX: ClassVar[str] = "oidc_"

    issuer: str = option(
        "",
        "The URL of an OpenID Connect provider, exactly as its tokens name it: its users' tokens are "
        "accepted besides the gateway's own.",
        metavar="URL",
    )
    audience: str = option(
        "", "The audience that tokens must be for: the provider's name for this gateway.", metavar="NAME"
    )
    jwks: str = option(
        "",
        "The provider's keys, a JSON Web Key Set: a URL, or a file, which is read again when it changes; "
        "default: as the provider's discovery document says.",
        metavar="PLACE",
    )
    principal_claim: str = option("sub", "The claim with the principal's name.", metavar="CLAIM")
    role_claim: str = option(
        "",
        "The claim with roles, or a path to it such as realm_access.roles; who has none of oidc_roles there "
        "is refused. Default: everybody is a user.",
        metavar="CLAIM",
    )
    roles: tuple[tuple[str, Role], ...] = ROLES
    client_id: str = option(
        "",
        "The provider's name for this gateway as a client, by which users of the console sign in there; a "
        "public one, with PKCE. Default: they can't.",
        metavar="NAME",
    )
    scopes: str = option(OPENID, "What the console asks the provider for, such as 'openid email'.")

    def __post_init__(self) -> None:
        check_url(self.issuer, "The issuer")
        if "?" in self.issuer:
            raise InvalidInput("The issuer's URL has no query")
        if not self.audience:
            raise InvalidInput("The audience is missing: the name that the provider gives this gateway")
        if not self.principal_claim:
            raise InvalidInput("The principal's claim has no name")
        if self.role_claim and not self.roles:
            raise InvalidInput("No value of the role's claim means a role")
        if OPENID not in self.scopes.split():
            raise InvalidInput(f"The scopes of a sign-in must include {OPENID}")


def parse_roles(words: tuple[str, ...]) -> tuple[tuple[str, Role], ...]:
    """Return the pairs of words such as `engineers=user`. Raises InvalidInput."""
    pairs = []
    for word in words:
        value, _, role = word.rpartition("=")
        if not value or role not in set(Role):
            raise InvalidInput(
                f"{word[:80]!r} maps no value to a role: write VALUE=ROLE, of {', '.join(Role)}"
            )
        pairs.append((value, Role(role)))
    return tuple(pairs)
