"""Checks of this machine for a gateway: each requirement of kernels, sessions and the record is tried.

It starts nothing that stays, and changes nothing: sandboxes, sockets and folders that it tries are gone when
`examine` ends. ``cli.doctor`` shows the findings; the gateway itself does not use them, because each part
checks what it needs at its own start.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from docker.api.client import APIClient

from cellgate.hook.program import CellRefused, HookProgram, HookQuestion, check_program
from cellgate.record.store.opening import record_address
from cellgate.server import machine
from cellgate_kernels.backends.docker import check_engine
from cellgate_kernels.backends.landlock import LandlockProvisioner, not_held
from cellgate_kernels.backends.sandbox import SandboxProvisioner
from cellgate_kernels.base.errors import CellgateError, in_brief, in_words
from cellgate_kernels.base.settings import ContainerSettings
from cellgate_kernels.base.trees import free
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.limits.cgroups import hierarchies
from cellgate_kernels.limits.control_group import CONTROLLERS as SLEEPING
from cellgate_kernels.limits.swap import size_of_swap
from cellgate_kernels.specs.catalog import KernelspecCatalog

MIB = 1024 * 1024
GIB = 1024 * MIB

NO_SPACE = 64 * MIB
"""The space that the record leaves free: with less, cells are refused (`GatewaySettings.storage_reserve`)."""
LITTLE_SPACE = 2 * GIB
LITTLE_MEMORY = 2 * GIB
FILES_WANTED = 4096
RUNSC_TIMEOUT = 10.0

# adjtimex(2): what it returns where nothing keeps the clock right, and more room than its struct needs.
_TIME_ERROR = 5
_TIMEX_BYTES = 1024

_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "ceph", "glusterfs")


class Grade(Enum):
    """`NOTE`: a gateway runs, but with limits; `PROBLEM`: it does not start, or soon fails."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A finding: `found` is a sentence without its end, `advice` says how to mend the problem, if any."""

    subject: str
    outcome: Grade
    found: str
    advice: str = ""


def _fine(subject: str, found: str) -> Diagnosis:
    return Diagnosis(subject, Grade.OK, found)


def _note(subject: str, found: str, advice: str = "") -> Diagnosis:
    return Diagnosis(subject, Grade.NOTE, found, advice)


def _problem(subject: str, found: str, advice: str) -> Diagnosis:
    return Diagnosis(subject, Grade.PROBLEM, found, advice)


@dataclass(frozen=True, slots=True)
class DoctorPlace:
    """The place where the gateway would run: its data folder, address, and container engine.

    `serving`: one runs there already, as far as the data folder says. `record`: the URL of its database, if
    the record is not in the data folder. `cell_hook`: the program that is to see cells, if there is one.
    """

    data: Path
    ip: str
    port: int
    docker_url: str
    container: ContainerSettings
    serving: bool = False
    record: str = ""
    cell_hook: Path | None = None


async def examine(place: DoctorPlace) -> AsyncIterator[Diagnosis]:
    """Yield each finding as soon as it is known; failures are findings, not exceptions."""
    kernelspecs = judge_kernelspecs(KernelspecCatalog())
    yield kernelspecs
    sandbox = await try_sandbox()
    yield sandbox
    landlock = await try_landlock()
    yield landlock
    engine = [finding async for finding in try_engine(place)]
    for finding in engine:
        yield finding
    yield judge_isolation(kernelspecs, sandbox, landlock, engine)
    yield find_memory()
    yield find_swap(_text(Path("/proc/swaps")))
    yield find_control_groups(os.geteuid())
    yield find_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    for finding in find_disk(place.data, _text(Path("/proc/mounts"))):
        yield finding
    if place.record:
        yield try_database(place.record)
    if place.cell_hook is not None:
        yield await try_cell_hook(place.cell_hook)
    yield try_port(place.ip, place.port, serving=place.serving)
    yield find_clock()


