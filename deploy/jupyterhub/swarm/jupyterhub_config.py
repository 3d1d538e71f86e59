"""JupyterHub with SwarmSpawner: each user gets a service of the swarm, on one of its nodes.

Needs `pip install dockerspawner` beside JupyterHub, the image cellgate/server (../Dockerfile) on all nodes,
and an attachable overlay network: `docker network create --driver overlay --attachable cellgate`. The Hub
runs in that network, as a service of the swarm itself, on a manager and with its engine's socket.
"""

import asyncio
import os
from hashlib import sha256

from docker.types import DriverConfig, Mount, RestartPolicy

c = get_config()  # noqa: F821 - defined by traitlets

c.JupyterHub.spawner_class = "dockerspawner.SwarmSpawner"
c.SwarmSpawner.image = os.environ.get("CELLGATE_SERVER_IMAGE", "cellgate/server:latest")
c.SwarmSpawner.cmd = ["cellgate", "serve", "--jupyterhub", "--backend=process", "--allow-unsandboxed"]
c.SwarmSpawner.network_name = os.environ.get("HUB_NETWORK", "cellgate")
c.SwarmSpawner.use_internal_ip = True
# The name of a service leads to its only task, without a virtual address in between.
c.SwarmSpawner.extra_endpoint_spec = {"mode": "dnsrr"}
# The Hub starts servers, and has to know of each that ends.
c.SwarmSpawner.extra_task_spec = {"restart_policy": RestartPolicy(condition="none")}
c.SwarmSpawner.mem_limit = "4G"
c.SwarmSpawner.cpu_limit = 2

# The names of the nodes that users' servers run on, by spaces. Without any, the swarm chooses: that is for a
# driver of volumes whose disk follows the server, not for a network file system (the record is SQLite's).
NODES = os.environ.get("CELLGATE_NODES", "").split()
DRIVER = os.environ.get("CELLGATE_VOLUME_DRIVER", "local")


def keep(spawner):
    """Give each user, or named server, a volume with what they keep: the record and the files of sessions.

    A volume of the driver `local` is its node's, so a user's servers always get the same one of NODES. When a
    name is added, some users' node changes: move their volumes there first.
    """
    user = spawner.template_namespace()
    volume = "cellgate-{username}-{servername}".format(**user)
    mount = Mount("/home/cellgate", volume, type="volume", driver_config=DriverConfig(DRIVER))
    spawner.extra_container_spec = {"mounts": [mount], "init": True, "cap_drop": ["ALL"]}
    if NODES:
        node = max(NODES, key=lambda name: sha256(f"{user['username']} {name}".encode()).digest())
        spawner.extra_placement_spec = {"constraints": [f"node.hostname == {node}"]}


async def wait_for_end(spawner):
    """Wait until the container of a removed service has ended: the next server needs its volume."""
    for _ in range(60):
        if not await spawner.docker("tasks", filters={"name": f"{spawner.service_name}."}):
            return
        await asyncio.sleep(0.5)


c.SwarmSpawner.pre_spawn_hook = keep
c.SwarmSpawner.post_stop_hook = wait_for_end

# The Hub listens on all addresses of its container, and is reached by its service's name.
c.JupyterHub.hub_ip = "0.0.0.0"  # noqa: S104 - of its container
c.JupyterHub.hub_connect_ip = os.environ.get("HUB_NAME", "hub")

c.JupyterHub.allow_named_servers = True
# Choose an authenticator of yours: with this one, anybody is whoever they say.
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
