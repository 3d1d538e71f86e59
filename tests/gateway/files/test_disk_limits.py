"""The disk of a kernel in a sandbox: wherever it writes and however it hides it, the sum is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.conftest import serving
from tests.support.nightly import mostly_nightly
from tests.support.server import GatewayProcess, surviving


def bounding(data_dir: Path, backend: str, runtime: str = "") -> AbstractContextManager[GatewayProcess]:
    """A gateway whose kernels have 64 MiB of disk."""
    return serving(data_dir, backend, runtime=runtime, memory="512m", disk="64m")


@pytest.fixture(scope="module")
def bounded(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One with sandboxes."""
    with bounding(tmp_path_factory.mktemp("bounded") / "data", "sandbox") as process:
        yield process


@pytest.fixture
def other(bounded: GatewayProcess) -> Iterator[str]:
    """A session that must stay alive, with its variables."""
    yield from surviving(bounded)


# Each makes a file of 32 MiB after the other and keeps it in its way, then waits.
PIECES = r"""
import ctypes, os, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
kept = []

def piece(name):
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT)
    for _ in range(32):
        os.write(descriptor, bytes(1 << 20))
    return descriptor

for number in range(6):
    {keep}
print("written", flush=True)
time.sleep(40)
"""

KEEP = {
    "files": "os.close(piece(f'f{number}'))",
    "files beside the sockets": "os.close(piece(f'/run/kernel/f{number}'))",
    "deleted files": "kept.append(piece('f')); os.unlink('f')",
    "deleted files beside the sockets": "kept.append(piece('/run/kernel/f')); os.unlink('/run/kernel/f')",
    "mapped files": (
        "d = piece('f'); assert libc.mmap(None, 4096, 1, 1, d, ctypes.c_long(0)) != 2**64 - 1;"
        " os.close(d); os.unlink('f')"
    ),
    "files in a socket": (
        "a, b = socket.socketpair(); d = piece('f'); os.unlink('f'); socket.send_fds(a, [b'x'], [d]);"
        " os.close(d); kept.append((a, b))"
    ),
    "files of programs that run": (
        "os.close(piece('f')); d = os.open('f', os.O_RDWR); os.pwrite(d, open('/bin/sleep', 'rb').read(), 0);"
        " os.close(d); os.chmod('f', 0o700); kept.append(subprocess.Popen(['./f', '60'])); os.unlink('f')"
    ),
    "files of a child that left": (
        "d = piece('f'); os.unlink('f');"
        " subprocess.Popen(['setsid', '--fork', 'sleep', '60'], pass_fds=[d]).wait(); os.close(d)"
    ),
}


AT_EACH_CHANGE = ("files", "files beside the sockets", "deleted files", "files of a child that left")


@pytest.mark.parametrize("keep", mostly_nightly(KEEP, AT_EACH_CHANGE))
def test_what_a_kernel_keeps_is_bounded(bounded: GatewayProcess, other: str, keep: str) -> None:
    try:
        result = bounded.execute("attacker", PIECES.replace("{keep}", KEEP[keep]), timeout=60)
    finally:
        bounded.delete("/v1/sessions/attacker")
    assert (result["status"], result["cause"]) == ("died", "disk_full"), result
    assert "64 MiB" in result["error"]["evalue"]


def test_the_room_of_branches_is_no_room_for_other_files(bounded: GatewayProcess, other: str) -> None:
    """They give it back when they end, and the files would stay."""
    path = "/v1/sessions/parent"
    assert bounded.execute("parent", "1")["status"] == "ok"
    for name in ("first", "second"):
        assert bounded.post(f"{path}/branch", {"session": name}).status == 201
    try:
        written = "open('f', 'wb').write(bytes(50 << 20)); import time; time.sleep(4)"
        assert [bounded.execute(name, written)["status"] for name in ("first", "parent")] == ["ok", "ok"]
        more = "open('g', 'wb').write(bytes(50 << 20)); time.sleep(40)"
        result = bounded.execute("parent", more, timeout=60)
    finally:
        for name in ("first", "second", "parent"):
            bounded.delete(f"/v1/sessions/{name}")
    assert (result["status"], result["cause"]) == ("died", "disk_full"), result


LANDLOCK = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
answers = [libc.syscall(number, None, 0, 1) for number in (444, 445, 446)]
print(answers, errno.errorcode[ctypes.get_errno()])
"""


def test_no_rule_keeps_a_file_where_nobody_finds_it(bounded: GatewayProcess) -> None:
    """A rule of Landlock holds its file for as long as its process lives, and no folder of /proc has it."""
    assert bounded.execute("s", LANDLOCK)["text"] == "[-1, -1, -1] ENOSYS\n"
    bounded.delete("/v1/sessions/s")


def test_a_kernel_that_prints_much_keeps_its_spool(bounded: GatewayProcess) -> None:
    """The spool lies beside the sockets, and is not the session's."""
    code = "import time\nfor i in range(30): print('x' * 1_000_000)\ntime.sleep(4)"
    result = bounded.execute("s", f"open('f', 'wb').write(bytes(50 << 20))\n{code}", timeout=60)
    assert result["status"] == "ok", result
    bounded.delete("/v1/sessions/s")
