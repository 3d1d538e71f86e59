"""Which folders of a sandbox are removed with which of its kernels."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cellgate_kernels.forking.sharing import SharedSandbox
from cellgate_kernels.launch.backend import KernelExit, KernelView
from cellgate_kernels.launch.folders import LaunchFolders


class Root:
    """As much of the first kernel's provisioner as a sandbox needs."""

    kernel_id = "first"
    sharing: Any = None

    def __init__(self, folder: Path) -> None:
        folders = LaunchFolders(folder / "run", folder / "first", False, branches=folder / "branches")
        self.place = folders, KernelView("kernel.json", "k", "home")
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[KernelExit] = loop.create_future()
        self.exited: asyncio.Future[KernelExit] = loop.create_future()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


async def test_a_spared_folder_stays_when_the_last_kernel_leaves_it(folder: Path) -> None:
    root: Any = Root(folder)
    shared, packages = folder / "first", folder / "packages"
    sandbox = SharedSandbox(root, shared, packages)
    sandbox.add("second", asyncio.get_running_loop().create_future(), shared, packages)
    assert sandbox.leave_folders("first", [shared]) == []
    assert sandbox.leave_folders("second") == [packages]


async def test_the_last_kernel_takes_the_folder_of_branches_along(folder: Path) -> None:
    root: Any = Root(folder)
    sandbox = SharedSandbox(root, folder / "first", None)
    own = folder / "branches" / "second"
    sandbox.add("second", asyncio.get_running_loop().create_future(), own, None)
    assert sandbox.leave_folders("second") == [own]
    assert sandbox.leave_folders("first") == [folder / "first", folder / "branches"]


async def test_each_workspace_counts_as_long_as_its_files_are_there(folder: Path) -> None:
    """Sessions that share one have reserved the disk for more, but there is one folder to fill."""
    root: Any = Root(folder)
    own, packages = folder / "branches" / "second", folder / "packages"
    sandbox = SharedSandbox(root, folder / "first", packages)
    counts = [sandbox.workspaces]
    with sandbox.filling(own):
        counts.append(sandbox.workspaces)
        sandbox.add("second", asyncio.get_running_loop().create_future(), own, packages)
    counts.append(sandbox.workspaces)
    sandbox.add("third", asyncio.get_running_loop().create_future(), folder / "first", packages)
    counts.append(sandbox.workspaces)
    sandbox.leave_folders("second")
    counts.append(sandbox.workspaces)
    sandbox.leave_folders("first", [folder / "first", packages])
    counts.append(sandbox.workspaces)
    assert counts == [1, 2, 2, 2, 1, 1]