def judge_kernelspecs(catalog: KernelspecCatalog) -> Diagnosis:
    """Return whether there are kernelspecs, all are readable, and their programs exist."""
    specs = catalog.get_all_specs()
    missing = [name for name, spec in specs.items() if not os.access(spec["spec"]["argv"][0], os.X_OK)]
    if catalog.unusable:
        return _note(
            "kernel environment",
            "; ".join(f"{where} can't be used: {why}" for where, why in sorted(catalog.unusable.items())),
            "Mend or remove it, or make all again: cellgate setup",
        )
    if not specs:
        return _note("kernel environment", "not made", "Kernels outside containers need it: cellgate setup")
    if missing:
        return _note(
            "kernel environment",
            f"the programs of {', '.join(missing)} are missing",
            "Make it again: cellgate setup",
        )
    return _fine("kernel environment", f"kernels: {', '.join(sorted(specs))}")


async def try_sandbox() -> Diagnosis:
    """Return whether a program starts under bubblewrap as kernels do."""
    try:
        await SandboxProvisioner.check()
    except CellgateError as error:
        return _note("sandbox", "does not work", error.message)
    except OSError as error:
        # Such as a full disk, or too many open files.
        return _note(
            "sandbox",
            f"could not be tried: {in_words(error)}",
            "Kernels need what the check needs: room for temporary files (see TMPDIR) and open files.",
        )
    return _fine("sandbox", "bubblewrap starts programs as it would start kernels")


async def try_landlock() -> Diagnosis:
    """Return whether a program starts behind Landlock as kernels do where no sandbox can be."""
    try:
        await LandlockProvisioner.check()
    except CellgateError as error:
        return _note("landlock", "does not work", error.message)
    except OSError as error:
        return _note("landlock", f"could not be tried: {in_words(error)}", "See what is said of the sandbox.")
    return _fine("landlock", "starts programs, where no sandbox can be")


async def try_engine(place: DoctorPlace) -> AsyncIterator[Diagnosis]:
    """Yield the container engine, the kernel image and gVisor."""
    engine = Engine(place.docker_url)
    try:
        await engine.open()
    except CellgateError as error:
        yield _note("container engine", "not used", error.message)
        return
    try:
        version = await engine.call(APIClient.version)
        info = await engine.call(APIClient.info)
        runtimes = set(info.get("Runtimes") or ())
        yield _fine(
            "container engine",
            f"{version.get('Version', 'unknown version')}, cgroup v{info.get('CgroupVersion', '?')},"
            f" runtimes {', '.join(sorted(runtimes))}",
        )
        yield await _try_image(engine, place.container)
        yield _find_gvisor(runtimes)
    except CellgateError as error:
        yield _note("container engine", "stopped answering", error.message)
    finally:
        await engine.close()


async def _try_image(engine: Engine, settings: ContainerSettings) -> Diagnosis:
    try:
        await check_engine(engine, settings)
    except CellgateError as error:
        return _note("kernel image", "no kernels in containers", error.message)
    return _fine("kernel image", settings.image)


