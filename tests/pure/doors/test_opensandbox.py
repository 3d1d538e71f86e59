"""The door for OpenSandbox: what events become, quantities, modes, and what a program may answer."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from cellgate.doors.opensandbox.bodies import NewSandboxBody, PolicyBody, RenewBody, resources
from cellgate.doors.opensandbox.filing import PROGRAM, Filed, FileEntry, call, check_mode, check_owner
from cellgate.doors.opensandbox.frames import LONGEST, CellFrames, CommandFrames
from cellgate.doors.sandbox.errors import Unsupported
from cellgate.execution.limits import LimitCeilings
from cellgate.record.rows import EventRow
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import MIB, ResourceLimits

AT = "2030-01-01T00:00:00.000000Z"


def row(kind: str, **fields: object) -> EventRow:
    body = json.dumps({"type": kind, "at": AT, **fields}).encode()
    return EventRow(1, 1, kind, "x", body, b"")


def told(frames: list[bytes]) -> list[dict[str, object]]:
    assert all(each.startswith(b"data: ") and each.endswith(b"\n\n") for each in frames)
    return [json.loads(each[6:]) for each in frames]


# ---- events ------------------------------------------------------------------------------------------------


def test_a_cell_that_could_not_come_to_its_end_has_none() -> None:
    finished = {"status": "timeout", "cause": "cell_timeout", "error": {"ename": "X", "evalue": "too long"}}
    (error,) = told(CellFrames()([row("finished", **finished)]))
    assert error == {
        "type": "error",
        "error": {"ename": "cell_timeout", "evalue": "too long", "traceback": []},
        "timestamp": 1893456000000,
    }


def test_an_error_is_told_once_without_colours() -> None:
    frames = CellFrames()
    raised = row("error", ename="E", evalue="\x1b[31mno\x1b[0m", traceback=["\x1b[31mone\x1b[0m"])
    events = told(frames([raised, row("finished", status="error", duration_ms=2.4)]))
    assert [each["type"] for each in events] == ["error", "status", "execution_complete"]
    assert events[0]["error"] == {"ename": "E", "evalue": "no", "traceback": ["one"]}
    assert events[2]["execution_time"] == 2


def test_what_goes_into_a_widget_is_left_out() -> None:
    rows = [row("stream", name="stdout", text="x", widget="w"), row("display_data", data={}, widget="w")]
    assert CellFrames()([*rows, row("something_new", text="x")]) == []


def output(text: str, name: str = "stdout") -> EventRow:
    return row("process_output", name=name, text=text)


def test_lines_of_a_command_are_put_together() -> None:
    frames = CommandFrames()
    events = told(frames([output("a"), output("b\nc"), output("e", "stderr"), output("\r\n\n")]))
    assert [(each["type"], each["text"]) for each in events] == [
        ("stdout", "ab"),
        ("stdout", "c"),
        ("stdout", ""),
    ]
    end = told(frames([row("process_exited", exit_code=0, duration_ms=1.0)]))
    assert [(each["type"], each.get("text")) for each in end] == [
        ("stderr", "e"),
        ("execution_complete", None),
    ]


def test_a_line_without_an_end_is_told_in_pieces() -> None:
    frames = CommandFrames()
    assert frames([output("x" * LONGEST)]) == []
    (event,) = told(frames([output("x")]))
    assert event["text"] == "x" * (LONGEST + 1)
    assert told(frames([output("y\n")]))[0]["text"] == "y"


@pytest.mark.parametrize(
    ("fields", "value", "how"),
    [
        ({"exit_code": 3}, "3", "exit status 3"),
        ({"exit_code": None, "signal": "SIGKILL"}, "-1", "signal: SIGKILL"),
        ({"exit_code": None, "cause": "kernel_exit"}, "-1", "signal: kernel_exit"),
        ({"exit_code": 143, "cause": "timeout"}, "143", "the command ran longer than its time"),
    ],
)
def test_a_command_that_failed(fields: dict[str, object], value: str, how: str) -> None:
    (event,) = told(CommandFrames()([row("process_exited", **fields)]))
    assert event["error"] == {"ename": "CommandExecError", "evalue": value, "traceback": [how]}


# ---- bodies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, (None, None)),
        ({"cpu": "2"}, (2.0, None)),
        ({"cpu": "250m", "memory": "1Gi"}, (0.25, 1024 * MIB)),
        ({"memory": "1.5Ki"}, (None, 1536)),
        ({"memory": "1k"}, (None, 1000)),
        ({"memory": "1000000"}, (None, 1_000_000)),
        ({"cpu": "64", "memory": "1Ti"}, (4.0, 2048 * MIB)),
    ],
)
def test_resources_up_to_the_ceilings(
    asked: dict[str, str] | None, found: tuple[float | None, int | None]
) -> None:
    most = LimitCeilings(ResourceLimits(memory=2048 * MIB, cpus=4.0))
    assert resources(asked, most) == found


@pytest.mark.parametrize(
    "bad", ["", "-1", "1ki", "1KI", "1e3", "1 Gi", "\u0661", "1mi", "9" * 13, "1.", "0x1"]
)
def test_what_is_no_quantity(bad: str) -> None:
    with pytest.raises(InvalidInput, match="resourceLimits"):
        resources({"cpu": bad}, LimitCeilings())


def test_a_resource_that_is_not_there() -> None:
    with pytest.raises(Unsupported, match="gpu"):
        resources({"gpu": "1"}, LimitCeilings())


@pytest.mark.parametrize(
    ("policy", "has"),
    [
        (None, True),
        (PolicyBody(), True),
        (PolicyBody(default="allow"), True),
        (PolicyBody(default="deny", egress=[]), False),
        (PolicyBody(egress=[]), False),
    ],
)
def test_a_policy_without_an_action_denies(policy: PolicyBody | None, *, has: bool) -> None:
    assert NewSandboxBody(policy=policy).has_network is has


def test_a_time_is_a_moment_to_come() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=100)
    assert 90 < RenewBody(at=soon.isoformat()).seconds() <= 100
    for bad in ("2000-01-01T00:00:00Z", "2100-01-01T00:00:00", "x"):
        with pytest.raises(InvalidInput, match="expiresAt"):
            RenewBody(at=bad).seconds()


# ---- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "bits"), [(0, 0), (644, 0o644), (755, 0o755), (7777, 0o7777)])
def test_modes_are_octal_digits(mode: int, bits: int) -> None:
    assert check_mode(mode) == bits


@pytest.mark.parametrize("mode", [-1, 8, 649, 99999])
def test_what_is_no_mode(mode: int) -> None:
    with pytest.raises(InvalidInput, match="mode"):
        check_mode(mode)


def test_paths_and_owners() -> None:
    assert call("info", "/home/user/a/../b") == ("info", "/home/user/a/../b", "b")
    assert call("visit", "/workspace", 1, None) == ("visit", "/workspace", ".", 1, None)
    assert call("info", "/etc/../tmp/a") == ("info", "/etc/../tmp/a", "/tmp/a")
    with pytest.raises(InvalidInput, match="missing"):
        call("info", "")
    check_owner(None, "")
    with pytest.raises(Unsupported, match="owner"):
        check_owner("root", None)


def test_what_the_program_tells_is_checked() -> None:
    entry = ["a", 0o100644, 1, 1e300, -1.0, "u", "g"]
    (found,) = msgspec.json.decode(json.dumps({"entries": [entry]}), type=Filed).entries
    shown = found.told()
    assert (shown["type"], shown["mode"]) == ("file", 644)
    assert (shown["modified_at"], shown["created_at"]) == (
        "9999-12-31T23:59:59+00:00",
        "1970-01-01T00:00:00+00:00",
    )
    for bad in (["a"], [1, *entry[1:]], ["a" * 10_000, *entry[1:]], [*entry[:5], "u" * 300, "g"]):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(json.dumps({"entries": [bad]}), type=Filed)
    assert FileEntry("p", 10**30, 1, 0.0, 0.0, "u", "g").told()["type"] == "other"


def answered(folder: Path, *calls: tuple[object, ...]) -> Filed:
    """What the program answers in a folder."""
    command = [sys.executable, "-IS", "-c", PROGRAM, json.dumps(calls)]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=Filed)


def test_the_program_follows_no_links_to_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f.txt").write_text("x")
    (tmp_path / "link").symlink_to("a")
    found = answered(tmp_path, ("visit", "at", ".", 9, "*.txt"))
    assert [each.path for each in found.entries] == ["at/a/f.txt"]
    found = answered(tmp_path, ("visit", "at", ".", 9, None))
    assert [(each.path, each.told()["type"]) for each in found.entries] == [
        ("at/a", "directory"),
        ("at/a/f.txt", "file"),
        ("at/link", "symlink"),
    ]
    answered(tmp_path, ("remove_folder", "link", "link"))
    assert (tmp_path / "a" / "f.txt").read_text() == "x"


def test_the_program_stops_at_the_first_failure(tmp_path: Path) -> None:
    found = answered(tmp_path, ("make", "a", "a", 0o755), ("info", "none", "none"), ("make", "b", "b", 0o755))
    assert (found.missing, found.path, found.error) == (True, "none", "No such file or directory")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a"]


def test_the_program_replaces_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xffone\r\none")
    assert answered(tmp_path, ("replace", "f", "f", "one", "1")).counts == {"f": 2}
    assert (tmp_path / "f").read_bytes() == b"\xff1\r\n1"
