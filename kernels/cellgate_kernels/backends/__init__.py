"""Isolation backends, implemented as jupyter_client kernel provisioners.

Each is an entry point of ``jupyter_client.kernel_provisioners``, so that nbclient, JupyterLab and other
Jupyter programs can use it too, without the gateway. ``launch.backend`` says what each
must do, and ``launch.base`` does what all share. ``process`` and ``sandbox`` start children of this process,
which ``launch.child`` supervises; ``docker`` asks an engine.
"""
