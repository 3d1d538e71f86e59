"""The kernels' way to a network: their session's proxy serves it at a socket in their sandbox.

Kernels that share a sandbox have one way, served by one of their sessions; ``egress.proxy`` decides which
connections pass.
"""

from __future__ import annotations

import logging

from cellgate.egress.proxy import SessionProxy
from cellgate.errors import StorageError, storage
from cellgate.sessions.neighbours import Neighbours
from cellgate_kernels.kernel.kernel import Kernel

logger = logging.getLogger(__name__)


class NetworkWay:
    """Serves one session's kernels, one at a time; without a `proxy` they have no network."""

    def __init__(self, proxy: SessionProxy | None, neighbours: Neighbours) -> None:
        self._proxy = proxy
        self._neighbours = neighbours

    def open(self, kernel: Kernel) -> None:
        """Serve the kernel's way to a network, if it has one. Raises StorageError."""
        if kernel.egress is not None and self._proxy is not None:
            with storage("The session's proxy has no socket"):
                self._proxy.listen(kernel.egress)

    def serve(self, kernel: Kernel | None) -> bool:
        """Serve a sandbox's way from now on, in a neighbour's place; return whether that was possible."""
        try:
            if kernel is not None:
                self.open(kernel)
        except StorageError as error:
            logger.error("A session can't serve its sandbox's way to a network: %s", error.message)
            return False
        return kernel is not None

    async def close(self, kernel: Kernel | None) -> None:
        """Stop serving; if the sandbox has other kernels, one of their sessions takes over."""
        if self._proxy is None:
            return
        served = self._proxy.listening
        await self._proxy.close()
        for other in [] if kernel is None or not served else self._neighbours.of(kernel):
            if other.serve():
                break
