"""A JupyterHub for tests/clients/hubs.py: it runs the gateway as a service, or spawns one for each user,
and another service manages users and tokens. With `deploy` it has the configuration in that file of ours,
but for addresses and users.

The test gives ports, folders and the gateway's command as JSON in the variable HUB_TEST.
"""

import json
import os

given = json.loads(os.environ["HUB_TEST"])
c = get_config()  # noqa: F821 - traitlets defines it

if given["deploy"]:
    load_subconfig(given["deploy"])  # noqa: F821 - traitlets defines it
    if str(c.JupyterHub.spawner_class).endswith("LocalProcessSpawner"):
        # Where Cellgate is on this machine, and what its tests need to know.
        c.Spawner.cmd = given["command"]
c.JupyterHub.bind_url = f"http://{given['public_ip']}:{given['public']}"
c.JupyterHub.hub_bind_url = f"http://{given['hub_ip']}:{given['hub']}"
if given["hub_ip"] != "0.0.0.0":
    c.JupyterHub.hub_connect_ip = given["hub_ip"]
c.JupyterHub.db_url = f"sqlite:///{given['folder']}/hub.sqlite"
c.JupyterHub.cookie_secret_file = f"{given['folder']}/cookie_secret"
# The test starts the proxy: a Hub that starts it gives up after ten seconds, which a busy machine may need.
# With internal_ssl it has to: the Hub makes the proxy's certificates.
c.ConfigurableHTTPProxy.should_start = given["internal_ssl"]
c.ConfigurableHTTPProxy.command = [given["proxy"]]
c.ConfigurableHTTPProxy.auth_token = given["proxy_token"]
scheme = "https" if given["internal_ssl"] else "http"
c.ConfigurableHTTPProxy.api_url = f"{scheme}://127.0.0.1:{given['proxy_api']}"
if given["traefik"]:
    c.JupyterHub.proxy_class = "traefik_file"
    c.TraefikProxy.traefik_api_url = f"http://127.0.0.1:{given['proxy_api']}"
    c.TraefikProxy.traefik_api_password = given["proxy_token"]
    if given["tls_proxy"]:
        believed = {"forwardedHeaders": {"trustedIPs": [given["tls_proxy"]]}}
        c.TraefikProxy.extra_static_config = {"entryPoints": {"http": believed}}
    c.TraefikFileProviderProxy.static_config_file = f"{given['folder']}/traefik.toml"
    c.TraefikFileProviderProxy.dynamic_config_file = f"{given['folder']}/rules.toml"
c.JupyterHub.internal_ssl = given["internal_ssl"]
c.JupyterHub.internal_certs_location = f"{given['folder']}/certificates"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"root"}
service = {
    "name": "cellgate",
    "url": f"http://127.0.0.1:{given['gateway']}",
    "command": given["command"],
    "environment": given["environment"],
}
c.JupyterHub.services = [
    *([] if given["spawns"] else [service]),
    {"name": "steward", "api_token": given["steward"]},
]
if not given["deploy"]:
    c.JupyterHub.spawner_class = "simple"
    c.JupyterHub.allow_named_servers = True
    c.SimpleLocalProcessSpawner.home_dir_template = f"{given['folder']}/homes/{{username}}"
    c.Spawner.cmd = given["command"]


async def choose(spawner):
    """Give the server of this name JupyterLab in the place of the gateway."""
    if spawner.name == "jupyterlab":
        spawner.cmd, spawner.environment = given["lab"], {}


c.Spawner.pre_spawn_hook = choose
c.KubeSpawner.port = given["gateway"]
c.Spawner.environment = given["environment"]
c.Spawner.start_timeout = c.Spawner.http_timeout = 120
c.JupyterHub.load_roles = [
    {
        "name": "steward",
        "scopes": ["admin:users", "admin:servers", "tokens", "shares"],
        "services": ["steward"],
    },
    {"name": "visitors", "scopes": ["access:servers!user=ada"], "users": ["bob"]},
    {"name": "analysts", "scopes": ["access:services!service=cellgate"], "users": ["ada", "root"]},
]
