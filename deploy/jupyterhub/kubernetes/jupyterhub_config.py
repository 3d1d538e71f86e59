"""JupyterHub with KubeSpawner: each user gets a pod with a gateway, and a claim for a volume with its data.

For a Hub of your own in a cluster; with Zero to JupyterHub use values.yaml beside this file. Needs
`pip install jupyterhub-kubespawner`, the image cellgate/server (../Dockerfile) in a registry of yours, and an
account that may make pods and claims.
"""

import os

c = get_config()  # noqa: F821 - defined by traitlets

c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.KubeSpawner.image = os.environ.get("CELLGATE_SERVER_IMAGE", "cellgate/server:latest")
c.KubeSpawner.cmd = ["cellgate", "serve", "--jupyterhub", "--backend=process", "--allow-unsandboxed"]

# What a user keeps: the record and the files of sessions.
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.pvc_name_template = "cellgate-{user_server}"
c.KubeSpawner.storage_capacity = "10Gi"
c.KubeSpawner.storage_access_modes = ["ReadWriteOnce"]
c.KubeSpawner.volumes = [{"name": "home", "persistentVolumeClaim": {"claimName": "cellgate-{user_server}"}}]
c.KubeSpawner.volume_mounts = [{"name": "home", "mountPath": "/home/cellgate"}]

# A user's share of a node, and walls beside the pod's own. Kernels run as the image's user, number 1000.
c.KubeSpawner.mem_guarantee, c.KubeSpawner.mem_limit = "512M", "4G"
c.KubeSpawner.cpu_guarantee, c.KubeSpawner.cpu_limit = 0.1, 2
c.KubeSpawner.uid = c.KubeSpawner.gid = c.KubeSpawner.fs_gid = 1000
c.KubeSpawner.container_security_context = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
# A stop gives running cells five seconds and then ends kernels.
c.KubeSpawner.delete_grace_period = 15
# Cells reach no API server.
c.KubeSpawner.automount_service_account_token = False

c.JupyterHub.hub_ip = "0.0.0.0"  # noqa: S104 - of its pod
c.JupyterHub.hub_connect_ip = os.environ.get("HUB_SERVICE_HOST", "hub")
c.JupyterHub.allow_named_servers = True
# Choose an authenticator of yours: with this one, anybody is whoever they say.
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
