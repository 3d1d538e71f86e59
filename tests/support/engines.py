"""A container engine of a test's own: one that may be stopped, killed and started again.

containerd and dockerd run in mount and network namespaces of their own, so that nothing of theirs is seen by
the machine's engine, and no mount outlives them. There is no image to load, which would take half a minute:
the kernel image's layers on the machine's engine are mounted read-only, and the kernels get their folders by
the setting `mounts`. Only for root; whoever has less skips.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from docker.api.client import APIClient

from cellgate_kernels.base.settings import IMAGE
from tests.support.requirements import require
from tests.support.server import until

BOOTSTRAP = Path(__file__).parents[2] / "kernels" / "cellgate_kernels" / "inside" / "bootstrap.py"
"""That of this tree, whatever the image was made of."""

MOUNTED_IMAGE = "cellgate/kernel:mounted"
START_SECONDS = 120.0

# The image's files, no second hierarchy of cgroups, which crun refuses, and the daemon, which stays inside.
_IN_NAMESPACES = """
ip link set lo up
mount -t overlay overlay -o "ro,lowerdir=$1" "$2"
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
exec containerd --config "$3"
"""
# /sbin is no link: the engine puts its init there.
_FOLDERS = ("usr", "opt", "sbin", "etc", "tmp", "proc", "sys", "dev", "workspace", "run/kernel")
_LINKS = ("bin", "lib", "lib64")
_USERS = b"root:x:0:0::/:/bin/sh\ncellgate:x:1000:1000::/tmp/home:/bin/sh\n"


class OwnEngine:
    """One engine. `start` it; `stop` or `kill` it and start it again; `end` leaves nothing of it."""

    def __init__(self, *, live_restore: bool, runtimes: Sequence[str] = ()) -> None:
        _check_machine(runtimes)
        self.folder = Path(tempfile.mkdtemp(prefix="cg-engine-"))
        self.url = f"unix://{self.folder}/docker.sock"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None
        self._config = {
            "live-restore": live_restore,
            "runtimes": {name: {"path": shutil.which(name)} for name in runtimes},
        }

    @property
    def options(self) -> dict[str, Any]:
        """Options of a gateway whose kernels are on this engine."""
        root = self.folder / "root"
        program = f"{BOOTSTRAP}:/opt/cellgate/share/cellgate/bootstrap.py"
        mounts = [f"{root}/usr:/usr", f"{root}/opt:/opt", program]
        return {"docker_url": self.url, "image": MOUNTED_IMAGE, "mounts": mounts}

    def start(self) -> None:
        """Start dockerd, and what it needs if this is the first time; returns when it answers."""
        if self._containerd is None:
            self._begin()
        assert self._containerd is not None
        words = ["--data-root", "data", "--exec-root", "exec", "--pidfile", "docker.pid"]
        places = [str(self.folder / word) if word[0] != "-" else word for word in words]
        places += ["--config-file", f"{self.folder}/daemon.json", "--host", self.url, "--iptables=false"]
        entering = ["nsenter", "--target", str(self._containerd.pid), "--mount", "--net"]
        containerd = ["--containerd", f"{self.folder}/containerd.sock"]
        self._daemon = self._run("dockerd", [*entering, "dockerd", *places, *containerd])
        until(self._answers, f"the engine does not start: {self.folder}/dockerd.log", START_SECONDS)

    def stop(self) -> None:
        """SIGTERM, as a service manager does; returns when it has ended."""
        assert self._daemon is not None
        self._daemon.terminate()
        self._daemon.wait(START_SECONDS)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait(START_SECONDS)

    def end(self) -> None:
        """End all processes of this engine and remove its files; its mounts end with its last process."""
        for process in (self._daemon, self._containerd):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(START_SECONDS)
        left = [process for process in psutil.process_iter() if self._is_ours(process)]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _, alive = psutil.wait_procs(left, timeout=START_SECONDS)
        assert not alive, f"of an engine of a test there is left: {alive}"
        mounted = str(self.folder) in Path("/proc/self/mounts").read_text()
        assert not mounted, f"something is still mounted in {self.folder}"
        shutil.rmtree(self.folder)

    def _is_ours(self, process: psutil.Process) -> bool:
        """Whether it is a shim of this engine, or something in one of its containers."""
        with suppress(psutil.NoSuchProcess):
            return any(str(self.folder) in " ".join(p.cmdline()) for p in (process, *process.parents()))
        return False

    def _begin(self) -> None:
        (self.folder / "daemon.json").write_text(json.dumps(self._config))
        (self.folder / "containerd.toml").write_text(
            f'version = 2\nroot = "{self.folder}/containerd"\nstate = "{self.folder}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self.folder}/containerd.sock"\n'
        )
        (self.folder / "root").mkdir()
        words = [_layers(), str(self.folder / "root"), str(self.folder / "containerd.toml")]
        entering = ["unshare", "--mount", "--net", "--propagation", "private"]
        self._containerd = self._run("containerd", [*entering, "sh", "-ec", _IN_NAMESPACES, "sh", *words])
        listening = self.folder / "containerd.sock"
        until(listening.exists, f"containerd does not start: {self.folder}/containerd.log", START_SECONDS)

    def _run(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _answers(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, (self.folder / "dockerd.log").read_text()[-2000:]
        with socket.socket(socket.AF_UNIX) as connection:
            if connection.connect_ex(f"{self.folder}/docker.sock"):
                return False
        client = APIClient(base_url=self.url)
        try:
            if not client.images(MOUNTED_IMAGE):
                client.import_image_from_data(_skeleton(), MOUNTED_IMAGE.partition(":")[0], "mounted")
        finally:
            client.close()
        return True


def _check_machine(runtimes: Sequence[str]) -> None:
    if os.geteuid() != 0:
        require("dockerd", "an engine of a test's own can be started by root only")
    for program in ("dockerd", "containerd", "unshare", "nsenter", "ip", *runtimes):
        if shutil.which(program) is None:
            require("dockerd", f"{program} is not installed")


def _layers() -> str:
    """The folders of the kernel image on the machine's engine, the topmost first, as overlayfs wants them."""
    client = APIClient()
    try:
        driver = client.inspect_image(IMAGE)["GraphDriver"]
    finally:
        client.close()
    if driver["Name"] != "overlay2":
        require("dockerd", f"the machine's engine stores images by {driver['Name']}, not overlay2")
    return ":".join([driver["Data"]["UpperDir"], *driver["Data"].get("LowerDir", "").split(":")]).rstrip(":")


def _skeleton() -> bytes:
    """An image of empty folders: a tar file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        for name in _LINKS:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
        users = tarfile.TarInfo("etc/passwd")
        users.size, users.mode = len(_USERS), 0o644
        tar.addfile(users, io.BytesIO(_USERS))
        tar.addfile(tarfile.TarInfo("run/kernel.json"))
    return file.getvalue()
