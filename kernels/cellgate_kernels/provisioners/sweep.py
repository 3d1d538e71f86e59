"""Removes all containers of a gateway that has no time left for them: one call, blocking, within a bound.

The ordered way is ``Engine.close``. This is for a process that is about to end: it uses none of the
engine's threads and tasks, nor the loop, which may be what hangs.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import requests
from docker.api.client import APIClient
from docker.errors import DockerException

from cellgate_kernels.provisioners.container import INSTANCE_LABEL

logger = logging.getLogger(__name__)

AT_ONCE = 4
"""Containers that are removed at the same time: more of them are not quicker."""


def sweep(url: str, instance: str, seconds: float) -> bool:
    """Remove the containers of `instance` from the engine at `url`; True when none is left in time.

    One that takes long may make it twice as many seconds.
    """
    deadline = time.monotonic() + seconds
    try:
        client = APIClient(base_url=url, version="auto", timeout=seconds)
        try:
            # Asked again: one that was being made while we looked is there the next time.
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
        logger.warning("The containers are left to the next start: %s", error)
        return False
    return True


def _remove(client: APIClient, container: str, deadline: float) -> None:
    if time.monotonic() > deadline:
        return
    try:
        client.remove_container(container, force=True, v=True)
    except (DockerException, requests.RequestException) as error:
        # Somebody else removes it, or the list will show it again.
        logger.debug("A container was not removed: %s", error)
