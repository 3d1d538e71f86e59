"""A JupyterHub for tests/clients/test_hub.py: it runs the gateway as a service, and another manages tokens.

The test gives ports, folders and the gateway's command as JSON in the variable HUB_TEST.
"""

import json
import os

given = json.loads(os.environ["HUB_TEST"])
c = get_config()  # noqa: F821 - traitlets defines it

c.JupyterHub.bind_url = f"http://127.0.0.1:{given['public']}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{given['hub']}"
c.JupyterHub.db_url = f"sqlite:///{given['folder']}/hub.sqlite"
c.JupyterHub.cookie_secret_file = f"{given['folder']}/cookie_secret"
c.ConfigurableHTTPProxy.command = [given["proxy"]]
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{given['proxy_api']}"
c.ConfigurableHTTPProxy.pid_file = f"{given['folder']}/proxy.pid"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"root"}
c.JupyterHub.services = [
    {
        "name": "cellgate",
        "url": f"http://127.0.0.1:{given['gateway']}",
        "command": given["command"],
        "environment": given["environment"],
    },
    {"name": "steward", "api_token": given["steward"]},
]
c.JupyterHub.load_roles = [
    {"name": "steward", "scopes": ["admin:users", "tokens"], "services": ["steward"]},
    {"name": "analysts", "scopes": ["access:services!service=cellgate"], "users": ["ada", "root"]},
]
