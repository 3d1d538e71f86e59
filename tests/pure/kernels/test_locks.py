"""The committed locks: in step with what they are made from, all of it hashed, and no index named in them."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
IMAGE = ROOT / "kernels" / "cellgate_kernels" / "inside"
STANDARD, MINIMAL = IMAGE / "standard.lock", IMAGE / "minimal.lock"
UV, CI = IMAGE / "uv.txt", ROOT / ".ci" / "requirements.lock"
GATEWAY = ROOT / "deploy" / "requirements.lock"
SUPPORTED = ("3.11.0", "3.11.9", "3.12.0", "3.13.0", "3.14.0")


def pins(lock: Path) -> list[Requirement]:
    """What a lock's lines ask for, without their hashes."""
    lines = lock.read_text().replace("\\\n", " ").splitlines()
    return [Requirement(line.partition("--hash")[0]) for line in lines if line[:1].isalnum()]


@functools.cache
def chosen(lock: Path, python: str) -> dict[str, str]:
    """The versions that are installed on Linux by this version of Python."""
    minor = ".".join(python.split(".")[:2])
    environment = {str(name): str(value) for name, value in default_environment().items()}
    environment |= {"python_full_version": python, "python_version": minor}
    environment |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    return {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version
        for pin in pins(lock)
        if pin.marker is None or pin.marker.evaluate(environment)
    }


def unmet(wanted: Iterable[str], lock: Path) -> list[str]:
    """What of these requirements a lock does not have; `make lock` mends it."""
    requirements = [Requirement(line) for line in wanted]
    return [
        f"{requirement} on {python}"
        for python in SUPPORTED
        for requirement in requirements
        if chosen(lock, python).get(canonicalize_name(requirement.name), "0") not in requirement.specifier
    ]


def lines_of(path: Path) -> list[str]:
    """A list's requirements without its comments, and those of the list that it includes."""
    found = []
    for line in path.read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("-r "):
            found += lines_of(path.with_name(text.removeprefix("-r ")))
        elif text:
            found.append(text)
    return found


@pytest.mark.parametrize("lock", [STANDARD, MINIMAL], ids=str)
def test_the_kernels_locks_have_what_their_lists_ask_for(lock: Path) -> None:
    assert unmet(lines_of(lock.with_suffix(".txt")), lock) == []


@pytest.mark.parametrize("python", SUPPORTED)
def test_the_minimal_environment_is_a_part_of_the_standard_one(python: str) -> None:
    assert chosen(MINIMAL, python).items() < chosen(STANDARD, python).items()


def test_the_locks_of_ci_and_of_the_gateway_s_image_have_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"], *extras["server"]]
    assert unmet([*wanted, *extras["test"], *extras["check"]], CI) == []
    assert unmet(wanted, GATEWAY) == []


def test_uv_is_the_one_of_ci_s_lock() -> None:
    assert chosen(UV, "3.11.0") == {"uv": chosen(CI, "3.11.0")["uv"]}


@pytest.mark.parametrize("lock", [STANDARD, MINIMAL, UV, CI, GATEWAY], ids=str)
def test_everything_has_hashes_and_no_index_is_named(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^[ \t]*(?:-|[^#\n]*\s@\s)(?!-hash=)", text, re.MULTILINE)
    entries = [line for line in text.replace("\\\n", " ").splitlines() if line[:1].isalnum()]
    assert entries
    assert [entry for entry in entries if not re.search(r"==\S+.* --hash=sha256:[0-9a-f]{64}", entry)] == []
