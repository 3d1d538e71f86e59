"""Whatever a sandboxed cell makes of its workspace: it is watched, listed, moved, kept, exported, removed."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import GatewayProcess, until

TRAPS = """
import os, socket
top = os.getcwd()
for mode in (0o000, 0o111, 0o444, 0o555):
    os.makedirs(f'{mode:o}/inner'); open(f'{mode:o}/inner/file', 'w').close()
    os.chmod(f'{mode:o}/inner', mode); os.chmod(f'{mode:o}', mode)
os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('socket')
os.symlink('loop', 'loop'); os.symlink('/etc', 'out')
for name in (b'line\\nbreak', b'\\xff\\xfe', b'x' * 255, b'-rf'):
    os.mkdir(name); open(name + b'/' + name, 'w').close()
open('plain', 'w').write('plain')
for _ in range(3000):
    os.mkdir('d'); os.chdir('d')
os.chdir(top)
"""


def test_a_sandboxed_gateway_lives_with_all_of_it(gateway: GatewayProcess, session: str) -> None:
    lives_with_traps(gateway, session)


def lives_with_traps(gateway: GatewayProcess, session: str) -> None:
    """Watched, listed, moved to a fresh kernel, exported, kept and removed."""
    path = f"/v1/sessions/{session}"
    assert gateway.execute(session, TRAPS)["status"] == "ok"
    for _ in range(2):
        assert gateway.execute(session, "open('plain').read()")["status"] == "ok"
        listed = gateway.get(f"{path}/files").json()
        assert "plain" in {file["path"] for file in listed["files"]}
        assert listed["complete"] is False
        bundle = gateway.get(f"{path}/bundle")
        assert bundle.status == 200
        with zipfile.ZipFile(io.BytesIO(bundle.body)) as archive:
            assert archive.read("work/plain") == b"plain"
            left_out = json.loads(archive.read("manifest.json"))["left_out"]
        assert any("deeper than 64 names" in each for each in left_out)
        assert gateway.post(f"{path}/restart").status == 200
    workspace = gateway.workspace(session)
    assert gateway.delete(path).status == 204
    until(lambda: not workspace.exists(), "the workspace is not removed")
    assert gateway.execute(session, "import os; os.listdir()")["text"] == "[]"


LINKS = """
import os
targets = 'self/root self/cwd 1/root self/fd thread-self/root'.split()
for name, target in zip('root cwd one fd task'.split(), targets):
    os.symlink(f'/proc/{target}', name)
os.mkdir('folder'); os.symlink('/proc/self/root', 'folder/root'); open('plain', 'w').close()
"""


def test_links_into_proc_lead_a_client_nowhere(gateway: GatewayProcess, session: str) -> None:
    links_lead_nowhere(gateway, session)


def links_lead_nowhere(gateway: GatewayProcess, session: str) -> None:
    """To the gateway they would lead to its own root and its own files."""
    path = f"/v1/sessions/{session}"
    assert gateway.execute(session, LINKS)["status"] == "ok"
    for link in ("root", "one", "task", "folder/root", "cwd", "fd"):
        for below in ("/etc/hostname", "/tmp/planted", "/0"):
            asked = f"{path}/files/{link}{below}"
            answers = {
                "read": gateway.get(asked),
                "write": gateway.request("PUT", asked, b"planted"),
                "move": gateway.post(f"{asked}?move_to=moved"),
                "move there": gateway.post(f"{path}/files/plain?move_to={link}{below}"),
                "make": gateway.post(f"{asked}?mkdir"),
                "remove": gateway.delete(asked),
            }
            assert {
                name: (answer.status, answer.reason) for name, answer in answers.items()
            } == dict.fromkeys(answers, (400, "bad_request"))
        # The link itself is no file.
        assert gateway.get(f"{path}/files/{link}").status == 400
    assert not Path("/tmp/planted").exists()
    listed = {file["path"] for file in gateway.get(f"{path}/files?folders=true").json()["files"]}
    assert listed == {"folder/", "plain"}
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="of-the-gateway-") as file:
        name = Path(file.name).name
        for cwd in ("root/tmp", "folder/root/tmp", "/proc/self/root/tmp", "/proc/1/root/tmp"):
            ran = gateway.post(f"{path}/processes", {"argv": ["ls"], "cwd": cwd})
            assert ran.status >= 400 or name not in ran.json()["stdout"]
    with zipfile.ZipFile(io.BytesIO(gateway.get(f"{path}/bundle").body)) as archive:
        assert set(archive.namelist()) >= {"work/plain"}
        assert not [name for name in archive.namelist() if "root" in name or "task" in name]


LEASE = """
import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open('lease', os.O_RDWR | os.O_CREAT)
os.write(fd, b'held')
try:
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
except OSError as error:
    print(error.strerror)
