"""JupyterHub with DockerSpawner: each user gets a container with a gateway and a volume with its data.

Needs `pip install dockerspawner` beside JupyterHub, and the image cellgate/server (../Dockerfile). The Hub
runs on the engine's machine; containers reach it by the address of Docker's bridge.
"""

import os

c = get_config()  # noqa: F821 - defined by traitlets

c.JupyterHub.spawner_class = "dockerspawner.DockerSpawner"
c.DockerSpawner.image = os.environ.get("CELLGATE_SERVER_IMAGE", "cellgate/server:latest")
c.DockerSpawner.cmd = ["cellgate", "serve", "--jupyterhub", "--backend=process", "--allow-unsandboxed"]
# What a user keeps: the record and the files of sessions. One volume a user, or named server.
c.DockerSpawner.volumes = {"cellgate-{username}-{servername}": "/home/cellgate"}
# The container goes with the server, the volume stays.
c.DockerSpawner.remove = True

# A user's share of the machine, and walls beside the container's own.
c.DockerSpawner.mem_limit = "4G"
c.DockerSpawner.cpu_limit = 2
c.DockerSpawner.extra_host_config = {
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "pids_limit": 2048,
    "init": True,
}

# Where containers reach the Hub: the address of Docker's bridge.
c.JupyterHub.hub_ip = os.environ.get("HUB_IP", "172.17.0.1")
c.DockerSpawner.use_internal_ip = True

c.JupyterHub.allow_named_servers = True
# Choose an authenticator of yours: with this one, anybody is whoever they say.
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
