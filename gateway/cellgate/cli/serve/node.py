"""``cellgate node``: the gateways of a cluster, in its database; none of them need be running."""

from __future__ import annotations

import sys
from typing import NoReturn

import msgspec
from traitlets import Bool

from cellgate.cli.actions import check_options, choose_action, forms_of
from cellgate.cli.base import BaseApp, UsageError, switches
from cellgate.cli.serve.options import aliases_of, trait_of
from cellgate.cluster.settings import ClusterSettings


class NodeApp(BaseApp):
    """``cellgate node``."""

    name = "cellgate-node"
    usage = "list|drain|remove [NODE] [options]"
    actions = {"list": "", "drain": "NODE", "remove": "NODE"}  # noqa: RUF012
    forms = forms_of(actions)
    description = """
        The gateways of a cluster, which share a database by cellgate serve --cluster. list shows them. A node
        that is drained opens no more sessions and goes on with those that it has, until it is started again.
        remove forgets one that is down for good: its sessions are free at once.
    """
    examples = """
        cellgate node list --cluster postgresql://cellgate@db/cellgate
        cellgate node drain 3f9a52c01be7 --cluster postgresql://cellgate@db/cellgate
        cellgate node remove 3f9a52c01be7 --cluster postgresql://cellgate@db/cellgate
    """
    options_of_some = {"json": "list"}  # noqa: RUF012

    cluster = trait_of(ClusterSettings, "cluster")
    json = Bool(False, help="Print JSON.").tag(config=True)

    aliases = {**aliases_of("NodeApp", "cluster"), **BaseApp.aliases}  # noqa: RUF012
    flags = switches("NodeApp", json=json)

    def start(self) -> NoReturn:
        """Run the action of the first argument. Raises UsageError, NotFound, Conflict, StorageError."""
        from cellgate.record.store.opening import record_address  # noqa: PLC0415 - keeps --help quick

        action, words = choose_action("cellgate node", self.usage, self.actions, self.extra_args, self.forms)
        check_options(self, action)
        if not self.cluster:
            raise UsageError("--cluster URL says which database the gateways share")
        address = record_address(self.cluster, "--cluster")
        from cellgate.cluster.node_table import NodeTable  # noqa: PLC0415 - an extra

        table = NodeTable(address)
        if action == "list":
            found = [
                {
                    "node": each.id,
                    "url": each.url,
                    "state": each.state.value,
                    "kernels": each.load.used,
                    "capacity": each.load.capacity,
                    "beat_at": each.beat_at.isoformat(timespec="seconds"),
                }
                for each in table.nodes()
            ]
            self._show(found)
        elif action == "drain":
            table.drain(words[0])
        else:
            table.remove(words[0])
        sys.stdout.flush()
        raise SystemExit(0)

    def _show(self, nodes: list[dict[str, str | int]]) -> None:
        if self.json:
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(nodes), indent=2).decode() + "\n")
            return
        for node in nodes:
            kernels = f"{node['kernels']} of {node['capacity']} kernels"
            shown = node["node"], f"{node['state']:<8}", kernels, node["beat_at"], node["url"]
            sys.stdout.write(f"{'  '.join(map(str, shown))}\n")