"""


def test_a_cell_can_hold_no_file(gateway: GatewayProcess, session: str) -> None:
    assert gateway.execute(session, LEASE)["text"] == "Operation not permitted\n"
    assert gateway.get(f"/v1/sessions/{session}/files/lease").body == b"held"


@pytest.fixture
def lease(gateway: GatewayProcess, session: str) -> Iterator[list[int]]:
    """The session's file `held`, which somebody outside the sandbox has a lease on; counts who waits."""
    assert gateway.execute(session, "open('held', 'w').write('text'); print(1)")["text"] == "1\n"
    asked: list[int] = []
    before = signal.signal(signal.SIGURG, lambda number, _: asked.append(number))
    file = os.open(gateway.workspace(session) / "held", os.O_RDWR)
    fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    yield asked
    os.close(file)
    signal.signal(signal.SIGURG, before)


def test_a_held_file_is_refused_by_its_name_and_nobody_waits(
    gateway: GatewayProcess, session: str, lease: list[int]
) -> None:
    path = f"/v1/sessions/{session}"
    refused = gateway.get(f"{path}/files/held")
    assert (refused.status, refused.json()["reason"]) == (409, "file_held")
    assert "'held'" in refused.json()["detail"]
    assert lease
    (listed,) = gateway.get(f"{path}/files").json()["files"]
    assert (listed["path"], listed["sha256"]) == ("held", None)
    refused = gateway.post(f"{path}/checkpoints", {"name": "one"})
    assert (refused.status, refused.json()["reason"]) == (409, "file_held")
    bundle = gateway.get(f"{path}/bundle")
    with zipfile.ZipFile(io.BytesIO(bundle.body)) as archive:
        assert json.loads(archive.read("manifest.json"))["left_out"] == ["held"]
    assert gateway.post(f"{path}/restart").status == 200
    assert gateway.execute(session, "import os; os.listdir()")["text"] == "['held']"


@pytest.mark.timeout(300)
@pytest.mark.nightly
def test_very_deep_folders_and_a_very_large_one(gateway: GatewayProcess, session: str) -> None:
    """The policy: 64 names deep and 100,000 entries are looked at, and that there is more is told."""
    code = (
        "import os\ntop = os.getcwd()\nos.mkdir('many')\n"
        "for n in range(101_000): os.close(os.open(f'many/{n}', os.O_CREAT | os.O_WRONLY))\n"
        "for _ in range(5_000): os.mkdir('d'); os.chdir('d')\n"
        "os.chdir(top)"
    )
    assert gateway.execute(session, code, timeout=120)["status"] == "ok"
    assert gateway.post(f"/v1/sessions/{session}/restart", timeout=120).status == 200
    assert gateway.execute(session, "import os; sorted(os.listdir())")["text"] == "['d', 'many']"
    assert gateway.get(f"/v1/sessions/{session}/files?limit=1").json()["complete"] is False
    workspace = gateway.workspace(session)
    assert gateway.delete(f"/v1/sessions/{session}", timeout=120).status == 204
    until(lambda: not workspace.exists(), "the workspace is not removed", seconds=120)
