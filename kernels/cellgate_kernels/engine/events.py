"""The one thread that reads a Docker engine's events, for the containers of one instance.

It reports to the loop each ``create``, each end (``die``), each time the memory limit is hit (``oom``), and
every new connection, because events before that were missed. It decides nothing: ``engine`` does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import requests
from docker.api.client import APIClient
from docker.errors import DockerException
from docker.types import CancellableStream

from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.engine.container import INSTANCE_LABEL

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
STOP_TIMEOUT = 5.0


class EngineEvents:
    """Reads events until `stop`; both functions are called on the loop that called `start`."""

    def __init__(
        self,
        client: APIClient,
        instance: str,
        *,
        connected: Callable[[], None],
        happened: Callable[[str, str, int], None],
    ) -> None:
        self.connected = False
        self._client = client
        label = f"{INSTANCE_LABEL}={instance}"
        self._filters = {"type": "container", "event": ["create", "die", "oom"], "label": label}
        self._tell_connected = connected
        self._happened = happened
        self._loop = asyncio.get_running_loop()
        self._first = asyncio.Event()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._stream: CancellableStream | None = None
        self._thread = threading.Thread(target=self._read_forever, name="docker-events", daemon=True)

    async def start(self) -> None:
        """Return when events are being read, so that no end of a later container is missed."""
        self._thread.start()
        await self._first.wait()

    async def stop(self) -> None:
        """Close the stream and wait for the thread's end."""
        self._stopped.set()
        self._close_stream()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT)

    def _close_stream(self) -> None:
        with self._lock:
            stream = self._stream
            self._stream = None
            if stream is not None:
                try:
                    stream.close()
                except OSError as error:
                    logger.debug("The stream of events was closed already: %s", in_words(error))

    def _read_forever(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                self._open_stream()
                pause = FIRST_PAUSE
                self._read()
            except (DockerException, requests.RequestException, OSError, ValueError) as error:
                logger.debug("The stream of events broke: %s", in_words(error))
            except Exception as error:  # any error: without this thread no container's end is seen
                logger.error("The stream of events can't be read", exc_info=error)
            finally:
                self._close_stream()
            if not self._stopped.is_set():
                self._post(self._set_connected, False)
                self._stopped.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _open_stream(self) -> None:
        stream = self._client.events(decode=True, filters=self._filters)
        with self._lock:
            self._stream = stream
        if self._stopped.is_set():
            self._close_stream()
        else:
            self._post(self._set_connected, True)

    def _read(self) -> None:
        stream = self._stream
        for event in stream or ():
            self._post(self._tell, event)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._stopped.is_set():
            self._loop.call_soon_threadsafe(guarded(function, "event of the engine"), *arguments)

    def _set_connected(self, connected: bool) -> None:
        if self._stopped.is_set():
            return
        if connected != self.connected and self._first.is_set():
            logger.warning("The Docker engine %s", "answers again" if connected else "is gone")
        self.connected = connected
        if connected:
            self._first.set()
            self._tell_connected()

    def _tell(self, event: dict[str, Any]) -> None:
        attributes = event["Actor"]["Attributes"]
        code = attributes.get("exitCode", "0")
        if not self._stopped.is_set():
            self._happened(attributes["name"], event["Action"], int(code) if code.isdecimal() else 0)
