"""Makes the environment that kernels run in, separate from the gateway's, and the kernelspecs that start it.

Used by ``cellgate setup``. It runs venv and uv as child processes and waits for them: not for the event loop.
All files are below ``<prefix>/share/cellgate``. The kernelspecs are the container kernelspecs that come with
this package, with different paths. They name the sandbox, which the ``catalog`` may replace.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TextIO

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
from cellgate_kernels.specs.uv_command import (
    UnreadableSettings,
    finish_command,
    install_words,
    pip_settings,
    uv_command,
    venv_command,
)

_STAMP = "cellgate-environment.sha256"
_PLACED = "start-up-files.txt"
_PLACED_BYTES = 64 * 1024
_PLACED_NAME = re.compile(r"(?:[a-z_]++/)?[a-z_]++\.(?:py|js)")
_UNLISTED = ("stills_dom.js", "stills_maps.js", "stills_vega.js")
"""Files that versions without the list wrote there; this version has them elsewhere."""
_LINES_SHOWN = 12  # of a failed program's output


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
            _wait_for(lock, step)
            programs = _Programs(root, log, lock, detail)
            name, choice = choice_of(requirements.absolute())
            _replace(root / name, choice)
            return _create(root / "environment", requirements.absolute(), programs, step)
    except OSError as error:
        raise BackendUnavailable(
            f"The kernel environment can't be made in {root}: {in_words(error)}"
        ) from error


def _create(environment: Path, requirements: Path, programs: _Programs, step: Callable[[str], None]) -> Path:
    stamp = environment / _STAMP
    digest = _digest(requirements)
    if stamp.is_file() and stamp.read_text() == digest:
        return environment
    step(f"making the kernel environment in {environment}")
    stamp.unlink(missing_ok=True)  # first: an interrupted removal must not look like a finished environment
    if environment.exists():
        shutil.rmtree(environment)
    programs.run(venv_command(environment, requirements), None)
    step("downloading, installing and compiling its packages")
    words = install_words(environment, requirements)
    try:
        settings = pip_settings(sys.executable)
    except UnreadableSettings as error:
        raise BackendUnavailable(without_secrets(str(error))) from error
    programs.run(*uv_command(words, os.environ, settings))
    programs.run(finish_command(environment), None)
    _write_manifest(environment, environment_of(requirements) or OWN)
    stamp.write_text(digest)
    return environment


def _digest(requirements: Path) -> str:
    """Return what an environment of these packages for this interpreter is stamped with."""
    return hashlib.sha256(f"{sys.version}\n".encode() + requirements.read_bytes()).hexdigest()


def is_up_to_date(prefix: Path, requirements: Path) -> bool:
    """Return whether the environment below `prefix` has these packages and this version's start-up files."""
    environment = data_folder(prefix.absolute()) / "environment"
    shared = data_folder(environment)
    try:
        return (environment / _STAMP).read_text() == _digest(requirements) and all(
            (shared / script.relative_to(INSIDE)).read_bytes() == script.read_bytes()
            for script in start_up_files()
        )
    except OSError:
        return False


def _wait_for(lock: TextIO, step: Callable[[str], None]) -> None:
    """Take the lock. It is held as long as any program of the set-up that inherited it runs."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        step("waiting for another set-up in the same place to end")
        fcntl.flock(lock, fcntl.LOCK_EX)


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
    environment = environment.absolute()
    python = environment / "bin" / "python"
    shared = data_folder(environment)
    shared.mkdir(parents=True, exist_ok=True)
    files = {shared / script.relative_to(INSIDE): script for script in start_up_files()}
    for place, script in files.items():
        place.parent.mkdir(exist_ok=True)
        _replace(place, script.read_bytes())
    _remove_former(shared, {str(place.relative_to(shared)) for place in files})
    imported = [str(place) for place in files if place.suffix == ".py"]
    # Each kernel imports these files, from a folder that it can't write to.
    _ask(python, f"import py_compile\nfor name in {imported!r}: py_compile.compile(name, doraise=True)")
    if like == "python3":
        _run(python, str(INSIDE / "fonts.py"), str(shared / "matplotlib"))
        _write_manifest(environment)
    spec = json.loads((CONTAINER_KERNELSPECS / like / "kernel.json").read_text())
    spec["argv"][:2] = [str(python), str(shared / Path(spec["argv"][1]).name)]
    config = spec.get("metadata", {}).get("kernel_provisioner", {}).get("config", {})
    spec["metadata"] = {
        "kernel_provisioner": {
            "provisioner_name": "cellgate-sandbox",
            "config": config | {"readable": readable_paths(environment)},
        }
    }
    folder = data_folder(prefix.absolute()) / "kernels" / name
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "kernel.json", f"{json.dumps(spec, indent=1)}\n".encode())
    return folder


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
    _replace(listed, "\n".join(sorted(names)).encode())


def _write_manifest(environment: Path, *name: str) -> None:
    """Write the environment's manifest; without a name, the manifest keeps its present name."""
    shared = data_folder(environment)
    shared.mkdir(parents=True, exist_ok=True)
    _run(environment / "bin" / "python", str(INSIDE / "manifest.py"), str(shared / MANIFEST), *name)


def _replace(path: Path, content: bytes) -> None:
    """Write a file as a whole: kernels that start in the meantime read the old one or the new one."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as draft:
        try:
            draft.write(content)
            draft.flush()
            os.fchmod(draft.fileno(), 0o644)
            Path(draft.name).rename(path)
        except BaseException:
            Path(draft.name).unlink()
            raise


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


class _Programs:
    """Runs programs one after another, and logs their output.

    They run in Cellgate's own `folder`, and so ignore uv settings and Python modules in the folder from which
    the set-up was called. They inherit the lock: if the set-up is killed, the next set-up waits for them.
    """

    def __init__(self, folder: Path, log: TextIO, lock: TextIO, detail: Callable[[str], None]) -> None:
        self._folder = folder
        self._log = log
        self._lock = lock
        self._detail = detail

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None) -> None:
        """Run a program and log its output. Raises BackendUnavailable when it fails."""
        last: deque[str] = deque(maxlen=_LINES_SHOWN)
        with subprocess.Popen(
            command,
            env=environment,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            pass_fds=[self._lock.fileno()],
        ) as process:
            try:
                assert process.stdout is not None
                for output in process.stdout:
                    line = without_secrets(output)
                    self._log.write(line)
                    last.append(line)
                    self._detail(line.strip()[:200])
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if process.returncode:
            reason = "".join(last)[-1500:].strip()
            raise BackendUnavailable(
                f"The kernel environment can't be made. Fix the cause and call this again. The whole"
                f" output is in {self._log.name}; it ends with:\n{reason}"
            )
