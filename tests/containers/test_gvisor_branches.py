"""Branches of kernels under gVisor, in the version that tests have: refused by name, because it lacks a call.

With a version that has it, the tests of ``test_branch`` and ``test_native_threads`` belong here.
"""

from __future__ import annotations

import pytest

from cellgate_kernels.base.branching import BranchSpec, Obstacle, ObstacleKind
from cellgate_kernels.base.errors import CannotBranch
from cellgate_kernels.kernel.launcher import KernelLauncher
from cellgate_kernels.specs.catalog import KernelspecCatalog
from tests.containers.test_branch import launcher
from tests.gateway.kernels.test_kernel import PYTHON3, folders, printed

__all__ = ["folders", "launcher"]  # fixtures

LACKS_IT = """
import ctypes, os
print(ctypes.CDLL(None, use_errno=True).prctl(36, 0, 0, 0, 0), os.strerror(ctypes.get_errno()))
print(sorted(os.listdir("/proc/self/ns")))
"""


@pytest.fixture
def catalog(gvisor: None) -> KernelspecCatalog:
    return KernelspecCatalog(backend="docker", provisioner_config={"runtime": "runsc"})


async def test_a_kernel_that_the_system_does_not_let_branch_says_so(launcher: KernelLauncher) -> None:
    kernel = await launcher.start(PYTHON3)
    # And it has no mounts that a branch could enter.
    assert await printed(kernel, LACKS_IT) == "-1 Invalid argument\n['net', 'pid', 'user']\n"
    for ask in (kernel.checkpoint(), kernel.branch(BranchSpec(anyway=True))):
        with pytest.raises(CannotBranch) as refused:
            await ask
        assert refused.value.obstacles == (Obstacle(ObstacleKind.KERNEL, "python3"),)
    assert "can't be branched without PR_SET_CHILD_SUBREAPER" in await kernel.provisioner.log_tail()
    await kernel.discard()
