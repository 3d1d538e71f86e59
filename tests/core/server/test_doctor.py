"""``cellgate doctor``: what it makes of what the system tells, and the command itself on this machine."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cellgate.cli.main import main
from cellgate.cli.serve import running
from cellgate.server import doctor, machine
from cellgate.server.doctor import (
    GIB,
    MIB,
    Diagnosis,
    DoctorPlace,
    Grade,
    file_system_of,
    find_control_groups,
    find_disk,
    find_open_files,
    find_swap,
    judge_isolation,
    judge_kernelspecs,
    try_engine,
    try_port,
    try_sandbox,
)
from cellgate_kernels.base.errors import BackendUnavailable, CellgateError, ImageMissing, KernelStartFailed
from cellgate_kernels.base.settings import ContainerSettings
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.specs.catalog import KernelspecCatalog

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /srv/our\\040data nfs4 rw 0 0
tmpfs /srv/our\\040data/fast tmpfs rw 0 0
/dev/vdb /srv/our\\040data/fast xfs rw 0 0
short line
 /nameless nfs4 rw 0 0
"""

SWAPS = """\
Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/swapfile                               file\t\t2097148\t\t0\t\t-2
/dev/zram0                              partition\t1048572\t\t0\t\t100
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/srv/our data/x", "nfs4"),
        ("/srv/our data/fast/x", "xfs"),
        ("/srv/our database", "ext4"),
        ("/nameless/x", "nfs4"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_and_latest_mount(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


def test_a_data_folder_on_a_network_is_a_problem(tmp_path: Path) -> None:
    mounts = f"server:/home {tmp_path} nfs4 rw 0 0\n"
    (finding,) = find_disk(tmp_path / "data", mounts)
    assert finding.outcome is Grade.PROBLEM
    assert "nfs4" in finding.found
    assert "--data-dir" in finding.advice


def test_a_data_folder_that_can_be_made_is_no_problem(tmp_path: Path) -> None:
    (finding,) = find_disk(tmp_path / "not" / "there" / "yet", f"/dev/vda {tmp_path} ext4 rw 0 0\n")
    assert finding.found.endswith("on ext4")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway keeps that much for its record, and refuses cells."""
    for free, outcome in ((MIB, Grade.PROBLEM), (GIB, Grade.NOTE), (100 * GIB, Grade.OK)):
        monkeypatch.setattr(doctor, "free", lambda _, free=free: free)
        (finding,) = find_disk(tmp_path / "data", "")
        assert finding.outcome is outcome
        assert ("the disk is full" in finding.found) == (outcome is Grade.PROBLEM)


def test_a_data_folder_that_can_t_be_looked_at_is_a_problem(tmp_path: Path) -> None:
    """As one in a folder that the user may not search; the name is too long for everybody, root too."""
    data = tmp_path / ("x" * 300) / "data"
    (finding,) = find_disk(data, f"/dev/vda {tmp_path} ext4 rw 0 0\n")
    assert finding.outcome is Grade.PROBLEM
    assert finding.found == f"{data}: File name too long"
    assert machine.disk(data) == machine.disk(tmp_path)


@pytest.mark.parametrize("below", ["", "data"])
def test_a_file_in_the_place_of_the_data_folder_is_a_problem(tmp_path: Path, below: str) -> None:
    program = tmp_path / "program"
    program.touch(0o700)
    (finding,) = find_disk(program / below, "")
    assert finding.outcome is Grade.PROBLEM
    assert finding.found.lower().replace("directory", "folder").endswith("not a folder")
    assert "--data-dir" in finding.advice


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ('{"argv": [], "display_name": "x", "language": "python"}', "names no program"),
        ('{"argv": ["/x"], "metadata": {"kernel_provisioner": "x"}}', "kernel_provisioner"),
        ('{"argv": ["/x"], "metadata": {"kernel_provisioner": {"config": 3}}}', "kernel_provisioner"),
        ('{"argv": ', "Expecting value"),
        ("[]", "mapping"),
        ("\udcff", "decode"),
    ],
)
def test_a_broken_kernelspec_is_named(tmp_path: Path, kernel: str, why: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "kernel.json").write_bytes(kernel.encode(errors="surrogateescape"))
    finding = judge_kernelspecs(KernelspecCatalog(kernel_dirs=[str(tmp_path)]))
    assert finding.outcome is Grade.NOTE
    assert finding.found.startswith(f"{folder} can't be used: ")
    assert why in finding.found
    assert "cellgate setup" in finding.advice


