"""Containers of one principal each: when they begin and end, and what gets one of its own. Engine and zygote
are fakes; tests/containers has real ones.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.base.resources import MIB, MOST_BYTES, ResourceLimits
from cellgate_kernels.engine.engine import Container
from cellgate_kernels.forking import shared_containers
from cellgate_kernels.forking.messages import LENGTH, NotForked
from cellgate_kernels.forking.server import ForkSettings
from cellgate_kernels.forking.shared_child import SharedChild
from cellgate_kernels.forking.shared_containers import Seat, SharedContainers
from cellgate_kernels.forking.shared_places import ContainerPlaces, Roots, SeatRequest, Sharers, of_the_first
from cellgate_kernels.launch.backend import KernelExit, Launch
from cellgate_kernels.launch.folders import LaunchFolders
from cellgate_kernels.launch.names import Names, NamesRequest
from cellgate_kernels.limits import disk_watch
from cellgate_kernels.limits.cgroups import Cgroup, Cgroups

LIMITS = ResourceLimits(memory=128 * MIB, disk=MIB)
ADA, BOB = (Sharers(name, "python3", LIMITS) for name in ("ada", "bob"))
ARGV = ("/opt/python", "/opt/bootstrap.py", "-f", "/run/kernel.json")
KILLED = KernelExit.of_returncode(-9)


class FakeZygote(threading.Thread):
    """Speaks for a zygote: its kernels are programs that sleep. `asked`: what it says that it has read."""

    def __init__(self, address: Path, asked: list[str]) -> None:
        super().__init__(daemon=True)
        self.asked = asked
        self.described: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.children: list[subprocess.Popen[bytes]] = []
        self.opened: Callable[[int], int] = os.pidfd_open
        """What it sends as the descriptor of a child."""
        self.answer = b"ok"
        """What a child says that was sent names."""
        self.received: list[int] = []
        """How many descriptors children were sent."""
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.connect(str(address))

    def say(self, descriptors: tuple[int, ...] = (), **what: object) -> None:
        socket.send_fds(self.control, [json.dumps(what).encode()], descriptors)

    def run(self) -> None:
        with self.control:
            if not self.control.recv(4096):
                return
            self.say(kind="ready", asked=self.asked, failed=[], threads=1, reserved=0)
            while True:
                message, doors, _, _ = socket.recv_fds(self.control, 4096, 4)
                if not message:
                    return
                self.fork(json.loads(message), socket.socket(fileno=doors[0]))

    def fork(self, request: dict[str, Any], door: socket.socket) -> None:
        self.requests.append(request)
        child = subprocess.Popen(["sleep", "100"])
        self.children.append(child)
        pidfd = self.opened(child.pid)
        self.say((pidfd,), kind="forked", number=request["number"])
        os.close(pidfd)
        with door:
            data, opened, _, _ = socket.recv_fds(door, LENGTH.size, 8)
            if not data:
                child.kill()
                return
            (length,) = LENGTH.unpack(data)
            self.described.append(json.loads(door.recv(length, socket.MSG_WAITALL)))
            self.received.append(len(opened))
            for each in opened:
                os.close(each)
            door.sendall(self.answer if self.described[-1]["names"] else b"ok")


class FakeEngine:
    """An engine whose containers are fake zygotes."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken = False
        self.silent = False
        self.processors = 2.0
        self.process = os.getpid()
        self.opened: Callable[[int], int] = os.pidfd_open
        self.launched: list[Launch] = []
        self.zygotes: list[FakeZygote] = []
        self.running: list[Container] = []

    def launch(self, launch: Launch, config: dict[str, Any], *, watch: bool) -> Container:
        assert not watch
        self.launched.append(launch)
        container = Container("name", launch, asyncio.get_running_loop().create_future())
        watched: Any = SimpleNamespace(process=self.process)
        container.watched = watched
        self.running.append(container)
        if self.broken:
            container.exited.set_result(KILLED)
            return container
        if self.silent:
            return container
        zygote = FakeZygote(launch.folders.runtime / "zygote", self.asked)
        zygote.opened = self.opened
        self.zygotes.append(zygote)
        zygote.start()
        return container

    async def until_running(self, container: Container) -> None:
        await asyncio.sleep(0)

    def end(self, container: Container) -> None:
        if container in self.running:
            self.running.remove(container)
        if not container.exited.done():
            container.exited.set_result(KILLED)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def roots() -> Iterator[Roots]:
    """Where paths are short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="cg-"))
    made = Roots(folder / "run", folder / "work", folder / "sites")
    for each in (made.runtime, made.workspaces, made.packages):
        assert each is not None
        each.mkdir()
    yield made
    shutil.rmtree(folder)


@pytest.fixture
async def containers(
    engine: FakeEngine, roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SharedContainers]:
    """Without a right to cgroups, as the fake's would be this process's own."""
    monkeypatch.setattr(Cgroups, "around", refused)
    any_engine: Any = engine
    made = SharedContainers(any_engine, roots, ForkSettings(modules=(), most_forks=3))
    yield made
    await made.close()
    for zygote in engine.zygotes:
        for child in zygote.children:
            child.kill()
            child.wait()


def refused(*_: object) -> None:
    raise BackendUnavailable("cgroups can't be made here")


def config(launch: Launch, places: ContainerPlaces) -> dict[str, Any]:
    return {"kernels": places.kernels, "memory": places.limits(launch.limits).memory}


def request(seat: Seat, **env: str) -> SeatRequest:
    own = {"HOME": seat.view.home, "CELLGATE_KEEPER": "socket", "PYTHONPATH": seat.view.packages}
    workspace = seat.workspaces / seat.kernel_id
    workspace.mkdir(exist_ok=True)
    folders = LaunchFolders(seat.sockets, workspace, owns_workspace=False)
    usual = Launch(ARGV, own, LIMITS, folders)
    return SeatRequest(Launch(ARGV, own | env, LIMITS, folders), usual, {"key": "k"}, config)


async def forked(
    containers: SharedContainers, sharers: Sharers, kernel_id: str, **env: str
) -> tuple[Seat, SharedChild]:
    seat = containers.seat(sharers, kernel_id)
    return seat, await seat.fork(request(seat, **env))


async def ended(child: SharedChild) -> None:
    child.kill()
    await asyncio.wait_for(child.exited, 10)


def names(roots: Roots) -> list[str]:
    assert roots.packages is not None
    return [
        each.name for folder in (roots.runtime, roots.workspaces, roots.packages) for each in folder.iterdir()
    ]


async def test_kernels_of_a_principal_share_one(
    containers: SharedContainers, engine: FakeEngine, roots: Roots
) -> None:
    one, first = await forked(containers, ADA, "kernel-1")
    two, second = await forked(containers, ADA, "kernel-2", WHO="two")
    three, third = await forked(containers, BOB, "kernel-3")
    # Each was launched anew when it was known that its kernels have no cgroups, but from the second on.
    assert [one.image, two.shared_with, three.shared_with] == ["", "ada", "bob"]
    assert len(engine.running) == 2
    assert first.pid != second.pid
    (described,) = engine.zygotes[1].described[1:]
    assert described["env"]["WHO"] == "two"
    assert described["folder"] == "/sessions/kernel-2"
    assert [each["scratch"] for each in engine.zygotes[1].requests] == ["/tmp/kernel-1", "/tmp/kernel-2"]
    # Nothing of a session is in what the zygote was started with.
    assert not any("WHO" in launch.env or "kernel-1" in str(launch.env) for launch in engine.launched)

    await ended(first)
    one.leave()
    assert len(engine.running) == 2
    (two.workspaces / "kernel-1").rmdir()
    await ended(second)
    two.leave()
    two.leave()
    assert len(engine.running) == 1
    # Somebody still takes care of the kernel's files.
    assert two.workspaces.is_dir()
    (two.workspaces / "kernel-2").rmdir()
    two.tidy()
    assert not two.workspaces.exists()
    await ended(third)
    (three.workspaces / "kernel-3").rmdir()
    three.leave()
    await asyncio.sleep(0)
    three.tidy()
    assert names(roots) == []


class NamesMade:
    """What has names made, for tests: it makes two descriptors, or none."""

    def __init__(self, *, works: bool) -> None:
        self.works = works
        self.wanted: list[NamesRequest] = []

    async def make(self, wanted: NamesRequest) -> Names | None:
        self.wanted.append(wanted)
        return Names((os.open("/", os.O_PATH), os.open("/", os.O_PATH))) if self.works else None


@pytest.mark.parametrize(
    ("works", "answer", "workspace"),
    [
        (True, b"ok, with names", "/workspace"),
        (True, b"ok", "/sessions/kernel-1"),
        (False, b"ok, with names", "/sessions/kernel-1"),
    ],
)
async def test_a_kernel_has_the_workspaces_names_if_it_took_them(
    containers: SharedContainers, engine: FakeEngine, works: bool, answer: bytes, workspace: str
) -> None:
    first, _ = await forked(containers, ADA, "kernel-0")
    assert first.view.workspace == "/sessions/kernel-0"
    engine.zygotes[-1].answer = answer
    seat = containers.seat(ADA, "kernel-1")
    made: Any = NamesMade(works=works)
    seat._house._naming = made
    child = await seat.fork(replace(request(seat), named_for=(7, 8)))
    described = engine.zygotes[-1].described[-1]
    assert (described["names"], described["folder"]) == (2 if works else 0, "/sessions/kernel-1")
    assert engine.zygotes[-1].received == [1, 3 if works else 1]  # the first one is for its log
    assert seat.view.workspace == workspace
    # Of the container's first process; a branch's is forked off where its keeper is.
    made_of = NamesRequest(engine.process, 1, "/sessions/kernel-1", "/workspace", 7, 8, is_machines_user=True)
    assert made.wanted == [made_of]
    of_a_branch = "/sessions/kernel-1.branches/b"
    for folder, process in (("/workspace", 1), (of_a_branch, 1), (of_a_branch, 99)):
        offered = await seat.make_names(child, folder, process, (7, 8))
        assert (offered is not None) is (workspace == "/workspace")
        if offered is not None:
            offered.close()
    if workspace == "/workspace":
        assert [(each.forked, each.folder) for each in made.wanted[1:]] == [
            (child.pid, "/sessions/kernel-1"),
            (child.pid, of_a_branch),
            (99, of_a_branch),
        ]
    await ended(child)
    assert await seat.make_names(child, of_a_branch, 1, (7, 8)) is None


async def test_without_cgroups_a_container_has_the_limits_of_one_kernel(
    containers: SharedContainers, engine: FakeEngine
) -> None:
    assert containers.trials.divides is None
    made: list[dict[str, Any]] = []
    launch = engine.launch

    def noted(given: Launch, config: dict[str, Any], *, watch: bool) -> Container:
        made.append(config)
        return launch(given, config, watch=watch)

    engine.launch = noted  # type: ignore[method-assign]
    await forked(containers, ADA, "kernel-1")
    await forked(containers, BOB, "kernel-2")
    assert containers.trials.divides is False
    # The first was made for many, and ended when it was known. No kernel was ever in it.
    assert [each["kernels"] for each in made] == [shared_containers.MOST_KERNELS, 1, 1]
    assert [each["memory"] for each in made][1:] == [128 * MIB] * 2
    assert engine.zygotes[0].requests == []


async def test_a_zygote_that_has_forked_often_is_replaced(
    containers: SharedContainers, engine: FakeEngine
) -> None:
    seats = [await forked(containers, ADA, f"kernel-{number}") for number in range(4)]
    assert len(engine.running) == 2
    for seat, child in seats[:3]:
        await ended(child)
        seat.leave()
    assert len(engine.running) == 1


async def test_a_container_has_so_many_kernels_and_no_more(
    containers: SharedContainers, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_containers, "MOST_KERNELS", 2)
    seats = [containers.seat(ADA, f"kernel-{number}") for number in range(3)]
    assert seats[0].workspaces == seats[1].workspaces != seats[2].workspaces
    for seat in seats:
        seat.leave()
    assert engine.launched == []
    assert not seats[0].workspaces.exists()


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "PYTHONPATH", "COLUMNS"])
async def test_a_variable_that_was_read_before_the_fork_is_not_forked(
    containers: SharedContainers, engine: FakeEngine, name: str
) -> None:
    engine.asked = ["COLUMNS", "HOME"]
    await forked(containers, ADA, "kernel-1")
    with pytest.raises(NotForked, match=name):
        await forked(containers, ADA, "kernel-2", **{name: "other"})
    before = len(engine.launched)
    seat = containers.seat(BOB, "kernel-3")
    with pytest.raises(NotForked, match=name):
        await seat.fork(request(seat, **{name: "other"}))
    # What is known already needs no container.
    assert len(engine.launched) == before


async def test_where_no_zygote_works_it_is_not_tried_again_at_once(
    containers: SharedContainers, engine: FakeEngine, roots: Roots
) -> None:
    engine.broken = True
    seat = containers.seat(ADA, "kernel-1")
    with pytest.raises(NotForked, match="ended"):
        await seat.fork(request(seat))
    (seat.workspaces / "kernel-1").rmdir()
    seat.leave()
    assert not containers.trials.forks("python3")
    assert not containers.trials.forks("python3", LIMITS)
    assert containers.trials.forks("other")
    # What a client has chosen is nobody else's doing.
    assert containers.trials.forks("python3", replace(LIMITS, memory=64 * MIB))
    with pytest.raises(NotForked, match="ended"):
        containers.seat(BOB, "kernel-2")
    assert len(engine.launched) == 1
    await asyncio.sleep(0)
    assert names(roots) == []


async def test_a_path_that_is_too_long_for_sockets_is_not_forked(
    containers: SharedContainers, roots: Roots
) -> None:
    long = replace(roots, runtime=roots.runtime / ("x" * 80))
    containers = SharedContainers(containers.engine, long)
    with pytest.raises(NotForked, match="too long"):
        containers.seat(ADA, "kernel-1")
    assert names(roots) == []


async def test_a_zygote_that_ends_takes_its_kernels_with_it_and_another_follows(
    containers: SharedContainers, engine: FakeEngine
) -> None:
    _, child = await forked(containers, ADA, "kernel-1")
    (container,) = engine.running
    for each in engine.zygotes[-1].children:
        each.kill()
    engine.end(container)
    assert (await asyncio.wait_for(child.exited, 10)).signal == 9
    _, other = await forked(containers, ADA, "kernel-2")
    assert not other.exited.done()


def asleep() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "100"])


def descriptors_of(process: int) -> int:
    """How many pidfds of it this process has."""
    found = 0
    for each in Path("/proc/self/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            found += f"\nPid:\t{process}\n" in each.read_text()
    return found


async def test_a_descriptor_that_nobody_waits_for_is_closed_and_not_signalled(
    containers: SharedContainers, engine: FakeEngine
) -> None:
    await forked(containers, ADA, "kernel-1")
    victim = asleep()
    pidfd = os.pidfd_open(victim.pid)
    try:
        assert descriptors_of(victim.pid) == 1
        engine.zygotes[-1].say((pidfd,), kind="forked", number=0)
        await forked(containers, ADA, "kernel-2")
        assert victim.poll() is None
        assert descriptors_of(victim.pid) == 1
    finally:
        os.close(pidfd)
        victim.kill()
        victim.wait()


def the_gateway(_: int) -> int:
    """As SO_PEERPIDFD of the connection to the gateway."""
    return os.pidfd_open(os.getpid())


def a_file(_: int) -> int:
    return os.open("/dev/null", os.O_RDONLY)


def a_regular_file(_: int) -> int:
    return os.open(__file__, os.O_RDONLY)


def one_that_has_ended(_: int) -> int:
    child = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(child.pid)
    child.wait()
    return pidfd


@pytest.mark.parametrize("opened", [the_gateway, a_file, a_regular_file, one_that_has_ended])
async def test_what_is_no_child_of_a_zygotes_is_never_signalled_and_ends_its_container(
    containers: SharedContainers, engine: FakeEngine, opened: Callable[[int], int]
) -> None:
    engine.opened = opened
    with pytest.raises(NotForked, match="else than its child"):
        await forked(containers, ADA, "kernel-1")
    assert engine.running == []
    # Another container serves, where this is as it should be.
    engine.opened = os.pidfd_open
    await forked(containers, ADA, "kernel-2")


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """A process in another namespace of processes."""
    try:
        outer = subprocess.Popen(["unshare", "--user", "--pid", "--fork", "sleep", "100"])
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    inner = ""
    for _ in range(500):
        if outer.poll() is not None:
            pytest.skip("this user may make no namespaces")
        if inner := children.read_text().strip():
            break
        time.sleep(0.01)
    yield int(inner)
    os.kill(int(inner), signal.SIGKILL)
    outer.wait()


async def test_a_process_that_is_not_of_the_container_is_never_signalled(
    containers: SharedContainers, engine: FakeEngine, elsewhere: int
) -> None:
    engine.process = elsewhere
    victim = asleep()
    engine.opened = lambda _: os.pidfd_open(victim.pid)
    try:
        with pytest.raises(NotForked, match="not of its container"):
            await forked(containers, ADA, "kernel-1")
        assert victim.poll() is None
        assert engine.running == []
    finally:
        victim.kill()
        victim.wait()


async def test_without_a_connection_a_kernel_is_not_forked_and_the_zygote_stays(
    containers: SharedContainers, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await forked(containers, ADA, "kernel-1")
    seat = containers.seat(ADA, "kernel-2")
    wanted = request(seat)

    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "socketpair", none_left)
        with pytest.raises(NotForked, match="Too many open files"):
            await seat.fork(wanted)
    seat.leave()
    await forked(containers, ADA, "kernel-3")
    assert len(engine.running) == 1


class FakeCgroups:
    """Those of a container, which hold nobody. `least`: bytes that can't be taken back."""

    def __init__(self) -> None:
        self.limited: list[int] = []
        self.made: list[ResourceLimits] = []
        self.least = 0

    def limit_memory(self, memory: int) -> None:
        if memory < self.least:
            raise OSError(errno.EBUSY, "more is in use")
        self.limited.append(memory // MIB)

    def make(self, name: str, limits: ResourceLimits) -> Cgroup:
        self.made.append(limits)
        return Cgroup(())


@pytest.fixture
def cgroups(containers: SharedContainers, monkeypatch: pytest.MonkeyPatch) -> FakeCgroups:
    made = FakeCgroups()
    monkeypatch.setattr(Cgroups, "around", lambda *_: (made, Cgroup(())))
    monkeypatch.setattr(shared_containers, "_LOWER_AGAIN", (0.01, 0.01))
    return made


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def test_all_kernels_of_a_container_have_the_memory_of_those_that_there_are(
    containers: SharedContainers, cgroups: FakeCgroups
) -> None:
    seats = [await forked(containers, ADA, f"kernel-{number}") for number in range(2)]
    assert cgroups.limited == [512 + 128, 512 + 2 * 128]
    for seat, child in seats[1:]:
        await ended(child)
        seat.leave()
    await until(lambda: len(cgroups.limited) > 2)
    assert cgroups.limited[2:] == [512 + 128]


async def test_a_container_ends_whose_ended_kernels_left_too_much_in_memory(
    containers: SharedContainers, engine: FakeEngine, cgroups: FakeCgroups
) -> None:
    _, stays = await forked(containers, ADA, "kernel-1")
    seat, child = await forked(containers, ADA, "kernel-2")
    cgroups.least = (512 + 2 * 128) * MIB
    await ended(child)
    seat.leave()
    end = await asyncio.wait_for(stays.exited, 10)
    assert end.cause == "out_of_memory"
    assert "have left" in end.message
    assert engine.running == []
    cgroups.least = 0
    await forked(containers, ADA, "kernel-3")


async def test_what_is_left_in_memory_for_a_moment_ends_nothing(
    containers: SharedContainers, engine: FakeEngine, cgroups: FakeCgroups
) -> None:
    await forked(containers, ADA, "kernel-1")
    seat, child = await forked(containers, ADA, "kernel-2")
    least = iter([10**12, 10**12, 0])
    lowered = cgroups.limit_memory

    def taken_back_slowly(memory: int) -> None:
        cgroups.least = next(least, 0)
        lowered(memory)

    cgroups.limit_memory = taken_back_slowly  # type: ignore[method-assign]
    await ended(child)
    seat.leave()
    await until(lambda: len(cgroups.limited) > 2)
    assert len(engine.running) == 1


async def test_a_kernels_processors_are_no_more_than_there_are(
    containers: SharedContainers, cgroups: FakeCgroups
) -> None:
    """Version 1 refuses more than the container has."""
    seat = containers.seat(replace(ADA, limits=replace(LIMITS, cpus=8.0)), "kernel-1")
    wanted = request(seat)
    await seat.fork(replace(wanted, launch=replace(wanted.launch, limits=replace(LIMITS, cpus=8.0))))
    assert [each.cpus for each in cgroups.made] == [2.0]


def test_a_zygote_has_enough_to_load_modules_whatever_its_kernels_have() -> None:
    small = ResourceLimits(memory=64 * MIB, cpus=0.05, pids=16)
    places = ContainerPlaces(Path("/a"), Path("/b"), None, shared_containers.MOST_KERNELS)
    limits = places.limits(small)
    assert (limits.memory, limits.cpus, limits.pids) == ((32 * 64 + 512) * MIB, 32 * 0.05, 32 * 16 + 64)
    first = of_the_first(small)
    assert (first.memory, first.cpus, first.pids) == (512 * MIB, 1.0, 64)
    # However large those of one kernel are.
    large = places.limits(ResourceLimits(memory=MOST_BYTES, cpus=1024, pids=1_000_000))
    assert (large.memory, large.cpus, large.pids) == (MOST_BYTES, 1024, 1_000_000)


async def test_an_error_of_one_container_says_nothing_about_others(
    containers: SharedContainers, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Cgroups, "around", failed)
    monkeypatch.setattr(shared_containers, "RETRY_SOON", 0.0)
    with pytest.raises(NotForked, match="Too many open files"):
        await forked(containers, ADA, "kernel-1")
    assert engine.running == []
    assert containers.trials.divides is None
    monkeypatch.setattr(Cgroups, "around", lambda *_: (FakeCgroups(), Cgroup(())))
    await forked(containers, ADA, "kernel-2")
    assert containers.trials.divides is True


async def test_a_container_that_is_not_ready_in_time_is_given_up(
    containers: SharedContainers, engine: FakeEngine, roots: Roots
) -> None:
    any_engine: Any = engine
    impatient = SharedContainers(any_engine, roots, patience=0.05)
    engine.silent = True
    with pytest.raises(NotForked, match=r"not ready within 0\.05 s"):
        await forked(impatient, ADA, "kernel-1")
    assert not impatient.trials.forks("python3", LIMITS)
    assert engine.running == []
    await impatient.close()


def given(seat: Seat) -> tuple[Path, Path]:
    workspace = seat.workspaces / seat.kernel_id
    return workspace, workspace / "folder"


async def test_others_are_kept_from_the_files_of_a_kernel_that_has_ended(
    containers: SharedContainers,
) -> None:
    await forked(containers, ADA, "kernel-1")
    seat, child = await forked(containers, ADA, "kernel-2")
    workspace, _ = given(seat)
    if os.geteuid() == 0:
        os.chown(workspace, 1000, 1000)
    workspace.chmod(0o777)
    await ended(child)
    found = workspace.stat()
    assert (found.st_uid, found.st_mode & 0o777) == (os.geteuid(), 0o700)


async def test_what_neighbours_write_to_an_ended_kernels_folder_ends_them(
    containers: SharedContainers, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "INTERVAL", 0.02)
    monkeypatch.setattr(disk_watch, "PATIENCE", 0.0)
    _, neighbour = await forked(containers, ADA, "kernel-1")
    seat, child = await forked(containers, ADA, "kernel-2")
    workspace, folder = given(seat)
    folder.mkdir()
    # As a neighbour that has opened it before.
    opened = os.open(folder, os.O_DIRECTORY)
    try:
        await ended(child)
        seat.leave()
        await until(lambda: all(each.given is not None for each in containers.disks._kernels))
        descriptor = os.open("large", os.O_CREAT | os.O_WRONLY, dir_fd=opened)
        os.posix_fallocate(descriptor, 0, 2 * MIB)
        os.close(descriptor)
    finally:
        os.close(opened)
    end = await asyncio.wait_for(neighbour.exited, 10)
    assert end.cause == "disk_full"
    assert engine.running == []
    shutil.rmtree(workspace)


async def test_an_ended_kernels_folder_is_watched_until_its_session_has_taken_the_files(
    containers: SharedContainers,
) -> None:
    _, stays = await forked(containers, ADA, "kernel-1")
    seat, child = await forked(containers, ADA, "kernel-2")
    workspace, _ = given(seat)
    await ended(child)
    seat.leave()
    await until(lambda: child.watched not in containers.disks._kernels)
    assert len(containers.disks._kernels) == 2
    workspace.rmdir()
    seat.tidy()
    assert containers.disks._kernels == {stays.watched}


async def test_what_a_kernel_was_ended_for_is_not_its_neighbours_doing(
    containers: SharedContainers, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "INTERVAL", 0.02)
    monkeypatch.setattr(disk_watch, "PATIENCE", 0.0)
    await forked(containers, ADA, "kernel-1")
    seat, child = await forked(containers, ADA, "kernel-2")
    workspace, _ = given(seat)
    with (workspace / "large").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2 * MIB)
    assert (await asyncio.wait_for(child.exited, 10)).cause == "disk_full"
    seat.leave()

    def left() -> list[disk_watch.Watched]:
        return [each for each in containers.disks._kernels - {child.watched} if each.last.used > MIB]

    await until(lambda: bool(left()))
    (watched,) = left()
    moment = watched.due
    await until(lambda: watched.due > moment + 0.1)
    assert len(engine.running) == 1
    shutil.rmtree(workspace)
