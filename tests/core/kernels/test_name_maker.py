"""What a branch's names need is allowed in a sandbox for a moment, and never for longer."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from cellgate_kernels.launch import name_maker, names

FORBIDDEN = "1\n"
BESIDE = Path(name_maker.__file__).parent
ALLOWS = f"""
import os, sys, time
sys.path.insert(0, {str(BESIDE)!r})
import name_maker
name_maker.NAMESPACES = sys.argv[1]
"""
"""As the program does once it is in the sandbox; what it sets there is a file of ours."""
WAITS = f"""{ALLOWS}
writer = name_maker.allow_another()
print("allowed", flush=True)
time.sleep(1000)
"""
CAN_NOT_FORK = f"""{ALLOWS}
def fork():
    raise OSError(11, "no process is left")
os.fork = fork
name_maker.allow_another()
"""
GOES_ON = f"""{ALLOWS}
writer = name_maker.allow_another()
os.write(writer, b"123\\n")
"""


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    path = tmp_path / "max_user_namespaces"
    path.write_text(FORBIDDEN)
    return path


def program(code: str, setting: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-I", "-S", "-c", code, str(setting)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.parametrize("how", ["its input ends", "interrupted"])
def test_whoever_ends_the_program_early_finds_all_as_it_was(setting: Path, how: str) -> None:
    with program(WAITS, setting) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stdout.readline() == "allowed\n"
        assert setting.read_text() == name_maker.MANY
        # An interrupt between the program's last step and its wait would be noticed when that ends.
        while psutil.Process(running.pid).status() != psutil.STATUS_SLEEPING:
            time.sleep(0.01)
        if how == "interrupted":
            running.send_signal(signal.SIGINT)
        else:
            running.stdin.close()
        running.wait(60)
        assert setting.read_text() == FORBIDDEN
        # The process that was to be in the namespaces has ended, too.
        assert running.stdout.read() == ""


def test_a_program_that_can_not_fork_forbids_it_again(setting: Path) -> None:
    with program(CAN_NOT_FORK, setting) as running:
        assert running.wait(60) == 1
    assert setting.read_text() == FORBIDDEN


def test_it_is_forbidden_again_before_anybody_learns_that_it_is_done(setting: Path) -> None:
    with program(GOES_ON, setting) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "123\n"
        assert setting.read_text() == FORBIDDEN


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "it does not"])
async def test_a_program_that_takes_too_long_may_do_its_last_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    seen = tmp_path / "seen"
    slow = tmp_path / "slow.py"
    # What it says is no number: as if its time were over.
    slow.write_text(
        "import pathlib, sys, time\n"
        "print('it has begun', end='', flush=True)\n"
        "sys.stdin.read()\n"
        f"pathlib.Path({str(seen)!r}).touch()\n"
        f"time.sleep({0 if ends else 1000})\n"
    )
    monkeypatch.setattr(names, "_PROGRAM", slow)
    monkeypatch.setattr(names, "_LAST_WORDS", 60.0 if ends else 0.1)
    with pytest.raises(OSError, match="it was not done"):
        await asyncio.to_thread(names._make, names.NamesRequest(1, 1, "/", "/", 0, 0))
    if ends:
        assert seen.exists()


def test_a_gateway_with_thousands_of_open_files_hears_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of select(2) descriptors must be below 1,024."""
    says = tmp_path / "says.py"
    says.write_text("import os\nprint(os.getppid(), flush=True)\ninput()\n")
    monkeypatch.setattr(names, "_PROGRAM", says)
    with ExitStack() as stack:
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        made = names._make(names.NamesRequest(1, 1, "/", "/", 0, 0))
        stack.callback(made.close)
        assert max(made.descriptors) > 1024
