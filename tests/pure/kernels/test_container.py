"""What a container is made of, and how a workspace's size is found: no engine is needed."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellgate_kernels.backends.docker import DockerProvisioner, check_engine, kernel_user
from cellgate_kernels.base.errors import BackendUnavailable, InvalidInput, KernelStartFailed
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.base.settings import ContainerSettings
from cellgate_kernels.engine.container import container_config, shared_config
from cellgate_kernels.engine.engine import Engine, _remove
from cellgate_kernels.engine.profile import engine_profile, gvisor_profile, sandboxes_profile
from cellgate_kernels.launch import names
from cellgate_kernels.launch.backend import Launch
from cellgate_kernels.launch.base import egress_environment
from cellgate_kernels.launch.folders import LaunchFolders
from cellgate_kernels.limits.disk import CountedFolder, usage


def config(settings: ContainerSettings, **limits: Any) -> dict[str, Any]:
    folders = LaunchFolders(Path("/run/x"), Path("/data/w"), owns_workspace=False)
    launch = Launch(("/bin/python",), {"HOME": "/tmp/home"}, ResourceLimits(**limits), folders)
    return container_config(launch, settings, user=(1000, 1000), labels={"a": "b"}, processors=2.0)


def test_what_kernels_of_a_shared_container_can_leave_in_memory_is_as_much_as_one_can() -> None:
    settings = ContainerSettings()
    one = config(settings, memory=256 * MIB, disk=64 * MIB)["HostConfig"]
    many = config(settings, memory=33 * 256 * MIB, disk=64 * MIB)
    limits = ResourceLimits(memory=256 * MIB, disk=64 * MIB)
    shared = shared_config(many, [], settings, limits)["HostConfig"]
    assert shared["Memory"] == 33 * 256 * MIB
    assert (shared["ShmSize"], shared["Tmpfs"]) == (one["ShmSize"], one["Tmpfs"])


def test_a_kernel_has_no_network_no_rights_and_no_writable_system() -> None:
    made = config(ContainerSettings())
    host = made["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true", f"seccomp={engine_profile()}"]
    assert host["ReadonlyPaths"] == ["/proc"]
    assert {"/proc/kcore", "/proc/kpageflags", "/proc/keys", "/sys/firmware"} <= set(host["MaskedPaths"])
    assert host["ReadonlyRootfs"] is True
    assert made["User"] == "1000:1000"
    assert [mount["Source"] for mount in host["Mounts"] if not mount["ReadOnly"]] == ["/data/w", "/run/x/ipc"]
    assert "Runtime" not in host


@pytest.mark.parametrize(
    ("mount", "inside"),
    [
        ("/data:/data", False),
        ("/data:/workspaces", False),
        ("/data:/workspace/data", True),
        ("/data:/mnt/data/given:rw", True),
        ("/data:/home/user/given", True),
    ],
)
def test_who_may_have_names_of_the_workspace_made(
    mount: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root alone, on runc, with an engine that has a root, where nothing is mounted in the workspace."""
    engine = Engine()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert DockerProvisioner(mounts=[mount])._may_name(engine) is not inside
    assert not DockerProvisioner(mounts=[mount], runtime="runsc")._may_name(engine)
    engine.rootless = True
    assert not DockerProvisioner(mounts=[mount])._may_name(engine)
    engine.rootless = False
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not DockerProvisioner(mounts=[mount])._may_name(engine)


