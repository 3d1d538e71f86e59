"""The option ``--principal`` of the commands about sessions, by which administrators name another's.

The gateway decides who may do that; ``client`` names the owner in each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traitlets import Unicode

from cellgate.cli.base import CommandApp, UsageError

if TYPE_CHECKING:
    from cellgate.client import Gateway

EVERYBODY = "*"


class OwnerOption(CommandApp):
    """A command about sessions, by default those of the token's own principal."""

    principal = Unicode(
        help="Whose sessions, if not yours; '*', for lists: everybody's. For administrators, and for "
        "auditors, who only look."
    ).tag(config=True, metavar="NAME", not_empty=True)

    aliases = {"principal": "OwnerOption.principal", **CommandApp.aliases}  # noqa: RUF012

    def gateway(self) -> Gateway:
        """Return a client of the gateway for the sessions of one principal. Raises UsageError for ``*``."""
        if self.principal == EVERYBODY:
            raise UsageError("--principal '*' is for lists of sessions: name the owner of this one")
        return self.gateway_for(self.principal or None)
