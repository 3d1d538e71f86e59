"""Users and tokens of a gateway that serves, made by its commands. What they are for is the tests' matter."""

from __future__ import annotations

import json

from tests.support.commands import cellgate
from tests.support.server import GatewayProcess


def add_user(gateway: GatewayProcess, name: str) -> None:
    """A new user."""
    done = cellgate("user", "add", name, *gateway.users_at)
    assert done.returncode == 0, done.stderr


def create_token(gateway: GatewayProcess, user: str, *options: str) -> tuple[str, str]:
    """A new token's id, and the token, which the gateway knows."""
    made = cellgate("token", "create", "--user", user, *options, "--json", *gateway.users_at)
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    text = str(found["token"])
    assert gateway.get("/v1/info", token=text).status == 200
    return str(found["id"]), text
