"""Finds the Python that an environment is to have, among those of this machine. Nothing is downloaded."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cellgate_kernels.base.errors import BackendUnavailable, InvalidInput, in_words
from cellgate_kernels.specs.install import configured_uv

_OLDEST = (3, 11)
_VERSION = re.compile(r"3\.[0-9]{1,2}(?:\.[0-9]{1,2})?", re.ASCII)
_PATIENCE = 60.0
_ABOUT = (
    "import platform as p, sys, sysconfig\n"
    "print(*sys.version_info[:2], sys.implementation.name, p.python_version(), sysconfig.get_platform())"
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A program of Python, and what it says that it is, such as ``cpython 3.12.4 linux-x86_64``."""

    program: Path
    about: str


def find_interpreter(wanted: str, folder: Path) -> Interpreter:
    """Return the interpreter of a version, or at a path; the gateway's own if `wanted` is empty.

    `folder`: where to run programs. Raises InvalidInput if it is not to be had, or is too old.
    """
    if not wanted:
        program = Path(sys.executable)
    elif "/" in wanted:
        program = Path(wanted).expanduser()
        if not program.is_absolute():
            raise InvalidInput(f"--python {wanted}: give a version, or the whole path of a Python")
    elif _VERSION.fullmatch(wanted):
        program = _find(wanted, folder)
    else:
        raise InvalidInput(f"--python {wanted[:40]!r} is neither a version, such as 3.12, nor a path")
    major, minor, about = _ask(program, folder)
    if (major, minor) < _OLDEST:
        raise InvalidInput(f"--python: kernels need Python 3.11 or newer, and {program} is {major}.{minor}")
    return Interpreter(program, about)


def _find(version: str, folder: Path) -> Path:
    command, variables = configured_uv(
        ["python", "find", "--no-python-downloads", "--no-project", "--system", version]
    )
    done = subprocess.run(
        command, env=variables, cwd=folder, capture_output=True, text=True, check=False, timeout=_PATIENCE
    )
    if done.returncode:
        raise InvalidInput(
            f"--python {version}: there is no such Python on this machine. Install it, as by"
            f" `uv python install {version}`, or give the path of one"
        )
    return Path(done.stdout.strip())


def _ask(program: Path, folder: Path) -> tuple[int, int, str]:
    try:
        done = subprocess.run(
            [str(program), "-I", "-c", _ABOUT],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )
        major, minor, *about = done.stdout.split()
        return int(major), int(minor), " ".join(about)
    except OSError as error:
        raise InvalidInput(f"--python: {program} can't be started: {in_words(error)}") from error
    except (ValueError, subprocess.TimeoutExpired) as error:
        raise BackendUnavailable(f"{program} does not say which Python it is") from error
