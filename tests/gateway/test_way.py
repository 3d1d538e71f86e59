"""The way of one cell stays short: files it enters, and calls from a kernel's socket to the journal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# What a principal uses, metrics, and who tells them and the tracer: four of the files. One more is for
# streams, which begin while a session waits in line, and one for what can be undone.
MOST_FILES, MOST_HOPS = 37, 8


def test_a_cell_enters_few_files_and_a_message_takes_few_calls() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.way"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    found = re.match(r"(\d+) files, \d+ calls, (\d+) hops at the most\n", done.stdout)
    assert found is not None, done.stdout
    files, hops = map(int, found.groups())
    assert 0 < hops <= MOST_HOPS, done.stdout
    assert 0 < files <= MOST_FILES, done.stdout
