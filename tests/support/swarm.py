"""Machines of a swarm: each is a container engine in namespaces of its own, with a cable to a switch.

A machine has a name, an address, a file system of its own in `/run` and in one folder, and a space of
processes: what is killed with its first process is all that runs on it. This machine has a cable to the
switch, too, so that servers which it publishes at `HERE` are beside the swarm. Machines have no way out. The
kernel's IPVS is not asked for, so ports are published by `mode: host` alone. Only for root; whoever has less
skips.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from tests.support.requirements import require
from tests.support.server import until

NETWORK = "10.213.0"
HERE = f"{NETWORK}.1"
"""This machine's address at the switch."""
CABLE = "cg-swarm"
"""This machine's end of its cable."""
CGROUPS = Path("/sys/fs/cgroup")
START_SECONDS = 120.0
COMMAND_SECONDS = 300.0

_SWITCH = "ip link add br0 type bridge; ip link set br0 up; exec sleep infinity"
_IN_NAMESPACES = ("unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
# The shell stays, and reaps what has lost its parent.
_BOOT = """
mount --bind "$2" "$3"
mount -t tmpfs tmpfs /run
hostname "$1"
ip link set lo up
sysctl -qw net.ipv4.ip_forward=1
until ip -4 address show eth0 2>&1 | grep -q inet; do sleep 0.05; done
shift 3
dockerd "$@" &
wait
"""


class Machine:
    """One machine. `start` it, `kill` it and start it again: its disk stays as it was."""

    def __init__(self, number: int, folder: Path, data_dir: Path, switch: int) -> None:
        self.name = f"machine-{number}"
        self.address = f"{NETWORK}.{10 + number}"
        self.folder = folder / self.name
        self.data_dir = self.folder / "data"
        """What it has at `data_dir`."""
        self._port = f"port{number}"
        self._at = data_dir
        self._switch = switch
        self._process: subprocess.Popen[bytes] | None = None
        self.data_dir.mkdir(parents=True, mode=0o700)
        config = {"dns": [HERE], "cgroup-parent": f"/{folder.name}", "userland-proxy": False}
        (self.folder / "daemon.json").write_text(json.dumps({**config, "log-level": "warn"}))

    @property
    def url(self) -> str:
        """The engine's."""
        return f"unix://{self.folder}/docker.sock"

    @property
    def is_up(self) -> bool:
        """Whether it was started and not killed."""
        return self._process is not None

    def start(self) -> None:
        """Start the machine, and wait until its engine answers."""
        options = ["--host", self.url, "--host", "unix:///var/run/docker.sock"]
        options += ["--data-root", f"{self.folder}/engine", "--config-file", f"{self.folder}/daemon.json"]
        given = [self.name, str(self.data_dir), str(self._at), *options]
        with (self.folder / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [*_IN_NAMESPACES, "--propagation", "private", "sh", "-ec", _BOOT, "sh", *given],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _wait_for_network(process.pid)
        in_network_of(self._switch, f"ip link add {self._port} type veth peer name eth0 netns {process.pid}")
        in_network_of(self._switch, f"ip link set {self._port} master br0 up")
        in_network_of(process.pid, f"ip address add {self.address}/24 dev eth0")
        in_network_of(process.pid, "ip link set eth0 up")

        def answers() -> bool:
            assert process.poll() is None, (self.folder / "log").read_text()[-2000:]
            return self._docker("version").returncode == 0

        until(answers, f"{self.name} does not start", START_SECONDS)

    def kill(self) -> None:
        """Pull the cable, so that nobody is told of the end, and kill all that runs on it."""
        if self._process is None:
            return
        in_network_of(self._switch, f"ip link delete {self._port}", check=False)
        self._process.kill()
        self._process.wait(START_SECONDS)
        self._process = None

    def docker(self, *words: str, variables: Mapping[str, str] | None = None) -> str:
        """Run a command of Docker's client at this engine; return what it prints."""
        done = self._docker(*words, variables=variables)
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def _docker(
        self, *words: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", "--host", self.url, *words],
            check=False,
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )

    def take_images(self, other: Machine) -> None:
        """Have the images of another machine, which runs no container; before the first start."""
        (self.folder / "engine").mkdir(mode=0o710)
        for name in ("image", "overlay2"):
            words = ["cp", "--archive", "--link", f"{other.folder}/engine/{name}", f"{self.folder}/engine"]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL, timeout=COMMAND_SECONDS)


@contextmanager
def machines(count: int, data_dir: Path, images: Sequence[str]) -> Iterator[list[Machine]]:
    """Machines of a swarm, all managers, with images of this machine's engine.

    Each has a folder of its own at `data_dir`, which must be there.
    """
    _check_machine()
    folder = Path(mkdtemp(prefix="cg-swarm-"))
    switch = subprocess.Popen(
        ["unshare", "--net", "sh", "-ec", _SWITCH], stdin=subprocess.DEVNULL, start_new_session=True
    )
    made: list[Machine] = []
    try:
        _wait_for_network(switch.pid)
        until(lambda: in_network_of(switch.pid, "ip link show br0", check=False), "the switch does not start")
        in_network_of(switch.pid, f"ip link add port0 type veth peer name {CABLE} netns {os.getpid()}")
        in_network_of(switch.pid, "ip link set port0 master br0 up")
        _run(["ip", "address", "add", f"{HERE}/24", "dev", CABLE])
        _run(["ip", "link", "set", CABLE, "up"])
        made += [Machine(number, folder, data_dir, switch.pid) for number in range(1, count + 1)]
        first, *others = made
        first.start()
        archive = folder / "images"
        _run(["docker", "save", "--output", str(archive), *images])
        first.docker("load", "--input", str(archive))
        archive.unlink()
        for machine in others:
            machine.take_images(first)
            machine.start()
        first.docker("swarm", "init", "--advertise-addr", first.address)
        token = first.docker("swarm", "join-token", "--quiet", "manager")
        for machine in others:
            words = ["--token", token, "--advertise-addr", machine.address, f"{first.address}:2377"]
            machine.docker("swarm", "join", *words)
        yield made
    finally:
        for machine in made:
            machine.kill()
        switch.kill()
        switch.wait()
        until(lambda: _remove_groups(folder.name), "machines of a swarm do not end")
        shutil.rmtree(folder)


def in_network_of(process: int, command: str, *, check: bool = True) -> bool:
    """Run a command in the network of a process; return whether it succeeded."""
    return _run(["nsenter", f"--net=/proc/{process}/ns/net", *command.split()], check=check)


def _run(words: Sequence[str], *, check: bool = True) -> bool:
    done = subprocess.run(
        words, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS
    )
    assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.returncode == 0


def _wait_for_network(process: int) -> None:
    """Wait until a process has a network of its own."""
    ours = Path("/proc/self/ns/net").readlink()
    until(lambda: Path(f"/proc/{process}/ns/net").readlink() != ours, "there is no network")


def _remove_groups(name: str) -> bool:
    """Remove the control groups of all containers; return whether none is left."""
    tops = [*CGROUPS.glob(f"*/{name}"), *CGROUPS.glob(name)]
    for top in tops:
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):  # something in it has not ended yet
                Path(folder).rmdir()
    return not any(top.exists() for top in tops)


def _check_machine() -> None:
    if os.geteuid() != 0:
        require("swarm", "machines of a swarm can be made by root only")
    for program in ("docker", "dockerd", "containerd", "unshare", "nsenter", "ip", "iptables"):
        if shutil.which(program) is None:
            require("swarm", f"{program} is not installed")
