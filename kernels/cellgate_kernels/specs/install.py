"""Makes the environment that kernels run in, separate from the gateway's, and the kernelspecs that start it.

Used by ``cellgate setup``. It runs venv and uv as child processes and waits for them: not for the event loop.
All files are below ``<prefix>/share/cellgate``. The kernelspecs are the container kernelspecs that come with
this package, with different paths. They name the sandbox, which the ``catalog`` may replace.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

from cellgate_kernels.base.errors import BackendUnavailable, in_words
from cellgate_kernels.base.regular import read_regular
from cellgate_kernels.specs.addresses import without_secrets
from cellgate_kernels.specs.catalog import CONTAINER_KERNELSPECS, KERNEL_PACKAGES, data_folder
from cellgate_kernels.specs.environments import (
    INSIDE,
    OWN,
    ListedEnvironment,
    choice_of,
    environment_of,
    start_up_files,
)
from cellgate_kernels.specs.manifest import MANIFEST
from cellgate_kernels.specs.setup_programs import SetupPrograms, replace_file, wait_for
from cellgate_kernels.specs.uv_command import (
    UnreadableSettings,
    finish_command,
    install_words,
    pip_settings,
    uv_command,
    venv_command,
)

STAMP = "cellgate-environment.sha256"
"""The file of an environment that is finished: what it was made of."""
_PLACED = "start-up-files.txt"
_PLACED_BYTES = 64 * 1024
_PLACED_NAME = re.compile(r"(?:[a-z_]++/)?[a-z_]++\.(?:py|js)")
_UNLISTED = ("stills_dom.js", "stills_maps.js", "stills_vega.js")
"""Files that versions without the list wrote there; this version has them elsewhere."""


def create_environment(
    prefix: Path,
    step: Callable[[str], None],
    detail: Callable[[str], None] = lambda _: None,
    *,
    requirements: Path = ListedEnvironment.STANDARD.lock,
) -> Path:
    """Make the kernel environment with `requirements`, unless a finished one has them; returns its folder.

    `step` receives a description of each step, `detail` uv's output while it works. The choice is stored even
    if a step fails. Raises BackendUnavailable with the end of uv's output; ``setup.log`` has all.
    """
    root = data_folder(prefix.absolute())
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / "setup.lock").open("w") as lock, (root / "setup.log").open("a") as log:
            wait_for(lock, step)
            programs = SetupPrograms(root, log, lock, detail)
            name, choice = choice_of(requirements.absolute())
            replace_file(root / name, choice)
            return _create(root / "environment", requirements.absolute(), programs, step)
    except OSError as error:
        raise BackendUnavailable(
            f"The kernel environment can't be made in {root}: {in_words(error)}"
        ) from error


def _create(
    environment: Path, requirements: Path, programs: SetupPrograms, step: Callable[[str], None]
) -> Path:
    stamp = environment / STAMP
    digest = _digest(requirements)
    if stamp.is_file() and stamp.read_text() == digest:
        return environment
    step(f"making the kernel environment in {environment}")
    install_packages(environment, requirements, programs, step)
    write_manifest(environment, environment_of(requirements) or OWN)
    stamp.write_text(digest)
    return environment


def install_packages(
    environment: Path,
    requirements: Path,
    programs: SetupPrograms,
    step: Callable[[str], None],
    python: str = sys.executable,
) -> None:
    """Make an environment of this interpreter with `requirements`; what is there is removed.

    The caller writes its `STAMP`. Raises BackendUnavailable and OSError.
    """
    # First: an interrupted removal must not look like a finished environment.
    (environment / STAMP).unlink(missing_ok=True)
    if environment.exists():
        shutil.rmtree(environment)
    programs.run(venv_command(environment, requirements, python), None)
    step("downloading, installing and compiling its packages")
    programs.run(*configured_uv(install_words(environment, requirements)))
    programs.run(finish_command(environment), None)


def configured_uv(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return uv's command and environment, as pip is configured here. Raises BackendUnavailable."""
    try:
        return uv_command(words, os.environ, pip_settings(sys.executable))
    except UnreadableSettings as error:
        raise BackendUnavailable(without_secrets(str(error))) from error


def _digest(requirements: Path) -> str:
    """Return what an environment of these packages for this interpreter is stamped with."""
    return hashlib.sha256(f"{sys.version}\n".encode() + requirements.read_bytes()).hexdigest()


def is_up_to_date(prefix: Path, requirements: Path) -> bool:
    """Return whether the environment below `prefix` has these packages and this version's start-up files."""
    environment = data_folder(prefix.absolute()) / "environment"
    shared = data_folder(environment)
    try:
        return (environment / STAMP).read_text() == _digest(requirements) and all(
            (shared / script.relative_to(INSIDE)).read_bytes() == script.read_bytes()
            for script in start_up_files()
        )
    except OSError:
        return False


def install_kernelspecs(environment: Path, prefix: Path) -> list[Path]:
    """Write the kernelspecs of all languages that an environment has kernels for; return their folders.

    Kernelspecs from an earlier environment without a kernel in this one are removed. Idempotent.
    """
    python = environment.absolute() / "bin" / "python"
    found = _ask(
        python,
        f"from importlib.util import find_spec as f\nprint(*filter(f, {tuple(KERNEL_PACKAGES.values())}))",
    )
    installed = []
    for name, package in KERNEL_PACKAGES.items():
        if package in found.split():
            installed.append(install_kernelspec(environment, prefix, name=name, like=name))
        else:
            left = data_folder(prefix.absolute()) / "kernels" / name
            if left.exists():
                shutil.rmtree(left)
    return installed


