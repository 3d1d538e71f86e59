"""docs/how-to/test-with-fakes.md: its example runs, and does what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-with-fakes.md"


def test_the_example_prints_what_the_page_says() -> None:
    code, output = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text(), re.DOTALL)[:2]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")
