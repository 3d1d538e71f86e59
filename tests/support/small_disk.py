"""A small file system in memory, for what happens where there is no room. Only root can mount one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.requirements import require


def mount(*words: str) -> None:
    """mount(8); skips the test where that is not allowed."""
    done = subprocess.run(["mount", *words], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        require("mount", done.stderr.strip())


@contextmanager
def small_disk(options: str) -> Iterator[Path]:
    """A disk of this size (tmpfs(5)), at a path that is short enough for kernels' sockets to be on it too."""
    if os.geteuid() != 0:
        require("mount", "only root can mount a small file system")
    folder = Path(tempfile.mkdtemp(prefix="disk-"))
    try:
        mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=60, check=False, capture_output=True)
        folder.rmdir()
