"""Connections to Unix sockets in folders that user code can write to.

It sends and reads nothing: ``sockets`` speaks ZMTP over such a connection, ``programs``, ``ports`` and
``held`` what the sandbox's first process and held forks speak.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from pathlib import Path


def connect_to(connecting: socket.socket, path: str) -> None:
    """Connect to the socket at `path` itself. Raises OSError for anything else that is there.

    A kernel can write to the folder: it could put a link to another service's socket there at any moment.
    So the name is looked up once, without following links, and the connection goes to what was checked.
    """
    folder = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.open(Path(path).name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            place, status = os.fstat(folder), os.fstat(found)
            if not stat.S_ISSOCK(status.st_mode):
                raise OSError(errno.ENOTSOCK, "A kernel put something else in its socket's place", path)
            if status.st_dev != place.st_dev or status.st_uid not in {place.st_uid, os.geteuid()}:
                raise OSError(errno.EPERM, "A kernel's socket is not its own", path)
            connecting.connect(f"/proc/self/fd/{found}")
        finally:
            os.close(found)
    finally:
        os.close(folder)


async def open_stream(path: str, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the socket at `path` as `connect_to` does. At most twice `limit` bytes wait to be read."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connect_to(connection, path)
        return await asyncio.open_unix_connection(sock=connection, limit=limit)
    except BaseException:
        connection.close()
        raise
