"""The command that exports, when the answer fails in the middle: it says so and leaves no file."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.http.test_broken_off import FAILURES, HANDLERS
from tests.support.listening import listening


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("option", ["--to=ipynb", "--bundle"])
async def test_the_command_says_so_and_leaves_no_file(failure: str, option: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("cellgate")), "export", failure, option]
    async with listening(HANDLERS) as (port, _):
        command.append(f"--url=http://127.0.0.1:{port}")
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode not in {0, None}
    assert "ended early" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []  # noqa: PTH208