def test_a_socket_is_given_to_its_receiver_and_nothing_else_is(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        names._give(str(tmp_path / "socket"), (os.geteuid(), os.getegid()))
        (tmp_path / "file").touch()
        (tmp_path / "link").symlink_to("socket")
        for other in ("file", "link", "none"):
            with pytest.raises(FileNotFoundError):
                names._give(str(tmp_path / other), (os.geteuid(), os.getegid()))


def test_limits_are_the_engines() -> None:
    host = config(ContainerSettings(), memory=512 * MIB, cpus=8.0, pids=64)["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 512 * MIB
    assert host["NanoCpus"] == 2_000_000_000  # of 2 there are
    assert host["PidsLimit"] == 64
    assert f"size={256 * MIB}," in host["Tmpfs"]["/tmp"]


def test_further_mounts_are_read_only_unless_told_otherwise() -> None:
    host = config(ContainerSettings(mounts=("/data:/data", "/out:/out:rw")))["HostConfig"]
    assert [(m["Target"], m["ReadOnly"]) for m in host["Mounts"][3:]] == [("/data", True), ("/out", False)]


@pytest.mark.parametrize("mount", ["data:/data", "/data", "/data:data", "/data:/data:rwx", ""])
def test_a_mount_that_cant_be_read_is_refused(mount: str) -> None:
    with pytest.raises(InvalidInput, match="absolute paths"):
        config(ContainerSettings(mounts=(mount,)))


def test_isolation_follows_the_runtime() -> None:
    assert ContainerSettings().isolation == "container"
    assert ContainerSettings(runtime="runsc").isolation == "gvisor"
    host = config(ContainerSettings(runtime="runsc"))["HostConfig"]
    assert host["SecurityOpt"] == ["no-new-privileges:true", f"seccomp={gvisor_profile()}"]


def test_a_gateway_with_sandboxes_gets_namespaces_and_mounts_and_nothing_else() -> None:
    def free(profile: str) -> set[str]:
        """The calls that are allowed with any arguments on all machines."""
        rules = json.loads(profile)["syscalls"]
        unknown = {name for rule in rules if rule.get("errnoRet") == errno.ENOSYS for name in rule["names"]}
        assert not unknown & {name for rule in rules if "ALLOW" in rule["action"] for name in rule["names"]}
        plain = (rule for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" and not rule["args"])
        return {name for rule in plain if "includes" not in rule for name in rule["names"]}

    kernels, sandboxes = free(engine_profile()), free(sandboxes_profile())
    assert kernels < sandboxes
    assert {"clone", "mount", "pivot_root", "setns", "umount2", "unshare"} < sandboxes - kernels
    assert {"landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self"} < sandboxes - kernels
    others = {"bpf", "init_module", "io_uring_setup", "kexec_load", "keyctl", "open_by_handle_at"}
    assert not sandboxes & {*others, "perf_event_open", "socket", "chmod", "userfaultfd"}


async def test_an_engine_that_cant_limit_is_refused() -> None:
    class Rootless(Engine):
        async def call(self, function: object, *arguments: object, **options: object) -> Any:
            return {"MemoryLimit": False, "PidsLimit": False, "CpuCfsQuota": True}

    with pytest.raises(BackendUnavailable, match="memory, processes"):
        await check_engine(Rootless(), ContainerSettings())


class Refusing(Engine):
    """An engine that can't be asked to remove anything for so many times."""

    refusals = 0
    removed = 0

    async def call(self, function: Callable[..., Any], *arguments: object, **options: object) -> Any:
        if function is not _remove:
            raise KernelStartFailed("There is no engine.")
        if self.refusals:
            self.refusals -= 1
            raise BackendUnavailable("Too many open files")
        self.removed += 1


@pytest.fixture
def launch() -> Launch:
    return Launch(
        (), {}, ResourceLimits(), LaunchFolders(Path("/run/x"), Path("/data/w"), owns_workspace=False)
    )


async def test_a_container_that_can_t_be_removed_is_removed_later(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine answers others all the time, so that it never comes back."""
    monkeypatch.setattr("cellgate_kernels.engine.engine.REMOVAL_PAUSES", (0.001, 0.001, 0.001))
    engine = Refusing()
    engine.refusals = 3
    engine.end(container := engine.adopt("cellgate-x", launch))
    async with asyncio.timeout(60):
        assert (await container.exited).cause == "engine_lost"
        await engine._leaving.finished()
    assert (engine.refusals, engine.removed) == (0, 1)
    await engine.close()
    assert engine.removed == 1


async def test_a_container_that_can_t_be_removed_is_tried_once_more_at_the_end(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellgate_kernels.engine.engine.REMOVAL_PAUSES", (600.0,))
    engine = Refusing()
    engine.refusals = 1
    engine.end(container := engine.adopt("cellgate-x", launch))
    async with asyncio.timeout(60):
        await container.exited
        await engine.close()
    assert engine.removed == 1


def test_the_kernel_of_a_rootless_engine_is_its_root() -> None:
    engine = Engine()
    ordinary = kernel_user(engine)
    engine.rootless = True
    assert 0 not in ordinary
    assert kernel_user(engine) == (0, 0)


def test_the_size_of_a_workspace_follows_no_link_and_counts_names(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(bytes(100_000))
    os.link(tmp_path / "folder" / "file", tmp_path / "again")
    (tmp_path / "away").symlink_to("/usr")
    for number in range(10):
        (tmp_path / f"empty-{number}").touch()
    used = usage([CountedFolder(tmp_path)], None, enough=MIB).used
    assert 100_000 + 10 * 4096 <= used < 100_000 + 20 * 4096


def test_deleted_files_that_stay_open_count(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(MIB))
        file.flush()
        os.fsync(file.fileno())
        (tmp_path / "file").unlink()
        assert usage([CountedFolder(tmp_path)], None, enough=10 * MIB).used < MIB
        assert usage([CountedFolder(tmp_path)], os.getpid(), enough=10 * MIB).used >= MIB


def test_a_workspace_too_deep_to_measure_counts_as_too_much(tmp_path: Path) -> None:
    start = os.open(tmp_path, os.O_RDONLY)
    try:
        folder = start
        for _ in range(30):
            os.mkdir("d" * 200, dir_fd=folder)
            inner = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
            if folder != start:
                os.close(folder)
            folder = inner
        os.close(folder)
    finally:
        os.close(start)
    assert usage([CountedFolder(tmp_path)], None, enough=MIB).used > MIB


def test_a_way_to_a_network_is_a_folder_that_the_kernel_cant_write_to(tmp_path: Path) -> None:
    folders = LaunchFolders.make(tmp_path / "run", tmp_path, egress=True)
    assert folders.egress == tmp_path / "run" / "egress"
    launch = Launch(("/bin/python",), {}, ResourceLimits(), folders)
    made = container_config(launch, ContainerSettings(), user=(1000, 1000), labels={}, processors=2.0)
    mount = {"Type": "bind", "Source": str(folders.egress), "Target": "/run/egress", "ReadOnly": True}
    assert mount in made["HostConfig"]["Mounts"]
    assert made["HostConfig"]["NetworkMode"] == "none"


def test_containers_with_a_network_get_no_way_to_some_hosts_only(tmp_path: Path) -> None:
    folders = LaunchFolders.make(tmp_path / "run", tmp_path, egress=True)
    assert DockerProvisioner()._view(folders).egress == "/run/egress"
    view = DockerProvisioner(network="bridge")._view(folders)
    with pytest.raises(InvalidInput, match="have a network already"):
        egress_environment(view.egress)
