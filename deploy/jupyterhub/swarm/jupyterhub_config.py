"""JupyterHub with SwarmSpawner: each user gets a service of the swarm, on one of its nodes.

Needs `pip install dockerspawner` beside JupyterHub, the image cellgate/server (../Dockerfile) on all nodes,
and an attachable overlay network: `docker network create --driver overlay --attachable cellgate`. The Hub
runs in that network, as a service of the swarm itself, on a manager and with its engine's socket.
"""

import asyncio
import os
from hashlib import sha256

from docker.types import DriverConfig, Mount, RestartPolicy
from dockerspawner import SwarmSpawner

c = get_config()  # noqa: F821 - defined by traitlets

# The names of the nodes that users' servers run on, by spaces. Without any, the swarm chooses: that is for a
# driver of volumes whose disk follows the server, not for a network file system (the record is SQLite's).
NODES = os.environ.get("CELLGATE_NODES", "").split()
DRIVER = os.environ.get("CELLGATE_VOLUME_DRIVER", "local")
if DRIVER == "local" and not NODES:
    raise ValueError("Name the nodes of users' servers in CELLGATE_NODES: their volumes stay on a node")


def node_of(user):
    """Return the node of a user's servers, always the same one of NODES: a volume of `local` is its node's.

    When a name is added, some users' node changes: move their volumes there first.
    """
    return max(NODES, key=lambda name: sha256(f"{user} {name}".encode()).digest())


class VolumeSpawner(SwarmSpawner):
    """A service whose container has the user's volume, and is reached by its address."""

    @property
    def mounts(self):
        """What a user keeps: the record and the files of sessions. One volume a user, or named server."""
        volume = "cellgate-{username}-{servername}".format(**self.template_namespace())
        return [Mount("/home/cellgate", volume, type="volume", driver_config=DriverConfig(DRIVER))]

    async def create_object(self):
        """Make the service, on the user's node."""
        if NODES:
            node = node_of(self.user.name)
            self.extra_placement_spec = {"constraints": [f"node.hostname == {node}"]}
        return await super().create_object()

    async def get_ip_and_port(self):
        """Return the container's address: to which one a name has led, the Hub remembers for minutes."""
        task = await self.get_task()
        for each in task["NetworksAttachments"]:
            if each["Network"]["Spec"]["Name"] == self.network_name:
                return each["Addresses"][0].partition("/")[0], self.port
        raise RuntimeError(f"{self.service_name} is not in the network {self.network_name}")

    async def remove_object(self):
        """Remove the service, and wait until its container has ended: the next one needs its volume."""
        await super().remove_object()
        for _ in range(60):
            if not await self.docker("tasks", filters={"name": f"{self.service_name}."}):
                return
            await asyncio.sleep(0.5)
        self.log.warning("The container of %s has not ended", self.service_name)


c.JupyterHub.spawner_class = VolumeSpawner
c.SwarmSpawner.image = os.environ.get("CELLGATE_SERVER_IMAGE", "cellgate/server:latest")
c.SwarmSpawner.cmd = ["cellgate", "serve", "--jupyterhub", "--backend=process", "--allow-unsandboxed"]
c.SwarmSpawner.network_name = os.environ.get("HUB_NETWORK", "cellgate")
c.SwarmSpawner.use_internal_ip = True
# Nobody needs a virtual address of the service.
c.SwarmSpawner.extra_endpoint_spec = {"mode": "dnsrr"}
# The Hub starts servers, and has to know of each that ends.
c.SwarmSpawner.extra_task_spec = {"restart_policy": RestartPolicy(condition="none")}

# A user's share of a node, and walls beside the container's own.
c.SwarmSpawner.mem_limit = "4G"
c.SwarmSpawner.cpu_limit = 2
c.SwarmSpawner.extra_container_spec = {"cap_drop": ["ALL"], "init": True}

# The Hub listens on all addresses of its container, and is reached by its service's name.
c.JupyterHub.hub_ip = "0.0.0.0"  # noqa: S104 - of its container
c.JupyterHub.hub_connect_ip = os.environ.get("HUB_NAME", "hub")

c.JupyterHub.allow_named_servers = True
# Choose an authenticator of yours: with this one, anybody is whoever they say.
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