def _find_gvisor(runtimes: set[str]) -> Diagnosis:
    if "runsc" not in runtimes:
        return _note(
            "gVisor",
            "the engine has no runtime runsc",
            "For the strongest isolation see docs/how-to/run-kernels-in-containers.md.",
        )
    program = shutil.which("runsc")
    if program is None:
        return _fine("gVisor", "the engine knows the runtime runsc")
    try:
        told = subprocess.run([program, "--version"], capture_output=True, timeout=RUNSC_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return _note("gVisor", f"runsc does not run: {in_words(error)}", "Install it again.")
    return _fine("gVisor", told.stdout.partition(b"\n")[0].decode(errors="replace").strip())


def judge_isolation(
    kernelspecs: Diagnosis, sandbox: Diagnosis, landlock: Diagnosis, engine: list[Diagnosis]
) -> Diagnosis:
    """Return which backend `cellgate serve` takes by itself."""
    works = {finding.subject for finding in engine if finding.outcome is Grade.OK}
    if {"container engine", "kernel image"} <= works:
        return _fine("isolation", "container: cellgate serve takes the container engine")
    if kernelspecs.outcome is not Grade.OK:
        return _problem(
            "isolation",
            "there are no kernels to start",
            "cellgate setup, or cellgate image build with a container engine",
        )
    if sandbox.outcome is Grade.OK:
        return _fine("isolation", "sandbox: cellgate serve takes bubblewrap")
    if landlock.outcome is Grade.OK:
        return _note(
            "isolation",
            f"landlock, which is less than a sandbox: {'; '.join(not_held())}",
            "Make the sandbox work, as said above.",
        )
    return _problem(
        "isolation",
        "none: code could read and change all your files",
        "Make the sandbox or the container engine work, as said above.",
    )


def find_memory() -> Diagnosis:
    """Memory and processors of the gateway's control groups."""
    memory = machine.memory()
    found = f"{memory / GIB:.1f} GiB, {machine.processors():g} processors"
    if memory < LITTLE_MEMORY:
        return _note("memory", found, "A kernel may use 1 GiB by default: see --memory.")
    return _fine("memory", found)


def find_swap(swaps: str) -> Diagnosis:
    """Return the diagnosis of swap, from the text of /proc/swaps (proc(5))."""
    size = size_of_swap(swaps)
    if not size:
        return _fine(
            "swap",
            "none: sessions end after their idle_timeout, and kernels that sleep (--sleep-after) keep their"
            " memory",
        )
    return _fine(
        "swap", f"{size / GIB:.1f} GiB: sessions whose kernels can sleep do so at their idle_timeout"
    )


def find_control_groups(user: int, root: Path = Path("/")) -> Diagnosis:
    """Yield control groups' versions, and whose kernels could sleep here. `root`: of the system's files."""
    found = hierarchies(_text(root / "proc/self/cgroup"), _text(root / "proc/self/mountinfo"), SLEEPING)
    versions = " and ".join(sorted({str(each.version) for each in found}))
    if not {name for each in found for name in each.controllers}.issuperset(SLEEPING):
        return _note("control groups", "none are seen here: kernels can't sleep (--sleep-after)")
    writable = [each for each in found if os.access(root / each.folder.relative_to("/"), os.W_OK)]
    if not any("memory" in each.controllers for each in writable):
        return _note(
            "control groups",
            f"version {versions}, without the right to write them: kernels can't sleep (--sleep-after)",
            "That takes root, or for sandboxes a delegated group, if you want it.",
        )
    can = []
    # Only frozen processes of version 2 can be killed: sandboxes need that. Groups of containers are root's.
    if any(each.version == 2 for each in writable):
        can.append("forked kernels in sandboxes (if the gateway is alone in its group)")
    if user == 0:
        can.append("kernels in containers")
    if not can:
        return _note("control groups", f"version {versions}: kernels can't sleep (--sleep-after)")
    return _fine("control groups", f"version {versions}: {' and '.join(can)} can sleep")


def find_open_files(most: int) -> Diagnosis:
    """Judge the number of files that the gateway may open; a kernel needs about twenty."""
    if most == resource.RLIM_INFINITY:
        return _fine("open files", "no limit")
    if most < FILES_WANTED:
        return _note(
            "open files",
            f"at most {most}",
            "Many sessions need more: raise `ulimit -n`, or LimitNOFILE= of a systemd unit.",
        )
    return _fine("open files", f"at most {most}")


def find_disk(data: Path, mounts: str) -> Iterator[Diagnosis]:
    """Yield findings on the data folder: writable, with space, local. `mounts`: text of /proc/mounts."""
    existing = machine.nearest(data)
    if hindrance := _hindrance(data, existing):
        yield _problem("data folder", hindrance, "Choose another: --data-dir DIR")
        return
    kind = file_system_of(existing.resolve(), mounts)
    if kind.startswith(_NETWORK_FILE_SYSTEMS):
        yield _problem(
            "data folder",
            f"{data} is on {kind}, where SQLite's locks are not safe",
            "Choose a folder on a local disk: --data-dir DIR",
        )
        return
    space = free(existing)
    found = f"{data}: {space / GIB:.1f} GiB free{f' on {kind}' if kind else ''}"
    if space < NO_SPACE:
        yield _problem(
            "data folder",
            f"{data}: the disk is full, {space / MIB:.1f} MiB are free{f' on {kind}' if kind else ''}",
            "Free some space, or choose another: --data-dir DIR",
        )
    elif space < LITTLE_SPACE:
        yield _note("data folder", found, "Free some space, or choose another: --data-dir DIR")
    else:
        yield _fine("data folder", found)


def try_database(url: str) -> Diagnosis:
    """Return whether the database at `url` can keep the record. Blocks for seconds if nothing answers."""
    try:
        address = record_address(url)
        from cellgate.record.store.postgresql.check import describe_database  # noqa: PLC0415 - an extra

        return _fine("record", describe_database(address))
    except CellgateError as error:
        return _problem("record", error.message, "Mend it, or choose another: --record URL")


async def try_cell_hook(path: Path) -> Diagnosis:
    """Return whether the cell hook answers a question about an empty cell; what it answers does not count."""
    try:
        hook = HookProgram(check_program(path))
    except CellgateError as error:
        return _problem("cell hook", error.message, "Choose another: --cell-hook PROGRAM")
    try:
        await hook.ask(HookQuestion(id="doctor", door="doctor", language="python"))
    except CellRefused:
        pass
    except CellgateError as error:
        return _problem("cell hook", error.message, "Try it by hand: docs/how-to/refuse-cells.md")
    finally:
        await hook.close()
    return _fine("cell hook", f"{path} answers")


def _hindrance(data: Path, existing: Path) -> str:
    """Why the data folder can't be used or made, if so. `existing`: it, or the nearest above that exists."""
    try:
        data.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{data}: {in_brief(error)}"
    if not existing.is_dir():
        return f"{existing} is not a folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} can't be written"
    return ""


def file_system_of(path: Path, mounts: str) -> str:
    """Return the type of the file system that holds `path`, from the text of /proc/mounts; or nothing."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        # Spaces in a word are octal there (getmntent(3)); a mount's source may have an empty name.
        words = line.split(" ")
        if len(words) < 3:
            continue
        point = Path(words[1].replace("\\040", " "))
        # Of two mounts at the same place the later one hides the other.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), words[2]
    return kind


def try_port(ip: str, port: int, *, serving: bool = False) -> Diagnosis:
    """Return whether the gateway could listen at its address now, or already does."""
    address = f"{ip}:{port}"
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(ip, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
    except ValueError:  # such as a part of a name that is too long
        return _problem("port", f"{ip!r} is no address", "Choose another: --ip")
    except OSError as error:
        if error.errno == errno.EADDRINUSE and serving:
            return _fine("port", f"the gateway of this data folder serves at {address}")
        if error.errno == errno.EADDRINUSE:
            return _note(
                "port",
                f"{address} is in use",
                "A gateway may run already, or another program, such as JupyterLab; else choose: --port N",
            )
        if error.errno == errno.EADDRNOTAVAIL:
            return _problem("port", f"{ip} is no address of this machine", "Choose another: --ip")
        return _problem("port", f"{address}: {in_brief(error)}", "Choose others: --ip, --port")
    return _fine("port", f"{address} is free")


def find_clock() -> Diagnosis:
    """Return whether the clock can be right, and whether something keeps it right (adjtimex(2))."""
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < Path(__file__).stat().st_mtime - 24 * 3600:
        return _problem("clock", f"{shown} is before Cellgate was installed", "Set the clock.")
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state == _TIME_ERROR:
        return _note(
            "clock",
            f"{shown}; no time synchronisation is reported",
            "Times in the record are this clock's: start an NTP client, such as chrony or systemd-timesyncd,"
            " here or on the host.",
        )
    return _fine("clock", shown if state < 0 else f"{shown}, kept right by the system")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
