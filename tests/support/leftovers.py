"""What a run of tests that was killed has left in the system: found by the place that it had, and removed.

Processes, frozen ones too, containers and networks, control groups, swap files and mounts, at last the place
itself. Each is removed only for what ties it to the place, so a gateway or an engine of the user's that runs
beside the tests keeps all of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from docker.api.client import APIClient
from docker.errors import DockerException

from cellgate_kernels.base import trees
from cellgate_kernels.engine.container import INSTANCE_LABEL

DEPTH = 8
"""How deep below a place data folders of gateways are; what cells make may be deeper than any path."""
ENGINE = "/var/run/docker.sock"
CGROUPS = Path("/sys/fs/cgroup")
PROJECT = "com.docker.compose.project"
"""The label of what compose has made."""
_OF_A_TEST = re.compile(r"cellgate-test-(\d+)")
END_SECONDS = 30.0


def remove(place: Path) -> list[str]:
    """Remove all that is left of the run which had this place; what was found, in words."""
    groups = list(_groups(place))
    found = [
        *_counted(_end_processes(place, groups), "process", "processes"),
        *_counted(_remove_containers(place), "container", "containers"),
        *_counted(_remove_groups(groups), "control group", "control groups"),
        *_counted(_end_swap(place), "swap file", "swap files"),
        *_counted(_unmount(place), "mount", "mounts"),
    ]
    trees.remove(place)
    return found


def _counted(count: int, one: str, more: str) -> Iterator[str]:
    if count:
        yield f"{count} {one if count == 1 else more}"


def _folders(place: Path) -> Iterator[Path]:
    """All folders below a place that may be the tests' own."""
    for folder, inner, _ in os.walk(place):
        path = Path(folder)
        yield path
        if len(path.relative_to(place).parts) >= DEPTH:
            inner.clear()


# ---- processes and their control groups ------------------------------------------------------------------


def _groups(place: Path) -> Iterator[Path]:
    """The control groups that gateways and tests of this place have made, outer ones last."""
    names = set()
    for folder in _folders(place):
        if (folder / "workspaces").is_dir():
            # As `server.kernels` names them.
            names.add("cellgate-" + hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16])
        if folder.name.startswith("cg-"):
            names.add(folder.name)
    for folder, _, _ in os.walk(CGROUPS, topdown=False):
        path = Path(folder)
        of_a_test = _OF_A_TEST.fullmatch(path.name)
        if any(each in names for each in path.parts) or (
            of_a_test and not psutil.pid_exists(int(of_a_test[1]))
        ):
            yield path


def _end_processes(place: Path, groups: Iterable[Path]) -> int:
    """End what runs in the control groups, and what was started with something of the place."""
    inside = set()
    for group in groups:
        for name, thawed in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with suppress(OSError):
                (group / name).write_text(thawed)
        with suppress(OSError):
            inside |= {int(word) for word in (group / "cgroup.procs").read_text().split()}
    ours = [process for process in psutil.process_iter() if process.pid in inside or is_of(process, place)]
    for process in ours:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(ours, timeout=END_SECONDS)
    return len(ours)


def still_running(place: Path) -> list[str]:
    """The command lines of what was started with something of the place and does not end, as far as it is no
    helper of Python's own, which ends with this process.
    """
    ours = [process for process in psutil.process_iter() if is_of(process, place)]
    ours = [process for process in ours if not _is_helper(process)]
    _, alive = psutil.wait_procs(ours, timeout=END_SECONDS)
    return [_in_words(process) for process in alive]


def _is_helper(process: psutil.Process) -> bool:
    return "multiprocessing" in _in_words(process)


def _in_words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())}"[:200]
    return str(process.pid)


def is_of(process: psutil.Process, place: Path) -> bool:
    if process.pid == os.getpid():
        return False
    with suppress(psutil.Error):
        words = [*process.cmdline(), process.environ().get("TMPDIR", ""), process.cwd()]
        return any(_is_below(part, place) for word in words for part in re.split(r"[=:,]", word))
    return False


def _is_below(path: str, place: Path) -> bool:
    return path == str(place) or path.startswith(f"{place}/")


def _remove_groups(groups: Iterable[Path]) -> int:
    removed = 0
    for group in groups:
        with suppress(OSError):
            group.rmdir()
            removed += 1
    return removed


# ---- containers ------------------------------------------------------------------------------------------


def _remove_containers(place: Path) -> int:
    """Remove those of the place's gateways, those that were given folders of it, and compose's network."""
    with socket.socket(socket.AF_UNIX) as tried:
        if tried.connect_ex(ENGINE):
            return 0  # no engine runs, so nothing of it does
    client = APIClient(timeout=END_SECONDS)
    instances, projects = set(), set()
    for folder in _folders(place):
        with suppress(OSError):
            instances.add((folder / "instance").read_text().strip())
    removed = 0
    try:
        for each in client.containers(all=True):
            sources = [mount.get("Source", "") for mount in each.get("Mounts", [])]
            if each["Labels"].get(INSTANCE_LABEL) in instances or any(_is_below(s, place) for s in sources):
                projects |= {each["Labels"].get(PROJECT)} - {None}
                removed += _remove_container(client, each["Id"])
        # What else compose has made for these has no folder.
        for filters in ({"label": f"{PROJECT}={project}"} for project in projects):
            for each in client.containers(all=True, filters=filters):
                removed += _remove_container(client, each["Id"])
            for network in client.networks(filters=filters):
                with suppress(DockerException):
                    client.remove_network(network["Id"])
    except DockerException:
        pass  # the engine has ended meanwhile
    finally:
        client.close()
    return removed


def _remove_container(client: APIClient, container: str) -> bool:
    """Remove a container; return whether it was still there."""
    with suppress(DockerException):
        client.remove_container(container, force=True)
        return True
    return False


# ---- swap and mounts -------------------------------------------------------------------------------------


def _end_swap(place: Path) -> int:
    used = [line.split()[0] for line in Path("/proc/swaps").read_text().splitlines()[1:]]
    ours = [file for file in used if _is_below(file, place)]
    for file in ours:
        subprocess.run(["swapoff", file], check=False, capture_output=True)
    return len(ours)


def _unmount(place: Path) -> int:
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    ours = sorted((point for point in mounted if _is_below(point, place)), reverse=True)
    for point in ours:
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
    return len(ours)
