"""Stored data of kernels that outlive the gateway: one private file each, in the data folder.

A file has the data that the next gateway needs to take over a kernel: its connection info with the key, its
place, and its profile. It is as secret as the key (mode 0600). ``launcher`` writes it when a kernel is ready,
and it is removed with the kernel, so a file found at a start was left behind. Blocking.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from cellgate_kernels.base import trees
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.regular import read_regular
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.kernel.environment import RawEnvironment

logger = logging.getLogger(__name__)

SUFFIX = ".json"
MOST_BYTES = 64 * MIB


class StoredKernel(msgspec.Struct, frozen=True):
    """A kernel as its launch left it. `identity`: the name by which it knows its client's sockets.

    `provisioner`: jupyter_client's provisioner info. A kernel that was started by an older version of the
    gateway has no `hash_seed`, can't be branched and can't list its variables. `secrets` has names only.
    """

    id: str
    identity: str
    kernelspec: str
    limits: ResourceLimits
    env: tuple[tuple[str, str], ...]
    workspace: str
    runtime: str
    info: dict[str, Any]
    environment: RawEnvironment | None
    provisioner: dict[str, Any]
    packages: str | None = None
    hash_seed: str | None = None
    secrets: tuple[str, ...] = ()
    egress: bool = False
    can_branch: bool = False
    tells_variables: bool = False


class KernelStore:
    """The files of one gateway's kernels."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, kernel: StoredKernel) -> None:
        """Write a kernel's file, completely or not at all. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        draft = self._folder / f"{kernel.id}.new"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(kernel))
        draft.replace(self._path(kernel.id))

    def remove(self, kernel_id: str) -> None:
        """Forget a kernel; an unknown one is not an error.

        The next start finds a file that can't be removed, and ends the kernel if it does not answer.
        """
        try:
            self._path(kernel_id).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("The stored state of kernel %s can't be removed: %s", kernel_id, in_words(error))

    def load(self) -> dict[str, StoredKernel]:
        """Return all kernels by their ids. A file that can't be read is skipped and removed.

        Raises OSError when no file can be opened at the moment: that says nothing about the stored files.
        """
        found: dict[str, StoredKernel] = {}
        for path in sorted(self._folder.glob("*")) if self._folder.is_dir() else ():
            try:
                kernel = msgspec.json.decode(read_regular(path, MOST_BYTES), type=StoredKernel)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
                if isinstance(error, OSError) and error.errno in trees.NO_OPEN_FILES:
                    raise
                logger.warning("%s describes no kernel and is removed: %s", path, in_words(error))
                trees.remove(path)
            else:
                found[kernel.id] = kernel
        return found

    def _path(self, kernel_id: str) -> Path:
        return self._folder / f"{kernel_id}{SUFFIX}"
