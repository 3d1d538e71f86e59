"""The names of a workspace in branches of kernels in containers: the tests of the sandbox, and attacks."""

from __future__ import annotations

import os
import struct

import pytest

from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.kernel.launcher import KernelLauncher
from tests.containers.test_branch import backend, catalog, launcher
from tests.gateway.kernels.test_branch import PYTHON3, copied, parent, printed
from tests.gateway.kernels.test_branch_names import (
    known_numbers,
    leads_out_of_a_branch,
    shown,
    test_a_kernel_that_goes_back_has_the_names_of_its_files,
    test_all_names_are_the_branchs_own,
    test_it_stays_where_it_was,
    test_programs_beside_it_have_its_names,
    test_shared_files_have_the_same_names,
)
from tests.gateway.kernels.test_kernel import folders

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only a gateway that is root makes names there")


REQUESTS = """
import ctypes, errno, fcntl, json, os, socket
def asked(descriptor, *requests):
    found = []
    for request in requests:
        try:
            found.append(fcntl.ioctl(descriptor, request, 0))
        except OSError as error:
            found.append(errno.errorcode[error.errno])
    return found
def of_namespaces(process):
    "The owner, the parent, the kind, the user, and the next mounts of a list of all (linux/nsfs.h)."
    requests = (0xb701, 0xb702, 0xb703, 0xb704, 0x8010b70a, 0x8010b70b, 0x8010b70c)
    found = [asked(os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY), *requests) for kind in ("mnt", "user")]
    return sorted({each for several in found for each in several}, key=str)
def of_processes(process):
    "Namespaces of users and of mounts, by a pidfd (linux/pidfd.h)."
    return asked(os.pidfd_open(process), 0xff09, 0xff03)
"""


@known_numbers
async def test_nothing_leads_out_of_a_branch(parent: Kernel) -> None:
    branch, said = await leads_out_of_a_branch(parent)
    # Over its own files it may say what counts for nobody but the user that it is.
    assert said == "done"
    planted = branch.workspace / "planted"
    *_, owner = struct.unpack("<6I", os.getxattr(planted, "security.capability"))
    assert owner == planted.stat().st_uid != 0


async def test_nobody_finds_the_mounts_of_another_container(parent: Kernel, launcher: KernelLauncher) -> None:
    """Kernels in containers are one user to the system: whoever had a descriptor could enter them."""
    await parent.branch(await copied(parent))
    other = await launcher.start(PYTHON3)
    branch = await other.branch(await copied(other))
    for kernel in (other, branch):
        await printed(kernel, REQUESTS)
        own = await shown(kernel, "os.getpid()")
        assert await shown(kernel, f"[of_namespaces({own}), of_processes({own})]") == [
            ["EPERM"],
            ["EPERM", "EPERM"],
        ]
        # Requests of other kinds are what they were.
        terminal = "os.get_terminal_size(os.openpty()[0])[:]"
        assert await shown(kernel, terminal) == [0, 0]
    await branch.discard()
    await other.discard()
