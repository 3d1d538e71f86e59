"""``cellgate token``: what users prove themselves with."""

from __future__ import annotations

import sys
import time
from types import MappingProxyType

import msgspec
from msgspec import structs
from traitlets import Unicode

from cellgate.cli.actions import forms_of
from cellgate.cli.base import UsageError
from cellgate.cli.people.principals import PrincipalsApp


class TokenApp(PrincipalsApp):
    """``cellgate token``."""

    name = "cellgate-token"
    usage = "create|list|revoke [ID] [options]"
    actions = {"create": "", "list": "", "revoke": "ID"}  # noqa: RUF012
    forms = ("create --user USER", *forms_of({"list": "", "revoke": "ID"}))
    description = """
        Tokens of users. `create` prints the token on stdout, alone on its line and never again: only a digest
        is kept. Its id, on stderr, is what `list` shows and `revoke` takes. `revoke` also ends the tokens
        that the user made with it, by HTTP. A change counts for the next request; a gateway that is running
        closes the connections of a revoked token within a second.

        Scopes limit what a token may do: `run` cells and end sessions, `read` results and records, work with
        `files` and `packages`, change `users` by HTTP: the user's own tokens and secrets, or everybody's for
        administrators. Administrators and auditors also have `metrics`. A token with a prefix is for the
        sessions whose keys begin with it; for all others it gets 404.
    """
    examples = """
        cellgate token create --user alice
        cellgate token create --user alice --expires 30d --scope run,read --sessions agent-
        cellgate token create --user alice --session report-7 --json
        cellgate token list --user alice
        cellgate token revoke 3f9a52c01be7
    """

    options_of_some = MappingProxyType(
        {
            "user": "create list",
            "expires": "create",
            "scope": "create",
            "session": "create",
            "sessions": "create",
            "json": "create list",
        }
    )

    user = Unicode(help="Whose token, or whose tokens to list.").tag(config=True, metavar="NAME")
    expires = Unicode(
        help="When it ends: after 90s, 12h or 30d, or at 2030-01-31T12:00:00Z; default: never."
    ).tag(config=True, metavar="TIME")
    scope = Unicode(
        help="What it may do: run, read, files, packages, metrics, users, separated by commas; default: all"
        " that the role may."
    ).tag(config=True, metavar="SCOPES")
    session = Unicode(help="The one session that it is for.").tag(config=True, metavar="KEY")
    sessions = Unicode(help="How the keys of its sessions begin.").tag(config=True, metavar="PREFIX")

    aliases = {  # noqa: RUF012
        "user": "TokenApp.user",
        "expires": "TokenApp.expires",
        "scope": "TokenApp.scope",
        "session": "TokenApp.session",
        "sessions": "TokenApp.sessions",
        **PrincipalsApp.aliases,
    }
    flags = {"json": ({"PrincipalsApp": {"json": True}}, "Print JSON.")}  # noqa: RUF012

    def run_action(self, action: str, *words: str) -> None:
        from cellgate.identity.user_models import token_model  # noqa: PLC0415 - keeps --help quick

        if action == "create":
            self._create()
        elif action == "list":
            with self.store() as store:
                tokens = store.tokens(self.user or None)
            self.show([structs.asdict(token_model(token)) for token in tokens], "No tokens.")
        else:
            with self.store() as store:
                ended = [token.id for token in store.revoke_token(words[0]) if token.id != words[0]]
            if ended:
                sys.stderr.write(f"Revoked with it, as they were made with it: {', '.join(ended)}\n")

    def _create(self) -> None:
        from cellgate.identity.tokens import check_reach, check_scopes, parse_expiry, parse_scopes  # noqa: PLC0415
        from cellgate.identity.user_models import token_model  # noqa: PLC0415

        if not self.user:
            raise UsageError("--user NAME says whose token it is")
        expires_at = parse_expiry(self.expires, time.time()) if self.expires else None
        scopes = parse_scopes(self.scope) if self.scope else None
        reach = check_reach(key=self.session, prefix=self.sessions)
        with self.store() as store:
            check_scopes(self.user, store.user(self.user).role, scopes)
            token, text = store.create_token(self.user, expires_at=expires_at, scopes=scopes, reach=reach)
        if self.json:
            model = structs.asdict(token_model(token)) | {"token": text}
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(model), indent=2).decode() + "\n")
            return
        sys.stderr.write(f"Token {token.id} of {token.user}; it is shown only now:\n")
        sys.stdout.write(f"{text}\n")
