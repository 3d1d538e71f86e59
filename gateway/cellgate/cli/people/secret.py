"""``cellgate secret``: values that cells get as environment variables and that no output shows."""

from __future__ import annotations

import sys
from types import MappingProxyType

from msgspec import structs
from traitlets import Unicode

from cellgate.cli.actions import forms_of
from cellgate.cli.base import UsageError, absolute
from cellgate.cli.people.principals import PrincipalsApp

MOST_READ = 64 * 1024
"""Bytes that are read of a value; one that is acceptable is shorter."""


class SecretApp(PrincipalsApp):
    """``cellgate secret``."""

    name = "cellgate-secret"
    usage = "set|list|remove|rekey [NAME] [--user USER]"
    actions = {"set": "NAME", "list": "", "remove": "NAME", "rekey": ""}  # noqa: RUF012
    forms = tuple(form if form == "rekey" else f"{form} --user USER" for form in forms_of(actions))
    description = """
        Secrets of a user of the gateway with this data folder, which need not be running; one that is needs
        no restart. The one administrator of a gateway without users is `default`.

        `set` reads the value from stdin; one newline at its end is cut. A session that names the secret has
        it as an environment variable, and its outputs and its record show [secret NAME] where the whole value
        appears. A change applies to kernels that are started afterwards. `list` shows no values, and nothing
        else does.

        Values are encrypted with the key in secrets.key, which is made with the first secret. In a cluster
        that is the key that all its gateways have: name its file by --cluster-key.

        `rekey` replaces that key by a new one and encrypts the secrets of all users anew; a gateway may be
        serving. If it is interrupted, nothing is lost: call it again. In a cluster, stop all gateways first,
        and name the file of the new key by --new-key: it is made if it is missing, and is what each gateway
        needs as its --cluster-key from then on.
    """
    examples = """
        cellgate secret set API_KEY --user alice < key.txt
        cellgate secret list --user alice
        cellgate secret remove API_KEY --user alice
        cellgate secret rekey
    """

    options_of_some = MappingProxyType({"json": "list", "user": "set list remove", "new_key": "rekey"})

    user = Unicode(help="Whose secrets.").tag(config=True, metavar="NAME")
    new_key = Unicode(help="The file of a cluster's new key.").tag(config=True, metavar="FILE")

    aliases = {  # noqa: RUF012
        "user": "SecretApp.user",
        "cluster-key": "PrincipalsApp.cluster_key",
        "new-key": "SecretApp.new_key",
        **PrincipalsApp.aliases,
    }
    flags = {"json": ({"PrincipalsApp": {"json": True}}, "Print JSON.")}  # noqa: RUF012

    def run_action(self, action: str, *words: str) -> None:
        if action == "rekey":
            self._rekey()
            return
        if not self.user:
            raise UsageError("--user NAME says whose secrets")
        if action == "set":
            self._set(words[0])
        elif action == "list":
            self._list()
        else:
            with self.store() as store:
                store.remove_secret(self.user, words[0])

    def _set(self, name: str) -> None:
        from cellgate.identity.secrets import check_secret_name, check_secret_value, unreadable, what_to_do  # noqa: PLC0415 - keeps --help quick
        from cellgate.identity.store.interface import RESERVED  # noqa: PLC0415
        from cellgate.identity.store.opening import secret_key  # noqa: PLC0415

        check_secret_name(name)
        value = check_secret_value(_read_value())
        with self.store(create=self.user == RESERVED) as store:
            store.check_owner(self.user)
            key = secret_key(self.place)
            store.set_secret(self.user, name, key.seal(self.user, name, value))
            lost = unreadable(key, store.secrets())
        if lost:
            sys.stderr.write(f"warning: other secrets can't be read: {what_to_do(lost)}.\n")

    def _rekey(self) -> None:
        from cellgate.identity.store.opening import rekey, rekey_cluster  # noqa: PLC0415 - keeps --help quick

        place = self.place
        if bool(self.new_key) != bool(place.cluster):
            raise UsageError(
                "a cluster's new key needs a file for all its gateways: give it by --new-key FILE"
                if place.cluster
                else "--new-key is for the key of a cluster: name that by --cluster URL"
            )
        if place.cluster:
            self._check_stopped(place.cluster)
            number = rekey_cluster(place, absolute(self.new_key))
        else:
            number = rekey(place.data_dir)
        sys.stdout.write(f"{number} {'secret is' if number == 1 else 'secrets are'} encrypted anew\n")

    @staticmethod
    def _check_stopped(cluster: str) -> None:
        """Check that no gateway runs that has the former key. Raises Conflict, which names those that do."""
        from cellgate.cluster.node_table import NodeTable  # noqa: PLC0415 - an extra
        from cellgate.errors import Conflict  # noqa: PLC0415 - keeps --help quick
        from cellgate.record.store.opening import record_address  # noqa: PLC0415

        living = [node.url for node in NodeTable(record_address(cluster, "--cluster")).nodes() if node.lives]
        if living:
            raise Conflict(
                f"Gateways run that have the present key: {', '.join(living)}. Stop all of the cluster first"
            )

    def _list(self) -> None:
        from cellgate.identity.user_models import secret_model  # noqa: PLC0415

        with self.store() as store:
            boxes = store.secrets(self.user)
        self.show([structs.asdict(secret_model(box)) for box in boxes], "No secrets.")


def _read_value() -> str:
    """Return the value on stdin. Raises UsageError for bytes that are no text."""
    if sys.stdin.isatty():
        sys.stderr.write("The value, then Ctrl-D:\n")
    try:
        value = sys.stdin.buffer.read(MOST_READ).decode()
    except UnicodeDecodeError as error:
        raise UsageError("The value is not UTF-8 text; encode it, for example as base64") from error
    return value.removesuffix("\n")