async def test_a_sandbox_that_can_t_be_tried_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null/none")
    finding = await try_sandbox()
    assert finding.outcome is Grade.NOTE
    assert finding.found.startswith("could not be tried: Not a directory (/dev/null/none/")
    assert "TMPDIR" in finding.advice


@pytest.mark.parametrize("url", ["http://[::1", "tcp://localhost:abc", "foo://x", "unix://" + "/x" * 100])
async def test_an_engine_of_a_wrong_address_is_a_note(tmp_path: Path, url: str) -> None:
    place = DoctorPlace(tmp_path, "127.0.0.1", 0, url, ContainerSettings())
    (finding,) = [finding async for finding in try_engine(place)]
    assert (finding.outcome, finding.found) == (Grade.NOTE, "not used")
    assert url in finding.advice


@pytest.mark.parametrize(
    ("kind", "said"),
    [(KernelStartFailed, "refused"), (BackendUnavailable, "is gone"), (ImageMissing, "none")],
)
@pytest.mark.parametrize("after", ["open", "version", "inspect_image"])
async def test_an_engine_that_fails_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[CellgateError], said: str, after: str
) -> None:
    async def open_it(engine: Engine) -> None:
        if after == "open":
            raise kind(said)

    async def call(engine: Engine, function: Callable[..., object], *arguments: object) -> object:
        if function.__name__ == after:
            raise kind(said)
        return {"Runtimes": None, "Version": "1"}

    monkeypatch.setattr(Engine, "open", open_it)
    monkeypatch.setattr(Engine, "call", call)
    place = DoctorPlace(tmp_path, "127.0.0.1", 0, "unix:///x", ContainerSettings())
    findings = [finding async for finding in try_engine(place)]
    failed = findings[1 if after == "inspect_image" else 0]
    assert failed.outcome is Grade.NOTE
    assert failed.advice == said or "cellgate image build" in failed.advice


@pytest.mark.parametrize(
    ("swaps", "found"),
    [
        (SWAPS, "3.0 GiB: sessions whose kernels can sleep do so"),
        (SWAPS.splitlines()[0], "none: sessions end after their idle_timeout"),
        ("", "none: sessions end"),
    ],
)
def test_swap_is_summed(swaps: str, found: str) -> None:
    assert find_swap(swaps).found.startswith(found)


MEMORY = "32 31 0:29 / /cgroup/memory rw - cgroup cgroup rw,memory\n"
FREEZER = "37 31 0:34 / /cgroup/freezer rw - cgroup cgroup rw,freezer\n"
TWO = "41 31 0:38 / /cgroup/unified rw - cgroup2 cgroup2 rw\n"
ROOT, SOMEBODY = 0, 1000


@pytest.mark.parametrize(
    ("mounts", "user", "found"),
    [
        ("", ROOT, "none are seen here"),
        (MEMORY, ROOT, "none are seen here"),
        (MEMORY + FREEZER, ROOT, "version 1: kernels in containers can sleep"),
        (MEMORY + FREEZER, SOMEBODY, "version 1: kernels can't sleep"),
        (
            MEMORY + FREEZER + TWO,
            ROOT,
            "version 1 and 2: forked kernels in sandboxes (if the gateway is alone in its group) and kernels",
        ),
        (
            TWO,
            SOMEBODY,
            "version 2: forked kernels in sandboxes (if the gateway is alone in its group) can sleep",
        ),
    ],
)
def test_control_groups(tmp_path: Path, mounts: str, user: int, found: str) -> None:
    own = tmp_path / "proc/self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text("6:freezer:/\n4:memory:/\n0::/\n")
    (own / "mountinfo").write_text(mounts)
    finding = find_control_groups(user, tmp_path)
    if mounts and "none" not in found:
        assert "without the right" in finding.found
    for name in ("memory", "freezer", "unified"):
        (tmp_path / "cgroup" / name).mkdir(parents=True)
    finding = find_control_groups(user, tmp_path)
    assert finding.found.startswith(found)
    assert (finding.outcome is Grade.OK) is finding.found.endswith("can sleep")


@pytest.mark.parametrize(("most", "outcome"), [(-1, Grade.OK), (1024, Grade.NOTE), (4096, Grade.OK)])
def test_open_files(most: int, outcome: Grade) -> None:
    assert find_open_files(most).outcome is outcome


