"""JupyterHub with SwarmSpawner: each user gets a service of the swarm, on the node that the swarm chooses.

Needs `pip install dockerspawner` beside JupyterHub, the image cellgate/server (../Dockerfile) on all nodes,
and an attachable overlay network: `docker network create --driver overlay --attachable cellgate`. The Hub
runs in that network, as a service of the swarm itself.
"""

import os

c = get_config()  # noqa: F821 - defined by traitlets

c.JupyterHub.spawner_class = "dockerspawner.SwarmSpawner"
c.SwarmSpawner.image = os.environ.get("CELLGATE_SERVER_IMAGE", "cellgate/server:latest")
c.SwarmSpawner.cmd = ["cellgate", "serve", "--jupyterhub", "--backend=process", "--allow-unsandboxed"]
c.SwarmSpawner.network_name = os.environ.get("HUB_NETWORK", "cellgate")
c.SwarmSpawner.use_internal_ip = True
# A volume is its node's. Give volumes a driver that all nodes share, such as NFS, if users are to find their
# record on whatever node they come to.
c.SwarmSpawner.volumes = {"cellgate-{username}-{servername}": "/home/cellgate"}
c.SwarmSpawner.mem_limit = "4G"
c.SwarmSpawner.cpu_limit = 2

# The Hub listens on all addresses of its container, and is reached by its service's name.
c.JupyterHub.hub_ip = "0.0.0.0"  # noqa: S104 - of its container
c.JupyterHub.hub_connect_ip = os.environ.get("HUB_NAME", "hub")

c.JupyterHub.allow_named_servers = True
# Choose an authenticator of yours: with this one, anybody is whoever they say.
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
