"""``cellgate doctor``: what it makes of what the system tells, and the command itself on this machine."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path

import pytest

from cellgate.cli.main import main
from cellgate.server.doctor import (
    Finding,
    Outcome,
    file_system_of,
    find_control_groups,
    find_disk,
    find_open_files,
    find_swap,
    judge_isolation,
    try_port,
)

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /srv/our\\040data nfs4 rw 0 0
tmpfs /srv/our\\040data/fast tmpfs rw 0 0
/dev/vdb /srv/our\\040data/fast xfs rw 0 0
short line
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
    ],
)
def test_the_file_system_is_that_of_the_nearest_and_latest_mount(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


def test_a_data_folder_on_a_network_is_a_problem(tmp_path: Path) -> None:
    mounts = f"server:/home {tmp_path} nfs4 rw 0 0\n"
    (finding,) = find_disk(tmp_path / "data", mounts)
    assert finding.outcome is Outcome.PROBLEM
    assert "nfs4" in finding.found
    assert "--data-dir" in finding.advice


def test_a_data_folder_that_can_be_made_is_no_problem(tmp_path: Path) -> None:
    (finding,) = find_disk(tmp_path / "not" / "there" / "yet", f"/dev/vda {tmp_path} ext4 rw 0 0\n")
    assert finding.found.endswith("on ext4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("swaps", "found"), [(SWAPS, "3.0 GiB"), (SWAPS.splitlines()[0], "none"), ("", "none")]
)
def test_swap_is_summed(swaps: str, found: str) -> None:
    assert find_swap(swaps).found.startswith(found)


def test_control_groups(tmp_path: Path) -> None:
    assert find_control_groups(tmp_path).outcome is Outcome.NOTE
    (tmp_path / "cgroup.controllers").touch()
    assert find_control_groups(tmp_path).found.startswith("version 2")
    (tmp_path / "freezer").mkdir()
    assert find_control_groups(tmp_path).found.startswith("version 1")


@pytest.mark.parametrize(("most", "outcome"), [(-1, Outcome.OK), (1024, Outcome.NOTE), (4096, Outcome.OK)])
def test_open_files(most: int, outcome: Outcome) -> None:
    assert find_open_files(most).outcome is outcome


def test_a_port_in_use_and_a_free_one() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        assert try_port("127.0.0.1", port).outcome is Outcome.NOTE
    assert try_port("127.0.0.1", port) == Finding("port", Outcome.OK, f"127.0.0.1:{port} is free")


def test_an_address_of_another_machine_is_a_problem() -> None:
    assert try_port("192.0.2.1", 8888).outcome is Outcome.PROBLEM


YES = Finding("kernel environment", Outcome.OK, "")
NO = Finding("kernel environment", Outcome.NOTE, "")
CONTAINERS = [Finding("container engine", Outcome.OK, ""), Finding("kernel image", Outcome.OK, "")]


@pytest.mark.parametrize(
    ("kernelspecs", "sandbox", "engine", "outcome", "word"),
    [
        (NO, NO, CONTAINERS, Outcome.OK, "container"),
        (YES, YES, [], Outcome.OK, "sandbox"),
        (YES, YES, CONTAINERS[:1], Outcome.OK, "sandbox"),
        (YES, NO, [], Outcome.PROBLEM, "none"),
        (NO, YES, CONTAINERS[:1], Outcome.PROBLEM, "no kernels"),
    ],
)
def test_the_isolation_is_that_which_serve_would_take(
    kernelspecs: Finding, sandbox: Finding, engine: list[Finding], outcome: Outcome, word: str
) -> None:
    finding = judge_isolation(kernelspecs, sandbox, engine)
    assert finding.outcome is outcome
    assert word in finding.found


def test_the_command_tells_what_is_missing_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--json", "--data-dir", str(tmp_path), "--docker-url", f"unix://{tmp_path}/none"]
    with pytest.raises(SystemExit) as left:
        main(words)
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["container engine"]["outcome"] == "note"
    assert f"{tmp_path}/none" in findings["container engine"]["advice"]
    assert "kernel image" not in findings
    assert left.value.code == (findings["isolation"]["outcome"] == "problem")
    assert list(tmp_path.iterdir()) == []
