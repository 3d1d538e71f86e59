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
# The test starts the proxy: a Hub that starts it gives up after ten seconds, which a busy machine may need.
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.auth_token = given["proxy_token"]
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{given['proxy_api']}"
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
