"""jupyter_client's manager of one kernel, and the workshop for starts, forks and takeovers.

``launcher``, ``forks`` and ``adopting`` make kernels with it; ``kernel`` ends itself by its manager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager

from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.leftovers import Leftovers
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.channels.reception import Reception
from cellgate_kernels.kernel.stored import KernelStore
from cellgate_kernels.specs.catalog import KernelspecCatalog

logger = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT = 15.0


class Manager(AsyncKernelManager):
    """jupyter_client's manager, without the control socket for shutdown_requests, which are never sent.

    libzmq would read messages without a limit from any process that answers at the socket's path.
    """

    def _connect_control_socket(self) -> None:
        """Leave jupyter_client's control socket closed: the gateway has its own."""

    async def end(self) -> None:
        """Kill the started kernel; the provisioner undoes a launch that failed halfway."""
        if self.provisioner is None:
            return
        # Interrupting first, as jupyter_client's own shutdown does, would open a control socket for nothing.
        name = self.kernel_id
        try:
            async with asyncio.timeout(SHUTDOWN_TIMEOUT):
                await self.provisioner.kill()
                await self.provisioner.wait()
        except TimeoutError:
            logger.error("Kernel %s did not end within %s s of being killed", name, SHUTDOWN_TIMEOUT)
        except OSError as error:
            logger.error("Kernel %s could not be killed: %s", name, in_words(error))
        try:
            await self._async_cleanup_resources()
        except OSError as error:
            logger.error("Some resources of kernel %s could not be freed: %s", name, in_words(error))


@dataclass(frozen=True, slots=True)
class Workshop:
    """The means to make kernels. `backend`: options of a launch that all kernels share."""

    catalog: KernelspecCatalog
    leftovers: Leftovers
    backend: Mapping[str, object]
    start_timeout: float
    store: KernelStore | None
    reception: Reception | None
    tasks: Supervisor = field(default_factory=Supervisor)

    def manager(self, kernelspec: str, runtime: Path, kernel_id: str | None = None) -> Manager:
        """Return a manager for a new kernel. `kernel_id`: its id, if another process starts it."""
        manager = Manager(
            kernel_name=kernelspec,
            kernel_spec_manager=self.catalog,
            connection_file=str(runtime / "manager.json"),
            transport="ipc",
            autorestart=False,
        )
        # jupyter_client logs a failed start with its stack; we raise an error that says what to do.
        manager.log = logging.getLogger("cellgate.jupyter_client")
        manager.kernel_id = kernel_id
        return manager

    def connection(self, info: Mapping[str, Any], kernel_id: str, session: str = "") -> KernelConnection:
        """Return a connection to a kernel; it is not open yet."""
        return KernelConnection(info, session=session, kernel_id=kernel_id, reception=self.reception)

    async def undo(self, manager: Manager, kernel_id: str, folders: Sequence[Path] = ()) -> None:
        """End what was begun, even if cancelled. Failures are logged: the caller raises the start's error."""
        await self.tasks.complete(self._undo(manager, folders), f"undo {kernel_id}")

    async def _undo(self, manager: Manager, folders: Sequence[Path]) -> None:
        try:
            await manager.end()
        except Exception as error:  # any error: the folders must still be removed
            logger.error("A kernel that did not start could not be ended", exc_info=error)
        await self.leftovers.remove(*folders)
