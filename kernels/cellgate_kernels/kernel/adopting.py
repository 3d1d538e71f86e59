"""Takes over a kernel of a former gateway: connects to it, wakes it, and checks that it answers.

``stored`` has the former gateway's data about the kernel; ``launcher`` starts new ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from jupyter_client.provisioning.factory import KernelProvisionerFactory

from cellgate_kernels.base.errors import KernelStartFailed, in_words
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.channels.readiness import ready
from cellgate_kernels.keeper.programs import end_other_kernels
from cellgate_kernels.kernel.environment import accept
from cellgate_kernels.kernel.kernel import Forks, Kernel, KernelFacts, KernelProfile
from cellgate_kernels.kernel.manager import Workshop
from cellgate_kernels.kernel.stored import StoredKernel
from cellgate_kernels.launch.base import CellgateProvisioner
from cellgate_kernels.limits.control_group import ControlGroup
from cellgate_kernels.limits.memory import MemoryGroup
from cellgate_kernels.limits.use_meter import UseMeter
from cellgate_kernels.protocol.kernel_info import known_info
from cellgate_kernels.protocol.messages import Channel

logger = logging.getLogger(__name__)

ADOPTION_TIMEOUT = 15.0


async def adopt(
    workshop: Workshop,
    forks: Forks,
    stored: StoredKernel,
    attend: Callable[[KernelConnection], None],
    secrets: tuple[tuple[str, str], ...] = (),
) -> Kernel:
    """Take over a kernel that an earlier gateway started, with its running cell.

    `secrets`: the stored names with their present values. `attend` is called before the connection opens, to
    listen from the first message on. When this returns, all branches in its sandbox have ended. Raises
    KernelStartFailed, KernelDied, BackendUnavailable or KernelspecNotFound when the kernel or its keeper does
    not answer; then the kernel is ended, but its workspace is left.
    """
    manager = workshop.manager(stored.kernelspec, Path(stored.runtime), stored.id)
    spec = workshop.catalog.get_kernel_spec(stored.kernelspec)
    factory = KernelProvisionerFactory.instance(parent=manager.parent)
    provisioner = factory.create_provisioner_instance(stored.id, spec, parent=manager)
    assert isinstance(provisioner, CellgateProvisioner)
    manager.provisioner = provisioner
    connection: KernelConnection | None = None
    try:
        await provisioner.load_provisioner_info({**stored.provisioner, **workshop.backend})
        await asyncio.to_thread(_thaw, provisioner.process)
        info = stored.provisioner["connection_info"]
        connection = workshop.connection(info, stored.id, stored.identity)
        attend(connection)
        connection.open()
        async with asyncio.timeout(ADOPTION_TIMEOUT):
            # While it runs a cell, a kernel answers only on its control channel.
            await ready(connection, provisioner.exited, Channel.CONTROL)
            if stored.can_branch and provisioner.can_share and provisioner.keeper_socket is not None:
                # Forks end with the gateway that knew of them; from here on they have ended.
                await end_other_kernels(provisioner.keeper_socket)
    except BaseException as error:
        if connection is not None:
            connection.close()
        await workshop.undo(manager, stored.id)
        if isinstance(error, (TimeoutError, RuntimeError)):
            raise KernelStartFailed(f"The kernel does not answer: {in_words(error)}") from error
        raise
    workspace = Path(stored.workspace)
    # Named after the kernel that it was made for.
    others = workspace if workspace.name != stored.id else None
    profile = KernelProfile(
        stored.kernelspec, stored.limits, stored.env, secrets, stored.egress, workspace=others
    )
    facts = KernelFacts(
        known_info(stored.info),
        spec.display_name,
        stored.hash_seed,
        can_branch=stored.can_branch,
        tells_variables=stored.tells_variables,
        memory=MemoryGroup.of(provisioner.process),
        meter=UseMeter.of(provisioner),
    )
    packages = None if stored.packages is None else Path(stored.packages)
    kernel = Kernel(profile, facts, manager, connection, workspace, forks, packages, workshop.store)
    kernel.environment = None if stored.environment is None else accept(stored.environment)
    return kernel


def _thaw(process: int | None) -> None:
    """Thaw a kernel that a gateway put to sleep and left behind when it was killed."""
    group = None if process is None else ControlGroup.of(process)
    if group is not None:
        try:
            group.thaw()
        except OSError as error:
            logger.debug("A kernel's control group can't be written: %s", in_words(error))
