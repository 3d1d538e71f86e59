"""A program that a test starts ends with all that it has started: else browsers stay behind."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.families import running
from tests.support.server import until

SCRIPTS = {
    "below a shell": "{sleep} 600; true",
    "in a session of its own": "setsid {sleep} 600; true",
    "of a shell that has ended": "{sleep} 600 &",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_program_has_started_ends_with_it(tmp_path: Path, name: str) -> None:
    sleep = tmp_path / "sleep"
    sleep.symlink_to("/bin/sleep")

    def sleepers() -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _is(process, str(sleep))]

    with running(["sh", "-c", SCRIPTS[name].format(sleep=sleep)]):
        until(sleepers, "it does not begin")
    until(lambda: not sleepers(), "it runs on")


def _is(process: psutil.Process, program: str) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()[:1] == [program]
    return False
