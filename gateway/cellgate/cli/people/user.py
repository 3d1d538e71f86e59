"""``cellgate user``: who may use the gateway of a data folder."""

from __future__ import annotations

import sys
from types import MappingProxyType

from msgspec import structs
from traitlets import Enum

from cellgate.cli.actions import forms_of
from cellgate.cli.base import UsageError
from cellgate.cli.people.principals import PrincipalsApp

ROLES = ("user", "admin", "auditor")


class UserApp(PrincipalsApp):
    """``cellgate user``."""

    name = "cellgate-user"
    usage = "add|list|role|disable|enable|remove [NAME] | migrate [options]"
    actions = {  # noqa: RUF012
        "add": "NAME",
        "list": "",
        "role": f"NAME {'|'.join(ROLES)}",
        "disable": "NAME",
        "enable": "NAME",
        "remove": "NAME",
        "migrate": "",
    }
    forms = forms_of(actions)
    description = """
        Users of the gateway with this data folder, which need not be running; one that is notices within a
        second. A user can do nothing without a token: see cellgate token.

        Roles: a `user` runs cells in sessions of their own. An `admin` may do everything with everybody's
        sessions. An `auditor` reads and verifies everybody's records, and runs nothing.

        `role` gives a user another role, which their tokens have at once: what they have open is closed, and
        opens again with the new one. Their sessions, and cells that run or wait in these, go on.

        `disable` closes a user's connections and ends their sessions; records and files stay, and `enable`
        lets them in again. `remove` does the same for good, and removes the user's tokens and secrets. A new
        user of the same name would own the records: don't use names again.

        Gateways of a cluster have the users in its database: name it by --cluster, or in CELLGATE_CLUSTER.
        `migrate --cluster URL` moves the users of the data folder there, with their tokens and secrets, if it
        has none; the file is kept under another name. The data folder's secrets.key is then the cluster's:
        give a copy to every gateway by --cluster-key, unless you name such a file here.
    """
    examples = """
        cellgate user add alice
        cellgate user add olga --role auditor
        cellgate user list
        cellgate user role alice admin
        cellgate user disable alice
        cellgate user add bob --cluster postgresql://cellgate@db.example.org/cellgate
        cellgate user migrate --cluster postgresql://cellgate@db.example.org/cellgate
    """

    options_of_some = MappingProxyType({"role": "add", "json": "list", "cluster_key": "migrate"})

    role = Enum(ROLES, "user", help="A new user's role: user, admin or auditor.").tag(
        config=True, metavar="ROLE"
    )

    aliases = {  # noqa: RUF012
        "role": "UserApp.role",
        "cluster-key": "PrincipalsApp.cluster_key",
        **PrincipalsApp.aliases,
    }
    flags = {"json": ({"PrincipalsApp": {"json": True}}, "Print JSON.")}  # noqa: RUF012

    def run_action(self, action: str, *words: str) -> None:
        if action == "add":
            self._add(words[0])
        elif action == "list":
            self._list()
        elif action == "role":
            self._change_role(*words)
        elif action == "migrate":
            self._migrate()
        elif action == "remove":
            with self.store() as store:
                store.remove_user(words[0])
        else:
            with self.store() as store:
                store.set_disabled(words[0], disabled=action == "disable")

    def _add(self, name: str) -> None:
        from cellgate.identity.principal import Role  # noqa: PLC0415 - keeps --help quick
        from cellgate.identity.tokens import check_name  # noqa: PLC0415

        check_name(name)
        with self.store(create=True) as store:
            store.add_user(name, Role(self.role))

    def _migrate(self) -> None:
        from cellgate.identity.store.opening import move_users  # noqa: PLC0415 - keeps --help quick

        if not self.cluster:
            raise UsageError("--cluster URL says where to move the users to")
        place = self.place
        moved = move_users(place)
        sys.stdout.write(
            f"{moved} {'user' if moved == 1 else 'users'} moved to {place}. Its key is {place.key_path}: give"
            " every gateway of the cluster a copy, by --cluster-key FILE.\n"
        )

    def _change_role(self, name: str, role: str) -> None:
        from cellgate.identity.principal import Role  # noqa: PLC0415

        if role not in ROLES:
            raise UsageError(f"there is no role {role[:40]!r}; choose from {', '.join(ROLES)}")
        with self.store() as store:
            store.set_role(name, Role(role))

    def _list(self) -> None:
        from cellgate.identity.user_models import user_model  # noqa: PLC0415

        with self.store() as store:
            users = store.users()
        self.show([structs.asdict(user_model(user)) for user in users], "No users.")
