"""JupyterHub on one machine: each user of the system gets a gateway, as a process of their own.

Start with `jupyterhub -f jupyterhub_config.py`, as root. Cellgate is in /opt/cellgate here, with its kernels
(`/opt/cellgate/bin/cellgate setup`). Where bubblewrap works for users, their kernels are in sandboxes.
"""

c = get_config()  # noqa: F821 - defined by traitlets

c.JupyterHub.spawner_class = "jupyterhub.spawner.LocalProcessSpawner"
c.Spawner.cmd = ["/opt/cellgate/bin/cellgate", "serve", "--jupyterhub"]

# Users of the system sign in by their passwords there. Choose another authenticator if you have one.
c.JupyterHub.authenticator_class = "pam"
c.Authenticator.allow_all = True

# A second server of a user can be a JupyterLab, or the other way round: docs/how-to/run-under-jupyterhub.md.
c.JupyterHub.allow_named_servers = True