def install_kernelspec(
    environment: Path, prefix: Path, *, name: str = "python3", like: str = "python3"
) -> Path:
    """Write the kernelspec of an environment, based on the container kernelspec `like`; return its folder.

    Puts the kernels' start-up files into the environment, and the manifest, and matplotlib's list of fonts if
    matplotlib is installed (a fresh sandbox would otherwise spend seconds on the list at the first import).
    Files of an earlier version that this one does not write are removed. Idempotent.
    """
    place_start_up_files(environment, python=like == "python3")
    folder = data_folder(prefix.absolute()) / "kernels" / name
    folder.mkdir(parents=True, exist_ok=True)
    write_kernelspec(folder, kernelspec_for(environment, like))
    return folder


def place_start_up_files(environment: Path, *, python: bool = True) -> None:
    """Put the start-up files into an environment; with `python` also its manifest, and the list of fonts."""
    environment = environment.absolute()
    program = environment / "bin" / "python"
    shared = data_folder(environment)
    shared.mkdir(parents=True, exist_ok=True)
    files = {shared / script.relative_to(INSIDE): script for script in start_up_files()}
    for place, script in files.items():
        place.parent.mkdir(exist_ok=True)
        replace_file(place, script.read_bytes())
    _remove_former(shared, {str(place.relative_to(shared)) for place in files})
    imported = [str(place) for place in files if place.suffix == ".py"]
    # Each kernel imports these files, from a folder that it can't write to.
    _ask(program, f"import py_compile\nfor name in {imported!r}: py_compile.compile(name, doraise=True)")
    if python:
        _run(program, str(INSIDE / "fonts.py"), str(shared / "matplotlib"))
        write_manifest(environment)


def kernelspec_for(environment: Path, like: str = "python3") -> dict[str, Any]:
    """Return the kernelspec of an environment as JSON values, based on the container kernelspec `like`."""
    environment = environment.absolute()
    spec: dict[str, Any] = json.loads((CONTAINER_KERNELSPECS / like / "kernel.json").read_text())
    start_up = data_folder(environment) / Path(spec["argv"][1]).name
    spec["argv"][:2] = [str(environment / "bin" / "python"), str(start_up)]
    config = spec.get("metadata", {}).get("kernel_provisioner", {}).get("config", {})
    spec["metadata"] = {
        "kernel_provisioner": {
            "provisioner_name": "cellgate-sandbox",
            "config": config | {"readable": readable_paths(environment)},
        }
    }
    return spec


def write_kernelspec(folder: Path, spec: dict[str, Any]) -> None:
    """Write a kernelspec into its folder, as a whole."""
    replace_file(folder / "kernel.json", f"{json.dumps(spec, indent=1)}\n".encode())


def has_kernel(environment: Path, package: str = "ipykernel") -> bool:
    """Return whether an environment has this package of kernels. Raises BackendUnavailable."""
    code = f"from importlib.util import find_spec as f\nprint(bool(f({package!r})))"
    return _ask(environment.absolute() / "bin" / "python", code) == "True"


def _remove_former(shared: Path, names: Set[str]) -> None:
    """Remove earlier start-up files except these names; keep the list of fonts."""
    listed = shared / _PLACED
    try:
        former = read_regular(listed, _PLACED_BYTES).decode(errors="replace").split("\n")
    except FileNotFoundError:
        former = list(_UNLISTED)
    for name in set(former) - names:
        # A kernel without a sandbox can write to the list.
        if _PLACED_NAME.fullmatch(name):
            path = shared / name
            path.unlink(missing_ok=True)
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                compiled.unlink(missing_ok=True)
    replace_file(listed, "\n".join(sorted(names)).encode())


def write_manifest(environment: Path, *name: str) -> None:
    """Write the environment's manifest; without a name, the manifest keeps its present name."""
    shared = data_folder(environment)
    shared.mkdir(parents=True, exist_ok=True)
    _run(environment / "bin" / "python", str(INSIDE / "manifest.py"), str(shared / MANIFEST), *name)


def readable_paths(environment: Path) -> list[str]:
    """Return the paths a kernel must read: its environment, its base interpreter, and links between."""
    python = environment / "bin" / "python"
    base = Path(_ask(python, "import sys; print(sys.base_prefix)"))
    paths = [environment]
    for path in (base, base.resolve(), *_links(python)):
        if not any(path.is_relative_to(known) for known in paths):
            paths.append(path)
    return [str(path) for path in paths]


def _links(path: Path) -> Iterator[Path]:
    """Yield the files along a chain of symbolic links."""
    while path.is_symlink():
        path = path.parent / path.readlink()
        yield path


def _ask(python: Path, code: str) -> str:
    """Return the text that the interpreter prints for this code."""
    return _run(python, "-c", code).strip()


def _run(python: Path, *words: str) -> str:
    """Return the output of the environment's interpreter. Raises BackendUnavailable if it fails."""
    done = subprocess.run(
        [str(python), "-I", *words], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        reason = done.stderr[-500:].strip()
        raise BackendUnavailable(f"The kernel environment's {python} does not work: {reason}")
    return done.stdout