def test_a_port_in_use_and_a_free_one(free_port: int) -> None:
    with closing(socket.create_server(("127.0.0.1", free_port))):
        assert try_port("127.0.0.1", free_port).outcome is Grade.NOTE
        assert try_port("127.0.0.1", free_port, serving=True).outcome is Grade.OK
    assert try_port("127.0.0.1", free_port) == Diagnosis("port", Grade.OK, f"127.0.0.1:{free_port} is free")


@pytest.mark.parametrize("name", ["x" * 70 + ".example", "a..b"])
def test_what_is_no_address_is_a_problem(name: str) -> None:
    finding = try_port(name, 8888)
    assert finding.outcome is Grade.PROBLEM
    assert "is no address" in finding.found
    assert "--ip" in finding.advice


def test_an_address_of_another_machine_is_a_problem() -> None:
    finding = try_port("192.0.2.1", 8888)
    assert finding.outcome is Grade.PROBLEM
    assert finding.found == "192.0.2.1 is no address of this machine"


YES = Diagnosis("kernel environment", Grade.OK, "")
NO = Diagnosis("kernel environment", Grade.NOTE, "")
CONTAINERS = [Diagnosis("container engine", Grade.OK, ""), Diagnosis("kernel image", Grade.OK, "")]


@pytest.mark.parametrize(
    ("kernelspecs", "sandbox", "landlock", "engine", "outcome", "word"),
    [
        (NO, NO, NO, CONTAINERS, Grade.OK, "container"),
        (YES, YES, YES, [], Grade.OK, "sandbox"),
        (YES, YES, NO, CONTAINERS[:1], Grade.OK, "sandbox"),
        (YES, NO, YES, [], Grade.NOTE, "landlock, which is less than a sandbox: "),
        (YES, NO, NO, [], Grade.PROBLEM, "none"),
        (NO, YES, YES, CONTAINERS[:1], Grade.PROBLEM, "no kernels"),
    ],
)
def test_the_isolation_is_that_which_serve_would_take(
    kernelspecs: Diagnosis,
    sandbox: Diagnosis,
    landlock: Diagnosis,
    engine: list[Diagnosis],
    outcome: Grade,
    word: str,
) -> None:
    finding = judge_isolation(kernelspecs, sandbox, landlock, engine)
    assert finding.outcome is outcome
    assert word in finding.found


def test_the_command_tells_what_is_missing_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "no\udcfftext"  # a path need not be text
    words = ["doctor", "--json", "--data-dir", str(data), "--docker-url", f"unix://{tmp_path}/none"]
    with pytest.raises(SystemExit) as left:
        main(words)
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["container engine"]["outcome"] == "note"
    assert f"{tmp_path}/none" in findings["container engine"]["advice"]
    assert "kernel image" not in findings
    assert f"{tmp_path}/no\\udcfftext: " in findings["data folder"]["found"]
    assert left.value.code == (findings["isolation"]["outcome"] == "problem")
    assert list(tmp_path.iterdir()) == []


def test_the_port_is_that_of_the_running_gateway_or_of_the_settings_of_serve(
    tmp_path: Path, free_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PATIENCE", 0.5)
    file = tmp_path / "config.py"
    file.write_text("c.ServeApp.port = 9\nc.ServeApp.ip = '192.0.2.1'\n")
    words = ["doctor", "--json", f"--data-dir={tmp_path}", f"--docker-url=unix://{tmp_path}/none"]

    def port(*more: str) -> str:
        with pytest.raises(SystemExit):
            main([*words, *more])
        findings.update({each["subject"]: each for each in json.loads(capsys.readouterr().out)})
        return str(findings["port"]["found"])

    findings: dict[str, dict[str, Any]] = {}
    assert port(f"--config={file}") == "192.0.2.1 is no address of this machine"
    assert (
        port(f"--config={file}", "--ip=127.0.0.1", f"--port={free_port}") == f"127.0.0.1:{free_port} is free"
    )
    url = f"http://127.0.0.1:{free_port}"
    (tmp_path / "gateway.json").write_text(json.dumps({"url": url, "token": "", "pid": 1}))
    with closing(socket.create_server(("127.0.0.1", free_port))):
        assert port() == f"the gateway of this data folder serves at 127.0.0.1:{free_port}"
    assert findings["gateway"]["found"].endswith("does not answer: nothing within 0.5 s")
