"""Removes all containers of a gateway that has no time left: one blocking call with a time limit.

The orderly way is ``Engine.close``. This is for a process that is about to end: it uses neither the engine's
threads and tasks nor the loop, which may be the part that hangs.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import requests
from docker.api.client import APIClient
from docker.errors import DockerException

from cellgate_kernels.base.errors import in_words
from cellgate_kernels.engine.client import connect
from cellgate_kernels.engine.container import INSTANCE_LABEL

logger = logging.getLogger(__name__)

AT_ONCE = 4
"""Containers that are removed at the same time: a higher number would not be faster."""


def sweep(url: str, instance: str, seconds: float) -> bool:
    """Remove containers of `instance` at `url`; return whether none is left, within twice `seconds`."""
    deadline = time.monotonic() + seconds
    try:
        client = connect(url, seconds)
        try:
            # List again: a container that was being made during one listing shows up in the next.
            while listed := client.containers(all=True, filters={"label": f"{INSTANCE_LABEL}={instance}"}):
                if time.monotonic() > deadline:
                    logger.warning("%d containers are left to the next start", len(listed))
                    return False
                with ThreadPoolExecutor(AT_ONCE) as threads:
                    for container in listed:
                        threads.submit(_remove, client, container["Id"], deadline)
        finally:
            client.close()
    except (DockerException, requests.RequestException, OSError) as error:
        logger.warning("The containers are left to the next start: %s", in_words(error))
        return False
    return True


def _remove(client: APIClient, container: str, deadline: float) -> None:
    if time.monotonic() > deadline:
        return
    try:
        client.remove_container(container, force=True, v=True)
    except (DockerException, requests.RequestException) as error:
        # Something else is removing it, or the next listing will show it again.
        logger.debug("A container was not removed: %s", in_words(error))
