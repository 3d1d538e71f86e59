"""Users with a token each, written into the data folder of a gateway that is about to start.

The file is made by the gateway's own store, but all rows go into it by one transaction: ten thousand commands
would wait for twenty thousand syncs of the disk. The store's acts are left out, so the audit trail of such a
gateway is without them.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from cellgate.principals.principal import Role
from cellgate.principals.store import PRINCIPALS, opened
from cellgate.principals.tokens import digest, new_token

_USER = "INSERT INTO users (name, role, disabled, created_at) VALUES (?, ?, 0, ?)"
_TOKEN = """
INSERT INTO tokens (id, user, digest, session, exact, created_at) VALUES (?, ?, ?, '', 0, ?)
"""


def add_users(data: Path, names: Iterable[str]) -> dict[str, str]:
    """Add these users; returns their tokens by name."""
    tokens = {}
    users = []
    rows = []
    now = time.time()
    for name in names:
        identifier, text = new_token()
        tokens[name] = text
        users.append((name, Role.USER, now))
        rows.append((identifier, name, digest(text), now))
    path = data / PRINCIPALS
    with opened(path, create=True):
        pass
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany(_USER, users)
        database.executemany(_TOKEN, rows)
    return tokens
